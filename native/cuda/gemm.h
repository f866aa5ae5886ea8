// Matrix products for a few tokens on tensor cores: a block of threads takes 32 rows x 8 J tokens, and its warps share the units of
// 256 columns. A warp copies the weights of its unit, as they lie in memory, and the activations to shared memory; the partial
// sums of the units are added in order.
//
// What a unit is made of is a `Stage`: here int8 `mma` with the float chain of docs/arithmetic.md behind each block, in
// gemm_halves.cu 16-bit floats. gemm_tiles.h has more tokens, and says why integer sums start at kMagic.
#pragma once
#include "product.h"

namespace assay {

constexpr int kTokenBytes = 272, kScaleBytes = 80;  // strides that spread tokens over the banks

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

template <class L>
DEVICE uint32_t signed_codes(uint32_t x) {  // without carries: the codes are small
    return L::offset == 0 ? x : (x + (0x80u - uint32_t(L::offset)) * 0x01010101u) ^ 0x80808080u;
}

// Unit u of `rows` rows from layout row `first`, [chunks][rows][16], and their words if there are any, by `count` threads of which
// this is number `me`; a thread keeps to a row.
DEVICE void fetch_weights(uint8_t* to, uint8_t* words, const Matrix& w, int64_t first, int rows, int chunks, int u, int me, int count) {
    const int mine = me % rows, row = int(first) + mine < w.all_rows ? int(first) + mine : w.all_rows - 1;
    const int group = row / w.group, at = u * w.group + row % w.group;
    const uint8_t* from = w.tile(group, at / 32) + at % 32 * 16;
    for (int c = me / rows; c < chunks; c += count / rows) copy_async(to + (c * rows + mine) * 16, from + c * 512);
    if (words && me < rows) copy_async4(words + mine * 4, from - at % 32 * 12 + chunks * 512);
}

template <class L, int J>
struct Stage {
    static constexpr int rows = 32, tokens = 8 * J;
    static constexpr int scales_at = tokens * kTokenBytes, sums_at = scales_at + tokens * kScaleBytes;
    static constexpr int factors_at = sums_at + (L::sub16 && L::min ? tokens * 48 : 0);
    static constexpr int weights_at = factors_at + 64 * rows * (L::sub16 && L::min ? 2 : 1);
    static constexpr int words_at = weights_at + L::chunks * rows * 16;

