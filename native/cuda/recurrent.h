// States of sequences, and one row of a state through a recurrence: for the kernels of recurrent.cu and for steps of a
// walk. docs/reference/arithmetic.md, "Convolution and recurrences", has the formulas.
#pragma once
#include "map.h"

namespace assay {

struct Sequence {
    int first, tokens;   // its rows in the step
    const float* from;   // its state before this step; null: zeros
    float* to;           // and after; may be the same memory
};

DEVICE bool continues(const ScanArgs& a, int row) { return a.sequences[row * kStateWords + STATE_FROM] == kContinues; }

DEVICE Sequence sequence_of(const ScanArgs& a, int row) {
    const int32_t* s = a.sequences + int64_t(row) * kStateWords;
    const auto slot = [&](int i) { return a.states + i * a.slot_floats + a.offset; };
    return {s[STATE_ROW], s[STATE_TOKENS], s[STATE_FROM] < 0 ? nullptr : slot(s[STATE_FROM]), slot(s[STATE_TO])};
}

// Call `body(part)` for each row of the sequence that begins at row block_y; for none if another block has them.
template <class F>
DEVICE void each_part(const ScanArgs& a, F body) {
    int row = block_y();
    if (continues(a, row)) return;
    Sequence of = sequence_of(a, row);
    if (!of.tokens) return;
    for (;;) {
        body(of);
        if (++row == grid_y() || !continues(a, row)) return;
        const float* left = of.to;
        of = sequence_of(a, row);
        of.from = left;
    }
}

// The sum of 64 chains: s is chain l, t is chain l + 32.
DEVICE float all_chains(float s, float t) {
    s = s + t;
    for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
    return shuffle(s, 0);
}

// x . y over n values, by one warp
DEVICE float warp_dot(const float* x, const float* y, int n) {
    float s = 0.0f, t = 0.0f;
    for (int i = lane(); i < n; i += 64) {
        s = fma(x[i], y[i], s);
        if (i + 32 < n) t = fma(x[i + 32], y[i + 32], t);
    }
    return all_chains(s, t);
}

// ---- one row of a state --------------------------------------------------------------------------------------------
// K: registers of a lane, 2 for each 64 channels. Channels beyond the last are zeros.
template <int K>
struct Channels {
    float v[K];
    template <class Get = Plain>
    DEVICE Channels(const float* p, int n, int64_t step = 1, Get get = {}) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int i = lane() + 32 * k;
            v[k] = p && i < n ? get(p + i * step) : 0.0f;
        }
    }
    DEVICE void store(float* p, int n, int64_t step = 1) const {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (lane() + 32 * k < n) p[(lane() + 32 * k) * step] = v[k];
    }
};

template <int K>
DEVICE float dot(const Channels<K>& x, const Channels<K>& y) {
    float s[2] = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < K; k++) s[k % 2] = fma(x.v[k], y.v[k], s[k % 2]);
    return all_chains(s[0], s[1]);
}

template <int K, class Get = Plain>
DEVICE void delta_rule(const ScanArgs& a, const Sequence& of, int head, Channels<K>& S, int64_t row, Get get = {}) {
    const int n = a.channels, key = head % a.groups;
    for (int t = 0; t < of.tokens; t++) {
        const int64_t at = of.first + t;
        const Channels<K> q(a.x[0] + (at * a.groups + key) * n, n, 1, get), k(a.x[1] + (at * a.groups + key) * n, n, 1, get);
        const float v = get(a.x[2] + at * a.heads * a.rows + row), beta = get(a.x[4] + at * a.heads + head);
        if (a.per_channel) {
            const Channels<K> g(a.x[3] + (at * a.heads + head) * n, n, 1, get);
#pragma unroll
            for (int i = 0; i < K; i++) S.v[i] = S.v[i] * exponential(g.v[i]);
        } else {
            const float decay = exponential(get(a.x[3] + at * a.heads + head));
#pragma unroll
            for (int i = 0; i < K; i++) S.v[i] = S.v[i] * decay;
        }
        const float d = beta * (v - dot(S, k));
#pragma unroll
        for (int i = 0; i < K; i++) S.v[i] = fma(d, k.v[i], S.v[i]);
        const float y = dot(S, q) * a.scale;
        if (lane() == 0) Get::put(a.out + at * a.heads * a.rows + row, y);
    }
}

template <int K, class Get = Plain>
DEVICE void ssm_scan(const ScanArgs& a, const Sequence& of, int head, Channels<K>& S, int64_t row, Get get = {}) {
    const int n = a.channels, group = head / (a.heads / a.groups);
    const Channels<K> A(a.per_channel ? a.weight + int64_t(head) * n : nullptr, n);
    const float all = a.per_channel ? 0.0f : a.weight[head];
    for (int t = 0; t < of.tokens; t++) {
        const int64_t at = of.first + t;
        const Channels<K> B(a.x[2] + (at * a.groups + group) * n, n, 1, get), C(a.x[3] + (at * a.groups + group) * n, n, 1, get);
        const float dt = get(a.x[1] + at * a.heads + head), u = dt * get(a.x[0] + at * a.heads * a.rows + row);
        const float decay = exponential(dt * all);
#pragma unroll
        for (int i = 0; i < K; i++)
            S.v[i] = fma(u, B.v[i], (a.per_channel ? exponential(dt * A.v[i]) : decay) * S.v[i]);
        const float y = dot(S, C);
        if (lane() == 0) Get::put(a.out + at * a.heads * a.rows + row, y);
    }
}

}  // namespace assay
