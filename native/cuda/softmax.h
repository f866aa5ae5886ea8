#pragma once
#include "arithmetic.h"

namespace assay {

// Softmax of a row by one warp: the maximum, exp(x - m), 32 chains for the sum. `sink`, if given, is one more score
// behind the last, without a place in y.
DEVICE void softmax_row(const float* x, float* y, int64_t n, const float* sink = nullptr) {
    float m = minus_infinity();
    for (int64_t i = lane(); i < n; i += 32) m = m < x[i] ? x[i] : m;
    if (sink) m = m < *sink ? *sink : m;
    for (int h = 16; h; h /= 2) {
        const float other = shuffle_xor(m, h);
        m = m < other ? other : m;
    }
    float s = 0.0f;
    for (int64_t i = lane(); i < n; i += 32) {
        y[i] = exponential(x[i] - m);
        s = s + y[i];
    }
    if (sink && lane() == n % 32) s = s + exponential(*sink - m);
    for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
    s = shuffle(s, 0);
    for (int64_t i = lane(); i < n; i += 32) y[i] = y[i] / s;
}

}  // namespace assay
