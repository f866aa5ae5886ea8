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

// dot(x, x) of docs/arithmetic.md by the threads of a block: 64 chains, then the tree. `chains`: 64 floats of shared
// memory. Needs 32 threads or more; every thread gets the result.
DEVICE float sum_of_squares(const float* x, int n, float* chains) {
    for (int c = thread(); c < 64; c += threads()) {
        float s = 0.0f;
#pragma unroll 8
        for (int i = c; i < n; i += 64) s = fma(x[i], x[i], s);
        chains[c] = s;
    }
    sync_block();
    if (thread() < 32) {
        float s = chains[thread()] + chains[thread() + 32];
        for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
        if (thread() == 0) chains[0] = s;
    }
    sync_block();
    const float s = chains[0];
    sync_block();
    return s;
}

DEVICE float norm_factor(float squares, int n, float eps) { return 1.0f / square_root(squares / float(n) + eps); }

// One row, quantised by the threads of a block, 8 threads a block of 32. `value(i)`: four values from column 4 i.
// Columns from `columns` to the stride become zeros.
template <class Value>
DEVICE void quantise_row(const Value& value, int columns, int stride, int8_t* q, float2* ds, uint32_t* n) {
    const int quads = stride / 4;  // a multiple of 64: whole warps take part in every exchange
    for (int first = 0; first < quads; first += threads()) {
        const int at = first + thread();
        if (first + thread() / 32 * 32 >= quads) continue;
        float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
        if (4 * at < columns) x = value(at);
        const uint32_t ax = bits(x.x) & 0x7fffffffu, ay = bits(x.y) & 0x7fffffffu, az = bits(x.z) & 0x7fffffffu, aw = bits(x.w) & 0x7fffffffu;
        int top = int(ax > ay ? ax : ay), other = int(az > aw ? az : aw);
        top = top > other ? top : other;
        for (int h = 1; h < 8; h *= 2) {
            other = shuffle_xor(top, h);
            top = top > other ? top : other;
        }
        const Scale s = block_scale(uint32_t(top));
        const int a = quantise(x.x, s), b = quantise(x.y, s), c = quantise(x.z, s), d = quantise(x.w, s);
        reinterpret_cast<uint32_t*>(q)[at] = pack4(a, b, c, d);
        int sum = a + b + c + d;
        for (int h = 1; h < 4; h *= 2) sum += shuffle_xor(sum, h);
        const int second = shuffle_xor(sum, 4);
        if (at % 8 == 0) {
            ds[at / 8] = {s.d, s.d * float(sum + second)};
            n[at / 8] = uint32_t(sum & 0xffff) | uint32_t(second) << 16;
        }
    }
}

}  // namespace assay
