// Two to eight tokens, of a sequence each, through a run of products and attentions by one kernel (walk.cu): the same ring, the same steps
// and the same way from block to block. Products are those of tensor cores, and what they read is quantised once, by a step of its own.
#include "walk_few.h"

namespace assay {

template <class A, class B>
DEVICE void walk_few(const WalkArgs& a) {
    SHARED;
    Ring ring = {shared, reinterpret_cast<Arrival*>(shared + a.slots * a.room), nullptr, a.slots, a.room, 0, 0};
    ring.gone = ring.here + a.slots;
    WalkStep* const steps = reinterpret_cast<WalkStep*>(ring.gone + a.slots);  // two
    int* const slots = reinterpret_cast<int*>(steps + 2);                      // [kRows]
    Desk desk{reinterpret_cast<Arrival*>(slots + kRows)};
    int* const kept = reinterpret_cast<int*>(desk.first + kDesk) + (thread() / 32 & 15) * 8;
    uint8_t* const work = reinterpret_cast<uint8_t*>(desk.first + kDesk) + 16 * 32;
    constexpr int vectors = sizeof(WalkStep) / 16;
    const auto bring = [&](int s) {
        if (s < a.n_steps && thread() < vectors)
            copy_async(reinterpret_cast<uint4*>(steps + s % 2) + thread(), reinterpret_cast<const uint4*>(a.steps + s) + thread());
        copy_group();
    };
    next_may_start();
    const int role = (thread() - team()) >> 5;  // of the warps that do not compute
    if (role == 0) make_ring(ring.here, a.slots);
    if (role == 1) desk.make();
    wait_for_previous();
    if (thread() < kRows) slots[thread()] = thread() < a.rows ? a.slot[thread()] : -1;
    sync_block();
    if (role > 0) {
#pragma unroll 1
        for (int s = 0; s < a.n_steps; s++) {
            if (a.steps[s].kind != PRODUCT) continue;
            if (role == 1) bring_parts(a.steps[s], desk, work);
            else add_up_step(a.steps[s], desk, work);
        }
        return;
    }
    if (role == 0) {
        Fetch fetch{a, ring.places, ring.here, ring.gone};
#pragma unroll 1
        for (int s = 0; s < a.n_steps; s++) {
            fetch.ahead = a.steps[s].ahead;
            if (a.steps[s].kind == PRODUCT) fetch_parts<A, B>(a.steps[s], fetch);
            else if (a.steps[s].kind == ATTEND) fetch_cache<true>(a.steps[s], slots, fetch);
        }
        return;
    }
    bring(0);
    if (lane() == 0) kept[0] = kept[1] = kept[2] = kept[3] = kept[4] = 0;
#pragma unroll 1
    for (;;) {
        copies_done<0>();
        sync_team();
        const int s = kept[4];
        if (s >= a.n_steps) return;
        bring(s + 1);
        const WalkStep& step = steps[s % 2];
        ring.slot = kept[0], ring.fill = kept[1], desk.sums = kept[2], desk.parts = kept[3];
        desk.all_added();  // they lie where other steps work
        int pieces = 0;
        if (step.kind == PRODUCT) pieces = multiply_rows_step<A, B>(step, ring, desk, work);
        else if (step.kind == ATTEND) pieces = attend_step<true>(step, slots, ring, work);
        else if (step.kind == FOLD) fold_step<true>(step, slots);
        else quantise_rows_step(step, work);
        ring.skip(pieces);
        sync_warp();
        if (lane() == 0) kept[0] = ring.slot, kept[1] = ring.fill, kept[2] = desk.sums, kept[3] = desk.parts, kept[4]++;
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
