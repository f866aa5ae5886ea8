// Activations as products read them, in groups of tokens, and a thread's scratch memory; shared by panel.h and
// floats.h.
//
// Included once per instruction set, inside an anonymous namespace.
#pragma once

constexpr int64_t BATCH = 256;  // tokens that use an expanded panel before the next one is expanded
constexpr int64_t CHUNK = 64;   // blocks of 32 along k that are expanded at once
constexpr int64_t FLOAT_TOKENS = 64, FLOAT_COLUMNS = 128;  // tokens and columns of floats that meet in the first-level cache

// ---- activations -------------------------------------------------------------------------------------------------

#include "group.h"
#include "quantise.h"

void quantise_row(const float* x, int64_t k, int lane, Group* group) {
    for (int64_t b = 0; b < k / 32; b++, x += 32, group++) {
        const Quantised block = quantise(x, group->q[lane]);
        group->d[lane] = block.d;
        group->s[lane] = block.d * float(block.sum[0] + block.sum[1]);
        group->neg0[lane] = -block.sum[0];
        group->neg[lane] = -(block.sum[0] + block.sum[1]);
    }
}

// Float activations: in units of UNIT columns. In a unit, 4 tokens (or all, if fewer) are interleaved, 4 columns of
// each in turn, so that a unit of weights meets one stream. For a single token, a copy times 2^112 may take the place
// of a second token (floats.h: Shifted).
constexpr int64_t UNIT = 256;
struct FloatActs {
    int64_t stride, width, tokens;  // columns and tokens with padding; tokens that are interleaved
    FloatActs(int64_t m, int64_t k)
        : stride(round_up(k, 16)), width(m == 1 ? 1 + V::shifts_halves : m < TOKENS ? m : TOKENS), tokens(round_up(m, width)) {}
    int64_t columns(int64_t c) const { return stride - c < UNIT ? stride - c : UNIT; }  // of the unit that begins at c
    // Offset of the group of tokens that begins with t, in the unit that begins at column c.
    int64_t at(int64_t c, int64_t t) const { return c * tokens + t * columns(c); }
};

void prepare_tokens(Acts format, const float* x, int64_t ldx, int64_t m, int64_t k, int64_t begin, int64_t end,
                    void* dst) {
    if (format == Acts::Q8) {
        Group* groups = static_cast<Group*>(dst);
        for (int64_t t = begin; t < end; t++)
            quantise_row(x + t * ldx, k, int(t % TOKENS), groups + t / TOKENS * (k / 32));
    } else {
        const FloatActs acts(m, k);
        for (int64_t t = begin; t < end; t++)
            for (int64_t c = 0; c < acts.stride; c += UNIT) {
                float* to = static_cast<float*>(dst) + acts.at(c, t / acts.width * acts.width) + t % acts.width * 4;
                const float* from = x + t * ldx;
                for (int64_t i = c; i < c + acts.columns(c); i += 4, to += 4 * acts.width)
                    for (int64_t j = 0; j < 4; j++) {
                        to[j] = i + j < k ? from[i + j] : 0;
                        if (V::shifts_halves && m == 1) to[4 + j] = to[j] * 0x1p112f;
                    }
            }
    }
}

// Call f with 1..4 as a constant.
template <class Function>
INLINE void by_tokens(int tokens, Function f) {
    switch (tokens) {
        case 1: return f(std::integral_constant<int, 1>{});
        case 2: return f(std::integral_constant<int, 2>{});
        case 3: return f(std::integral_constant<int, 3>{});
        default: return f(std::integral_constant<int, 4>{});
    }
}

struct Scratch {
    static_assert(kRowBlocks <= CHUNK);
    alignas(64) uint8_t tile[CHUNK * AnyTile::unit_bytes];
    alignas(64) float floats[UNIT * R];
    // of a panel of floats (floats.h): sums over the even and the odd columns of a unit, and over all units
    alignas(64) float sums[V::eight_tokens ? FLOAT_TOKENS : 1][2][R], totals[V::eight_tokens ? FLOAT_TOKENS : 1][R];
};
thread_local Scratch scratch;
