// Operations on rows: what one value, or all threads of a block, do for a row. Each has a kernel in rows.cu, and a chain of them is
// one launch, too.
//
// Values are matrices of float32 rows, [rows][width], as on the cpu engine (docs/arithmetic.md has the formulas).
#pragma once
#include "activations.h"
#include "softmax.h"

namespace assay {

enum MapOp {
    ADD, GLU, BIAS, SCALE, SOFTCAP, CLAMP_MIN, DIV, GATHER, EXPERT_SCALE, EXPERT_SUM, SLICE, ROW_SUM, CLAMP, ACT, GLU_SPLIT,
    GLU_OAI, EXPERT_INPUT, EXPERT_BIAS, EXPERT_GAIN, SIGMOID, MUL, MUL_WEIGHT, CONCAT
};

struct MapArgs {
    const float *x, *y, *z;  // z: a table of weights, where y says which of them
    float* out;
    int64_t rows;
    int32_t width, x_width, y_width, op;  // width: of out
    int32_t integer, z_rows;              // the activation, the first column of a slice, x is one head for all; rows of z
    int32_t parts, padding;               // heads or experts of a row of out
    float number, second;                 // a bound, a factor; the upper bound, a limit
};

DEVICE float clamped(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }
DEVICE float glu_oai(float gate, float up, float alpha, float limit) {
    const float g = gate > limit ? limit : gate, v = clamped(up, -limit, limit);
    return (g / (1.0f + exponential(-(alpha * g)))) * (v + 1.0f);
}

// Value j of a row of out.
DEVICE float map_value(const MapArgs& a, int64_t row, int j) {
    const float *x = a.x + row * a.x_width, *y = a.y + row * a.y_width;
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
            const int each = a.width / a.parts;
            v = x[j / each * (a.x_width / a.parts) + a.integer + j % each];
            break;
        }
        case CLAMP: v = clamped(x[j], a.number, a.second); break;
        case ACT: v = gate(a.integer, x[j]); break;
        case GLU_SPLIT: {
            const int each = a.width / a.parts, at = j / each * each + j;
            v = gate(a.integer, x[at]) * x[at + each];
            break;
        }
        case SIGMOID: v = 1.0f / (1.0f + exponential(-x[j])); break;
        case MUL: v = x[j] * y[a.y_width == 1 ? 0 : j]; break;
        case MUL_WEIGHT: v = x[j] * a.y[j % a.y_width]; break;
        case CONCAT: {  // an operand of one head gives it to all
            const int each = a.width / a.parts, head = j / each, at = j % each;
            const int n = a.integer & 1 ? a.x_width : a.x_width / a.parts, m = each - n;
            v = at < n ? x[(a.integer & 1 ? 0 : head * n) + at] : y[(a.integer & 2 ? 0 : head * m) + at - n];
            break;
        }
        case GLU_OAI: v = glu_oai(x[j], y[j], a.number, a.second); break;
        case EXPERT_INPUT: v = x[j % a.x_width] * y[j / a.x_width]; break;
        case EXPERT_BIAS: {
            const int each = a.width / a.y_width;
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
    }
    return v;
}

// heads of a row turned from value `offset` on; x: [rows][width], table: [rows][cosines | sines]
struct RopeArgs {
    const float *x, *table;
    float* out;
    int64_t rows;
    int32_t width, heads, n_rot, neox, offset, padding;
};
DEVICE float rope_value(const RopeArgs& a, int64_t row, int i) {
    const int dim = a.width / a.heads, half = a.n_rot / 2;
    const int d = i % dim - a.offset, j = a.neox ? d % half : d / 2;
    const float* x = a.x + row * a.width + i - d;
    const float* t = a.table + row * a.n_rot;
    if (d < 0 || d >= a.n_rot) return x[d];
    const float p = a.neox ? x[j] : x[2 * j], q = a.neox ? x[j + half] : x[2 * j + 1], c = t[j], s = t[half + j];
    return (a.neox ? d >= half : d % 2) ? p * s + q * c : p * c - q * s;
}

struct RowArgs {  // a block of threads a row
    const float* x;
    const float *w, *b;  // weights and bias of a norm, or null
    float* out;
    Acts acts;
    int32_t width, parts;
    float eps;
    int32_t w_step;  // from one part's weights to the next one's
};

// y = w x / sqrt(mean x^2 + eps) over each of `parts` parts of a row; index: row * parts + part. `room`: shared memory for 4 values and a part.
DEVICE void rms_norm_part(const RowArgs& a, int64_t index, float* room) {
    const int n = a.width / a.parts;
    const int64_t at = index * n;
    float* row = room + 4;
    for (int i = thread(); i < n; i += threads()) row[i] = a.x[at + i];
    sync_block();
    const float f = norm_factor(row, n, a.eps, room);
    const float* w = a.w + index % a.parts * a.w_step;
    for (int i = thread(); i < n; i += threads()) a.out[at + i] = a.w ? (row[i] * f) * w[i] : row[i] * f;
}
// The same by a warp; parts of an even number of values.
DEVICE void rms_norm_by_warp(const RowArgs& a, int64_t index) {
    const int n = a.width / a.parts;
    const float* x = a.x + index * n;
    const float* w = a.w + index % a.parts * a.w_step;
    const float f = shuffle(1.0f / square_root(sum_of_squares(x, n) / float(n) + a.eps), 0);
    for (int i = lane(); i < n; i += 32) a.out[index * n + i] = a.w ? (x[i] * f) * w[i] : x[i] * f;
}