    // Unit u of the activations of the tile, by a warp.
    static DEVICE void fetch_acts(uint8_t* to, const Acts& acts, int token, int all, int u) {
        const int64_t blocks = acts.stride / 32;
        for (int i = lane(); i < tokens * 16; i += 32) {
            const int64_t t = token + i / 16 < all ? token + i / 16 : all - 1;
            copy_async(to + i / 16 * kTokenBytes + i % 16 * 16, acts.q + t * acts.stride + u * 256 + i % 16 * 16);
        }
        for (int i = lane(); i < tokens * 4; i += 32) {
            const int64_t t = token + i / 4 < all ? token + i / 4 : all - 1;
            copy_async(to + scales_at + i / 4 * kScaleBytes + i % 4 * 16, acts.ds + t * blocks + u * 8 + i % 4 * 2);
        }
        if (L::sub16 && L::min)
            for (int i = lane(); i < tokens * 2; i += 32) {
                const int64_t t = token + i / 2 < all ? token + i / 2 : all - 1;
                copy_async(to + sums_at + i / 2 * 48 + i % 2 * 16, acts.n + t * blocks + u * 8 + i % 2 * 4);
            }
    }
    static DEVICE void fetch_rows(uint8_t* to, const Matrix& w, int64_t first, int u) {
        fetch_weights(to + weights_at, L::word ? to + words_at : nullptr, w, first, rows, L::chunks, u, lane(), 32);
    }
    // The partial sums of a warp: fragment, eight tokens, element of the fragment.
    static DEVICE void multiply(uint8_t* stage, float (&part)[2][J][4]) {
        const int g = lane() / 4, t = lane() % 4;
        {  // a lane has a row: its factors, (d, m), (d0, d1) or both, once
            const InStage w{stage + weights_at, rows, lane()};
            const uint32_t super = L::word ? *reinterpret_cast<const uint32_t*>(stage + words_at + lane() * 4) : 0;
            float2* to = reinterpret_cast<float2*>(stage + factors_at) + lane();
#pragma unroll
            for (int i = 0; i < 8; i++) {
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
        for (int f = 0; f < 2; f++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[f][j][e] = 0.0f;
        const float2* factors = reinterpret_cast<const float2*>(stage + factors_at) + g;
#pragma unroll(J > 2 ? 1 : 2)
        for (int i = 0; i < 8; i++) {
            uint32_t a[2][4];
            float2 d[4], m[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const InStage w{stage + weights_at, rows, g + 8 * r};
                uint32_t low, high;
                L::words(w, i, t, low, high);
                a[r / 2][r % 2] = signed_codes<L>(low);
                a[r / 2][2 + r % 2] = signed_codes<L>(high);
                d[r] = factors[i * rows + 8 * r];
                if constexpr (L::sub16 && L::min) m[r] = factors[(8 + i) * rows + 8 * r];
            }
#pragma unroll
            for (int j = 0; j < J; j++) {
                const uint8_t* x = stage + (8 * j + g) * kTokenBytes + i * 32 + t * 4;
                const uint32_t b0 = *reinterpret_cast<const uint32_t*>(x), b1 = *reinterpret_cast<const uint32_t*>(x + 16);
                const int of = 8 * j + 2 * t;  // this lane's two tokens of the result
                const float2 s0 = *reinterpret_cast<const float2*>(stage + scales_at + of * kScaleBytes + i * 8);
                const float2 s1 = *reinterpret_cast<const float2*>(stage + scales_at + (of + 1) * kScaleBytes + i * 8);
                uint32_t n[2] = {0, 0};
                if constexpr (L::sub16 && L::min)
                    for (int e = 0; e < 2; e++) n[e] = *reinterpret_cast<const uint32_t*>(stage + sums_at + (of + e) * 48 + i * 4);
#pragma unroll
                for (int f = 0; f < 2; f++) {
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
                        const float2 s = e % 2 ? s1 : s0;
                        float y = fma(as_float(uint32_t(x0[e])), d[r].x, -kMagic * d[r].x);
                        if constexpr (L::sub16) y = fma(as_float(uint32_t(x1[e])) - kMagic, d[r].y, y);
                        float sum = fma(y, s.x, part[f][j][e]);
                        if constexpr (L::min && !L::sub16) sum = fma(d[r].y, s.y, sum);
                        if constexpr (L::min && L::sub16) {
                            sum = fma(m[r].x, s.x * float(low_sum(n[e % 2])), sum);
                            sum = fma(m[r].y, s.x * float(high_sum(n[e % 2])), sum);
                        }
                        part[f][j][e] = sum;
                    }
                }
            }
        }
    }
};

// What follows the sums of a warp: rows g + 8 r of 32 from `row`, tokens 8 j + 2 t and the next from `token`. A pair lies 8 or 16
// rows apart, in this lane. Everything is read before anything is written.
template <int J>
DEVICE void store_sums(const Product& p, float (&y)[2][J][4], int row, int token, int tokens) {
    const int half = p.paired ? p.w.group / 2 : p.w.group, g = lane() / 4;
    token += lane() % 4 * 2;
    int out[4];
    float bias[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int at = row + 8 * r + g, in_group = at % p.w.group;
        out[r] = in_group < half ? at / p.w.group * half + in_group : p.w.rows;  // not before the rows: not wanted
        bias[r] = p.bias && out[r] < p.w.rows ? p.bias[out[r]] : 0.0f;
    }
    const auto each = [&](auto&& f) {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (out[r] < p.w.rows && token + 8 * j + e < tokens)
                        f(r, j, 2 * (r % 2) + e, int64_t(token + 8 * j + e) * p.out_stride + out[r]);
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

struct Integers {
    template <class F>
    static DEVICE void with(int format, F&& f) { with_layout(format, f); }
    template <class L, int J>
    using Of = Stage<L, J>;
};

// block_x: tile of tokens; block_y: tile of rows. After every round each thread adds the partial sums of its results in order. Weights are on their way
// before the kernel waits.
template <class Kind, int J, int SPLITS>
DEVICE void few_tokens(const ProductArgs& a) {
    SHARED;
    constexpr int tokens = 8 * J, each = tokens / SPLITS, line = J == 1 ? 8 : tokens + 8;  // strides that spread rows over the banks
    const int tile = block_y(), first_token = block_x() * tokens, split = thread() / 32;
    const Product& p = a.parts[part_of(a, tile)];  // first_group counts tiles of rows here
    const int first = (tile - p.first_group) * 32;
    const int units = p.w.units;
    float* const parts = reinterpret_cast<float*>(shared);  // [2 rounds][splits][32 rows][line]
    uint8_t* const stage = shared + 2 * SPLITS * 32 * line * 4 + split * a.stages;  // stages: bytes of one
    float total[each];
    next_may_start();
    Kind::with(p.w.format, [&](auto layout) {
        using S = typename Kind::template Of<decltype(layout), J>;
        if (split < units) S::fetch_rows(stage, p.w, first, split);
        wait_for_previous();
        if (split < units) S::fetch_acts(stage, a.acts, first_token, a.tokens, split);
        copy_group();
        for (int u0 = 0; u0 < units; u0 += SPLITS) {
            float* const sums = parts + u0 / SPLITS % 2 * SPLITS * 32 * line;
            const int u = u0 + split;
            if (u < units) {
                copies_done<0>();
                sync_warp();
                float part[2][J][4];
                S::multiply(stage, part);
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
                    S::fetch_rows(stage, p.w, first, u + SPLITS);
                    S::fetch_acts(stage, a.acts, first_token, a.tokens, u + SPLITS);
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
