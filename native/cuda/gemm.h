// Matrix products for a few tokens on tensor cores: a thread block computes 32 or 16 rows x 8 J tokens, and its warps
// share the units of 256 columns. A warp copies the weights of its unit, as they are in memory, and the activations to
// shared memory. The partial sums of the units are added in ascending order.
//
// A `Stage` is a unit and its arithmetic: here int8 `mma`, followed for each block by the float chain of
// docs/reference/arithmetic.md; in gemm_halves.cu 16-bit floats. gemm_tiles.h is for more tokens, and says why integer sums start
// at kMagic.
#pragma once
#include "product.h"

namespace assay {

// A row of a stage: word w of chunk c.
struct InStage {
    const uint8_t* weights;
    int rows, row;
    DEVICE uint32_t operator()(int c, int w) const { return *reinterpret_cast<const uint32_t*>(weights + (c * rows + row) * 16 + w * 4); }
    DEVICE uint4 chunk(int c) const { return *reinterpret_cast<const uint4*>(weights + (c * rows + row) * 16); }
};
// The same with one chunk in registers.
struct Held {
    InStage rest;
    uint4 chunk;
    int c;
    DEVICE uint32_t operator()(int n, int w) const {
        if (n != c) return rest(n, w);
        return w == 0 ? chunk.x : w == 1 ? chunk.y : w == 2 ? chunk.z : chunk.w;
    }
};

// Source of a thread's weight copies: one of `rows` rows from layout row `first`, every `count / rows`-th chunk. In
// shared memory they are [chunks][rows][16], then the rows' words if the layout has any.
struct Source {
    const uint8_t* group;
    int row, item, tile_bytes, per, chunks;
    DEVICE Source(const Matrix& w, int first, int rows, int chunks, int me) : Source(w, first + me % rows, me % rows, chunks) {}
    DEVICE Source(const Matrix& w, int at, int row, int chunks) : row(row), tile_bytes(w.tile_bytes), per(w.group), chunks(chunks) {
        if (at >= w.all_rows) at = w.all_rows - 1;
        item = at % w.group;
        group = w.tile(at / w.group, 0);
    }
    DEVICE void fetch(uint8_t* to, int rows, int u, int me, int count) const {
        const int at = u * per + item;
        const uint8_t* from = group + int64_t(at >> 5) * tile_bytes + (at & 31) * 16;
        for (int c = me / rows; c < chunks; c += count / rows) copy_async(to + (c * rows + row) * 16, from + c * 512);
        if (tile_bytes != chunks * 512 && me < rows) copy_async4(to + chunks * rows * 16 + row * 4, from - (at & 31) * 12 + chunks * 512);
    }
};

template <class L, int J, int ROWS>
struct Stage {
    static constexpr int rows = ROWS, tokens = 8 * J, chunks = L::chunks;
    static constexpr int scales_at = tokens * kLine, sums_at = scales_at + tokens * 64;
    static constexpr int factors_at = sums_at + (L::sub16 && L::min ? tokens * 32 : 0);
    static constexpr int weights_at = factors_at + 64 * rows * (L::sub16 && L::min ? 2 : 1);
    static constexpr int words_at = weights_at + L::chunks * rows * 16;
    static_assert(words_at + L::word * rows * 4 == few_stage_bytes(tokens, staged_weights_bytes(rows, chunks, L::word),
                                                                   few_factors_bytes(rows, tokens, L::sub16 && L::min)));

