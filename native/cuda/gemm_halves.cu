// Products of F16 and BF16 weights on tensor cores, for precision `tensor`: activations rounded to the weights' type, products
// exact, sums in float32 in the order of the hardware within a unit of 256 columns, units added ascending. The order is the
// same for any number of tokens, so batches, chunks and cached prefixes give the same bits; they are not the cpu engine's.
#include "gemm.h"

namespace assay {

template <int FORMAT, int WR, int WT, int J>
struct HalfStage {
    static constexpr int rows = 32 * WR, tile_tokens = 8 * J * WT, chunks = 32;
    static constexpr int token_bytes = 528;  // spreads tokens over the banks
    static constexpr int weights_at = tile_tokens * token_bytes, bytes = weights_at + chunks * rows * 16;

    // By one warp, or by the warps of a block.
    static DEVICE int me() { return WR * WT == 1 ? lane() : thread(); }
    static DEVICE int count() { return WR * WT == 1 ? 32 : threads(); }

    static DEVICE void fetch_acts(uint8_t* to, const Acts& acts, int token, int u) {
        const uint16_t* x = reinterpret_cast<const uint16_t*>(acts.q) + int64_t(token) * acts.stride + u * 256;
        for (int i = me(); i < tile_tokens * chunks; i += count())
            copy_async(to + i / chunks * token_bytes + i % chunks * 16, x + i / chunks * acts.stride + i % chunks * 8);
    }
    static DEVICE void multiply(const uint8_t* stage, float (&part)[2][J][4]) {
        const int warp = WR * WT == 1 ? 0 : thread() / 32;
        const int g = lane() / 4, t = lane() % 4, row = warp / WT * 32 + g, token = warp % WT * 8 * J + g;
        const auto weight = [&](int r, int c) {
            return *reinterpret_cast<const uint32_t*>(stage + weights_at + (c * rows + r) * 16 + t * 4);
        };
#pragma unroll
        for (int f = 0; f < 2; f++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[f][j][e] = 0.0f;
#pragma unroll 4
        for (int i = 0; i < chunks; i += 2) {
            uint32_t a[2][4];
#pragma unroll
            for (int f = 0; f < 2; f++)
#pragma unroll
                for (int e = 0; e < 4; e++) a[f][e] = weight(row + 16 * f + 8 * (e % 2), i + e / 2);
#pragma unroll
            for (int j = 0; j < J; j++) {
                const uint8_t* x = stage + (token + 8 * j) * token_bytes + i * 16 + t * 4;
                const uint32_t b0 = *reinterpret_cast<const uint32_t*>(x), b1 = *reinterpret_cast<const uint32_t*>(x + 16);
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    if (FORMAT == F16) mma_f16(part[f][j], a[f], b0, b1);
                    else mma_bf16(part[f][j], a[f], b0, b1);
                }
            }
        }
    }
};

template <int FORMAT>
struct Halved {
    static constexpr int number = FORMAT;
};
struct SixteenBits {
    template <class F>
    static DEVICE void with(int format, F&& f) {
        if (format == F16) f(Halved<F16>{});
        else f(Halved<BF16>{});
    }
    template <class L, int J, int ROWS>
    using Of = HalfStage<L::number, 1, 1, J>;
};

// The warps of a block share 32 WR rows and 8 J WT tokens.
template <int WR, int WT, int J>
DEVICE void many_tokens(const ProductArgs& a) {
    SHARED;
    const int tile = block_y(), first_token = block_x() * 8 * J * WT;
    next_may_start();
    const Product& p = a.parts[part_of(a, tile)];  // first_group counts tiles of rows here
    const int first = (tile - p.first_group) * 32 * WR, warp = thread() / 32;
    float total[2][J][4];
    clear_sums<2, J>(total);
    wait_for_previous();
    SixteenBits::with(p.w.format, [&](auto layout) {
        using S = HalfStage<decltype(layout)::number, WR, WT, J>;
        const Source source(p.w, first, S::rows, S::chunks, thread());
        const int stages = a.stages;  // 2, or 1 where shared memory has no room for more
        for (int u = 1 - stages; u < p.w.units; u++) {
            const int next = u + stages - 1;
            if (next < p.w.units) {
                S::fetch_acts(shared + next % stages * S::bytes, a.acts, first_token, next);
                source.fetch(shared + next % stages * S::bytes + S::weights_at, S::rows, next, thread(), threads());
            }
            copy_group();
            if (u < 0) continue;
            if (stages == 2) copies_done<1>();
            else copies_done<0>();
            sync_block();
            float part[2][J][4];
            S::multiply(shared + u % stages * S::bytes, part);
#pragma unroll
            for (int f = 0; f < 2; f++)
#pragma unroll
                for (int j = 0; j < J; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) total[f][j][e] = total[f][j][e] + part[f][j][e];
            sync_block();  // everybody is done with this unit
        }
    });
    store_sums<J>(p, total, first + warp / WT * 32, first_token + warp % WT * 8 * J, a.tokens);
}

KERNEL(product_tensor_8, ProductArgs, 256) { few_tokens<SixteenBits, 1, 8>(a); }
KERNEL(product_tensor_8_small, ProductArgs, 128) { few_tokens<SixteenBits, 1, 4>(a); }  // where eight units do not fit
KERNEL(product_tensor_many, ProductArgs, 256) { many_tokens<4, 2, 4>(a); }

}  // namespace assay
