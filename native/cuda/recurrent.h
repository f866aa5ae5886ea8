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
        const float* from[K];
#pragma unroll
        for (int k = 0; k < K; k++) from[k] = p && lane() + 32 * k < n ? p + (lane() + 32 * k) * step : nullptr;
        get.read(from, v);
    }
    DEVICE Channels(const float (&of)[K]) {
#pragma unroll
        for (int k = 0; k < K; k++) v[k] = of[k];
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

// Values that all rows of a head share at one token: of the delta rule q, k, its decay (of each channel,
// or `second`) and beta; of an ssm B, C and dt.
template <int K>
struct Operands {
    Channels<K> a, b, decay;
    float first, second;
};

// One token of a row of the state; its value of the result.
template <int K>
DEVICE float delta_rule(const ScanArgs& a, const Operands<K>& of, Channels<K>& S, float v) {
    const float all = a.per_channel ? 0.0f : exponential(of.second);
#pragma unroll
    for (int i = 0; i < K; i++) S.v[i] = S.v[i] * (a.per_channel ? exponential(of.decay.v[i]) : all);
    const float d = of.first * (v - dot(S, of.b));
#pragma unroll
    for (int i = 0; i < K; i++) S.v[i] = fma(d, of.b.v[i], S.v[i]);
    return dot(S, of.a) * a.scale;
}
// A: the head's weights, of each channel or `all`.
template <int K>
DEVICE float ssm_scan(const ScanArgs& a, const Operands<K>& of, const Channels<K>& A, float all, Channels<K>& S, float x) {
    const float dt = of.first, u = dt * x, decay = exponential(dt * all);
#pragma unroll
    for (int i = 0; i < K; i++) S.v[i] = fma(u, of.a.v[i], (a.per_channel ? exponential(dt * A.v[i]) : decay) * S.v[i]);
    return dot(S, of.b);
}

// N rows of a head, from `row` on, at token `at`: their operands, requested together.
template <bool DELTA, int K, int N, class Get>
DEVICE Operands<K> operands_of(const ScanArgs& a, int64_t at, int head, int64_t row, int rows, Get get, float (&own)[N]) {
    const int n = a.channels, group = DELTA ? head % a.groups : head / (a.heads / a.groups);
    const int64_t of_head = at * a.heads + head, of_group = (at * a.groups + group) * n;
    const float* from[3 * K + N + 2];
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int i = lane() + 32 * k;
        from[k] = i < n ? a.x[DELTA ? 0 : 2] + of_group + i : nullptr;
        from[K + k] = i < n ? a.x[DELTA ? 1 : 3] + of_group + i : nullptr;
        from[2 * K + k] = i < n && DELTA && a.per_channel ? a.x[3] + of_head * n + i : nullptr;
    }
#pragma unroll
    for (int i = 0; i < N; i++) from[3 * K + i] = i < rows ? a.x[DELTA ? 2 : 0] + at * a.heads * a.rows + row + i : nullptr;
    from[3 * K + N] = a.x[DELTA ? 4 : 1] + of_head;
    from[3 * K + N + 1] = DELTA && !a.per_channel ? a.x[3] + of_head : nullptr;
    float v[3 * K + N + 2];
    get.read(from, v);
    const Channels<K> none(nullptr, 0);
    Operands<K> found{none, none, none, v[3 * K + N], v[3 * K + N + 1]};
#pragma unroll
    for (int k = 0; k < K; k++) found.a.v[k] = v[k], found.b.v[k] = v[K + k], found.decay.v[k] = v[2 * K + k];
#pragma unroll
    for (int i = 0; i < N; i++) own[i] = v[3 * K + i];
    return found;
}

// All tokens of a sequence, one after the other, for N rows of a head.
template <bool DELTA, int K, int N, class Get = Plain>
DEVICE void recur(const ScanArgs& a, const Sequence& of, int head, int64_t row, int rows, Channels<K> (&S)[N], Get get = {}) {
    const Channels<K> A(!DELTA && a.per_channel ? a.weight + int64_t(head) * a.channels : nullptr, a.channels);
    const float all = DELTA || a.per_channel ? 0.0f : a.weight[head];
    for (int t = 0; t < of.tokens; t++) {
        const int64_t at = of.first + t;
        float own[N], y[N];
        const Operands<K> x = operands_of<DELTA, K>(a, at, head, row, rows, get, own);
#pragma unroll
        for (int i = 0; i < N; i++) y[i] = DELTA ? delta_rule<K>(a, x, S[i], own[i]) : ssm_scan<K>(a, x, A, all, S[i], own[i]);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane() == 0 && i < rows) Get::put(a.out + at * a.heads * a.rows + row + i, y[i]);
    }
}

}  // namespace assay
