// Attention one operation at a time: for graphs that the fused kernels do not fit, and for traces.
#include "mask.h"
#include "softmax.h"

namespace assay {

// Scores are [head][token][key], chunk after chunk.

// block_x: token of the chunk; block_y: head; block_z: chunk. WEIGHTS: y holds (m, l) of [token][head].
KERNEL(scores, ScoreArgs, 32) {
    next_may_start();
    wait_for_previous();
    const int32_t* c = a.chunks + block_z() * kChunkWords;
    const int t = block_x(), head = block_y();
    if (t >= c[CHUNK_TOKENS]) return;
    const int64_t n = c[CHUNK_KEYS], base = (int64_t(uint32_t(c[CHUNK_SCORES])) | int64_t(c[CHUNK_SCORES_HIGH]) << 32) * a.heads + (int64_t(head) * c[CHUNK_TOKENS] + t) * n;
    const int64_t token = c[CHUNK_TOKEN] + t, kv = a.kv_heads ? head / (a.heads / a.kv_heads) : 0;
    const int64_t query = a.positions[token];
    const int last = a.last ? int(a.last[token]) : -1;
    const auto hidden = [&](int64_t s) { return a.mask.hides(query, a.key_positions[c[CHUNK_KEY] + s], int(s), last); };
    const auto key = [&](int64_t s) { return int64_t(a.key_positions[c[CHUNK_KEY] + s]); };
    if (a.op == KQ) {
        for (int64_t s = lane(); s < n; s += 32) {
            float y = 0.0f;
            for (int d = 0; d < a.dim; d++)
                y = fma(a.x[(token * a.heads + head) * a.dim + d], a.y[((c[CHUNK_KEY] + s) * a.kv_heads + kv) * a.dim + d], y);
            a.out[base + s] = y;
        }
    } else if (a.op == CAPPED) {
        for (int64_t s = lane(); s < n; s += 32) a.out[base + s] = softcap(a.x[base + s], a.mask.cap);
    } else if (a.op == SOFTMAX) {
        for (int64_t s = lane(); s < n; s += 32)
            a.out[base + s] = hidden(s) ? minus_infinity() : a.mask.score(a.x[base + s], head, query - key(s));
        sync_warp();
        softmax_row(a.out + base, a.out + base, n, a.mask.sinks ? a.mask.sinks + head : nullptr);
    } else if (a.op == WEIGHTS) {
        const float m = a.y[2 * (token * a.heads + head)], l = a.y[2 * (token * a.heads + head) + 1];
        for (int64_t s = lane(); s < n; s += 32) {
            const float x = a.mask.score(a.x[base + s], head, query - key(s));
            a.out[base + s] = hidden(s) ? 0.0f : exponential(x - m) / l;
        }
    } else {
        for (int d = lane(); d < a.dim; d += 32) {
            float y = 0.0f;
            for (int64_t s = 0; s < n; s++) y = fma(a.x[base + s], a.y[((c[CHUNK_KEY] + s) * a.kv_heads + kv) * a.dim + d], y);
            a.out[(token * a.heads + head) * a.dim + d] = y;
        }
    }
}

}  // namespace assay
