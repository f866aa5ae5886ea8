// Walks with two producer warps (walk.h), for models whose steps do not fit the ring. They exist for the layouts of
// most files whose pieces leave the ring enough slots.
#define WALK_MORE
#ifndef TEAM
#define TEAM (32 * kWalkWarps)
#endif
#include "walk.cu"

namespace assay {

#define WALK(name, A, B) \
    TOGETHER(walk_two_##name, WalkArgs, 448) { walk<A, B, false, true>(a); }
WALK(f16, F16s, F16s)
WALK(bf16, BF16s, BF16s)
WALK(q4_k_q6_k, Codes<Q4_K>, Codes<Q6_K>)
WALK(q5_k_q6_k, Codes<Q5_K>, Codes<Q6_K>)
WALK(q4_0_q6_k, Codes<Q4_0>, Codes<Q6_K>)

}  // namespace assay
