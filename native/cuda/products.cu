// Matrix products for one token: out[r] = sum_i W[r, i] x[i], a thread an item of 256 columns.
//
// A team of warps takes a group of rows: its warps copy the group's tiles to shared memory, the first of them before the
// kernel waits for the one that computes x; the block norms and quantises x for itself; the team multiplies, leaves the
// partial sums of all units in shared memory, and one thread a row adds them in order. Bound by memory: the weights are read
// once. Registers and shared memory are kept small, so that the next kernel has room to begin meanwhile.
#include "multiply.h"

namespace assay {

// Where a block's activations, partial sums and weights lie in shared memory. The norm's weights lie over the partial sums,
// which come later.
struct Room {
    int8_t* q;
    float2* ds;
    uint32_t* n;
    float *row, *parts;
    uint8_t* slots;
    DEVICE Room(uint8_t* shared, int stride, int items, int normed) {
        q = reinterpret_cast<int8_t*>(shared);
        ds = reinterpret_cast<float2*>(shared + stride);
        n = reinterpret_cast<uint32_t*>(ds + stride / 32);
        row = reinterpret_cast<float*>(n + stride / 32) + 4;
        parts = row + normed;
        slots = reinterpret_cast<uint8_t*>(parts + (items > normed ? items : normed));
    }
};

// Matrices of two layouts can share a launch. SLOTS tiles of a warp are on their way or at hand.
template <class A, class B, int SLOTS>
DEVICE void one_token(const ProductArgs& a) {
    SHARED;
    constexpr bool alike = A::number == B::number;
    constexpr int tile_room = A::tile_bytes > B::tile_bytes ? A::tile_bytes : B::tile_bytes;
    constexpr int most = A::chunks > B::chunks ? A::chunks : B::chunks;
    const Matrix& shape = a.parts[0].w;  // all parts are alike but for rows and layout
    const int tiles = shape.tiles, items = tiles * 32, rows = 1 << a.shift, stride = shape.units * 256;
    const int step = grid_x() * a.together;
    const int warp = thread() / 32, team = warp / a.team, member = warp - team * a.team;
    const bool works = team < a.together;  // warps behind the last team only quantise
    const Room room(shared, stride, 2 * a.together * items, a.norm ? a.columns : 0);
    uint8_t* const slots = room.slots + warp * SLOTS * tile_room;
    next_may_start();
    if (a.experts) wait_for_previous();  // the expert is known only when the kernel before is done
    if (no_pair(a)) return;
    const Pair pair(a);
    if (a.norm) copy_row(room.parts, a.norm, a.columns);
    // The tile to be fetched next: this lane's part of it, and whether it has the first layout.
    int next_group = works ? block_x() * a.together + team : a.groups, next_tile = member;
    const uint8_t* from = nullptr;
    bool next_first = true;
    const auto seek = [&] {
        const Product& p = a.parts[part_of(a, next_group)];
        next_first = alike || p.w.format == A::number;
        from = p.w.tile(next_group - p.first_group, member) + pair.matrix * a.expert_bytes + lane() * 16;
    };
    const auto fetch = [&](int slot) {
        if (next_group < a.groups) {
            uint8_t* to = slots + slot * tile_room + lane() * 16;
            const int chunks = next_first ? A::chunks : B::chunks;
#pragma unroll
            for (int c = 0; c < most; c++)
                if (alike || c < chunks) copy_async(to + c * 512, from + c * 512);
            if (next_first ? A::word : B::word) copy_async4(to + chunks * 512 - lane() * 12, from + chunks * 512 - lane() * 12);
            next_tile += a.team;
            from += a.team * (next_first ? A::tile_bytes : B::tile_bytes);
            if (next_tile >= tiles) {
                next_tile = member, next_group += step;
                if (next_group < a.groups) seek();
            }
        }
        copy_group();
    };
    if (works && next_group < a.groups) seek();
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) fetch(slot);
    const int crew = a.team * 32, last_unit = shape.units - 1;
    int slot = 0, mine = member * 32 + lane();  // the row that this thread adds, if it is one: another warp's in every round
    bool first = true;
    Tail tail;
    const auto turn_to = [&](int group) {
        if (group >= a.groups || !works || (alike && mine >= rows)) return;
        const Product& of = a.parts[part_of(a, group)];
        first = of.w.format == A::number;
        tail = mine < rows ? Tail(of, group - of.first_group, mine, int(pair.row)) : Tail();
    };
    turn_to(block_x() * a.together + team);
    if (!a.experts) wait_for_previous();
    tail.ask();
    copies_done<SLOTS>();  // the norm's weights
    quantise_row(pair.x, a.norm ? room.parts : nullptr, a.eps, a.columns, stride, room.row, room.q, room.ds, room.n);
    sync_block();
    if (!works) return;
    float *sums = room.parts + team * items, *others = sums + a.together * items;
    for (int group = block_x() * a.together + team; group < a.groups; group += step) {
        for (int tile = member; tile < tiles; tile += a.team, slot = slot + 1 == SLOTS ? 0 : slot + 1) {
            copies_done<SLOTS - 1>();
            sync_warp();
            const int at = tile * 32 + lane(), whole = at >> a.shift, unit = whole < last_unit ? whole : last_unit;
            const int8_t* q = room.q + unit * 256;
            const uint8_t* here = slots + slot * tile_room;
            sums[at] = alike || first ? multiply_one<A>(here, q, room.ds + unit * 8, room.n + unit * 8)
                                      : multiply_one<B>(here, q, room.ds + unit * 8, room.n + unit * 8);
            sync_warp();
            fetch(slot);
        }
        sync_some(1 + team, crew);
        if (mine < rows) tail.finish(total_of(shape, sums, mine), tail.paired ? total_of(shape, sums, (mine + rows / 2) & (rows - 1)) : 0.0f);
        mine = mine < 32 ? mine + crew - 32 : mine - 32;
        turn_to(group + step);
        tail.ask();
        float* const swapped = sums;
        sums = others, others = swapped;
    }
}

// One kernel a layout, and one for each pair that the usual mixes put side by side.
#define ONE(name, A, B)                                                                                            \
    CROWDED(product_one_##name, ProductArgs, 768, 1) { one_token<LayoutOf<A>, LayoutOf<B>, 1>(a); }                \
    CROWDED(product_two_##name, ProductArgs, 768, 1) { one_token<LayoutOf<A>, LayoutOf<B>, 2>(a); }
ONE(q4_0, Q4_0, Q4_0)
ONE(q4_1, Q4_1, Q4_1)
ONE(q5_0, Q5_0, Q5_0)
ONE(q5_1, Q5_1, Q5_1)
ONE(q8_0, Q8_0, Q8_0)
ONE(q4_k, Q4_K, Q4_K)
ONE(q5_k, Q5_K, Q5_K)
ONE(q6_k, Q6_K, Q6_K)
ONE(iq4_nl, IQ4_NL, IQ4_NL)
ONE(iq4_xs, IQ4_XS, IQ4_XS)
ONE(mxfp4, MXFP4, MXFP4)
ONE(wide16, WIDE16, WIDE16)
ONE(wide16_min, WIDE16_MIN, WIDE16_MIN)
ONE(q4_k_q6_k, Q4_K, Q6_K)
ONE(q5_k_q6_k, Q5_K, Q6_K)

}  // namespace assay
