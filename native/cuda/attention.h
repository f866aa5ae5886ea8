// Attention over the paged cache: scores, softmax and weighted values in one pass, in blocks of 256 keys.
//
//   attend_one, attend_halves   one token a sequence: RoPE of q and k, the new key and value into the cache, and a thread
//                               block for each (token, heads, 256 keys); the last block to finish folds all blocks in
//                               ascending order
//   attend_tile                 many tokens of a sequence: a thread block takes 8 ROWS query rows past all their keys;
//                               a lane has a key
//   attend_prompt               the same for common head widths and an f16 cache, in register tiles
//
// All compute docs/reference/arithmetic.md in float32: one chain over the head for a score, 32 chains for the sum of
// exponentials, a chain per page for the weighted values. Latency-bound (one token), fma-bound (tiles).
#pragma once
#include "cache.h"
#include "mask.h"

namespace assay {

constexpr int kPages = kBlock / kPage;

DEVICE int key_position(const AttentionArgs& a, const int32_t* pages, int slot) {
    const uint8_t* page = a.cache.pages + pages[slot / kPage] * a.cache.page_bytes + a.cache.positions_at;
    return reinterpret_cast<const int32_t*>(page)[slot % kPage];
}

// Element d of head `x` after RoPE.
DEVICE float turned(const float* x, const float* table, int d, int n_rot, int neox) {
    if (!table || d >= n_rot) return x[d];
    const int half = n_rot / 2, i = neox ? (d < half ? d : d - half) : d / 2;
    const bool second = neox ? d >= half : d % 2;
    const float p = neox ? x[i] : x[2 * i], q = neox ? x[i + half] : x[2 * i + 1], c = table[i], s = table[half + i];
    return second ? p * s + q * c : p * c - q * s;
}

DEVICE float larger(float a, float b) { return a < b ? b : a; }

// Weight of a masked key: -0 times a finite value changes no sum, and its bits differ from those of a small weight.
// Only a value that is not finite must be skipped explicitly.
constexpr float kUnseen = -0.0f;

// m and l of 256 scores, 8 a lane (page p: e[p]); e becomes exp(s - m). Bit p of `seen`: the row sees that key.
DEVICE void softmax_block(float (&e)[kPages], uint32_t seen, float& m, float& l) {
    float top = minus_infinity();
    int odd = 0;
#pragma unroll
    for (int p = 0; p < kPages; p++)
        if (seen >> p & 1) {
            top = top < e[p] ? e[p] : top;
            odd |= e[p] != e[p];
        }
    for (int h = 16; h; h /= 2) {
        top = larger(top, shuffle_xor(top, h));
        odd |= shuffle_xor(odd, h);
    }
    m = top == minus_infinity() && odd ? as_float(0xff7fffffu) : top;
    float s = 0.0f;
#pragma unroll
    for (int p = 0; p < kPages; p++) {
        e[p] = seen >> p & 1 ? exponential(e[p] - m) : kUnseen;
        s = s + e[p];
    }
    for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
    l = shuffle(s, 0);
}

DEVICE void fold(float& m, float& l, float m2, float l2, float& fa, float& fb) {
    const float top = larger(m, m2);
    fa = exponential(m - top), fb = exponential(m2 - top);
    m = top;
    l = l * fa + l2 * fb;
}

// Running m and l of a row, in shared memory, and how the last block changes its accumulator.
enum Fold { LEFT_OUT, FIRST, FOLDED };
struct RowState {
    float m, l, fa, fb;
    int32_t how, padding[3];

    DEVICE void clear() { m = minus_infinity(), l = fa = fb = 0.0f, how = LEFT_OUT; }
    DEVICE void take(float block_m, float block_l) {
        if (block_m == minus_infinity()) {
            how = LEFT_OUT;
        } else if (m == minus_infinity()) {
            m = block_m, l = block_l, how = FIRST;
        } else {
            fold(m, l, block_m, block_l, fa, fb);
            how = FOLDED;
        }
    }
    DEVICE float sum(float acc, float block) const { return how == FOLDED ? acc * fa + block * fb : how == FIRST ? block : acc; }
};

// An attention sink is one more block after all keys, with one score and no value.
DEVICE void add_sink(const Mask& mask, int head, float& m, float& l, float& acc) {
    if (!mask.sinks || mask.sinks[head] == minus_infinity()) return;
    const float sink = mask.sinks[head];
    if (m == minus_infinity()) {
        m = sink, l = 1.0f, acc = 0.0f;
        return;
    }
    float fa, fb;
    fold(m, l, sink, 1.0f, fa, fb);
    acc = acc * fa + 0.0f * fb;
}

}  // namespace assay
