// Products of quantised weights for many tokens on int8 tensor cores. A block of WR WT warps computes 16 F WR rows x 8
// J WT tokens, a warp 16 F x 8 J.
//
// Unit by unit (256 columns), weights as they are in memory and activations are copied to shared memory some units
// ahead. All warps unpack the weights once: codes to int8, scales and minima to floats. Then `mma` reads both through
// `ldmatrix`, and the float chain of docs/reference/arithmetic.md follows each block of 32 columns. Partial sums of the units are
// added in ascending order. For a 16 x 8 x 32 fragment the chain is 12 instructions (16 with a scale per 16);
// everything else is about 3. Bound by the issue rate.
//
// Integer sums start at kMagic, so they are already floats: fma(x, d, -kMagic d) is exactly float(s) * d rounded once.
// The reason: kMagic d is exact for every scale a file can have (11 bits of f16 times 8 of sub-scale times 3).
#pragma once
#include "gemm.h"

namespace assay {

// Shared memory: two sets of codes [rows][kLine] and factors [8][rows], then the stages. A stage has the activations of
// a unit [tokens][kLine], their scales [8][tokens] and, for layouts with minima per 16, the sums of half blocks
// [8][tokens]. It also has the weights of the next unit, [chunks][rows][16], and their words [rows].
template <bool SUB16, bool MIN, int WR, int WT, int F, int J>
struct Tile {
    static constexpr int rows = 16 * F * WR, tokens = 8 * J * WT, count = 32 * WR * WT;
    static constexpr int factors_at = rows * kLine, set_bytes = factors_at + (SUB16 && MIN ? 128 : 64) * rows;
    static constexpr int scales_at = tokens * kLine, sums_at = scales_at + 64 * tokens;
    static constexpr int weights_at = sums_at + (SUB16 && MIN ? 32 * tokens : 0);
    static_assert(set_bytes == tile_set_bytes(rows, SUB16 && MIN) && weights_at == tile_stage_bytes(tokens, SUB16 && MIN, 0));

    static DEVICE void fetch_acts(uint8_t* stage, const Acts& acts, int token, int u, int me) {
        const int8_t* q = acts.q + int64_t(token + me / 16) * acts.stride + u * 256 + me % 16 * 16;
        uint8_t* to = stage + me / 16 * kLine + me % 16 * 16;
#pragma unroll
        for (int i = 0; i < tokens * 16 / count; i++) copy_async(to + i * (count / 16) * kLine, q + int64_t(i * (count / 16)) * acts.stride);
        const float2* ds = acts.ds + int64_t(u * 8) * acts.step + token;
        for (int i = me; i < tokens * 4; i += count)
            copy_async(stage + scales_at + i * 16, ds + int64_t(i / (tokens / 2)) * acts.step + i % (tokens / 2) * 2);
        if (SUB16 && MIN)
            for (int i = me; i < tokens * 2; i += count)
                copy_async(stage + sums_at + i * 16, acts.n + int64_t(u * 8 + i / (tokens / 4)) * acts.step + token + i % (tokens / 4) * 4);
    }

    // Factors of a row and a block: (d, m) or (d0, d1), then (m0, m1).
    template <class L>
    static DEVICE void unpack(uint8_t* shared, const uint8_t* weights, int me) {
        const int row = me % rows;
        const uint32_t super = L::word ? *reinterpret_cast<const uint32_t*>(weights + L::chunks * rows * 16 + row * 4) : 0;
        const InStage w{weights, rows, row};
#pragma unroll
        for (int n = 0; n < rows * 8 / count; n++) {
            const int i = me / rows + n * (count / rows);
            uint4 low, high;
            if constexpr (L::kind == N8) {
                low = w.chunk(2 * i), high = w.chunk(2 * i + 1);
            } else {
                const Held held{w, w.chunk(i), i};
                uint32_t l[4], h[4];
#pragma unroll
                for (int t = 0; t < 4; t++) L::signed_words(held, i, t, l[t], h[t]);
                low = {l[0], l[1], l[2], l[3]}, high = {h[0], h[1], h[2], h[3]};
            }
            uint4* to = reinterpret_cast<uint4*>(shared + row * kLine + i * 32);
            to[0] = low, to[1] = high;
            const typename L::Values v = L::factors(w, super, i);
            float2* f = reinterpret_cast<float2*>(shared + factors_at) + i * rows + row;
            float second = 0.0f;
            if constexpr (SUB16) second = v.d[1];
            else if constexpr (MIN) second = v.m[0];
            f[0] = {v.d[0], second};
            if constexpr (SUB16 && MIN) f[8 * rows] = {v.m[0], v.m[1]};
        }
    }

