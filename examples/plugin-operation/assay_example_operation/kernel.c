/* The cpu kernel of softsign. native/program/foreign.h explains the signature. */
#include <math.h>
#include <stdint.h>

void softsign(const float* const* inputs, const float* const* weights, float* out, int64_t rows,
              const int64_t* widths, const double* attrs) {
    (void)weights; /* the operation has none */
    const float sharpness = (float)attrs[0];
    for (int64_t i = 0; i < rows * widths[0]; ++i) {
        const float x = inputs[0][i];
        out[i] = x / (1.0f + sharpness * fabsf(x));
    }
}
