// Layers that remember: convolution, token shift, and the recurrences, over the tokens of each sequence; and the row
// operations that such layers need.
//
// docs/reference/arithmetic.md, "Convolution and recurrences", has the formulas. A state is float32. A warp has one row of
// a state in registers and takes the tokens in order: lane l has channels l, l + 32, l + 64, … Sums over channels have
// 64 chains, two a lane, and their tree. block_y is a row of the table of sequences; padding has no tokens. A sequence
// whose state is kept at several tokens has several rows: the block of the first one computes all of them.
#include "recurrent.h"

namespace assay {

template <int K>
DEVICE void wkv7(const ScanArgs& a, const Sequence& of, int head, Channels<K>& S, int64_t row) {
    const int n = a.channels;
    for (int t = 0; t < of.tokens; t++) {
        const int64_t at = (int64_t(of.first + t) * a.heads + head) * n;
        const Channels<K> r(a.x[0] + at, n), w(a.x[1] + at, n), k(a.x[2] + at, n), kk(a.x[4] + at, n);
        const Channels<K> rate(a.x[5] + at, n);
        const float v = a.x[3][int64_t(of.first + t) * a.heads * n + row], taken = -dot(S, kk);
#pragma unroll
        for (int i = 0; i < K; i++)
            S.v[i] = fma(taken, kk.v[i] * rate.v[i], fma(v, k.v[i], S.v[i] * w.v[i]));
        const float y = dot(S, r);
        if (lane() == 0) a.out[int64_t(of.first + t) * a.heads * n + row] = y;
    }
}

// A column of a state [key][value].
template <int K>
DEVICE void wkv6(const ScanArgs& a, const Sequence& of, int head, Channels<K>& S, int64_t row) {
    const int n = a.channels;
    const Channels<K> u(a.weight + int64_t(head) * n, n);
    for (int t = 0; t < of.tokens; t++) {
        const int64_t at = (int64_t(of.first + t) * a.heads + head) * n;
        const Channels<K> r(a.x[0] + at, n), w(a.x[1] + at, n), k(a.x[2] + at, n);
        const float v = a.x[3][int64_t(of.first + t) * a.heads * n + row];
        Channels<K> e(nullptr, 0);
#pragma unroll
        for (int i = 0; i < K; i++) {
            const float m = k.v[i] * v;
            e.v[i] = fma(u.v[i], m, S.v[i]);
            S.v[i] = fma(w.v[i], S.v[i], m);
        }
        const float y = dot(e, r);
        if (lane() == 0) a.out[int64_t(of.first + t) * a.heads * n + row] = y;
    }
}

template <int K>
DEVICE void scan_row(const ScanArgs& a) {
    const int64_t row = int64_t(block_x()) * (threads() / 32) + thread() / 32;  // of all heads
    if (row >= int64_t(a.heads) * a.rows || continues(a, block_y())) return;
    const int head = int(row / a.rows), n = a.channels;
    const bool column = a.kind == WKV6;
    const int64_t at = column ? int64_t(head) * a.rows * n + row % a.rows : row * n, step = column ? a.rows : 1;
    const Sequence whole = sequence_of(a, block_y());
    if (!whole.tokens) return;
    Channels<K> states[1] = {{whole.from ? whole.from + at : nullptr, n, step}}, &S = states[0];
    each_part(a, [&](const Sequence& of) {
        if (a.kind == DELTA_RULE) recur<true>(a, of, head, row, 1, states);
        if (a.kind == SSM_SCAN) recur<false>(a, of, head, row, 1, states);
        if (a.kind == WKV6) wkv6(a, of, head, S, row);
        if (a.kind == WKV7) wkv7(a, of, head, S, row);
        S.store(of.to + at, n, step);
    });
}

#define SCAN(channels) \
    KERNEL(scan_##channels, ScanArgs, 128) { \
        next_may_start(); \
        wait_for_previous(); \
        scan_row<(channels) / 32>(a); \
    }
SCAN(64)
SCAN(128)
SCAN(192)
SCAN(256)

// ---- windows -------------------------------------------------------------------------------------------------------
// y[t, c] = sum over taps k of w[c, k] x[t - K + 1 + k, c]; a thread a channel
KERNEL(causal_conv, ScanArgs, 128) {
    next_may_start();
    wait_for_previous();
    const int64_t c = int64_t(block_x()) * threads() + thread(), n = a.channels;
    const int taps = a.rows, before = taps - 1;
    if (c >= n) return;
    const float* w = a.weight + c * taps;
    each_part(a, [&](const Sequence& of) {
        const float *x = a.x[0] + of.first * n + c, *old = of.from ? of.from + c * before : nullptr;
        // Row i of this step, or of the window where i is negative.
        const auto row = [&](int i) { return i >= 0 ? x[i * n] : old ? old[before + i] : 0.0f; };
        for (int t = 0; t < of.tokens; t++) {
            float y = 0.0f;
            for (int k = 0; k < taps; k++) y = fma(w[k], row(t - before + k), y);
            a.out[(of.first + t) * n + c] = y;
        }
        for (int k = 0; k < before; k++) of.to[c * before + k] = row(of.tokens - before + k);  // reads at k or behind it
    });
}

// y[t] = x[t - 1]; a thread a column
KERNEL(shift_rows, ScanArgs, 128) {
    next_may_start();
    wait_for_previous();
    const int64_t c = int64_t(block_x()) * threads() + thread(), n = a.channels;
    if (c >= n) return;
    each_part(a, [&](const Sequence& of) {
        const float* x = a.x[0] + of.first * n + c;
        a.out[of.first * n + c] = of.from ? of.from[c] : 0.0f;
        for (int t = 1; t < of.tokens; t++) a.out[(of.first + t) * n + c] = x[(t - 1) * n];
        of.to[c] = x[(of.tokens - 1) * n];
    });
}

// A state before this step (`kind` 0) or after it, at column `rows` of a result of `heads` columns
KERNEL(show_state, ScanArgs, 128) {
    next_may_start();
    wait_for_previous();
    const int64_t c = int64_t(block_x()) * threads() + thread();
    if (c >= a.channels) return;
    int64_t at = 0;  // sequences before this one
    for (int i = 0; i < block_y(); i++) at += !continues(a, i);
    float* out = a.out + at * a.heads + a.rows + c;
    bool first = true;
    each_part(a, [&](const Sequence& of) {
        if (a.kind || first) *out = a.kind ? of.to[c] : of.from ? of.from[c] : 0.0f;
        first = false;
    });
}

// A decode step that follows begins with the state that this one has left.
KERNEL(advance_states, ScanArgs, 128) {
    next_may_start();
    wait_for_previous();
    for (int i = thread(); i < a.heads; i += threads()) {
        int32_t* s = const_cast<int32_t*>(a.sequences) + i * kStateWords;
        s[STATE_FROM] = s[STATE_TO];
    }
}

// ---- rows ----------------------------------------------------------------------------------------------------------
// x / sqrt(x . x + eps), or with w_step x / max(sqrt(x . x), eps), of each part of a row; block_x: row * parts + part
KERNEL(l2_norm, RowArgs, 32) {
    next_may_start();
    wait_for_previous();
    const int n = a.width / a.parts;
    const float* x = a.x + int64_t(block_x()) * n;
    const float square = warp_dot(x, x, n), size = square_root(a.w_step ? square : square + a.eps);
    const float f = 1.0f / (a.w_step && size < a.eps ? a.eps : size);
    for (int i = lane(); i < n; i += 32) a.out[int64_t(block_x()) * n + i] = x[i] * f;
}

KERNEL(row_length, RowArgs, 32) {
    next_may_start();
    wait_for_previous();
    const float* x = a.x + int64_t(block_x()) * a.width;
    const float square = warp_dot(x, x, a.width);
    if (lane() == 0) a.out[block_x()] = square_root(square);
}

// relu(x - (mean + eps std)), std by n - 1; `eps` is the factor
KERNEL(sparse_gate, RowArgs, 32) {
    next_may_start();
    wait_for_previous();
    const float* x = a.x + int64_t(block_x()) * a.width;
    float* y = a.out + int64_t(block_x()) * a.width;
    float s = 0.0f, t = 0.0f;
    for (int i = lane(); i < a.width; i += 64) {
        s = s + x[i];
        if (i + 32 < a.width) t = t + x[i + 32];
    }
    const float mean = all_chains(s, t) / float(a.width);
    s = t = 0.0f;
    for (int i = lane(); i < a.width; i += 64) {
        const float c = x[i] - mean;
        s = fma(c, c, s);
        if (i + 32 < a.width) {
            const float d = x[i + 32] - mean;
            t = fma(d, d, t);
        }
    }
    const float cut = fma(a.eps, square_root(all_chains(s, t) / float(a.width - 1)), mean);
    for (int i = lane(); i < a.width; i += 32) {
        const float over = x[i] - cut;
        y[i] = over < 0.0f ? 0.0f : over;
    }
}

// x + (sum over a head of r k u) v; block_x: row * heads + head
KERNEL(head_bonus, ScanArgs, 32) {
    next_may_start();
    wait_for_previous();
    const int n = a.channels;
    const int64_t at = int64_t(block_x()) * n;
    const float *x = a.x[0] + at, *r = a.x[1] + at, *k = a.x[2] + at, *v = a.x[3] + at;
    const float* u = a.weight + int64_t(block_x() % a.heads) * n;
    float s = 0.0f, t = 0.0f;
    for (int i = lane(); i < n; i += 64) {
        s = fma(r[i] * k[i], u[i], s);
        if (i + 32 < n) t = fma(r[i + 32] * k[i + 32], u[i + 32], t);
    }
    const float bonus = all_chains(s, t);
    for (int i = lane(); i < n; i += 32) a.out[at + i] = fma(bonus, v[i], x[i]);
}

}  // namespace assay