    // Partial sums of a unit: [fragment][eight tokens][element of the fragment].
    static DEVICE void multiply(const uint8_t* shared, const uint8_t* stage, int warp, float (&part)[F][J][4]) {
        const int g = lane() / 4, t = lane() % 4, row = warp / WT * 16 * F, token = warp % WT * 8 * J;
        const uint8_t* a_at = shared + (row + lane() % 16) * kLine + lane() / 16 * 16;
        const uint8_t* b_at = stage + (token + lane() % 8 + lane() / 16 * 8 * (J > 1)) * kLine + lane() / 8 % 2 * 16;
        const float2* factors = reinterpret_cast<const float2*>(shared + factors_at) + row + g;
        const float2* scales = reinterpret_cast<const float2*>(stage + scales_at) + token + 2 * t;
        const uint2* sums = reinterpret_cast<const uint2*>(stage + sums_at) + token / 2 + t;
#pragma unroll
        for (int f = 0; f < F; f++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[f][j][e] = 0.0f;
#pragma unroll(J > 2 ? 1 : 2)
        for (int i = 0; i < 8; i++) {
            uint32_t a[F][4], b[J > 1 ? 4 : 2];
            float2 d[2 * F], m[2 * F];  // rows g, g + 8, ...
            float c[2 * F];
#pragma unroll
            for (int f = 0; f < F; f++) load_matrices(a[f], a_at + 16 * f * kLine + i * 32);
#pragma unroll
            for (int r = 0; r < 2 * F; r++) {
                d[r] = factors[i * rows + 8 * r], c[r] = -kMagic * d[r].x;
                if constexpr (SUB16 && MIN) m[r] = factors[(8 + i) * rows + 8 * r];
            }
#pragma unroll
            for (int j = 0; j < J; j++) {
                if (j % 2 == 0) load_matrices(b, b_at + 8 * j * kLine + i * 32);
                const uint32_t b0 = b[j % 2 * 2], b1 = b[j % 2 * 2 + 1];
                const float4 s = *reinterpret_cast<const float4*>(scales + i * tokens + 8 * j);  // two tokens
                uint2 n = {0, 0};
                if constexpr (SUB16 && MIN) n = sums[(i * tokens + 8 * j) / 2];
#pragma unroll
                for (int f = 0; f < F; f++) {
                    int x[4], x1[4];
                    if constexpr (SUB16) {
                        mma_k16(x, a[f][0], a[f][1], b0, int(kMagicBits));
                        mma_k16(x1, a[f][2], a[f][3], b1, int(kMagicBits));
                    } else {
                        mma_k32(x, a[f], b0, b1, int(kMagicBits));
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int r = 2 * f + e / 2;
                        const float d_a = e % 2 ? s.z : s.x;
                        float y = fma(as_float(uint32_t(x[e])), d[r].x, c[r]);
                        if constexpr (SUB16) y = fma(as_float(uint32_t(x1[e])) - kMagic, d[r].y, y);
                        float sum = fma(y, d_a, part[f][j][e]);
                        if constexpr (MIN && !SUB16) sum = fma(d[r].y, e % 2 ? s.w : s.y, sum);
                        if constexpr (MIN && SUB16) {
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

// S groups of warps take the units in turn, each with its own shared memory; the first group adds all partial sums in
// order. SORTED: tokens are slots of experts.cu, `pairs` has their result rows, `from` is the offset of the matrix.
template <bool SUB16, bool MIN, int WR, int WT, int F, int J, int S, bool SORTED>
DEVICE void multiply_tile(const ProductArgs& a, const Product& p, int first, int first_token, const int32_t* pairs, int64_t from) {
    SHARED;
    using T = Tile<SUB16, MIN, WR, WT, F, J>;
    const Matrix& w = p.w;
    const int group = S > 1 ? thread() / T::count : 0, me = thread() - group * T::count, warp = me / 32;
    const int units = w.units, ahead = a.stages /* 2 or 3 */, chunks = w.tile_bytes / 512;
    const int bytes = T::weights_at + T::rows * (chunks * 16 + (w.tile_bytes % 512 ? 4 : 0));
    uint8_t* const room = shared + group * (2 * T::set_bytes + ahead * bytes);
    float4* const parts = reinterpret_cast<float4*>(shared + S * (2 * T::set_bytes + ahead * bytes)) + me;  // [2][S - 1][F J][count]
    const auto stage = [&](int n) { return room + 2 * T::set_bytes + n * bytes; };
    NEEDS_SHARED(tile_shared_bytes(T::rows, T::tokens, S, ahead, T::set_bytes, bytes));
    const auto sync = [&] {
        if constexpr (S > 1) sync_some(1 + group, T::count);
        else sync_block();
    };
    Source source(w, first, T::rows, chunks, me);
    if constexpr (SORTED) source.group += from;
    const auto fetch_rows = [&](int n, int u) {
        if (u < units) source.fetch(stage(n) + T::weights_at, T::rows, u, me, T::count);
    };
    const auto unpack = [&](int n, int set) {
        with_layout(w.format, [&](auto layout) {
            using L = decltype(layout);
            if constexpr (L::sub16 == SUB16 && L::min == MIN) T::template unpack<L>(room + set * T::set_bytes, stage(n) + T::weights_at, me);
        });
    };
    float total[F][J][4];
    clear_sums<F, J>(total);
    fetch_rows(ahead - 1, group);  // into the stage that nothing overwrites before it is unpacked
    for (int k = 0; k < ahead - 1; k++) fetch_rows(k, (k + 1) * S + group);
    wait_for_previous();
    for (int k = 0; k < ahead - 1; k++) {
        if (k * S + group < units) T::fetch_acts(stage(k), a.acts, first_token, k * S + group, me);
        copy_group();
    }
    copies_done<0>();
    sync();
    if (group < units) unpack(ahead - 1, 0);
    int now = 0, then = ahead - 1;  // the stage that is multiplied, and the one that is fetched
    for (int k = 0; k * S < units; k++) {
        const int u = k * S + group, next = u + (ahead - 1) * S;
        if (ahead <= 2) copies_done<0>();  // all groups but the last ahead - 2 have landed
        else copies_done<1>();
        sync();  // all warps have finished reading the stage that is overwritten next
        fetch_rows(then, next + S);
        if (next < units) T::fetch_acts(stage(then), a.acts, first_token, next, me);
        copy_group();
        then = then + 1 == ahead ? 0 : then + 1;
        float part[F][J][4];
        if (u + S < units) unpack(now, (k + 1) % 2);
        if (S == 1 || u < units) T::multiply(room + k % 2 * T::set_bytes, stage(now), warp, part);
        now = now + 1 == ahead ? 0 : now + 1;
        float4* const mine = parts + k % 2 * (S - 1) * F * J * T::count;
        if (S > 1) {
            if (group > 0 && u < units)
#pragma unroll
                for (int n = 0; n < F * J; n++) {
                    const float* x = part[n / J][n % J];
                    mine[((group - 1) * F * J + n) * T::count] = {x[0], x[1], x[2], x[3]};
                }
            sync_block();
            if (group > 0) continue;
        }
#pragma unroll
        for (int n = 0; n < F * J; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) total[n / J][n % J][e] = total[n / J][n % J][e] + part[n / J][n % J][e];
#pragma unroll
        for (int g = 1; g < S; g++)
            if (u + g < units)
#pragma unroll
                for (int n = 0; n < F * J; n++) {
                    const float4 x = mine[((g - 1) * F * J + n) * T::count];
                    float* y = total[n / J][n % J];
                    y[0] = y[0] + x.x, y[1] = y[1] + x.y, y[2] = y[2] + x.z, y[3] = y[3] + x.w;
                }
    }
    if (group > 0) return;
#pragma unroll
    for (int f = 0; f < F; f += 2)
        store_sums<J, SORTED>(p, &total[f], first + (warp / WT * F + f) * 16, first_token + warp % WT * 8 * J, a.tokens, pairs);
}

// block_x: tile of tokens; block_y: tile of rows. Blocks that run at the same time share weights in L2.
template <int WR, int WT, int F, int J, int S = 1, bool SORTED = false>
DEVICE void product_tile(const ProductArgs& a, const int32_t* pairs = nullptr, int64_t from = 0) {
    next_may_start();
    const int tile = block_y(), first_token = block_x() * 8 * J * WT;
    const Product& p = a.parts[part_of(a, tile)];  // first_group counts tiles of rows here
    const int first = (tile - p.first_group) * 16 * F * WR;
    bool sub16 = false, min = false;
    with_layout(p.w.format, [&](auto layout) { sub16 = decltype(layout)::sub16, min = decltype(layout)::min; });
    if (sub16 && min) multiply_tile<true, true, WR, WT, F, J, S, SORTED>(a, p, first, first_token, pairs, from);
    else if (sub16) multiply_tile<true, false, WR, WT, F, J, S, SORTED>(a, p, first, first_token, pairs, from);
    else if (min) multiply_tile<false, true, WR, WT, F, J, S, SORTED>(a, p, first, first_token, pairs, from);
    else multiply_tile<false, false, WR, WT, F, J, S, SORTED>(a, p, first, first_token, pairs, from);
}

}  // namespace assay
