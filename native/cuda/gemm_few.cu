// 32 rows x 8, 16 or 32 tokens, for batches of up to 64: the warps of a block share the units between them, as those of
// product_one do. After every round each thread adds the partial sums of its results in order. Weights are on their way before
// the kernel waits.
#include "gemm.h"

namespace assay {

template <int J, int SPLITS>
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
    with_layout(p.w.format, [&](auto layout) {
        using L = decltype(layout);
        using S = Stage<L, 1, 1, J>;
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
                multiply_unit<L, 1, 1, J>(stage, 0, part);
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

KERNEL(product_8, ProductArgs, 256) { few_tokens<1, 8>(a); }
KERNEL(product_16, ProductArgs, 256) { few_tokens<2, 8>(a); }
CROWDED(product_32, ProductArgs, 128, 2) { few_tokens<4, 4>(a); }

}  // namespace assay
