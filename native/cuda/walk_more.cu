// Walks with MORE (walk.h), for the layouts of most files.
#define WALK_MORE
#include "walk.cu"

namespace assay {

#define WALK(name, A, B) \
    TOGETHER(walk_more_##name, WalkArgs, 416) { walk<A, B, true>(a); }
WALK(f16, F16s, F16s)
WALK(bf16, BF16s, BF16s)
WALK(q8_0, Codes<Q8_0>, Codes<Q8_0>)
WALK(q4_k_q6_k, Codes<Q4_K>, Codes<Q6_K>)
WALK(q5_k_q6_k, Codes<Q5_K>, Codes<Q6_K>)
WALK(q4_0_q6_k, Codes<Q4_0>, Codes<Q6_K>)

}  // namespace assay
