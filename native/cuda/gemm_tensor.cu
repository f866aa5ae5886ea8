// Products of quantised weights on 16-bit tensor cores, for precision `tensor`: weights and activations rounded to f16, sums in
// float32 by the tensor core, 16 columns after 16, ascending, from +0. Every kernel here does that, so any batch and any chunk
// gives the same bits; they are not the cpu engine's.
//
// A weight is fma(q, d, m) in f16, q being exact, d and m rounded to f16 after they were multiplied by 64: so that no scale of a
// real file is subnormal. The sum is divided by 64.
//
// A block of 8 warps takes 16 F WR rows x 8 J WT tokens. A step is 64 columns: all warps unpack its weights to f16 in shared
// memory, one step ahead; the first WR WT warps multiply. Weights come by units of 256 columns, as they lie in memory, one unit
// ahead, activations by steps. Bound by `mma` for large tiles, for 8 tokens by the latency of its chain, 33 cycles 16 columns.
#include "gemm.h"

namespace assay {

constexpr int kColumns = 64, kSteps = 256 / kColumns, kHalves = 2 * kColumns + 16;  // of a step; bytes of a row of one: eight hit all banks
constexpr int kWarps = 8;
constexpr float kLift = 64.0f;

DEVICE uint32_t twice(float x) {
    const uint32_t h = float_to_half(x * kLift);
    return h | h << 16;
}

// Four codes, a byte each, of layout L as the exact halves of q: 1024 + code stands in a half whose low byte is the code.
template <class L>
DEVICE uint2 codes_as_halves(uint32_t codes) {
    constexpr uint32_t minus = (0xe400u + (L::negative ? 128u : uint32_t(L::offset))) * 0x10001u;  // -(1024 + what is taken off)
    if (L::negative) codes ^= 0x80808080u;
    return {add_halves(permute(codes, 0x64646464u, 0x4140), minus), add_halves(permute(codes, 0x64646464u, 0x4342), minus)};
}

// Step q of a unit, to [rows][kHalves]: a thread has `per` words of a block of a row.
template <class L, int ROWS>
DEVICE void unpack_step(const uint8_t* raw, int q, uint8_t* to) {
    constexpr int per = ROWS / 32;
    const int row = thread() % ROWS, piece = thread() / ROWS, b = piece / (4 / per), t0 = piece % (4 / per) * per, i = 2 * q + b;
    const InStage w{raw, ROWS, row};
    const uint32_t super = L::word ? *reinterpret_cast<const uint32_t*>(raw + L::chunks * ROWS * 16 + row * 4) : 0;
    const typename L::Values v = L::factors(w, super, i);
    uint32_t d[2], m[2] = {0, 0};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        d[h] = twice(v.d[L::sub16 ? h : 0]);
        if constexpr (L::min) m[h] = twice(v.m[L::sub16 ? h : 0]);
    }
    uint8_t* line = to + row * kHalves + b * 64 + t0 * 8;
    uint2 all[2][per];
#pragma unroll
    for (int t = 0; t < per; t++) {
        uint32_t codes[2];
        if constexpr (per == 4 && L::kind != N8) L::words(Held{w, w.chunk(i), i}, i, t, codes[0], codes[1]);
        else L::words(w, i, t0 + t, codes[0], codes[1]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint2 x = codes_as_halves<L>(codes[h]);
            all[h][t] = {fma_halves(x.x, d[h], m[h]), fma_halves(x.y, d[h], m[h])};
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if constexpr (per == 1) *reinterpret_cast<uint2*>(line + 32 * h) = all[h][0];
        else
#pragma unroll
            for (int t = 0; t < per; t += 2)
                *reinterpret_cast<uint4*>(line + 32 * h + 8 * t) = {all[h][t].x, all[h][t].y, all[h][t + 1].x, all[h][t + 1].y};
    }
}

// Shared memory: two units of weights as they lie, [chunks][rows][16] and words; two steps of weights as halves; `stages` steps of
// activations, [tokens][kHalves]. WT 0: as many warps as there are eights of tokens, a.slots.
template <int WR, int WT, int F, int J>
DEVICE void tensor_tile(const ProductArgs& a) {
    SHARED;
    constexpr int rows = 16 * F * WR, count = 32 * kWarps;
    const int wide = WT ? WT : a.slots, tokens = 8 * J * wide, tile = block_y(), first_token = block_x() * tokens;
    next_may_start();
    const Product& p = a.parts[part_of(a, tile)];  // first_group counts tiles of rows here
    const Matrix& w = p.w;
    const int first = (tile - p.first_group) * rows, me = thread(), warp = me / 32, format = w.format;
    const int units = w.units, steps = (w.columns + kColumns - 1) / kColumns, stages = a.stages /* 2 or 3 */, chunks = w.tile_bytes / 512;
    const int unit_bytes = rows * (chunks * 16 + (w.tile_bytes % 512 ? 4 : 0));
    uint8_t* const halves = shared + 2 * unit_bytes;
    uint8_t* const acts = halves + 2 * rows * kHalves;
    const Source source(w, first, rows, chunks, me);
    const auto fetch_unit = [&](int u) {
        if (u < units) source.fetch(shared + u % 2 * unit_bytes, rows, u, me, count);
    };
    const uint16_t* x = reinterpret_cast<const uint16_t*>(a.acts.q) + int64_t(first_token + me / 8) * a.acts.stride + me % 8 * 8;
    const auto fetch_acts = [&](int stage, int n) {
        uint8_t* to = acts + stage * tokens * kHalves + me / 8 * kHalves + me % 8 * 16;
        if (n < steps)
            for (int t = me / 8; t < tokens; t += count / 8, to += count / 8 * kHalves)
                copy_async(to, x + int64_t(t - me / 8) * a.acts.stride + n * kColumns);
        copy_group();
    };
    const auto unpack = [&](int n) {
        with_layout(format, [&](auto layout) {
            unpack_step<decltype(layout), rows>(shared + n / kSteps % 2 * unit_bytes, n % kSteps, halves + n % 2 * rows * kHalves);
        });
    };
    float sum[F][J][4];
#pragma unroll
    for (int f = 0; f < F; f++)
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[f][j][e] = 0.0f;
    fetch_unit(0);
    fetch_unit(1);
    copy_group();
    wait_for_previous();
    fetch_acts(0, 0);
    if (stages > 2) fetch_acts(1, 1);
    if (stages > 2) copies_done<2>();
    else copies_done<1>();
    sync_block();
    unpack(0);
    const bool multiplies = warp < WR * wide, late = (a.extra & 1) && (multiplies && (WR * wide < kWarps || warp >= kWarps / 2));
    const uint8_t* a_at = halves + (warp / wide * 16 * F + lane() % 16) * kHalves + lane() / 16 * 16;
    const uint8_t* b_at = acts + (warp % wide * 8 * J + lane() % 8 + lane() / 16 * 8 * (J > 1)) * kHalves + lane() / 8 % 2 * 16;
    int now = 0, last = stages - 1;  // the stage at hand, and the one before it
    for (int n = 0; n < steps; n++) {
        if (stages > 2) copies_done<1>();
        else copies_done<0>();
        sync_block();  // step n is there, in both forms, and nobody reads step n - 1 any more
        if (n % kSteps == kSteps - 1) fetch_unit((n + 1) / kSteps + 1);
        fetch_acts(last, n + stages - 1);
        // Half of the warps multiply first, so that the tensor cores are not idle while weights are unpacked.
#pragma unroll 1
        for (int turn = 0; turn < 2; turn++) {
            if ((turn == 0) != late) {
                if (n + 1 < steps) unpack(n + 1);
                continue;
            }
            if (!multiplies) continue;
            const uint8_t* of_a = a_at + n % 2 * rows * kHalves;
            const uint8_t* of_b = b_at + now * tokens * kHalves;
#pragma unroll
            for (int i = 0; i < kColumns / 16; i++) {
                uint32_t fragment[F][4], b[4];
#pragma unroll
                for (int f = 0; f < F; f++) load_matrices(fragment[f], of_a + 16 * f * kHalves + 32 * i);
#pragma unroll
                for (int j = 0; j < J; j++) {
                    if (j % 2 == 0) load_matrices(b, of_b + 8 * j * kHalves + 32 * i);
#pragma unroll
                    for (int f = 0; f < F; f++) mma_f16(sum[f][j], fragment[f], b[j % 2 * 2], b[j % 2 * 2 + 1]);
                }
            }
        }
        last = now;
        now = now + 1 == stages ? 0 : now + 1;
    }
    if (!multiplies) return;
#pragma unroll
    for (int f = 0; f < F; f++)
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[f][j][e] = sum[f][j][e] * (1.0f / kLift);
#pragma unroll
    for (int f = 0; f < F; f += 2)
        store_sums<J>(p, &sum[f], first + (warp / wide * F + f) * 16, first_token + warp % wide * 8 * J, a.tokens);
}

CROWDED(tensor_128_256, ProductArgs, 256, 1) { tensor_tile<2, 4, 4, 8>(a); }
CROWDED(tensor_128_128, ProductArgs, 256, 1) { tensor_tile<2, 4, 4, 4>(a); }
CROWDED(tensor_128_64, ProductArgs, 256, 2) { tensor_tile<4, 2, 2, 4>(a); }
CROWDED(tensor_64_64, ProductArgs, 256, 2) { tensor_tile<2, 4, 2, 2>(a); }
CROWDED(tensor_32, ProductArgs, 256, 3) { tensor_tile<1, 0, 2, 1>(a); }  // 8 to 64 tokens

}  // namespace assay
