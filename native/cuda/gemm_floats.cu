// Products of F32, F16 and BF16 weights for many tokens, in the cpu engine's order: within a unit of 256 columns one
// chain over the even columns and one over the odd ones; units are added in ascending order (docs/reference/arithmetic.md).
//
// A lane has 8 rows x 8 tokens of one chain; its neighbour has those of the other. A warp has 32 rows x 32 tokens, a
// group of WR WT warps 32 WR rows x 32 WT tokens. S groups take the units in turn, and their partial sums are added in
// order. 16 columns of weights and activations are in shared memory as floats, [column][row] and [column][token], while
// the next 16 are prefetched. Bound by `fma` if every multiprocessor has a tile.
#include "product.h"

namespace assay {

template <int FORMAT>
DEVICE void as_floats(const uint4& v, float (&w)[FORMAT == F32 ? 4 : 8]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < (FORMAT == F32 ? 4 : 8); i++) {
        const uint16_t half = uint16_t(words[i / 2 % 4] >> 16 * (i % 2));
        w[i] = FORMAT == F32 ? as_float(words[i % 4]) : FORMAT == F16 ? half_to_float(half) : brain_to_float(half);
    }
}

// Columns c to c + 3 of a row; zeros past its end.
DEVICE float4 four_of(const float* row, int c, int columns) {
    if (columns % 4 == 0) return c < columns ? *reinterpret_cast<const float4*>(row + c) : float4{0, 0, 0, 0};
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = c + i < columns ? row[c + i] : 0.0f;
    return {v[0], v[1], v[2], v[3]};
}

template <int FORMAT, int WR, int WT>
struct FloatTile {
    static constexpr int rows = 32 * WR, tokens = 32 * WT, count = 32 * WR * WT;
    // padding puts even and odd columns into different banks
    static constexpr int row_line = rows + 4, token_line = tokens + 4;
    static constexpr int floats = kFloatStep * (row_line + token_line);  // floats of a step
    // chunks, quads: of a thread
    static constexpr int per = FORMAT == F32 ? 4 : 8, chunks = kFloatStep / per / WT, quads = kFloatStep / 4 / WR;

    // Prefetched by a thread: chunks of one row, quads of tokens.
    uint4 w[chunks];
    float4 x[quads];

