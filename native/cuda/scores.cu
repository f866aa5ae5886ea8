// Scores of attention, one operation at a time: for graphs that the fused pass does not fit, and for traces.
#include "mask.h"
#include "softmax.h"

namespace assay {

// Values of scores lie [head][token][key], chunk after chunk.

struct ScoreArgs {
    const float *x, *y;
    float* out;
    const int32_t* chunks;  // [chunks][6]: first token, tokens, first key, keys, offset of scores (2 words)
    const int32_t *positions, *key_positions;
    Mask mask;
    int32_t heads, kv_heads, dim, op;
};
enum ScoreOp { KQ, SOFTMAX, KQV, CAPPED, WEIGHTS };

// block_x: token of the chunk; block_y: head; block_z: chunk. WEIGHTS: y holds (m, l) of [token][head]
KERNEL(scores, ScoreArgs, 32) {
    next_may_start();
    wait_for_previous();
    const int32_t* c = a.chunks + block_z() * 6;
    const int t = block_x(), head = block_y();
    if (t >= c[1]) return;
    const int64_t n = c[3], base = (int64_t(uint32_t(c[4])) | int64_t(c[5]) << 32) * a.heads + (int64_t(head) * c[1] + t) * n;
    const int64_t token = c[0] + t, kv = a.kv_heads ? head / (a.heads / a.kv_heads) : 0;
    const int64_t query = a.positions[token];
    const auto key = [&](int64_t s) { return int64_t(a.key_positions[c[2] + s]); };
    if (a.op == KQ) {
        for (int64_t s = lane(); s < n; s += 32) {
            float y = 0.0f;
            for (int d = 0; d < a.dim; d++)
                y = fma(a.x[(token * a.heads + head) * a.dim + d], a.y[((c[2] + s) * a.kv_heads + kv) * a.dim + d], y);
            a.out[base + s] = y;
        }
    } else if (a.op == CAPPED) {
        for (int64_t s = lane(); s < n; s += 32) a.out[base + s] = softcap(a.x[base + s], a.mask.cap);
    } else if (a.op == SOFTMAX) {
        for (int64_t s = lane(); s < n; s += 32)
            a.out[base + s] = a.mask.hides(query, key(s)) ? minus_infinity() : a.mask.score(a.x[base + s], head, query - key(s));
        sync_warp();
        softmax_row(a.out + base, a.out + base, n, a.mask.sinks ? a.mask.sinks + head : nullptr);
    } else if (a.op == WEIGHTS) {
        const float m = a.y[2 * (token * a.heads + head)], l = a.y[2 * (token * a.heads + head) + 1];
        for (int64_t s = lane(); s < n; s += 32) {
            const float x = a.mask.score(a.x[base + s], head, query - key(s));
            a.out[base + s] = a.mask.hides(query, key(s)) ? 0.0f : exponential(x - m) / l;
        }
    } else {
        for (int d = lane(); d < a.dim; d += 32) {
            float y = 0.0f;
            for (int64_t s = 0; s < n; s++) y = fma(a.x[base + s], a.y[((c[2] + s) * a.kv_heads + kv) * a.dim + d], y);
            a.out[(token * a.heads + head) * a.dim + d] = y;
        }
    }
}

}  // namespace assay
