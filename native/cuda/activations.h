// Inputs of a product: rows of floats, or rows quantised to int8 in blocks of 32; and the RMS norm before them.
#pragma once
#include "arithmetic.h"

namespace assay {

// Layout of quantised activations (abi.h, Acts). Rows are padded with zeros to whole units of 256 columns. A block of
// 32 has codes, (d, d * sum), and the sums of its halves: n0 in the low 16 bits, n1 in the high ones. With step 0, for
// kernels that take rows one by one, ds and n are [rows][blocks]. Otherwise they are [blocks][step], with memory for
// whole tiles of tokens, so that a tile needs no bounds check.
DEVICE int low_sum(uint32_t n) { return int16_t(n & 0xffff); }
DEVICE int high_sum(uint32_t n) { return int16_t(n >> 16); }
DEVICE int both_sums(uint32_t n) { return low_sum(n) + high_sum(n); }

template <int N>
struct Constant {
    static constexpr int value = N;
};

// dot(x, x) of docs/reference/arithmetic.md by one warp: 64 chains, of which lane l has 2 l and 2 l + 1, then the reduction tree.
// Lane 0 has the result. x is aligned to 8 bytes.
DEVICE float sum_of_squares(const float* x, int n) {
    float s = 0.0f, t = 0.0f;
    int i = 2 * lane(), left = n / 64;
    const auto rounds = [&](auto some) {  // unrolled: issue all loads, then accumulate
#pragma unroll 1
        for (; left >= some.value; left -= some.value)
#pragma unroll
            for (int k = 0; k < some.value; k++, i += 64) {
                const float2 v = *reinterpret_cast<const float2*>(x + i);
                s = fma(v.x, v.x, s);
                t = fma(v.y, v.y, t);
            }
    };
    rounds(Constant<16>{});
    rounds(Constant<8>{});
    rounds(Constant<1>{});
    if (i < n) s = fma(x[i], x[i], s);
    if (i + 1 < n) t = fma(x[i + 1], x[i + 1], t);
#pragma unroll
    for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h), t = t + shuffle_down(t, h);
    return s + t;
}

// 1 / sqrt(mean x^2 + eps) for all threads of a block; `room` is a float of shared memory.
DEVICE float norm_factor(const float* x, int n, float eps, float* room) {
    if (thread() < 32) {
        const float squares = sum_of_squares(x, n);
        if (thread() == 0) *room = 1.0f / square_root(squares / float(n) + eps);
    }
    sync_block();
    return *room;
}

// Quantise eight neighbouring values of a block of 32, which lanes 4 j to 4 j + 3 hold together. Results: their codes,
// and the block's d, d * sum and, in its first lane, the sums of its halves. Adding kMagic puts the rounded value into
// the low byte.
struct EightCodes {
    uint32_t low, high, n;
    float2 ds;
};
DEVICE EightCodes codes_of(const float (&x)[8]) {
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
    sum += shuffle_xor(sum, 1);
    const int second = shuffle_xor(sum, 2);
    return {low, high, uint32_t(sum & 0xffff) | uint32_t(second) << 16, {s.d, s.d * float(sum + second)}};
}
// Store values 8 `at` to 8 `at` + 7 of a row.
DEVICE void quantise_eight(const float (&x)[8], int at, int8_t* q, float2* ds, uint32_t* n, int step = 1) {
    const EightCodes of = codes_of(x);
    reinterpret_cast<uint2*>(q)[at] = {of.low, of.high};
    if (at % 4 == 0) ds[at / 4 * step] = of.ds, n[at / 4 * step] = of.n;
}

DEVICE void load_eight(const float* x, float (&v)[8]) {
    const float4 a = reinterpret_cast<const float4*>(x)[0], b = reinterpret_cast<const float4*>(x)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

}  // namespace assay
