// Elementwise operations of rows, for the kernel `map` and for steps of a walk (docs/reference/arithmetic.md has the formulas).
#pragma once
#include "arithmetic.h"

namespace assay {

// How an operand is read and a result is stored: plainly, after the kernel that writes it has ended. Walks have another
// one (walk.h, Awaited).
struct Plain {
    DEVICE float operator()(const float* p) const { return *p; }
    template <int N>
    DEVICE void read(const float* const (&from)[N], float (&v)[N]) const {  // zero where there is no operand
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = from[k] ? *from[k] : 0.0f;
    }
    static DEVICE void put(float* p, float y) { *p = y; }
};

DEVICE float clamped(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }
DEVICE float glu_oai(float gate, float up, float alpha, float limit) {
    const float g = gate > limit ? limit : gate, v = clamped(up, -limit, limit);
    return (g / (1.0f + exponential(-(alpha * g)))) * (v + 1.0f);
}

template <class Get>
struct Operand {
    const float* at;
    Get get;
    DEVICE float operator[](int64_t i) const { return get(at + i); }
};

// Value j of a row. `get` reads x and y; weights and a third operand are read plainly.
template <class Get>
DEVICE float map_value(const MapArgs& a, int64_t row, int64_t j, Get get) {
    const Operand<Get> x{a.x + row * a.x_width, get}, y{a.y + row * a.y_width, get};
    float v = 0.0f;
    switch (a.op) {
        case ADD: v = x[j] + y[j]; break;
        case GLU: v = gate(a.integer, x[j]) * y[j]; break;
        case BIAS: v = x[j] + a.y[j % a.y_width]; break;
        case SCALE: v = x[j] * a.number; break;
        case SOFTCAP: v = softcap(x[j], a.number); break;
        case CLAMP_MIN: v = x[j] < a.number ? a.number : x[j]; break;
        case DIV: v = x[j] / y[0]; break;
        case GATHER: {
            const float id = y[j];
            const int64_t at = id >= 0.0f ? int64_t(id) : 0;
            v = x[at < a.x_width ? at : a.x_width - 1];
            break;
        }
        case EXPERT_SCALE: v = x[j] * y[j / (a.width / a.y_width)]; break;
        case EXPERT_SUM:
            v = x[j];
            for (int k = 1; k < a.x_width / a.width; k++) v = v + x[k * a.width + j];
            break;
        case SLICE: {
            const int64_t each = a.width / a.parts;
            v = x[j / each * (a.x_width / a.parts) + a.integer + j % each];
            break;
        }
        case CLAMP: v = clamped(x[j], a.number, a.second); break;
        case ACT: v = gate(a.integer, x[j]); break;
        case GLU_SPLIT: {
            const int64_t each = a.width / a.parts, at = j / each * each + j;
            v = gate(a.integer, x[at]) * x[at + each];
            break;
        }
        case SIGMOID: v = 1.0f / (1.0f + exponential(-x[j])); break;
        case MUL: v = x[j] * y[a.y_width == 1 ? 0 : j]; break;
        case MUL_WEIGHT: v = x[j] * a.y[j % a.y_width]; break;
        case CONCAT: {  // an operand of one head is broadcast
            const int64_t each = a.width / a.parts, head = j / each, at = j % each;
            const int64_t n = a.integer & X_IS_ONE_HEAD ? a.x_width : a.x_width / a.parts, m = each - n;
            v = at < n ? x[(a.integer & X_IS_ONE_HEAD ? 0 : head * n) + at] : y[(a.integer & Y_IS_ONE_HEAD ? 0 : head * m) + at - n];
            break;
        }
        case GLU_OAI: v = glu_oai(x[j], y[j], a.number, a.second); break;
        case EXPERT_INPUT: v = x[j % a.x_width] * y[j / a.x_width]; break;
        case EXPERT_BIAS: {
            const int64_t each = a.width / a.y_width;
            const float id = y[j / each];
            const int64_t expert = id >= 0.0f && id < float(a.z_rows) ? int64_t(id) : 0;
            v = x[j] + a.z[expert * each + j % each];
            break;
        }
        case EXPERT_GAIN: {
            const float id = y[j / (a.width / a.y_width)];
            v = x[j] * a.z[id >= 0.0f && id < float(a.z_rows) ? int64_t(id) : 0];
            break;
        }
        case ROW_SUM:
            for (int k = 0; k < a.x_width; k++) v = v + x[k];
            break;
        case SOFTPLUS: v = softplus(x[j]); break;
        case EXP: v = exponential(x[j]); break;
        case XIELU: v = xielu(x[j], a.y); break;
        case ADD_SCALAR: v = x[j] + a.number; break;
        case HEAD_GAIN: v = x[j] * a.y[j / (a.width / a.y_width)]; break;
        case ADD_GAIN: v = fma(a.z[j / (a.width / a.z_width)], y[j], x[j]); break;
        case LERP: v = fma(y[j] - x[j], a.z[row * a.z_width + j], x[j]); break;
        case LERP_ROW: v = fma(y[j] - x[j], a.z[j], x[j]); break;
        case REPEAT_HEADS: {  // parts: heads of x
            const int64_t each = a.x_width / a.parts, times = a.width / a.x_width;
            v = x[j / each / times * each + j % each];
            break;
        }
        case JOIN: {
            const int64_t past = j - a.x_width;
            v = past < 0 ? x[j] : past < a.y_width ? y[past] : a.z[row * a.z_width + past - a.y_width];
            break;
        }
        case MIX_STREAMS: {  // parts: streams
            const int64_t each = a.width / a.parts, stream = j / each;
            for (int k = 0; k < a.parts; k++) v = fma(y[stream * a.parts + k], x[k * each + j % each], v);
            v = x[j] + v;
            break;
        }
        case ADD_TO_STREAMS: {  // parts: streams; integer: the first that changes
            const int64_t each = a.width / a.parts, stream = j / each;
            const float d = y[j % each];
            v = stream < a.integer ? x[j] : a.z ? fma(d, a.z[row * a.z_width + stream], x[j]) : x[j] + d;
            break;
        }
    }
    return v;
}

}  // namespace assay
