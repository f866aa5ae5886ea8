// The table of an instruction set (kernels.h: Isa), made from panel.h and floats.h.
//
// Included once per instruction set, last, inside an anonymous namespace.
#pragma once
#include "panel.h"
#include "floats.h"

size_t packed_size(Type type, int64_t n, int64_t k) {
    const int64_t panels = (n + R - 1) / R;
    int64_t bytes = panels * R * float_columns(k) * (type == Type::F32 ? 4 : 2);
    with_layout(type, [&](auto layout) {
        using F = decltype(layout);
        bytes = panels * (k / (32 * F::unit_blocks)) * F::unit_bytes;
    });
    return size_t(bytes);
}

void pack_rows(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t begin, int64_t end, uint8_t* dst) {
    const TypeInfo& info = *type_info(type);
    const size_t stride = size_t(k / info.block_size * info.block_bytes);
    for (int64_t first = begin; first < end; first += R) {
        const bool quantised = with_layout(type, [&](auto layout) {
            using F = decltype(layout);
            pack_panel<F>(src, stride, n, k, first, dst + first / R * (k / (32 * F::unit_blocks)) * F::unit_bytes);
        });
        if (!quantised) pack_floats(info, src, n, k, first, dst);
    }
}

void multiply(const Matrix& w, Acts format, const void* acts, int64_t m, float* out, int64_t ldo, int64_t begin,
              int64_t end) {
    if (format == Acts::Q8)
        gemm_q8(w, static_cast<const Group*>(acts), m, out, ldo, begin, end);
    else
        gemm_f32(w, static_cast<const float*>(acts), m, out, ldo, begin, end);
}

// 64 dot products on 16 accumulators; the result is stored, so that the compiler cannot drop any.
void dot_loop(int64_t iterations) {
    alignas(64) uint8_t bytes[4 * VB];
    alignas(64) int8_t acts[64];
    for (int i = 0; i < 4 * VB; i++) bytes[i] = uint8_t(i & 7);
    for (int i = 0; i < 64; i++) acts[i] = int8_t(i & 3);
    V::dot_peak(bytes, acts, iterations);
}
constexpr double dot_ops = 64.0 * L * 4 * 2;

constexpr Isa make_isa(const char* name, const RowOps* rows) {
    return {name, R, packed_size, pack_rows, decode_any, prepare_tokens, multiply, dot_loop, dot_ops, rows};
}
