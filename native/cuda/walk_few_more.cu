// Walks of several tokens with MORE (walk.h), for the layouts of most files.
#define WALK_MORE
#include "walk_few.cu"

namespace assay {

#define WALK_FEW(name, A, B) \
    TOGETHER(walk_few_more_##name, WalkArgs, 448) { walk_few<Codes<A>, Codes<B>, true>(a); }
WALK_FEW(q8_0, Q8_0, Q8_0)
WALK_FEW(q4_k_q6_k, Q4_K, Q6_K)
WALK_FEW(q5_k_q6_k, Q5_K, Q6_K)
WALK_FEW(q4_0_q6_k, Q4_0, Q6_K)

}  // namespace assay
