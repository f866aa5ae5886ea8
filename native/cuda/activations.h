// What a product is given: rows of floats as they are, or quantised to int8 in blocks of 32; the norm before them.
#pragma once
#include "arithmetic.h"

namespace assay {

// Rows of quantised activations, padded with zeros to whole units of 256 columns: q [rows][stride], and per block of 32
// (d, d * sum) and the sums of its halves (n0 in the low 16 bits, n1 in the high ones), [blocks][step]. There is room for more
// rows than there are tokens, so that a tile need not look where they end.
struct Acts {
    int8_t* q;
    float2* ds;
    uint32_t* n;
    int32_t stride, step;  // columns, a multiple of 256; rows that there is room for
};
DEVICE int low_sum(uint32_t n) { return int16_t(n & 0xffff); }
DEVICE int high_sum(uint32_t n) { return int16_t(n >> 16); }
DEVICE int both_sums(uint32_t n) { return low_sum(n) + high_sum(n); }

// dot(x, x) of docs/arithmetic.md by one warp: 64 chains, two a lane, then the tree. Lane 0 has the result.
DEVICE float sum_of_squares(const float* x, int n) {
    float s = 0.0f, t = 0.0f;
    int i = lane();
#pragma unroll 16
    for (; i + 32 < n; i += 64) {
        s = fma(x[i], x[i], s);
        t = fma(x[i + 32], x[i + 32], t);
    }
    if (i < n) s = fma(x[i], x[i], s);
    s = s + t;
    for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
    return s;
}

// 1 / sqrt(mean x^2 + eps) for all threads of a block; `room`: a float of shared memory.
DEVICE float norm_factor(const float* x, int n, float eps, float* room) {
    if (thread() < 32) {
        const float squares = sum_of_squares(x, n);
        if (thread() == 0) *room = 1.0f / square_root(squares / float(n) + eps);
    }
    sync_block();
    return *room;
}

// Eight neighbouring values, 8 `at` to 8 `at` + 7, as part of a block of 32: lanes 4 j to 4 j + 3 hold one block. With
// kMagic added, a rounded value stands in the low byte.
DEVICE void quantise_eight(const float (&x)[8], int at, int8_t* q, float2* ds, uint32_t* n, int step = 1) {
    int top = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int a = int(bits(x[j]) & 0x7fffffffu);
        top = top > a ? top : a;
    }
#pragma unroll
    for (int h = 1; h < 4; h *= 2) {
        const int other = shuffle_xor(top, h);
        top = top > other ? top : other;
    }
    const Scale s = block_scale(uint32_t(top));
    uint32_t v[8];
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = bits(x[j] * s.inverse + kMagic);
    uint32_t low = permute(permute(v[0], v[1], 0x0040), permute(v[2], v[3], 0x0040), 0x5410);
    uint32_t high = permute(permute(v[4], v[5], 0x0040), permute(v[6], v[7], 0x0040), 0x5410);
    if (s.inverse == 0.0f) low = high = 0;
    int sum = dp4a(int(low), 0x01010101, dp4a(int(high), 0x01010101, 0));
    reinterpret_cast<uint2*>(q)[at] = {low, high};
    sum += shuffle_xor(sum, 1);
    const int second = shuffle_xor(sum, 2);
    if (at % 4 == 0) {
        ds[at / 4 * step] = {s.d, s.d * float(sum + second)};
        n[at / 4 * step] = uint32_t(sum & 0xffff) | uint32_t(second) << 16;
    }
}

DEVICE void load_eight(const float* x, float (&v)[8]) {
    const float4 a = reinterpret_cast<const float4*>(x)[0], b = reinterpret_cast<const float4*>(x)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// One row by the threads of a block, normed on the way if `norm`, the weights in shared memory, is given; `row`: shared
// memory for it then, and a float before it. Columns from `columns` (a multiple of 32) to the stride become zeros.
DEVICE void quantise_row(const float* x, const float* norm, float eps, int columns, int stride, float* row, int8_t* q, float2* ds,
                         uint32_t* n, int step = 1) {
    float f = 0.0f;
    if (norm) {
        const float4* from = reinterpret_cast<const float4*>(x);
        for (int i = thread(); i < columns / 4; i += 2 * threads()) {  // two on their way
            const int second = i + threads() < columns / 4 ? i + threads() : i;
            const float4 v = from[i], w = from[second];
            reinterpret_cast<float4*>(row)[i] = v;
            reinterpret_cast<float4*>(row)[second] = w;
        }
        sync_block();
        f = norm_factor(row, columns, eps, row - 4);
    }
    const auto load = [&](int i, float (&v)[8]) {
        if (8 * i >= columns) {
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = 0.0f;
            return;
        }
        load_eight((norm ? row : x) + 8 * i, v);
        if (!norm) return;
        float w[8];
        load_eight(norm + 8 * i, w);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = (v[j] * f) * w[j];
    };
    for (int i = thread(); i < stride / 8; i += 2 * threads()) {  // whole warps: the stride is a multiple of 256
        const int second = i + threads();
        float v[8], w[8];
        load(i, v);
        if (second < stride / 8) load(second, w);
        quantise_eight(v, i, q, ds, n, step);
        if (second < stride / 8) quantise_eight(w, second, q, ds, n, step);
    }
}

// A row of floats on its way to shared memory, as one group of copies.
DEVICE void copy_row(float* to, const float* from, int columns) {
    for (int i = thread(); i < columns / 4; i += threads()) copy_async(to + 4 * i, from + 4 * i);
    copy_group();
}

}  // namespace assay
