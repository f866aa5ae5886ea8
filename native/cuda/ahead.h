// Weights that a kernel asks for on behalf of a later one.
#pragma once
#include "platform.h"

namespace assay {

// Weights of a product to come. Whoever has nothing left to fetch asks for its share of them: the memory has work while
// one kernel ends and the next begins.
struct Ahead {
    const uint8_t* at[3];
    int64_t bytes[3];

    DEVICE void ask(int me, int count) const {  // thread number `me` of `count`
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const int64_t share = (bytes[i] / count + 127) / 128 * 128, from = me * share, left = bytes[i] - from;
            if (left > 0) prefetch(at[i] + from, uint32_t(share < left ? share : left));
        }
    }
};

}  // namespace assay
