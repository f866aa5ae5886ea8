// Shared by walks with experts of one token (walk_all.cu) and of several (walk_few_all.cu): rows of float weights, the
// choice of experts, and chains of elementwise operations.
#pragma once
#include "map.h"
#include "softmax.h"
#include "walk.h"

namespace assay {

// A lane has 256 columns of a row; a unit of 260 floats avoids bank conflicts.
constexpr int kPadded = 260;

template <int FORMAT>
DEVICE float row_part(const uint4* w, const float* x) {
    constexpr int per = FORMAT == F32 ? 4 : 8;
    float even = 0.0f, odd = 0.0f;
#pragma unroll 8
    for (int c = 0; c < 256 / per; c++) {
        const uint4 v = w[c];
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < per; j += 4) {
            const float4 y = *reinterpret_cast<const float4*>(x + c * per + j);
            float f[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint16_t h = uint16_t(words[(j + k) / 2 % 4] >> 16 * (k % 2));
                f[k] = FORMAT == F32 ? as_float(words[k]) : FORMAT == F16 ? half_to_float(h) : brain_to_float(h);
            }
            even = fma(f[0], y.x, even), odd = fma(f[1], y.y, odd);
            even = fma(f[2], y.z, even), odd = fma(f[3], y.w, odd);
        }
    }
    return even + odd;
}

// ---- single operations of rows -------------------------------------------------------------------------------------
// Operands of a chain: at `at` is the result of the operation before.
struct Carried : Awaited {
    const float* at;
    float v;
    DEVICE float operator()(const float* p) const { return p == at ? v : await(p, fresh); }
};

// Publish this thread's values of all rows.
DEVICE void run_chain(const WalkStep& step) {
    const MapChain& chain = step.chain;
    const bool fresh = step.fresh & AWAIT_X;
    const int count = chain.count, width = chain.maps[0].width, all = int(chain.maps[0].rows) * width;
    float* const out = chain.maps[count - 1].out;
#pragma unroll 1
    for (int i = block_of(step) * team() + thread(); i < all; i += grid_x() * team()) {
        const int row = i / width;
        float v = 0.0f;
#pragma unroll 1
        for (int k = 0; k < count; k++) v = map_value(chain.maps[k], row, i - row * width, Carried{{fresh}, k ? out + i : nullptr, v});
        if (step.fresh & AS_CODES) leave_codes(reinterpret_cast<uint8_t*>(out) + i / 32 * 48, v);  // of whole warps
        else store_fresh(out + i, v);
    }
}

// ---- the choice ------------------------------------------------------------------------------------------------------
struct Chosen {
    int32_t id[kChosen];
    float weight[kChosen];
};

// y / sum, correctly rounded: without the compiler's range checks where they are not needed.
DEVICE float share_of(float y, float sum) { return y > 0x1p-60f && sum > 0x1p-60f && sum < 0x1p+60f ? divide_near(y, sum) : y / sum; }

// A warp chooses the experts: largest first, ties by index, NaN last, as argsort. A lane has N of them, in registers.
// Their probabilities become weights in `weigh`, once gate and up are requested: only down needs them.
template <int N>
OUTLINED void choose(const WalkExperts& e, const float* logits_at, Chosen& to) {
    // The step is in global memory: what it says is read before the logits arrive.
    const int n = e.n_experts, used = e.used, routing = e.routing, by_logits = e.by_logits;
    const float *const from = logits_at + lane(), *const choice_bias = e.choice_bias;
    const auto is = [&](int k) { return lane() + 32 * k < n; };
    float logits[N], probs[N], bias[N];
#pragma unroll
    for (int k = 0; k < N; k++) bias[k] = choice_bias && is(k) ? choice_bias[lane() + 32 * k] : -0.0f;
    Patience patience;
    for (bool all = false; !all; patience.lose()) {  // all polls together: one after the other adds a latency each
        all = true;
#pragma unroll
        for (int k = 0; k < N; k++) logits[k] = is(k) ? load_fresh(from + 32 * k) : 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++) all = all && bits(logits[k]) != kNotYet;
    }
    sync_warp();
    if (routing == BY_SOFTMAX) {  // softmax_row
        float m = minus_infinity(), sum = 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++) m = is(k) && m < logits[k] ? logits[k] : m;
#pragma unroll
        for (int h = 16; h; h /= 2) {
            const float other = shuffle_xor(m, h);
            m = m < other ? other : m;
        }
#pragma unroll
        for (int k = 0; k < N; k++) probs[k] = exponential(logits[k] - m);
#pragma unroll
        for (int k = 0; k < N; k++) sum = is(k) ? sum + probs[k] : sum;
#pragma unroll
        for (int h = 16; h; h /= 2) sum = sum + shuffle_down(sum, h);
        sum = shuffle(sum, 0);
#pragma unroll
        for (int k = 0; k < N; k++) probs[k] = share_of(probs[k], sum);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) probs[k] = routing == BY_SIGMOID ? 1.0f / (1.0f + exponential(-logits[k])) : logits[k];
    }
    uint32_t keys[N];  // 0: none
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float chosen_by = by_logits ? logits[k] : probs[k], v = choice_bias ? chosen_by + bias[k] : chosen_by;
        keys[k] = !is(k) ? 0u : v != v ? 1u : ordered(v == 0.0f ? 0.0f : v);
    }
#pragma unroll 1
    for (int j = 0; j < used; j++) {
        uint32_t best = 0;
        int at = 0;
        float weight = 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++)
            if (keys[k] > best) best = keys[k], at = k, weight = probs[k];
        const uint32_t top = reduce_max(best);
        const int mine = lane() + 32 * at, id = int(reduce_min(best == top ? uint32_t(mine) : ~0u));
        if (id == mine) to.id[j] = id, to.weight[j] = weight;
#pragma unroll
        for (int k = 0; k < N; k++) keys[k] = id == mine && k == at ? 0 : keys[k];
    }
    sync_warp();
}

DEVICE void choose(const WalkExperts& e, const float* logits, Chosen& to) {
    if (e.n_experts <= 128) choose<4>(e, logits, to);
    else if (e.n_experts <= 256) choose<8>(e, logits, to);
    else choose<kMostExperts / 32>(e, logits, to);
}

OUTLINED void weigh(const WalkExperts& e, Chosen& to) {
    const int used = e.used;
    if (e.softmax_chosen) softmax_row(to.weight, to.weight, used), sync_warp();
    float w = lane() < used ? to.weight[lane()] : 0.0f;
    if (e.normalise) {
        float sum = 0.0f;
#pragma unroll 1
        for (int j = 0; j < used; j++) sum = sum + to.weight[j];
        w = w / (sum < e.least ? e.least : sum);
    }
    sync_warp();
    if (lane() < used) to.weight[lane()] = e.scale != 1.0f ? w * e.scale : w;
    sync_warp();
}

}  // namespace assay
