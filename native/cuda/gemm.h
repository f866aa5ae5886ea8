// Matrix products for many tokens on tensor cores. A warp takes 32 rows x 8 J tokens; unit by unit (256 columns) the weights,
// as they lie in memory, and the activations are copied to shared memory while units before are multiplied. The partial sums of
// the units are added in order.
//
//   many_tokens   the warps of a block share rows and tokens, WR x WT
//   few_tokens    they share the units, for batches of up to 64
//
// What a unit is made of is a `Stage`: here int8 `mma` with the float chain of docs/arithmetic.md behind each block, in
// gemm_halves.cu 16-bit floats. The integer sums start at kMagic, so they are floats already: fma(x, d, -kMagic d) is exactly float(s) * d rounded
// once, because kMagic d is exact for every scale a file can have (11 bits of f16 times 8 of sub-scale times 3).
#pragma once
#include "product.h"

namespace assay {

constexpr int kTokenBytes = 272, kScaleBytes = 80;  // strides that spread tokens over the banks

// A row of a stage: word w of chunk c.
struct InStage {
    const uint8_t* weights;
    int rows, row;
    DEVICE uint32_t operator()(int c, int w) const { return *reinterpret_cast<const uint32_t*>(weights + (c * rows + row) * 16 + w * 4); }
};

template <class L>
DEVICE uint32_t signed_codes(uint32_t x) {  // without carries: the codes are small
    return L::offset == 0 ? x : (x + (0x80u - uint32_t(L::offset)) * 0x01010101u) ^ 0x80808080u;
}

template <class L, int WR, int WT, int J>
struct Stage {
    static constexpr int rows = 32 * WR, tile_tokens = 8 * J * WT;
    static constexpr int scales_at = tile_tokens * kTokenBytes, sums_at = scales_at + tile_tokens * kScaleBytes;
    static constexpr int weights_at = sums_at + (L::sub16 && L::min ? tile_tokens * 48 : 0);
    static constexpr int words_at = weights_at + L::chunks * rows * 16;
    static constexpr int bytes = words_at + (L::word ? rows * 4 : 0);

