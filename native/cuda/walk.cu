// A walk: one token through a list of products and attentions in one persistent kernel (megakernel), with one resident
// thread block a multiprocessor.
//
// The arithmetic is that of docs/reference/arithmetic.md. The list of steps is in device memory. The last warp of a block is the
// producer: it prefetches weights, step after step, as slots of a ring buffer in shared memory become free. It does not
// wait for x, so the stream of weights does not pause between steps. The consumer warps wait for x of a step; every
// block norms and quantises x for itself. They multiply a tile each, add partial sums in order, and publish result rows
// in global memory.
//
// There is no barrier between steps. A value that one step publishes for another is `kNotYet` before (kernel `clear`)
// and never after; readers spin-wait for the change. So all blocks must be resident (`together`), and a value is
// written once. Memory-bound at 7B. A small model is bound by latency: of x from block to block, and of every
// instruction behind it (docs/lab/gpu-measured.md).
#include "walk_attention.h"
#include "walk_products.h"

namespace assay {

#ifndef WALK_MORE
KERNEL(clear, ClearArgs, 256) {
    next_may_start();
    wait_for_previous();
    for (int64_t i = int64_t(block_x()) * threads() + thread(); i < a.vectors; i += int64_t(grid_x()) * threads())
        a.at[i] = {kNotYet, kNotYet, kNotYet, kNotYet};
}
#endif

template <class A, class B, bool MORE, bool TWO = false, class Others = NoOthers>
DEVICE void walk(const WalkArgs& a) {
    SHARED;
    Ring ring = {shared, reinterpret_cast<Arrival*>(shared + a.slots * a.room), nullptr, a.slots, a.room, 0, 0};
    ring.gone = ring.here + a.slots;
    WalkStep* const steps = reinterpret_cast<WalkStep*>(ring.gone + a.slots);  // `kept` steps
    constexpr int kept = Others::kept;
    uint8_t* const own = reinterpret_cast<uint8_t*>(steps + kept);
    uint8_t* const work = own + Others::bytes;
    constexpr int vectors = sizeof(WalkStep) / 16;
    static_assert(sizeof(WalkStep) % 16 == 0);
    NEEDS_SHARED(walk_bytes(a.slots, a.room, 0, 0));
    const auto bring = [&](int s) {
        if (s < a.n_steps && thread() < vectors)
            copy_async(reinterpret_cast<uint4*>(steps + s % kept) + thread(), reinterpret_cast<const uint4*>(a.steps + s) + thread());
        copy_group();
    };
    next_may_start();
    if (thread() >= team() && (!TWO || thread() < team() + 32)) make_ring(ring.here, a.slots);
    sync_block();
    wait_for_previous();
    const int slot = *a.slot;
    if (thread() >= team()) return fetch_all<A, B, MORE, Others>(a, slot, Fetch<TWO>{a, ring.places, ring.here, ring.gone, (thread() - team()) / 32}, own);
#pragma unroll
    for (int s = 0; s < kept - 1; s++) bring(s);
#pragma unroll 1
    for (int s = 0; s < a.n_steps; s++) {
        copies_done<kept - 2>();
        sync_team();
        bring(s + kept - 1);
        const WalkStep& step = steps[s % kept];
        int pieces = 0;
        if (step.kind == PRODUCT) pieces = multiply_step<A, B, TWO>(step, ring, work);
        else if (step.kind == ATTEND) pieces = attend_step<false, MORE>(step, &slot, ring, work);
        else if (step.kind == FOLD) fold_step<false, MORE>(step, &slot);
        else if (!Others::any || step.kind <= NORM) row_step<MORE>(step, work);
        else if constexpr (Others::any) pieces = Others::run(step, ring, own, work);
        ring.skip(pieces);
    }
}

#ifndef WALK_MORE  // walk_more.cu and walk_two.cu define other kernels
#define WALK(name, A, B) \
    TOGETHER(walk_##name, WalkArgs, 416) { walk<A, B, false>(a); }
#define WALK_OF(name, A) WALK(name, Codes<A>, Codes<A>)
#define WALK_OF_TWO(name, A, B) WALK(name, Codes<A>, Codes<B>)
WALK(f32, F32s, F32s)
WALK(f16, F16s, F16s)
WALK(bf16, BF16s, BF16s)
WALK_OF(q5_0, Q5_0)
WALK_OF(q5_1, Q5_1)
WALK_OF(q8_0, Q8_0)
WALK_OF(iq4_nl, IQ4_NL)
WALK_OF(iq4_xs, IQ4_XS)
WALK_OF(mxfp4, MXFP4)
WALK_OF(wide16, WIDE16)
WALK_OF(wide16_min, WIDE16_MIN)
WALK_OF_TWO(q4_k_q6_k, Q4_K, Q6_K)
WALK_OF_TWO(q5_k_q6_k, Q5_K, Q6_K)
WALK_OF_TWO(q4_0_q6_k, Q4_0, Q6_K)
WALK_OF_TWO(q4_0_q8_0, Q4_0, Q8_0)
WALK_OF_TWO(q4_1_q6_k, Q4_1, Q6_K)
WALK_OF_TWO(q4_1_q8_0, Q4_1, Q8_0)
#endif

}  // namespace assay
