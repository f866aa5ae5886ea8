// Attention over the paged cache: scores, softmax and weighted values in one pass, in blocks of 256 keys.
//
//   attend_one, attend_halves   a token a sequence: RoPE of q and k, the new key and value into the cache, and a block of
//                               threads for each (token, heads, 256 keys); the one that finishes last folds the blocks in
//                               ascending order
//   attend_tile                 many tokens of a sequence: a block of threads takes 8 ROWS query rows past all their
//                               keys; lane = key
//   attend_prompt               the same for the usual heads and caches, in tiles of registers
//
// All compute docs/reference/arithmetic.md: float32, one chain over the head for a score, 32 chains for the sum of exponentials,
// a chain per page of values. Bound by latency (one), by fma (tile).
#pragma once
#include "cache.h"
#include "mask.h"

namespace assay {

constexpr int kBlock = 256, kPages = kBlock / kPage;

struct AttentionArgs {
    const float* q;        // [tokens][heads * k dim], before RoPE if `turn` is given
    const float* k;        // attend_one: [tokens][kv heads * dim], to be turned and stored; or null: they are in the cache
    const float* v;
    const float* turn;     // [tokens][n_rot]: cosines, then sines; or null
    float* out;            // [tokens][heads * v dim]
    float* partial;        // attend_one: [tokens][heads][blocks][2 + v dim]
    int32_t* arrived;      // attend_one: [tokens][kv heads * splits], zero before and after
    const int32_t* tiles;  // attend_tile: [tiles][8]: first token, first row, rows, keys, tokens, offset of scores (2 words)
    float* kq;             // of a trace: raw scores [head][token][key] of each chunk ...
    float* state;          // ... and (m, l) of each row [token][head]
    Cache cache;
    Pool keys, values;
    Rows rows;
    Mask mask;
    const int32_t* query_rows;  // null, or the token of each query row (when only outputs are attended)
    int32_t heads, n_rot, neox, n_tokens, splits, irregular, turn_k, max_blocks;  // irregular: positions differ from slots
};

DEVICE int key_position(const AttentionArgs& a, const int32_t* pages, int slot) {
    const uint8_t* page = a.cache.pages + pages[slot / kPage] * a.cache.page_bytes + a.cache.positions_at;
    return reinterpret_cast<const int32_t*>(page)[slot % kPage];
}

// Element d of a head after RoPE; `x` is the head.
DEVICE float turned(const float* x, const float* table, int d, int n_rot, int neox) {
    if (!table || d >= n_rot) return x[d];
    const int half = n_rot / 2, i = neox ? (d < half ? d : d - half) : d / 2;
    const bool second = neox ? d >= half : d % 2;
    const float p = neox ? x[i] : x[2 * i], q = neox ? x[i + half] : x[2 * i + 1], c = table[i], s = table[half + i];
    return second ? p * s + q * c : p * c - q * s;
}

DEVICE float larger(float a, float b) { return a < b ? b : a; }

// The weight of a key that a row does not see: adding it times a finite value changes nothing, and it can be told from
// a weight that is small. Only where a value is not finite must it be left out.
constexpr float kUnseen = -0.0f;

// m and l of 256 scores, 8 a lane (page p: e[p]); e becomes exp(s - m). `seen`: bit p says that the row sees that key.
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

// A row's m and l over the blocks so far, in shared memory, and what the last block does to its sum.
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

// A sink is one more block that holds one score and no value, after all keys.
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
