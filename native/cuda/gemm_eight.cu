// 32 rows x 8 tokens, for batches of a few: the warps of a block share the units between them, as those of product_one do,
// and the partial sums are added in order at the end. Weights are on their way before the kernel waits.
#include "gemm.h"

namespace assay {

KERNEL(product_eight, ProductArgs, 256) {
    SHARED;
    const int tile = block_x(), first_token = block_y() * 8, warp = thread() / 32, warps = threads() / 32;
    const Product& p = a.parts[part_of(a, tile)];  // first_group counts tiles of rows here
    const int64_t first = int64_t(tile - p.first_group) * 32;
    float* parts = reinterpret_cast<float*>(shared);  // [units][32 rows][8 tokens]
    uint8_t* stage = shared + p.w.units * 1024 + warp * a.stages;  // stages: bytes of one
    next_may_start();
    with_layout(p.w.format, [&](auto layout) {
        using L = decltype(layout);
        using S = Stage<L, 1, 1, 1>;
        const auto fetch = [&](int u) {
            if (u < p.w.units) S::fetch_weights(stage, p.w, first, u, lane(), 32);
        };
        fetch(warp);
        wait_for_previous();
        for (int u = warp; u < p.w.units; u += warps) {
            S::fetch_acts(stage, a.acts, first_token, a.tokens, u, lane(), 32);
            copy_group();
            copies_done<0>();
            sync_warp();
            float part[2][1][4];
            multiply_unit<L, 1, 1, 1>(stage, 0, part);
            for (int f = 0; f < 2; f++)
                for (int e = 0; e < 4; e++)
                    parts[(u * 32 + 16 * f + 8 * (e / 2) + lane() / 4) * 8 + lane() % 4 * 2 + e % 2] = part[f][0][e];
            sync_warp();
            fetch(u + warps);
        }
    });
    sync_block();
    const int pair = p.paired ? p.w.group / 2 : 0;
    for (int i = thread(); i < 256; i += threads()) {
        const int64_t row = first + i / 8;
        const int token = first_token + i % 8;
        float y = parts[i], up = parts[(i + 8 * pair) % 256];
        for (int u = 1; u < p.w.units; u++) {
            y = y + parts[u * 256 + i];
            up = up + parts[u * 256 + (i + 8 * pair) % 256];
        }
        if (token < a.tokens && row < p.w.all_rows) finish(p, row / p.w.group, int(row % p.w.group), token, y, up);
    }
}

}  // namespace assay