    DEVICE void ask_weights(const Matrix& m, const uint8_t* group, int item, int u, int step, int me) {
        const int at = u * m.group + item;
        const uint8_t* from = group + int64_t(at >> 5) * m.tile_bytes + (at & 31) * 16;
#pragma unroll
        for (int i = 0; i < chunks; i++)
            w[i] = load_stream(reinterpret_cast<const uint4*>(from + (step * (kFloatStep / per) + me / rows + i * WT) * 512));
    }
    DEVICE void ask_tokens(const ProductArgs& a, int first, int column, int me) {
#pragma unroll
        for (int i = 0; i < quads; i++) {
            const int n = me + i * count, token = first + n / (kFloatStep / 4);
            x[i] = token < a.tokens ? four_of(a.x + int64_t(token) * a.x_stride, column + n % (kFloatStep / 4) * 4, a.columns) : float4{0, 0, 0, 0};
        }
    }
    DEVICE void put(float* to, int me) const {
#pragma unroll
        for (int i = 0; i < chunks; i++) {
            float v[per];
            as_floats<FORMAT>(w[i], v);
#pragma unroll
            for (int j = 0; j < per; j++) to[((me / rows + i * WT) * per + j) * row_line + me % rows] = v[j];
        }
        float* const second = to + kFloatStep * row_line;
#pragma unroll
        for (int i = 0; i < quads; i++) {
            const int n = me + i * count;
            float* const at = second + n % (kFloatStep / 4) * 4 * token_line + n / (kFloatStep / 4);
            at[0] = x[i].x, at[token_line] = x[i].y, at[2 * token_line] = x[i].z, at[3 * token_line] = x[i].w;
        }
    }
    // row, token: the lane's first ones.
    static DEVICE void multiply(const float* from, int row, int token, float (&sums)[8][8]) {
        const float* w_at = from + lane() % 2 * row_line + row;
        const float* x_at = from + kFloatStep * row_line + lane() % 2 * token_line + token;
#pragma unroll
        for (int k = 0; k < kFloatStep / 2; k++) {
            const float4 a = *reinterpret_cast<const float4*>(w_at + 2 * k * row_line), b = *reinterpret_cast<const float4*>(w_at + 2 * k * row_line + 4);
            const float4 c = *reinterpret_cast<const float4*>(x_at + 2 * k * token_line), d = *reinterpret_cast<const float4*>(x_at + 2 * k * token_line + 4);
            const float w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, x[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
#pragma unroll
            for (int r = 0; r < 8; r++)
#pragma unroll
                for (int t = 0; t < 8; t++) sums[r][t] = fma(w[r], x[t], sums[r][t]);
        }
    }
};

// Shared memory: totals [tokens][rows + 4]; if S > 1, partial sums of each group in the same shape; two steps of each
// group.
template <int FORMAT, int WR, int WT, int S>
DEVICE void multiply_floats(const ProductArgs& a, const Product& p, int first, int first_token) {
    SHARED;
    using T = FloatTile<FORMAT, WR, WT>;
    const Matrix& m = p.w;
    const int group = S > 1 ? thread() / T::count : 0, me = thread() - group * T::count, warp = me / 32;
    const int row = warp / WT * 32 + lane() / 2 % 4 * 8, token = warp % WT * 32 + lane() / 8 * 8, odd = lane() % 2;
    constexpr int line = T::rows + 4, all = T::tokens * line;
    float* const totals = reinterpret_cast<float*>(shared);
    NEEDS_SHARED(float_tile_bytes(T::rows, T::tokens, S));
    // this lane's four rows of eight tokens
    float* const mine = totals + (S > 1 ? (1 + group) * all : 0) + token * line + row + 4 * odd;
    float* const steps = totals + (S > 1 ? (1 + S) * all : all) + group * 2 * T::floats;
    const auto sync = [&] {
        if constexpr (T::count == 32) sync_warp();
        else if constexpr (S > 1) sync_some(1 + group, T::count);
        else sync_block();
    };
    int at = first + me % T::rows;
    if (at >= m.all_rows) at = m.all_rows - 1;
    const uint8_t* const base = m.tile(at / m.group, 0);
    const int item = at % m.group;
    // adding the first partial sum gives exactly that sum
    for (int i = thread(); i < all; i += threads()) totals[i] = -0.0f;
    T next;
    if (group < m.units) next.ask_weights(m, base, item, group, 0, me);
    wait_for_previous();
    sync_block();
    if (group < m.units) {
        next.ask_tokens(a, first_token, group * 256, me);
        next.put(steps, me);
        sync();
    }
    for (int u0 = 0; u0 < m.units; u0 += S) {
        const int u = u0 + group;
        if (kRacecheck && u >= m.units)  // racecheck counts barriers without their ids: all groups need the same number
            for (int step = 0; step < 256 / kFloatStep + (u0 == 0); step++) sync();
        if (S == 1 || u < m.units) {
            float sums[8][8];
#pragma unroll
            for (int r = 0; r < 8; r++)
#pragma unroll
                for (int t = 0; t < 8; t++) sums[r][t] = 0.0f;
#pragma unroll 1
            for (int step = 0; step < 256 / kFloatStep; step++) {
                const int then = (step + 1) % (256 / kFloatStep), unit = then ? u : u + S;
                if (unit < m.units) {
                    next.ask_weights(m, base, item, unit, then, me);
                    next.ask_tokens(a, first_token, unit * 256 + then * kFloatStep, me);
                }
                T::multiply(steps + step % 2 * T::floats, row, token, sums);
                if (unit < m.units) next.put(steps + (step + 1) % 2 * T::floats, me);
                sync();
            }
#pragma unroll
            for (int t = 0; t < 8; t++) {
                float part[4];
#pragma unroll
                for (int r = 0; r < 4; r++) part[r] = (odd ? sums[4 + r][t] : sums[r][t]) + shuffle_xor(odd ? sums[r][t] : sums[4 + r][t], 1);
                float4* const to = reinterpret_cast<float4*>(mine + t * line);
                if (S > 1) *to = {part[0], part[1], part[2], part[3]};
                else *to = {to->x + part[0], to->y + part[1], to->z + part[2], to->w + part[3]};
            }
        }
        if constexpr (S > 1) {
            sync_block();
            const int there = m.units - u0 < S ? m.units - u0 : S;
            for (int i = thread(); i < all; i += threads())
                for (int s = 0; s < there; s++) totals[i] = totals[i] + totals[(1 + s) * all + i];
            sync_block();
        }
    }
    sync_block();
    const int pair = p.paired ? m.group / 2 : 0;
    for (int i = thread(); i < T::rows * T::tokens; i += threads()) {
        const int r = i % T::rows, t = i / T::rows, in_group = (first + r) % m.group;
        if (first + r >= m.all_rows || first_token + t >= a.tokens || (pair && in_group >= pair)) continue;
        const float* const y = totals + t * line + r;
        finish(p, (first + r) / m.group, in_group, first_token + t, y[0], y[pair]);
    }
}

// block_x: tile of tokens; block_y: tile of rows. Blocks that run at the same time share weights in L2.
template <int WR, int WT, int S>
DEVICE void floats_tile(const ProductArgs& a) {
    next_may_start();
    const int tile = block_y(), first_token = block_x() * 32 * WT;
    const Product& p = a.parts[part_of(a, tile)];  // first_group counts tiles of rows here
    const int first = (tile - p.first_group) * 32 * WR;
    if (p.w.format == F32) multiply_floats<F32, WR, WT, S>(a, p, first, first_token);
    else if (p.w.format == F16) multiply_floats<F16, WR, WT, S>(a, p, first, first_token);
    else multiply_floats<BF16, WR, WT, S>(a, p, first, first_token);
}

CROWDED(floats_128_64, ProductArgs, 256, 2) { floats_tile<4, 2, 1>(a); }
CROWDED(floats_32_64, ProductArgs, 256, 1) { floats_tile<1, 2, 4>(a); }
CROWDED(floats_32_32, ProductArgs, 256, 1) { floats_tile<1, 1, 8>(a); }

}  // namespace assay
