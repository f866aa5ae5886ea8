// Matrix products for one token: out[r] = sum_i W[r, i] x[i], a thread an item of 256 columns.
//
// A thread block takes a run of groups of rows, and its warps take tiles in turn. A warp prefetches some tiles into its
// ring in shared memory before the kernel waits for the one that computes x, which arrives quantised. Each warp
// multiplies its tiles and requests the next ones. Partial sums of all units go to shared memory, and one thread a row
// adds them in order. Memory-bound: the weights are read once. A small model is latency-bound, so the code after the
// wait is short, and registers and shared memory leave room for the next kernels to start early.
#include "multiply.h"

namespace assay {

// Matrices of two layouts can share a launch.
template <class A, class B>
DEVICE void one_token(const ProductArgs& a) {
    SHARED;
    constexpr bool alike = A::number == B::number;
    const Matrix& shape = a.parts[0].w;  // all parts agree except in rows and layout
    const int tiles = shape.tiles, units = shape.units, stride = units * 256;
    const int warp = thread() / 32, warps = threads() / 32, slots = a.slots, room = a.stages;
    const int begin = block_x() * a.share + (block_x() < a.extra ? block_x() : a.extra);
    const int groups = a.share + (block_x() < a.extra), first = begin * tiles, end = (begin + groups) * tiles;
    // Shared memory: ring slots, their mbarriers, x, sums.
    uint8_t* const places = shared + warp * slots * room;
    Arrival* const arrivals = reinterpret_cast<Arrival*>(shared + warps * slots * room) + warp * slots;
    float* const row = reinterpret_cast<float*>(arrivals + (warps - warp) * slots + (warps * slots & 1)) + 4;  // floats ...
    int8_t* const q = reinterpret_cast<int8_t*>(row);                                                          // ... or codes
    float2* const ds = reinterpret_cast<float2*>(q + stride);
    uint32_t* const n = reinterpret_cast<uint32_t*>(ds + stride / 32);
    float* const sums = row + (A::floats ? stride : stride / 32 * 11);
    NEEDS_SHARED(one_product_bytes(stride, A::floats, groups * tiles, warps, slots, room));
    next_may_start();
    if (a.experts) wait_for_previous();  // the expert is known only when the kernel before is done
    if (no_pair(a)) return;
    const Pair pair(a);
    make_arrivals(arrivals, slots);
    // The next piece that this warp requests; a bit per slot: whether its weights have the first layout.
    int next = first + warp, next_piece = 0;
    uint32_t firsts = 0;
    const auto fetch = [&](int slot) {
        if (next >= end) return;
        int p = 0;
#pragma unroll 1
        while (p + 1 < a.n_parts && next >= a.parts[p + 1].first_group * tiles) p++;
        const Product& of = a.parts[p];
        const bool is_first = alike || of.w.format == A::number;
        const int bytes = is_first ? A::tile_bytes : B::tile_bytes, each = bytes / A::pieces;
        const uint8_t* from = of.w.data + pair.matrix * a.expert_bytes + int64_t(next - of.first_group * tiles) * bytes;
        copy_piece(places + slot * room, from + next_piece * each, each, arrivals + slot);
        if (!alike) firsts = (firsts & ~(1u << slot)) | uint32_t(is_first) << slot;
        if (++next_piece == A::pieces) next_piece = 0, next += warps;
    };
#pragma unroll 1
    // one after the other: too many requests in flight delay the kernels before this one
    for (int s = 0; s < slots; s++) {
        if (s && first + warp + (s - 1) / A::pieces * warps < end) piece_here(arrivals + s - 1, 0);
        fetch(s);
    }
    const int rows = a.parts[0].paired ? 1 << (a.shift - 1) : 1 << a.shift, all = groups * rows;  // of the result
    const int row_shift = a.parts[0].paired ? a.shift - 1 : a.shift;
#pragma unroll 1
    for (int mine = thread(); mine < all || mine == thread(); mine += threads()) {
        // Look up the epilogue before the kernel waits.
        const int group = mine >> row_shift, r = mine & (rows - 1);
        Tail tail;
        if (mine < all) {
            const Product& of = a.parts[part_of(a, begin + group)];
            tail = Tail(of, begin + group - of.first_group, r, pair.row);
        }
        if (mine == thread()) {
            touch(a);
            if (!a.experts) wait_for_previous();
            tail.ask();
            if constexpr (A::floats) {
                for (int i = thread(); i < stride; i += threads()) row[i] = i < a.columns ? pair.x[i] : 0.0f;
                sync_block();
                if (a.norm) {
                    const float f = norm_factor(row, a.columns, a.eps, row - 4);
                    for (int i = thread(); i < a.columns; i += threads()) row[i] = (row[i] * f) * a.norm[i];
                    sync_block();
                }
            } else {
                // A row that all blocks read has copies: one address in L2 cannot serve all readers at once.
                const int64_t of = int64_t(a.n_experts ? pair.row_of_x : block_x() % a.rows_of_x) * stride;
                const uint8_t* const codes = reinterpret_cast<const uint8_t*>(a.acts.q + of);
                const uint8_t* const scales = reinterpret_cast<const uint8_t*>(a.acts.ds + of / 32) - stride;
                const uint8_t* const more = reinterpret_cast<const uint8_t*>(a.acts.n + of / 32) - stride / 4 * 5;
#pragma unroll 1
                for (int i = thread() * 16; i < stride / 8 * 11; i += threads() * 16)
                    copy_async(q + i, (i < stride ? codes : i < stride / 4 * 5 ? scales : more) + i);
                copy_group();
                copies_done<0>();
                sync_block();
            }
            int slot = 0, phase = 0;
            const auto turn = [&] {  // the current piece is used: refill its slot
                sync_warp();
                fetch(slot);
                if (++slot == slots) slot = 0, phase ^= 1;
            };
            int tile = warp;
#pragma unroll 1
            while (tile >= tiles) tile -= tiles;
#pragma unroll 1
            for (int at = first + warp; at < end; at += warps) {
                const int whole = (tile * 32 + lane()) >> a.shift, unit = whole < units ? whole : units - 1;
                float part;
                if constexpr (A::floats) {
                    float even = 0.0f, odd = 0.0f;
#pragma unroll 1
                    for (int p = 0; p < A::pieces; p++) {
                        piece_here(arrivals + slot, phase);
                        multiply_floats<A::number>(places + slot * room, row + unit * 256 + p * (256 / A::pieces), even, odd);
                        turn();
                    }
                    part = even + odd;
                } else {
                    piece_here(arrivals + slot, phase);
                    const uint8_t* here = places + slot * room;
                    if (alike || (firsts >> slot & 1)) part = multiply<A>(here, here, q + unit * 256, ds + unit * 8, n + unit * 8);
                    else part = multiply<B>(here, here, q + unit * 256, ds + unit * 8, n + unit * 8);
                    turn();
                }
                sums[(at - first) * 32 + lane()] = part;
#pragma unroll 1
                for (tile += warps; tile >= tiles;) tile -= tiles;
            }
            sync_block();
        } else {
            tail.ask();
        }
        if (mine < all) {
            const float2 total = totals_of(shape, sums + group * tiles * 32 + r, tail.paired ? rows : 0);
            tail.finish(total.x, total.y);
        }
    }
}

// A kernel for each layout, and for each pair of layouts that common files mix.
#define ONE(name, A, B) \
    CROWDED(product_one_##name, ProductArgs, 384, 2) { one_token<A, B>(a); }
#define ONE_OF(name, A) ONE(name, Codes<A>, Codes<A>)
ONE(f32, F32s, F32s)
ONE(f16, F16s, F16s)
ONE(bf16, BF16s, BF16s)
ONE_OF(q4_0, Q4_0)
ONE_OF(q4_1, Q4_1)
ONE_OF(q5_0, Q5_0)
ONE_OF(q5_1, Q5_1)
ONE_OF(q8_0, Q8_0)
ONE_OF(iq4_nl, IQ4_NL)
ONE_OF(iq4_xs, IQ4_XS)
ONE_OF(mxfp4, MXFP4)
ONE_OF(wide16, WIDE16)
ONE_OF(wide16_min, WIDE16_MIN)
ONE(q4_k_q6_k, Codes<Q4_K>, Codes<Q6_K>)
ONE(q5_k_q6_k, Codes<Q5_K>, Codes<Q6_K>)

}  // namespace assay
