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

    static DEVICE void fetch_acts(uint8_t* to, const Acts& acts, int token, int tokens, int u, int me, int count) {
        const uint16_t* x = reinterpret_cast<const uint16_t*>(acts.q) + u * 256;
        for (int i = me; i < tile_tokens * chunks; i += count) {
            const int64_t t = token + i / chunks < tokens ? token + i / chunks : tokens - 1;
            copy_async(to + i / chunks * token_bytes + i % chunks * 16, x + t * acts.stride + i % chunks * 8);
        }
    }
    static DEVICE void fetch_weights(uint8_t* to, const Matrix& w, int64_t first, int u, int me, int count) {
        const int mine = me % rows, row = int(first) + mine < w.all_rows ? int(first) + mine : w.all_rows - 1;
        const int group = row / w.group, at = u * w.group + row % w.group;
        const uint8_t* from = w.tile(group, at / 32) + at % 32 * 16;
        for (int c = me / rows; c < chunks; c += count / rows) copy_async(to + weights_at + (c * rows + mine) * 16, from + c * 512);
    }
    static DEVICE void multiply(const uint8_t* stage, int warp, float (&part)[2][J][4]) {
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
    template <class L, int WR, int WT, int J>
    using Of = HalfStage<L::number, WR, WT, J>;
};

KERNEL(product_tensor_8, ProductArgs, 256) { few_tokens<SixteenBits, 1, 8>(a); }
KERNEL(product_tensor_8_small, ProductArgs, 128) { few_tokens<SixteenBits, 1, 4>(a); }  // where eight units do not fit
KERNEL(product_tensor_many, ProductArgs, 256) { many_tokens<SixteenBits, 4, 2, 4, 2>(a); }

}  // namespace assay
