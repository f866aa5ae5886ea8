// A walk of two to eight tokens, each of its own sequence (walk.cu): the same ring, steps and publishing. Products use
// tensor cores and read values that a step of its own has quantised.
#ifndef TEAM
#define TEAM (32 * kWalkWarps)  // two producer warps follow
#endif
#include "walk_few.h"

namespace assay {

// Layout of shared memory: ring slots and their mbarriers, mbarriers of the parts of x, steps, cache slots, memory of
// `Others` (walk.h), work space of a step. It is recomputed for every step: registers held across steps would be missing in products.
struct Room {
    Ring ring;
    Parts parts;
    WalkStep* steps;  // two steps
    int* slots;       // [kWalkRows]
    uint8_t* work;
    uint8_t* own;  // of kinds of steps behind NORM
    DEVICE Room(const WalkArgs& a, uint8_t* shared, int own_bytes) {
        ring = {shared, reinterpret_cast<Arrival*>(shared + a.slots * a.room), nullptr, a.slots, a.room, 0, 0};
        ring.gone = ring.here + a.slots;
        parts.first = ring.gone + a.slots;
        steps = reinterpret_cast<WalkStep*>(parts.first + 4);
        slots = reinterpret_cast<int*>(steps + 2);
        own = reinterpret_cast<uint8_t*>(slots + kWalkRows);
        work = own + own_bytes;
    }
};

template <class A, class B, bool MORE, class Others = NoOthers>
DEVICE void walk_few(const WalkArgs& a) {
    SHARED;
    constexpr int vectors = sizeof(WalkStep) / 16;
    NEEDS_SHARED(walk_bytes(a.slots, a.room, 0, 1));
    const auto bring = [&](int s, WalkStep* steps) {
        if (s < a.n_steps && thread() < vectors)
            copy_async(reinterpret_cast<uint4*>(steps + s % 2) + thread(), reinterpret_cast<const uint4*>(a.steps + s) + thread());
        copy_group();
    };
    Room at(a, shared, Others::bytes);
    const bool fetches = thread() >= team() && thread() < team() + 32;
    next_may_start();
    if (fetches) make_ring(at.ring.here, a.slots), at.parts.make();
    if constexpr (Others::any)
        if (fetches) Others::make(at.own);
    wait_for_previous();
    if (thread() < kWalkRows) at.slots[thread()] = thread() < a.rows ? a.slot[thread()] : -1;
    sync_block();
    if (thread() >= team()) {
        if (fetches) {
            Fetch<false> fetch{a, at.ring.places, at.ring.here, at.ring.gone};
#pragma unroll 1
            for (int s = 0; s < a.n_steps; s++) {
                fetch.ahead = a.steps[s].ahead;
                if (a.steps[s].kind == PRODUCT) fetch_parts<A, B>(a.steps[s], fetch);
                else if (a.steps[s].kind == ATTEND) fetch_cache<true, MORE>(a.steps[s], at.slots, fetch);
                else if constexpr (Others::any) Others::fetch(a.steps[s], fetch, at.own);
            }
        } else {
#pragma unroll 1
            for (int s = 0; s < a.n_steps; s++)
                if (a.steps[s].kind == PRODUCT) bring_parts(a.steps[s], at.parts, at.work);
        }
        return;
    }
    bring(0, at.steps);
    int slot = 0, fill = 0, parts = 0;
#pragma unroll 1
    for (int s = 0; s < a.n_steps; s++) {
        Room at(a, shared + opaque(0), Others::bytes);
        at.ring.slot = slot, at.ring.fill = fill, at.parts.count = parts;
        copies_done<0>();
        sync_team();
        bring(s + 1, at.steps);
        const WalkStep& step = at.steps[s % 2];
        int pieces = 0;
        if (step.kind == PRODUCT) pieces = multiply_rows_step<A, B>(step, at.ring, at.parts, at.work);
        else if (step.kind == ATTEND) pieces = attend_step<true, MORE>(step, at.slots, at.ring, at.work);
        else if (step.kind == FOLD) fold_step<true, MORE>(step, at.slots);
        else if (!Others::any || step.kind <= NORM) row_step_of<MORE>(step, at.work);
        else if constexpr (Others::any) pieces = Others::run(step, at.ring, at.own, at.work);
        at.ring.skip(pieces);
        slot = at.ring.slot, fill = at.ring.fill, parts = at.parts.count;
    }
}

#ifndef WALK_MORE  // walk_few_more.cu defines other kernels
#define WALK_FEW(name, A, B) \
    TOGETHER(walk_few_##name, WalkArgs, 448) { walk_few<Codes<A>, Codes<B>, false>(a); }
WALK_FEW(q5_0, Q5_0, Q5_0)
WALK_FEW(q5_1, Q5_1, Q5_1)
WALK_FEW(q8_0, Q8_0, Q8_0)
WALK_FEW(iq4_nl, IQ4_NL, IQ4_NL)
WALK_FEW(iq4_xs, IQ4_XS, IQ4_XS)
WALK_FEW(mxfp4, MXFP4, MXFP4)
WALK_FEW(wide16, WIDE16, WIDE16)
WALK_FEW(q4_k_q6_k, Q4_K, Q6_K)
WALK_FEW(q5_k_q6_k, Q5_K, Q6_K)
WALK_FEW(q4_0_q6_k, Q4_0, Q6_K)
WALK_FEW(q4_0_q8_0, Q4_0, Q8_0)
WALK_FEW(q4_1_q6_k, Q4_1, Q6_K)
WALK_FEW(q4_1_q8_0, Q4_1, Q8_0)
#endif

}  // namespace assay
