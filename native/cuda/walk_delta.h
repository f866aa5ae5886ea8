// The gated delta rule of one token as two steps of a walk (walk_all.cu), with all that lies between the products before
// and behind it: convolution, activation, lengths of q and k, decay and beta; then the norm of heads, the gate and the
// quantisation. docs/reference/arithmetic.md, "Convolution and recurrences", has the formulas and the orders of sums.
//
// A step costs the latency of its operands, its description and its code (docs/lab/gpu-measured.md), so that there are two
// in the place of nine.
#pragma once
#include "recurrent.h"
#include "walk.h"

namespace assay {

// The totals of two or four rows of values, a value of each row in each lane, added as `all_chains` adds them: the first
// stage adds lanes l and l + 16. Where that leaves half of the lanes without a value, they take another row's.
DEVICE float halves_of(float a, float b, int h) {  // lanes with bit h clear go on with a, the others with b
    const bool second = lane() & h;
    return (second ? b : a) + shuffle_xor(second ? a : b, h);
}
DEVICE float total_of_two(float a, float b) {  // in lanes 0 to 15 that of a, in the others that of b
    float s = halves_of(a, b, 16);
#pragma unroll
    for (int h = 8; h; h /= 2) s = s + shuffle_xor(s, h);
    return s;
}
DEVICE int row_of_lane() { return (lane() >> 4 & 1) | (lane() >> 2 & 2); }
DEVICE int lane_of_row(int row) { return (row & 1) << 4 | (row & 2) << 2; }
DEVICE float total_of_four(const float (&v)[4]) {  // that of row `row_of_lane()`
    float s = halves_of(halves_of(v[0], v[1], 16), halves_of(v[2], v[3], 16), 8);
#pragma unroll
    for (int h = 4; h; h /= 2) s = s + shuffle_xor(s, h);
    return s;
}
DEVICE float chains_of(const float (&x)[4], const float (&y)[4]) {  // of `dot`
    const float s = fma(x[2], y[2], fma(x[0], y[0], 0.0f)), t = fma(x[3], y[3], fma(x[1], y[1], 0.0f));
    return s + t;
}

constexpr int kDeltaParts = kDeltaChannels / kDeltaRows;
static_assert(kDeltaChannels == 128 && kDeltaRows == 32 && kDeltaTaps == 4 && kScanRows == 4);

// A thread block has kDeltaRows rows of a head's state.
struct DeltaItem {
    int head, first, group, keys;
    DEVICE DeltaItem(const WalkDelta& a, int task)
        : head(task / kDeltaParts), first(task % kDeltaParts * kDeltaRows), group(head % a.groups), keys(a.groups * kDeltaChannels) {}
    // The channel of the convolution that value i of q, k and the rows of v is.
    DEVICE int channel(int i) const {
        const int own = i < kDeltaChannels ? group * kDeltaChannels : keys + (group - 1) * kDeltaChannels;
        return i < 2 * kDeltaChannels ? own + i : 2 * keys + (head - 2) * kDeltaChannels + first + i;
    }
};

// A thread convolves a channel: of q or k, whose windows the blocks of several heads read, so that GATED_NORMS moves
// them; or of v, whose window this block alone has. Then a warp has four rows of the state, which it requests before the
// operands arrive.
OUTLINED void delta_step(const WalkStep& step, uint8_t* work) {
    constexpr int n = kDeltaChannels, all = 2 * n + kDeltaRows;
    const WalkDelta& a = step.delta;
    const Sequence of = sequence_of(a, 0);
    const bool fresh = step.fresh & AWAIT_X;
    const int warp = thread() / 32, t = thread();
    float* const mixed = reinterpret_cast<float*>(work);  // q, k, rows of v; decay, beta
    NEEDS_SHARED(walk_delta_bytes());
#pragma unroll 1
    for (int task = block_of(step); task < a.heads * kDeltaParts; task += grid_x()) {
        const DeltaItem item(a, task);
        const bool busy = warp < kDeltaRows / 4;
        const int row = item.head * n + item.first + 4 * warp;  // of all heads; the warp's first one
        float S[4][4] = {};
        if (of.from && busy) {
            const float* const from = of.from + row * n + lane();
#pragma unroll
            for (int i = 0; i < 16; i++) S[i / 4][i % 4] = from[32 * i];
        }
        if (t < all) {
            const int channel = item.channel(t);
            const float4 tap = reinterpret_cast<const float4*>(a.taps)[channel];
            const int64_t window = a.window - a.offset + channel * 3;
            float old[3] = {};
            if (of.from) old[0] = of.from[window], old[1] = of.from[window + 1], old[2] = of.from[window + 2];
            const float x = await(a.x[0] + channel, fresh);
            float y = fma(tap.x, old[0], 0.0f);
            y = fma(tap.y, old[1], y), y = fma(tap.z, old[2], y), y = fma(tap.w, x, y);
            mixed[t] = gate(a.act, y);
            if (t >= 2 * n) of.to[window] = old[1], of.to[window + 1] = old[2], of.to[window + 2] = x;
        } else if (t >= team() - 32) {
            const float decay = softplus(await(a.x[1] + item.head, fresh)) * a.rate[item.head];
            const float beta = 1.0f / (1.0f + exponential(-await(a.x[2] + item.head, fresh)));
            if (lane() == 0) mixed[all] = exponential(decay), mixed[all + 1] = beta;
        }
        sync_team();
        if (busy) {
            float q[4], k[4], part[4];
#pragma unroll
            for (int i = 0; i < 4; i++) q[i] = mixed[lane() + 32 * i], k[i] = mixed[n + lane() + 32 * i];
            const float square = total_of_two(chains_of(q, q), chains_of(k, k));
            const float size = square_root(a.floor ? square : square + a.eps), f = 1.0f / (a.floor && size < a.eps ? a.eps : size);
            const float of_q = shuffle(f, 0), of_k = shuffle(f, 16), decay = mixed[all];
#pragma unroll
            for (int i = 0; i < 4; i++) q[i] = q[i] * of_q, k[i] = k[i] * of_k;
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) S[i][j] = S[i][j] * decay;
                part[i] = chains_of(S[i], k);
            }
            const int own = row_of_lane();
            const float d = mixed[all + 1] * (mixed[2 * n + 4 * warp + own] - total_of_four(part));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float d_of_row = shuffle(d, lane_of_row(i));
#pragma unroll
                for (int j = 0; j < 4; j++) S[i][j] = fma(d_of_row, k[j], S[i][j]);
                part[i] = chains_of(S[i], q);
            }
            const float y = total_of_four(part) * a.scale;
            if (lane() % 8 == 0) store_fresh(a.out + row + own, y);
            float* const to = of.to + row * n + lane();
#pragma unroll
            for (int i = 0; i < 16; i++) to[32 * i] = S[i / 4][i % 4];
        }
        if (task + int(grid_x()) < a.heads * kDeltaParts) sync_team();  // other warps still read the operands
    }
}

