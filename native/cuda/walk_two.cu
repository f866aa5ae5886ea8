// Walks in which two warps fetch (walk.h), of layouts that most files have and of which the ring has places enough: for models of which the ring does not hold a step.
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
