// Two to eight tokens, of a sequence each, through a run of products and attentions by one kernel (walk.cu): the same ring, the same steps
// and the same way from block to block. Products are those of tensor cores, and what they read is quantised once, by a step of its own.
#include "walk_few.h"

namespace assay {

// Shared memory: places of the ring and their arrivals, the desk, descriptions of steps, slots, what a warp keeps between steps, and the room
// of a step. It is made anew for every step: kept in registers, all of it would leave too few for products.
struct Room {
    Ring ring;
    Desk desk;
    WalkStep* steps;  // two of who computes, two of who adds up
    int *slots, *kept;
    uint8_t* work;
    DEVICE Room(const WalkArgs& a, uint8_t* shared) {
        ring = {shared, reinterpret_cast<Arrival*>(shared + a.slots * a.room), nullptr, a.slots, a.room, 0, 0};
        ring.gone = ring.here + a.slots;
        desk.first = ring.gone + a.slots;
        steps = reinterpret_cast<WalkStep*>(desk.first + kDesk);
        slots = reinterpret_cast<int*>(steps + 4);
        kept = slots + kRows;
        work = reinterpret_cast<uint8_t*>(kept + 8 * 12);
    }
};

template <class A, class B>
DEVICE void walk_few(const WalkArgs& a) {
    SHARED;
    constexpr int vectors = sizeof(WalkStep) / 16;
    const auto bring = [&](int s, WalkStep* to, int me) {
        if (s < a.n_steps && me < vectors) copy_async(reinterpret_cast<uint4*>(to + s % 2) + me, reinterpret_cast<const uint4*>(a.steps + s) + me);
        copy_group();
    };
    const int role = (thread() - team()) >> 5;  // of the warps that do not compute
    next_may_start();
    {
        const Room at(a, shared);
        if (role == 0) make_ring(at.ring.here, a.slots);
        if (role == 1) at.desk.make();
        wait_for_previous();
        if (thread() < kRows) at.slots[thread()] = thread() < a.rows ? a.slot[thread()] : -1;
    }
    sync_block();
    if (role == 0) {
        const Room at(a, shared);
        Fetch fetch{a, at.ring.places, at.ring.here, at.ring.gone};
#pragma unroll 1
        for (int s = 0; s < a.n_steps; s++) {
            fetch.ahead = a.steps[s].ahead;
            if (a.steps[s].kind == PRODUCT) fetch_parts<A, B>(a.steps[s], fetch);
            else if (a.steps[s].kind == ATTEND) fetch_cache<true>(a.steps[s], at.slots, fetch);
        }
        return;
    }
    if (role == 1) {
        Room at(a, shared);
#pragma unroll 1
        for (int s = 0; s < a.n_steps; s++)
            if (a.steps[s].kind == PRODUCT) bring_parts(a.steps[s], at.desk, at.work);
        return;
    }
    if (role > 1) {
        Room at(a, shared);
        bring(0, at.steps + 2, thread() & (32 * kAdd - 1));
#pragma unroll 1
        for (int s = 0; s < a.n_steps; s++) {
            copies_done<0>();
            sync_some(3, 32 * kAdd);
            bring(s + 1, at.steps + 2, thread() & (32 * kAdd - 1));
            if (at.steps[2 + s % 2].kind == PRODUCT) add_up_step(at.steps[2 + s % 2], at.desk, at.work);
        }
        return;
    }
    {
        const Room at(a, shared);
        bring(0, at.steps, thread());
        if (lane() < 8) at.kept[thread() / 32 * 8 + lane()] = 0;
    }
#pragma unroll 1
    for (;;) {
        OWN_THREAD;
        Room at(a, shared + opaque(0));
        int* const kept = at.kept + (thread() >> 5) * 8;
        copies_done<0>();
        sync_team();
        const int s = kept[4];
        if (s >= a.n_steps) return;
        bring(s + 1, at.steps, thread());
        const WalkStep& step = at.steps[s % 2];
        at.ring.slot = kept[0], at.ring.fill = kept[1], at.desk.sums = kept[2], at.desk.parts = kept[3];
        at.desk.all_added();  // they lie where other steps work
        int pieces = 0;
        if (step.kind == PRODUCT) pieces = multiply_rows_step<A, B>(step, at.ring, at.desk, at.work);
        else if (step.kind == ATTEND) pieces = attend_step<true>(step, at.slots, at.ring, at.work);
        else if (step.kind == FOLD) fold_step<true>(step, at.slots);
        else quantise_rows_step(step, at.work);
        at.ring.skip(pieces);
        sync_warp();
        if (lane() == 0) kept[0] = at.ring.slot, kept[1] = at.ring.fill, kept[2] = at.desk.sums, kept[3] = at.desk.parts, kept[4] = s + 1;
    }
}

#define WALK_FEW(name, A, B) \
    TOGETHER(walk_few_##name, WalkArgs, 512) { walk_few<Codes<A>, Codes<B>>(a); }
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

}  // namespace assay