    // Unit u of the tile's activations, by a warp: codes [tokens][kLine], scales and sums [8][tokens].
    static DEVICE void fetch_acts(uint8_t* to, const Acts& acts, int token, int u) {
        const int8_t* q = acts.q + int64_t(token) * acts.stride + u * 256;
        for (int i = lane(); i < tokens * 16; i += 32) copy_async(to + i / 16 * kLine + i % 16 * 16, q + i / 16 * acts.stride + i % 16 * 16);
        for (int i = lane(); i < tokens * 4; i += 32) {
            const int b = i / (tokens / 2), t = i % (tokens / 2) * 2;
            copy_async(to + scales_at + i * 16, acts.ds + int64_t(u * 8 + b) * acts.step + token + t);
        }
        if (L::sub16 && L::min)
            for (int i = lane(); i < tokens * 2; i += 32) {
                const int b = i / (tokens / 4), t = i % (tokens / 4) * 4;
                copy_async(to + sums_at + i * 16, acts.n + int64_t(u * 8 + b) * acts.step + token + t);
            }
    }
    // Partial sums of a warp: [fragment][eight tokens][element of the fragment].
    static DEVICE void multiply(uint8_t* stage, float (&part)[ROWS / 16][J][4]) {
        const int g = lane() / 4, t = lane() % 4;
        {  // a lane has a row, or half of one: decode its factors once, as (d, m), (d0, d1) or both
            const int row = lane() % rows, first = lane() / rows * (rows / 4);
            const InStage w{stage + weights_at, rows, row};
            const uint32_t super = L::word ? *reinterpret_cast<const uint32_t*>(stage + words_at + row * 4) : 0;
            float2* to = reinterpret_cast<float2*>(stage + factors_at) + row;
#pragma unroll
            for (int n = 0; n < rows / 4; n++) {
                const int i = first + n;
                const typename L::Values v = L::factors(w, super, i);
                float second = 0.0f;
                if constexpr (L::sub16) second = v.d[1];
                else if constexpr (L::min) second = v.m[0];
                to[i * rows] = {v.d[0], second};
                if constexpr (L::sub16 && L::min) to[(8 + i) * rows] = {v.m[0], v.m[1]};
            }
            sync_warp();
        }
#pragma unroll
        for (int f = 0; f < ROWS / 16; f++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[f][j][e] = 0.0f;
        const float2* factors = reinterpret_cast<const float2*>(stage + factors_at) + g;
#pragma unroll(J > 1 ? 2 : 4)
        for (int i = 0; i < 8; i++) {
            uint32_t a[ROWS / 16][4];
            float2 d[ROWS / 8], m[ROWS / 8];
#pragma unroll
            for (int r = 0; r < ROWS / 8; r++) {
                const InStage w{stage + weights_at, rows, g + 8 * r};
                L::signed_words(w, i, t, a[r / 2][r % 2], a[r / 2][2 + r % 2]);
                d[r] = factors[i * rows + 8 * r];
                if constexpr (L::sub16 && L::min) m[r] = factors[(8 + i) * rows + 8 * r];
            }
#pragma unroll
            for (int j = 0; j < J; j++) {
                const uint8_t* x = stage + (8 * j + g) * kLine + i * 32 + t * 4;
                const uint32_t b0 = *reinterpret_cast<const uint32_t*>(x), b1 = *reinterpret_cast<const uint32_t*>(x + 16);
                const int of = i * tokens + 8 * j + 2 * t;  // this lane's two tokens of the result
                const float4 s = *reinterpret_cast<const float4*>(stage + scales_at + of * 8);
                uint2 n = {0, 0};
                if constexpr (L::sub16 && L::min) n = *reinterpret_cast<const uint2*>(stage + sums_at + of * 4);
#pragma unroll
                for (int f = 0; f < ROWS / 16; f++) {
                    int x0[4], x1[4];
                    if constexpr (L::sub16) {
                        mma_k16(x0, a[f][0], a[f][1], b0, int(kMagicBits));
                        mma_k16(x1, a[f][2], a[f][3], b1, int(kMagicBits));
                    } else {
                        mma_k32(x0, a[f], b0, b1, int(kMagicBits));
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int r = 2 * f + e / 2;
                        const float d_a = e % 2 ? s.z : s.x;
                        float y = fma(as_float(uint32_t(x0[e])), d[r].x, -kMagic * d[r].x);
                        if constexpr (L::sub16) y = fma(as_float(uint32_t(x1[e])) - kMagic, d[r].y, y);
                        float sum = fma(y, d_a, part[f][j][e]);
                        if constexpr (L::min && !L::sub16) sum = fma(d[r].y, e % 2 ? s.w : s.y, sum);
                        if constexpr (L::min && L::sub16) {
                            const uint32_t two = e % 2 ? n.y : n.x;
                            sum = fma(m[r].x, d_a * float(low_sum(two)), sum);
                            sum = fma(m[r].y, d_a * float(high_sum(two)), sum);
                        }
                        part[f][j][e] = sum;
                    }
                }
            }
        }
    }
};

// Sums start at -0, so that adding the first partial sum gives exactly that sum.
template <int F, int J>
DEVICE void clear_sums(float (&sums)[F][J][4]) {
#pragma unroll
    for (int f = 0; f < F; f++)
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[f][j][e] = -0.0f;
}

// Epilogue of a warp's sums: rows g + 8 r of 32 from `row`, tokens 8 j + 2 t and the next from `token`. The two rows of
// a pair are 8 or 16 apart, in the same lane. All loads come before the first store. SORTED: `pairs` has the result row
// of each token, or -1.
template <int J, bool SORTED = false>
DEVICE void store_sums(const Product& p, float (*y)[J][4], int row, int token, int tokens, const int32_t* pairs = nullptr) {
    const int half = p.paired ? p.w.group / 2 : p.w.group, g = lane() / 4;
    token += lane() % 4 * 2;
    int out[4], to[J][2];
    float bias[4];
    if constexpr (SORTED)
#pragma unroll
        for (int n = 0; n < 2 * J; n++) to[n / 2][n % 2] = pairs[token + 8 * (n / 2) + n % 2];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int at = row + 8 * r + g, in_group = at % p.w.group;
        out[r] = in_group < half ? at / p.w.group * half + in_group : p.w.rows;  // p.w.rows: this row is not stored
        bias[r] = p.bias && out[r] < p.w.rows ? p.bias[out[r]] : 0.0f;
    }
    const auto each = [&](auto&& f) {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int at = SORTED ? to[j][e] : token + 8 * j + e;
                    if (out[r] < p.w.rows && (SORTED ? at >= 0 : at < tokens)) f(r, j, 2 * (r % 2) + e, int64_t(at) * p.out_stride + out[r]);
                }
    };
    if (p.paired)
        each([&](int r, int j, int e, int64_t at) {
            const float up = half == 16 ? y[1][j][e] : y[r / 2][j][e | 2];
            if (p.gate_out) p.gate_out[at] = y[r / 2][j][e];
            if (p.up_out) p.up_out[at] = up;
            y[r / 2][j][e] = gate(p.act, y[r / 2][j][e]) * up;
        });
    if (p.bias) each([&](int r, int j, int e, int64_t) { y[r / 2][j][e] = y[r / 2][j][e] + bias[r]; });
    if (p.residual) each([&](int r, int j, int e, int64_t at) { y[r / 2][j][e] = y[r / 2][j][e] + p.residual[at]; });
    each([&](int r, int j, int e, int64_t at) { p.out[at] = y[r / 2][j][e]; });
}