    // Unit u of the activations of the tile, by `count` threads of which this is number `me`.
    static DEVICE void fetch_acts(uint8_t* to, const Acts& acts, int token, int tokens, int u, int me, int count) {
        const int64_t blocks = acts.stride / 32;
        for (int i = me; i < tile_tokens * 16; i += count) {
            const int64_t t = token + i / 16 < tokens ? token + i / 16 : tokens - 1;
            copy_async(to + i / 16 * kTokenBytes + i % 16 * 16, acts.q + t * acts.stride + u * 256 + i % 16 * 16);
        }
        for (int i = me; i < tile_tokens * 4; i += count) {
            const int64_t t = token + i / 4 < tokens ? token + i / 4 : tokens - 1;
            copy_async(to + scales_at + i / 4 * kScaleBytes + i % 4 * 16, acts.ds + t * blocks + u * 8 + i % 4 * 2);
        }
        if (L::sub16 && L::min)
            for (int i = me; i < tile_tokens * 2; i += count) {
                const int64_t t = token + i / 2 < tokens ? token + i / 2 : tokens - 1;
                copy_async(to + sums_at + i / 2 * 48 + i % 2 * 16, acts.n + t * blocks + u * 8 + i % 2 * 4);
            }
    }
    // All chunks of `rows` rows from layout row `first`; a thread keeps to a row.
    static DEVICE void fetch_weights(uint8_t* to, const Matrix& w, int64_t first, int u, int me, int count) {
        const int mine = me % rows, row = int(first) + mine < w.all_rows ? int(first) + mine : w.all_rows - 1;
        const int group = row / w.group, at = u * w.group + row % w.group;
        const uint8_t* from = w.tile(group, at / 32) + at % 32 * 16;
        for (int c = me / rows; c < L::chunks; c += count / rows) copy_async(to + weights_at + (c * rows + mine) * 16, from + c * 512);
        if (L::word && me < rows) copy_async4(to + words_at + mine * 4, from - at % 32 * 12 + L::chunks * 512);
    }
    // The partial sums of a warp: fragment, eight tokens, element of the fragment.
    static DEVICE void multiply(const uint8_t* stage, int warp, float (&part)[2][J][4]) {
        const int g = lane() / 4, t = lane() % 4;
        const int row = warp / WT * 32 + g, token = warp % WT * 8 * J;
#pragma unroll
        for (int f = 0; f < 2; f++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[f][j][e] = 0.0f;
        uint32_t super[4];
#pragma unroll
        for (int r = 0; r < 4; r++) super[r] = L::word ? *reinterpret_cast<const uint32_t*>(stage + words_at + (row + 8 * r) * 4) : 0;
#pragma unroll 1
        for (int i = 0; i < 8; i++) {
            uint32_t a[2][4];
            float d[4][2], m[4][2], c[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const InStage w{stage + weights_at, rows, row + 8 * r};
                uint32_t low, high;
                L::words(w, i, t, low, high);
                a[r / 2][r % 2] = signed_codes<L>(low);
                a[r / 2][2 + r % 2] = signed_codes<L>(high);
                const typename L::Values v = L::factors(w, super[r], i);
                d[r][0] = v.d[0], d[r][1] = v.d[1], c[r] = -kMagic * v.d[0];
                if constexpr (L::min) m[r][0] = v.m[0], m[r][1] = v.m[1];
            }
#pragma unroll
            for (int j = 0; j < J; j++) {
                const uint8_t* x = stage + (token + 8 * j + g) * kTokenBytes + i * 32 + t * 4;
                const uint32_t b0 = *reinterpret_cast<const uint32_t*>(x), b1 = *reinterpret_cast<const uint32_t*>(x + 16);
                const int of = token + 8 * j + 2 * t;  // this lane's two tokens of the result
                const float2 s0 = *reinterpret_cast<const float2*>(stage + scales_at + of * kScaleBytes + i * 8);
                const float2 s1 = *reinterpret_cast<const float2*>(stage + scales_at + (of + 1) * kScaleBytes + i * 8);
                uint32_t n[2] = {0, 0};
                if constexpr (L::sub16 && L::min)
                    for (int e = 0; e < 2; e++) n[e] = *reinterpret_cast<const uint32_t*>(stage + sums_at + (of + e) * 48 + i * 4);
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    int x0[4] = {int(kMagicBits), int(kMagicBits), int(kMagicBits), int(kMagicBits)};
                    int x1[4] = {int(kMagicBits), int(kMagicBits), int(kMagicBits), int(kMagicBits)};
                    if constexpr (L::sub16) {
                        mma_k16(x0, a[f][0], a[f][1], b0);
                        mma_k16(x1, a[f][2], a[f][3], b1);
                    } else {
                        mma_k32(x0, a[f], b0, b1);
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int r = 2 * f + e / 2;
                        const float2 s = e % 2 ? s1 : s0;
                        float y = fma(as_float(uint32_t(x0[e])), d[r][0], c[r]);
                        if constexpr (L::sub16) y = fma(as_float(uint32_t(x1[e])) - kMagic, d[r][1], y);
                        float sum = fma(y, s.x, part[f][j][e]);
                        if constexpr (L::min && !L::sub16) sum = fma(m[r][0], s.y, sum);
                        if constexpr (L::min && L::sub16) {
                            sum = fma(m[r][0], s.x * float(low_sum(n[e % 2])), sum);
                            sum = fma(m[r][1], s.x * float(high_sum(n[e % 2])), sum);
                        }
                        part[f][j][e] = sum;
                    }
                }
            }
        }
    }
};

struct Integers {
    template <class F>
    static DEVICE void with(int format, F&& f) { with_layout(format, f); }
    template <class L, int WR, int WT, int J>
    using Of = Stage<L, WR, WT, J>;
};

template <class Kind, int WR, int WT, int J, int STAGES>
DEVICE void many_tokens(const ProductArgs& a) {
    SHARED;
    const int tile = block_x(), first_token = block_y() * 8 * J * WT;
    next_may_start();
    const Product& p = a.parts[part_of(a, tile)];  // first_group counts tiles of rows here
    const int64_t first = int64_t(tile - p.first_group) * 32 * WR;
    const int warp = thread() / 32, g = lane() / 4, t = lane() % 4;
    float total[2][J][4];
    wait_for_previous();
    Kind::with(p.w.format, [&](auto layout) {
        using S = typename Kind::template Of<decltype(layout), WR, WT, J>;
        const int stages = a.stages;  // STAGES, or 1 where shared memory has no room for more
        for (int u = 1 - stages; u < p.w.units; u++) {
            const int next = u + stages - 1;
            if (next < p.w.units) {
                S::fetch_acts(shared + next % stages * S::bytes, a.acts, first_token, a.tokens, next, thread(), threads());
                S::fetch_weights(shared + next % stages * S::bytes, p.w, first, next, thread(), threads());
            }
            copy_group();
            if (u < 0) continue;
            if (stages == STAGES) copies_done<STAGES - 1>();
            else copies_done<0>();
            sync_block();
            float part[2][J][4];
            S::multiply(shared + u % stages * S::bytes, warp, part);
#pragma unroll
            for (int f = 0; f < 2; f++)
#pragma unroll
                for (int j = 0; j < J; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) total[f][j][e] = u == 0 ? part[f][j][e] : total[f][j][e] + part[f][j][e];
            sync_block();  // everybody is done with this unit
        }
    });
    // Row r of the warp's 32: fragment r / 16, of it rows g and g + 8. A pair lies 8 or 16 rows apart, in this lane.
    const int64_t base = first + warp / WT * 32;
    const int half = p.paired ? p.w.group / 2 : 0;
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int token = first_token + warp % WT * 8 * J + 8 * j + 2 * t + e % 2;
                const int64_t row = base + 16 * f + 8 * (e / 2) + g;
                const float y = total[f][j][e], up = half == 16 ? total[1][j][e] : total[f][j][e % 2 + 2];
                if (token < a.tokens && row < p.w.all_rows) finish(p, row / p.w.group, int(row % p.w.group), token, y, up);
            }
}