// The same of x - mean, and a bias; sum64 of docs/arithmetic.md by the first warp
DEVICE void layer_norm_part(const RowArgs& a, int64_t index, float* room) {
    const int n = a.width / a.parts;
    const int64_t at = index * n;
    float* row = room + 4;
    for (int i = thread(); i < n; i += threads()) row[i] = a.x[at + i];
    sync_block();
    if (thread() < 32) {
        float s = 0.0f, t = 0.0f;
        for (int i = lane(); i < n; i += 64) {
            s = s + row[i];
            if (i + 32 < n) t = t + row[i + 32];
        }
        s = s + t;
        for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
        if (thread() == 0) room[2] = s / float(n);
    }
    sync_block();
    const float mean = room[2];
    for (int i = thread(); i < n; i += threads()) row[i] = row[i] - mean;
    sync_block();
    const float f = norm_factor(row, n, a.eps, room);
    const int64_t from = index % a.parts * a.w_step;
    for (int i = thread(); i < n; i += threads()) {
        const float y = (row[i] * f) * a.w[from + i];
        a.out[at + i] = a.b ? y + a.b[from + i] : y;
    }
}

// The row, normed if there are weights, as quantised activations, padded with zeros to the stride; of `parts` rows there may be
// copies. A thread has 8 values at a time. Without a norm, `shares` blocks share columns; with one, the row lies in shared memory
// meanwhile. `wait` is for who made x: weights are asked for before.
template <class Wait>
DEVICE void quantise_row(const RowArgs& a, int64_t row, int share, int shares, float* room, Wait&& wait) {
    const int64_t at = a.acts.step ? row : row * (a.acts.stride / 32);
    const int step = a.acts.step ? a.acts.step : 1;
    const float* x = a.x + row % a.parts * a.width;
    float* const copy = room + 4;
    const int first = share * threads() + thread();
    float v[8], w[8], f = 0.0f;
    if (a.w && 8 * first < a.width) load_eight(a.w + 8 * first, w);
    wait();
    if (8 * first < a.width) load_eight(x + 8 * first, v);
    if (a.w) {
#pragma unroll 1
        for (int i = first; 8 * i < a.width; i += threads()) {
            if (i != first) load_eight(x + 8 * i, v);
            reinterpret_cast<float4*>(copy)[2 * i] = {v[0], v[1], v[2], v[3]};
            reinterpret_cast<float4*>(copy)[2 * i + 1] = {v[4], v[5], v[6], v[7]};
        }
        sync_block();
        f = norm_factor(copy, a.width, a.eps, room);
    }
#pragma unroll 1
    for (int i = first; i < a.acts.stride / 8; i += shares * threads()) {  // whole warps: the stride is a multiple of 256
        const bool there = 8 * i < a.width;
        if (there && (a.w || i != first)) load_eight((a.w ? copy : x) + 8 * i, v);
        if (there && a.w && i != first) load_eight(a.w + 8 * i, w);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = !there ? 0.0f : a.w ? (v[j] * f) * w[j] : v[j];
        quantise_eight(v, i, a.acts.q + row * a.acts.stride, a.acts.ds + at, a.acts.n + at, step);
    }
}

// x where its group is one of the `keep` with the largest sum of their two best, ties to the lower group; else -inf.
// parts: groups of a row; w_step: how many are kept.
DEVICE void mask_groups(const RowArgs& a, int64_t row) {
    const float* x = a.x + row * a.width;
    const int each = a.width / a.parts;
    const auto score = [&](int g) {
        float best = minus_infinity(), next = minus_infinity();
        for (int j = g * each; j < (g + 1) * each; j++) {
            if (x[j] > best) next = best, best = x[j];
            else if (x[j] > next) next = x[j];
        }
        return next + best;
    };
    for (int i = thread(); i < a.width; i += threads()) {
        const int mine = i / each;
        const float own = score(mine);
        int before = 0;
        for (int g = 0; g < a.parts; g++) {
            const float other = score(g);
            before += other > own || (!(own > other) && g < mine);
        }
        a.out[row * a.width + i] = before < a.w_step ? x[i] : minus_infinity();
    }
}

// Places by rank: how many come before. Largest first, equal ones by index, NaN last.
DEVICE void sort_row(const RowArgs& a, int64_t row) {
    const float* x = a.x + row * a.width;
    for (int i = thread(); i < a.width; i += threads()) {
        const bool odd = x[i] != x[i];
        int before = 0;
        for (int j = 0; j < a.width; j++) {
            const bool other = x[j] != x[j];
            before += odd ? !other || j < i : !other && (x[j] > x[i] || (x[j] == x[i] && j < i));
        }
        a.out[row * a.width + before] = float(i);
    }
}

}  // namespace assay
