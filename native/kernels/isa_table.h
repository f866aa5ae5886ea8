// The table of an instruction set (kernels.h: Isa), made from panel.h and floats.h.
//
// Included once per instruction set, last, inside an anonymous namespace that has defined `packer`.
#pragma once
#include "panel.h"
#include "floats.h"

void multiply(const Matrix& w, Acts format, const void* acts, int64_t m, float* out, int64_t ldo, int64_t begin,
              int64_t end) {
    const auto product = [&](const Matrix& panels, int64_t from, int64_t to) {
        if (format == Acts::Q8)
            gemm_q8(panels, static_cast<const Group*>(acts), m, out, ldo, from, to);
        else
            gemm_f32(panels, static_cast<const float*>(acts), m, out, ldo, from, to);
    };
    if (!w.packed && in_place(w.type, format, m)) return product(w, begin, end);
    with_packed(packer, w, begin, end, product);
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

Isa make_isa(const char* name, const RowOps* rows) {
    return {name, R, packer.packed_bytes, packer.pack, decode_any, prepare_tokens, multiply, dot_loop, dot_ops, rows};
}
