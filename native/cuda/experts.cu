// Products of several matrices (experts) for many pairs (token, choice). Pairs are sorted by matrix, and tiles of pairs
// are multiplied like tiles of tokens (gemm.h, gemm_tiles.h). Every row has the bits of product_one, whatever its tile.
#include "gemm_tiles.h"
#include "map.h"

namespace assay {

// pairs [tiles * tile]: the pairs of matrix 0 ascending, then those of matrix 1, and so on. Each matrix begins a new
// tile; slots without a pair hold -1. matrices [tiles]: the matrix of each tile, -1 behind the last. block_x: the
// matrix whose pairs this block collects.
KERNEL(sort_pairs, SortArgs, 1024) {
    SHARED;
    int* const counts = reinterpret_cast<int*>(shared);  // [n]: pairs of each matrix
    int* const found = counts + a.n;  // [warps]: pairs of this matrix that each warp has found
    const int warp = thread() / 32, warps = threads() / 32, mine = block_x();
    NEEDS_SHARED(sort_pairs_bytes(a.n, warps));
    const int each = (a.count + threads() - 1) / threads() * 32, begin = warp * each, end = begin + each < a.count ? begin + each : a.count;
    for (int i = thread(); i < a.n; i += threads()) counts[i] = 0;
    next_may_start();
    wait_for_previous();
    sync_block();
    int own = 0;
    for (int p = begin + lane(); p < end; p += 32) {
        const int m = matrix_of(a.experts, p, a.n);
        fetch_add(counts + m, 1);
        own += m == mine;
    }
    own = reduce_add(own);
    if (lane() == 0) found[warp] = own;
    sync_block();
    int before = 0, all = 0;  // tiles
    for (int m = lane(); m < a.n; m += 32) {
        const int tiles = (counts[m] + a.tile - 1) / a.tile;
        all += tiles, before += m < mine ? tiles : 0;
    }
    all = reduce_add(all), before = reduce_add(before);
    int at = before * a.tile;
    // the last matrix also fills the unused tiles
    const int last = mine == a.n - 1 ? a.tiles : before + (counts[mine] + a.tile - 1) / a.tile;
    for (int i = at + counts[mine] + thread(); i < last * a.tile; i += threads()) a.pairs[i] = -1;
    for (int i = before + thread(); i < last; i += threads()) a.matrices[i] = i < all ? mine : -1;
    for (int w = 0; w < warp; w++) at += found[w];
    for (int p = begin + lane(); p - lane() < end; p += 32) {
        const bool is = p < end && matrix_of(a.experts, p, a.n) == mine;
        const uint32_t lanes = lanes_where(is);
        if (is) a.pairs[at + count_bits(lanes & ((1u << lane()) - 1u))] = p;
        at += count_bits(lanes);
    }
}

// Quantise the row of x, or of the gated x, of every slot, in slot order, padded with zeros to the stride. block_x: slot; block_y: part of
// the columns.
KERNEL(quantise_pairs, PairArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t slot = block_x();
    const int pair = a.pairs[slot];
    if (pair < 0) return;  // its stale row is multiplied, but the result is not stored
    const float* x = a.x + int64_t(pair / a.share) * a.width;
    for (int i = block_y() * threads() + thread(); i < a.acts.stride / 8; i += grid_y() * threads()) {  // whole warps
        float v[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        if (8 * i < a.width) load_eight(x + 8 * i, v);
        if (a.up && 8 * i < a.width) {
            float up[8];
            load_eight(a.up + (x - a.x) + 8 * i, up);
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = a.oai ? glu_oai(v[j], up[j], a.alpha, a.limit) : gate(a.act, v[j]) * up[j];
        }
        quantise_eight(v, i, a.acts.q + slot * a.acts.stride, a.acts.ds + slot, a.acts.n + slot, a.acts.step);
    }
}

// out[pairs[slot]], in tiles of 32 rows x 8 slots (gemm.h) or larger ones (gemm_tiles.h). block_x: tile of slots;
// block_y: tile of rows.
#define EXPERTS(name, threads, blocks, ...)                                                \
    CROWDED(name, SortedArgs, threads, blocks) {                                           \
        next_may_start();                                                                  \
        wait_for_previous();                                                               \
        const int matrix = a.matrices[block_x()];                                          \
        if (matrix >= 0) __VA_ARGS__(a.product, a.pairs, matrix * a.product.expert_bytes); \
    }
EXPERTS(experts_32_8, 128, 4, few_tokens<Integers, 1, 4, 32, true>)
EXPERTS(experts_32_32, 128, 4, product_tile<1, 4, 2, 1, 1, true>)
EXPERTS(experts_64_64, 256, 2, product_tile<2, 4, 2, 2, 1, true>)
#undef EXPERTS

}  // namespace assay