// silu(gate) * up of all gates of a warp, interleaved, with a division that skips range checks. False, and nothing
// changed, if a gate is outside its range.
template <int J>
DEVICE bool silu_pairs(float (&sum)[J][4]) {
    bool usual = true;
    float y[J][2];
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float x = sum[j][e];
            const uint32_t size = bits(x) & 0x7fffffffu;
            usual = usual && size - 0x21800000u < 0x20800000u;  // from 2^-60 to 2^5
            y[j][e] = divide_near(x, 1.0f + exponential(-x)) * sum[j][2 + e];
        }
    if (any_lane(!usual)) return false;
#pragma unroll
    for (int j = 0; j < J; j++) sum[j][0] = y[j][0], sum[j][1] = y[j][1];
    return true;
}

struct Integers {
    template <class F>
    static DEVICE void with(int format, F&& f) { with_layout(format, f); }
    template <class L, int J, int ROWS>
    using Of = Stage<L, J, ROWS>;
};

// block_x: tile of tokens; block_y: tile of rows. After every round each thread adds the partial sums of its results in
// order. Weights are prefetched before the kernel waits for its predecessor. SORTED: tokens are slots of experts.cu,
// `pairs` has their result rows, `from` is the offset of the matrix.
template <class Kind, int J, int SPLITS, int ROWS = 32, bool SORTED = false>
DEVICE void few_tokens(const ProductArgs& a, const int32_t* pairs = nullptr, int64_t from = 0) {
    SHARED;
    // padded so that rows spread over the banks
    constexpr int tokens = 8 * J, results = ROWS * tokens, each = (results + 32 * SPLITS - 1) / (32 * SPLITS), line = J == 1 ? 8 : tokens + 8;
    const int tile = block_y(), first_token = block_x() * tokens, split = thread() / 32;
    const Product& p = a.parts[part_of(a, tile)];  // first_group counts tiles of rows here
    const int first = (tile - p.first_group) * ROWS;
    const int units = p.w.units;
    NEEDS_SHARED(few_shared_bytes(ROWS, tokens, SPLITS, a.stages));
    float* const parts = reinterpret_cast<float*>(shared);  // [2 rounds][splits][rows][line]
    uint8_t* const stage = shared + 2 * SPLITS * ROWS * line * 4 + split * a.stages;  // a.stages: bytes of a stage
    float total[each];
    Tail tails[each];  // element k: row i / tokens, token i % tokens of i = thread + 32 SPLITS k
#pragma unroll
    for (int k = 0; k < each; k++) {
        const int i = thread() + k * 32 * SPLITS, row = first + i / tokens, slot = first_token + i % tokens;
        const int token = SORTED ? pairs[slot] : slot;
        if (i < results && (SORTED ? token >= 0 : token < a.tokens) && row < p.w.all_rows) tails[k] = Tail(p, row / p.w.group, row % p.w.group, token);
        total[k] = -0.0f;  // adding the first partial sum gives exactly that sum
    }
    next_may_start();
    Kind::with(p.w.format, [&](auto layout) {
        using S = typename Kind::template Of<decltype(layout), J, ROWS>;
        Source source(p.w, first, ROWS, S::chunks, lane());
        if constexpr (SORTED) source.group += from;
        if (split < units) source.fetch(stage + S::weights_at, ROWS, split, lane(), 32);
        wait_for_previous();
        if (split < units) S::fetch_acts(stage, a.acts, first_token, split);
        copy_group();
#pragma unroll
        for (int k = 0; k < each; k++) tails[k].ask();
        for (int u0 = 0; u0 < units; u0 += SPLITS) {
            float* const sums = parts + u0 / SPLITS % 2 * SPLITS * ROWS * line;
            const int u = u0 + split;
            if (u < units) {
                copies_done<0>();
                sync_warp();
                float part[ROWS / 16][J][4];
                S::multiply(stage, part);
                float* const mine = sums + (split * ROWS + lane() / 4) * line + lane() % 4 * 2;
#pragma unroll
                for (int f = 0; f < ROWS / 16; f++)
#pragma unroll
                    for (int j = 0; j < J; j++)
#pragma unroll
                        for (int e = 0; e < 4; e += 2)
                            *reinterpret_cast<float2*>(mine + (16 * f + 4 * e) * line + 8 * j) = {part[f][j][e], part[f][j][e + 1]};
                sync_warp();
                if (u + SPLITS < units) {
                    source.fetch(stage + S::weights_at, ROWS, u + SPLITS, lane(), 32);
                    S::fetch_acts(stage, a.acts, first_token, u + SPLITS);
                }
                copy_group();
            }
            sync_block();
            const int ready = units - u0 < SPLITS ? units - u0 : SPLITS;
#pragma unroll
            for (int k = 0; k < each; k++) {
                const int i = thread() + k * 32 * SPLITS, at = i / tokens * line + i % tokens;
                if (i < results)
                    for (int s = 0; s < ready; s++) total[k] = total[k] + sums[s * ROWS * line + at];
            }
        }
    });
    // the buffer that is no longer read
    float* const whole = parts + (units + SPLITS - 1) / SPLITS % 2 * SPLITS * ROWS * line;
    if (p.paired) {
#pragma unroll
        for (int k = 0; k < each; k++)
            if (thread() + k * 32 * SPLITS < results) whole[thread() + k * 32 * SPLITS] = total[k];
        sync_block();
    }
    const int pair = p.paired ? p.w.group / 2 * tokens : 0;
#pragma unroll
    for (int k = 0; k < each; k++) tails[k].finish(total[k], pair ? whole[(thread() + k * 32 * SPLITS + pair) % results] : 0.0f);
}

}  // namespace assay