// 32 rows x 8 J tokens. After every round each thread adds the partial sums of its results in order. Weights are on their way
// before the kernel waits.
template <class Kind, int J, int SPLITS>
DEVICE void few_tokens(const ProductArgs& a) {
    SHARED;
    constexpr int tokens = 8 * J, each = tokens / SPLITS, line = J == 1 ? 8 : tokens + 8;  // strides that spread rows over the banks
    const int tile = block_x(), first_token = block_y() * tokens, split = thread() / 32;
    const Product& p = a.parts[part_of(a, tile)];  // first_group counts tiles of rows here
    const int64_t first = int64_t(tile - p.first_group) * 32;
    const int units = p.w.units;
    float* const parts = reinterpret_cast<float*>(shared);  // [2 rounds][splits][32 rows][line]
    uint8_t* const stage = shared + 2 * SPLITS * 32 * line * 4 + split * a.stages;  // stages: bytes of one
    float total[each];
    next_may_start();
    Kind::with(p.w.format, [&](auto layout) {
        using S = typename Kind::template Of<decltype(layout), 1, 1, J>;
        if (split < units) S::fetch_weights(stage, p.w, first, split, lane(), 32);
        wait_for_previous();
        if (split < units) S::fetch_acts(stage, a.acts, first_token, a.tokens, split, lane(), 32);
        copy_group();
        for (int u0 = 0; u0 < units; u0 += SPLITS) {
            float* const sums = parts + u0 / SPLITS % 2 * SPLITS * 32 * line;
            const int u = u0 + split;
            if (u < units) {
                copies_done<0>();
                sync_warp();
                float part[2][J][4];
                S::multiply(stage, 0, part);
                float* const mine = sums + (split * 32 + lane() / 4) * line + lane() % 4 * 2;
#pragma unroll
                for (int f = 0; f < 2; f++)
#pragma unroll
                    for (int j = 0; j < J; j++)
#pragma unroll
                        for (int e = 0; e < 4; e += 2)
                            *reinterpret_cast<float2*>(mine + (16 * f + 4 * e) * line + 8 * j) = {part[f][j][e], part[f][j][e + 1]};
                sync_warp();
                if (u + SPLITS < units) {
                    S::fetch_weights(stage, p.w, first, u + SPLITS, lane(), 32);
                    S::fetch_acts(stage, a.acts, first_token, a.tokens, u + SPLITS, lane(), 32);
                }
                copy_group();
            }
            sync_block();
            const int ready = units - u0 < SPLITS ? units - u0 : SPLITS;
#pragma unroll
            for (int k = 0; k < each; k++) {
                const int i = thread() + k * 32 * SPLITS, at = i / tokens * line + i % tokens;
                for (int s = 0; s < ready; s++) total[k] = u0 + s == 0 ? sums[at] : total[k] + sums[s * 32 * line + at];
            }
        }
    });
    float* const whole = parts + (units + SPLITS - 1) / SPLITS % 2 * SPLITS * 32 * line;  // nobody reads it any more
#pragma unroll
    for (int k = 0; k < each; k++) whole[thread() + k * 32 * SPLITS] = total[k];
    sync_block();
    const int pair = p.paired ? p.w.group / 2 * tokens : 0;
    for (int i = thread(); i < 32 * tokens; i += threads()) {
        const int64_t row = first + i / tokens;
        const int token = first_token + i % tokens;
        if (token < a.tokens && row < p.w.all_rows)
            finish(p, row / p.w.group, int(row % p.w.group), token, whole[i], whole[(i + pair) % (32 * tokens)]);
    }
}

}  // namespace assay
