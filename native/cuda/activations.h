// What a product is given: rows of floats as they are, or quantised to int8 in blocks of 32; the norm before them.
#pragma once
#include "arithmetic.h"

namespace assay {

// Rows of quantised activations, padded with zeros to whole units of 256 columns: q [rows][stride], and per block of 32
// (d, d * sum) and the sums of its halves (n0 in the low 16 bits, n1 in the high ones).
struct Acts {
    int8_t* q;
    float2* ds;
    uint32_t* n;
    int32_t stride, padding;  // columns, a multiple of 256
};
DEVICE int low_sum(uint32_t n) { return int16_t(n & 0xffff); }
DEVICE int high_sum(uint32_t n) { return int16_t(n >> 16); }
DEVICE int both_sums(uint32_t n) { return low_sum(n) + high_sum(n); }

// dot(x, x) of docs/arithmetic.md by the threads of a block: 64 chains by the first warp, then the tree. `chains`: a float
// of shared memory. Every thread gets the result.
DEVICE float sum_of_squares(const float* x, int n, float* chains) {
    if (thread() < 32) {
        float s = 0.0f, t = 0.0f;
        int i = thread();
#pragma unroll 8
        for (; i + 32 < n; i += 64) {
            s = fma(x[i], x[i], s);
            t = fma(x[i + 32], x[i + 32], t);
        }
        if (i < n) s = fma(x[i], x[i], s);
        s = s + t;
        for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
        if (thread() == 0) chains[0] = s;
    }
    sync_block();
    return chains[0];
}

DEVICE float norm_factor(float squares, int n, float eps) { return 1.0f / square_root(squares / float(n) + eps); }

// Eight neighbouring values, 8 `at` to 8 `at` + 7, as part of a block of 32: lanes 4 j to 4 j + 3 hold one block.
DEVICE void quantise_eight(const float (&x)[8], int at, int8_t* q, float2* ds, uint32_t* n) {
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
    int v[8], sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[j] = quantise(x[j], s);
        sum += v[j];
    }
    reinterpret_cast<uint2*>(q)[at] = {pack4(v[0], v[1], v[2], v[3]), pack4(v[4], v[5], v[6], v[7])};
    sum += shuffle_xor(sum, 1);
    const int second = shuffle_xor(sum, 2);
    if (at % 4 == 0) {
        ds[at / 4] = {s.d, s.d * float(sum + second)};
        n[at / 4] = uint32_t(sum & 0xffff) | uint32_t(second) << 16;
    }
}

DEVICE void load_eight(const float* x, float (&v)[8]) {
    const float4 a = reinterpret_cast<const float4*>(x)[0], b = reinterpret_cast<const float4*>(x)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// One row by the threads of a block: normed with `norm` on the way, if that is given, in which case `row` is shared memory
// for it. Columns from `columns` (a multiple of 32) to the stride become zeros. `Early`: a thread's first weights of the
// norm, on their way before x is there.
struct Early {
    float w[8];
    DEVICE Early(const float* norm, int columns) {
        if (norm && 8 * thread() < columns) load_eight(norm + 8 * thread(), w);
    }
};

DEVICE void quantise_row(const float* x, const float* norm, const Early& early, float eps, int columns, int stride, float* row,
                         float* chains, int8_t* q, float2* ds, uint32_t* n) {
    float f = 0.0f;
    if (norm) {
        for (int i = thread(); i < columns / 4; i += threads()) reinterpret_cast<float4*>(row)[i] = reinterpret_cast<const float4*>(x)[i];
        sync_block();
        f = norm_factor(sum_of_squares(row, columns, chains), columns, eps);
    }
    for (int i = thread(); i < stride / 8; i += threads()) {  // whole warps: the stride is a multiple of 256
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (8 * i < columns) {
            load_eight(norm ? row + 8 * i : x + 8 * i, v);
            if (norm) {
                float w[8];
                if (i == thread()) {
#pragma unroll
                    for (int j = 0; j < 8; j++) w[j] = early.w[j];
                } else {
                    load_eight(norm + 8 * i, w);
                }
#pragma unroll
                for (int j = 0; j < 8; j++) v[j] = (v[j] * f) * w[j];
            }
        }
        quantise_eight(v, i, q, ds, n);
    }
}

}  // namespace assay