// The producer warp brings what this block will read to the second-level cache: weights in flight would delay it.
OUTLINED void fetch_delta(const WalkStep& step) {
    const WalkDelta& a = step.delta;
    const Sequence of = sequence_of(a, 0);
#pragma unroll 1
    for (int task = block_of(step); task < a.heads * kDeltaParts; task += grid_x()) {
        const DeltaItem item(a, task);
#pragma unroll 1
        for (int i = lane(); of.from && i < kDeltaRows * kDeltaChannels / 32; i += 32)
            prefetch(of.from + (item.head * kDeltaChannels + item.first) * kDeltaChannels + 32 * i);
#pragma unroll 1
        for (int i = 8 * lane(); i < 2 * kDeltaChannels + kDeltaRows; i += 8 * 32) {
            const int channel = item.channel(i);
            prefetch(a.taps + kDeltaTaps * channel);
            if (of.from) prefetch(of.from + (a.window - a.offset) + channel * 3);
        }
    }
    sync_warp();
}

// The norm of a head of the result, times the activated gate, quantised: a warp has 32 values, and adds up the squares of
// the whole head. Then it moves the windows of q and k by a token, once all heads that read them have their results.
OUTLINED void gated_norms_step(const WalkStep& step) {
    constexpr int n = kDeltaChannels, blocks = n / 32;
    const WalkDelta& a = step.delta;
    const Awaited get{bool(step.fresh & AWAIT_X)};
#pragma unroll 1
    for (int i = thread() / 32 * grid_x() + block_of(step); i < a.heads * blocks; i += team() / 32 * grid_x()) {
        const int head = i / blocks, at = 32 * i + lane();
        const float w = a.weight[at % n], z = gate(a.gate_act, get(a.x[4] + at));
        const float* const from = a.x[3] + head * n + lane();
        const float* const all[5] = {from, from + 32, from + 64, from + 96, a.x[3] + at};
        float y[5];
        get.read(all, y);
        const float values[4] = {y[0], y[1], y[2], y[3]};
        float s = chains_of(values, values);
#pragma unroll
        for (int h = 16; h; h /= 2) s = s + shuffle_xor(s, h);
        const float f = 1.0f / square_root(s / float(n) + a.norm_eps);
        leave_codes(reinterpret_cast<uint8_t*>(a.out) + 48 * i, ((y[4] * f) * w) * z);
        if (head >= a.groups) continue;
#pragma unroll 1
        for (int other = head + a.groups; other < a.heads; other += a.groups)
            if (lane() < kDeltaParts) get(a.x[3] + other * n + lane() * kDeltaRows);
        sync_warp();
        const Sequence of = sequence_of(a, 0);
#pragma unroll 1
        for (int c = at; c < 2 * a.groups * n; c += a.groups * n) {
            const int64_t window = a.window - a.offset + c * 3;
            const float second = of.from ? of.from[window + 1] : 0.0f, third = of.from ? of.from[window + 2] : 0.0f;
            of.to[window] = second, of.to[window + 1] = third, of.to[window + 2] = get(a.x[0] + c);
        }
    }
}

}  // namespace assay
