// Matrix products for one token where a block has many groups of rows to go through (arrange.py says where): a warp takes
// two groups at a time, which read x once, and has the next two on their way while it multiplies. The other kernel,
// products.cu, has more warps and less for each to do: it is for products that are over when their first tiles are.
#include "multiply.h"

namespace assay {

// `together` groups of rows at a time, P of them by the same warps.
template <class L, int P>
DEVICE void wide_product(const ProductArgs& a) {
    SHARED;
    const Matrix& shape = a.parts[0].w;  // all parts are alike but for rows
    const int tiles = shape.tiles, items = tiles * 32, rows = 1 << a.shift, stride = shape.units * 256;
    const int step = grid_x() * a.together, warps = a.team;  // warps that share P groups
    const int team = thread() / 32 / warps, warp = thread() / 32 - team * warps, sub = team * P;
    const int sums_room = 2 * a.together * items, normed = a.norm ? a.columns : 0;
    int8_t* const q = reinterpret_cast<int8_t*>(shared);
    float2* const ds = reinterpret_cast<float2*>(shared + stride);
    uint32_t* const n = reinterpret_cast<uint32_t*>(ds + stride / 32);
    float* const parts = reinterpret_cast<float*>(n + stride / 32);  // and the norm's weights, which are used before
    uint8_t* const all_slots = reinterpret_cast<uint8_t*>(parts + (sums_room > normed ? sums_room : normed));
    const int turn_bytes = threads() / 32 * P * L::tile_bytes;  // the first tiles of all warps, then the next ones
    uint8_t* const slots = all_slots + thread() / 32 * P * L::tile_bytes;
    float* const row = reinterpret_cast<float*>(all_slots + turn_bytes) + 4;  // while it is normed, before the next ones come
    next_may_start();
    if (a.norm) copy_row(parts, a.norm, a.columns);
    const auto fetch = [&](int group, int tile, uint8_t* to) {
#pragma unroll
        for (int k = 0; k < P; k++, group++, to += L::tile_bytes) {
            if (group >= a.groups) break;
            const Product& p = a.parts[part_of(a, group)];
            const uint8_t* from = p.w.tile(group - p.first_group, tile) + lane() * 16;
#pragma unroll
            for (int c = 0; c < L::chunks; c++) copy_async(to + lane() * 16 + c * 512, from + c * 512);
            if (L::word) copy_async4(to + lane() * 4 + L::chunks * 512, from + L::chunks * 512 - lane() * 12);
        }
        copy_group();
    };
    fetch(block_x() * a.together + sub, warp, slots);
    wait_for_previous();
    copies_done<1>();  // the norm's weights
    sync_block();
    quantise_row(a.x, a.norm ? parts : nullptr, a.eps, a.columns, stride, row, q, ds, n);
    sync_block();
    int turn = 0, round = 0;  // where the tile at hand lies; which partial sums are written
    for (int first = block_x() * a.together; first < a.groups; first += step, round++) {
        const int group = first + sub;
        // One thread a row adds its partial sums; another warp in every round, as the others go on meanwhile.
        const int mine = (thread() + 32 * round) % threads(), owned = first + (mine >> a.shift);
        const bool owner = mine < a.together * rows && owned < a.groups;
        const Product& of = a.parts[part_of(a, owner ? owned : 0)];
        Tail tail = owner ? Tail(of, owned - of.first_group, mine & (rows - 1), 0) : Tail();
        tail.ask();
        float* const sums = parts + round % 2 * a.together * items;
        for (int tile = warp; tile < tiles; tile += warps, turn ^= 1) {
            const bool more = tile + warps < tiles;
            fetch(more ? group : group + step, more ? tile + warps : warp, slots + (turn ^ 1) * turn_bytes);
            copies_done<1>();
            sync_warp();
            const int at = tile * 32 + lane(), whole = at >> a.shift, unit = whole < shape.units ? whole : shape.units - 1;
            float part[P];
            const uint8_t* here[P];
#pragma unroll
            for (int k = 0; k < P; k++) here[k] = slots + turn * turn_bytes + k * L::tile_bytes;
            multiply<L, P>(here, q + unit * 256, ds + unit * 8, n + unit * 8, part);
#pragma unroll
            for (int k = 0; k < P; k++) sums[(sub + k) * items + at] = part[k];  // garbage where there is no such group
            sync_warp();
        }
        sync_block();
        const auto total = [&](int r, int pair) { return total_of(shape, sums + (r >> a.shift) * items, (r + pair) & (rows - 1)); };
        if (owner) tail.finish(total(mine, 0), of.paired ? total(mine, rows / 2) : 0.0f);
        for (int more = mine + threads(); more < a.together * rows && first + (more >> a.shift) < a.groups; more += threads()) {
            const Product& p = a.parts[part_of(a, first + (more >> a.shift))];
            const float up = p.paired ? total(more, rows / 2) : 0.0f;
            finish(p, first + (more >> a.shift) - p.first_group, more & (rows - 1), 0, total(more, 0), up);
        }
    }
}

#define WIDE(name, L) CROWDED(product_wide_##name, ProductArgs, 512, 1) { wide_product<LayoutOf<L>, 2>(a); }
WIDE(q4_0, Q4_0)
WIDE(q4_1, Q4_1)
WIDE(q4_k, Q4_K)
WIDE(q5_k, Q5_K)
WIDE(q6_k, Q6_K)

}  // namespace assay
