// Attention for one token a sequence over an f16 cache, for more blocks of keys than are resident at once
// (attention.h). Throughput counts here, not the latency of one block.
//
// A thread has a key and holds its first vectors in registers. All warps copy the values to shared memory before the
// kernel waits for its predecessor. Then a warp a head computes the softmax, and a warp a page weighs the values. Two
// blocks fit a multiprocessor. Bound by memory bandwidth.
#include "attention_one.h"

namespace assay {

struct Blocks {  // layout of shared memory
    uint16_t *v, *new_k;
    float *q, *e, *state, *parts;
    DEVICE Blocks(uint8_t* shared, int heads, int k_dim, int v_dim) {
        v = reinterpret_cast<uint16_t*>(shared);               // [8 pages][32][v dim]
        new_k = v + kBlock * v_dim;                            // [k dim]
        q = reinterpret_cast<float*>(new_k + k_dim);           // [heads][k dim]
        e = q + heads * k_dim;                                 // [heads][256]
        state = e + heads * kBlock;                            // m, l of each head
        parts = state + 2 * heads + (heads == 1) * 2;          // [8 pages][heads][v dim]
    }
};

// Weigh the values of a page: EACH neighbouring ones a lane, from value `d` on.
template <int HQ, int EACH>
DEVICE void weigh(const uint16_t* v, const float* e, int keys, int v_dim, int d, bool some_unseen, float* part) {
    float sum[HQ][EACH];
#pragma unroll
    for (int h = 0; h < HQ; h++)
#pragma unroll
        for (int n = 0; n < EACH; n++) sum[h][n] = 0.0f;
#pragma unroll 4
    for (int j = 0; j < keys; j++) {
        uint32_t w[EACH / 2];
        if constexpr (EACH == 4) {
            const uint2 two = *reinterpret_cast<const uint2*>(v + j * v_dim + d);
            w[0] = two.x, w[1] = two.y;
        } else {
            w[0] = *reinterpret_cast<const uint32_t*>(v + j * v_dim + d);
        }
#pragma unroll
        for (int h = 0; h < HQ; h++) {
            const float by = e[h * kBlock + j];
            if (some_unseen && bits(by) == bits(kUnseen)) continue;
#pragma unroll
            for (int n = 0; n < EACH; n++) sum[h][n] = fma(by, half_to_float(uint16_t(w[n / 2] >> 16 * (n % 2))), sum[h][n]);
        }
    }
#pragma unroll
    for (int h = 0; h < HQ; h++)
#pragma unroll
        for (int n = 0; n < EACH; n += 2) *reinterpret_cast<float2*>(part + h * v_dim + d + n) = {sum[h][n], sum[h][n + 1]};
}

template <int HQ>
DEVICE void attend_blocks(const AttentionArgs& a) {
    SHARED;
    constexpr int ahead = 8;  // vectors of a key in flight
    const int k_dim = a.keys.dim, v_dim = a.values.dim, warp = thread() / 32, vectors = k_dim / 8;
    NEEDS_SHARED(attend_blocks_bytes(HQ, k_dim, v_dim));
    const Blocks room(shared, HQ, k_dim, v_dim);
    next_may_start();
    const Where at(a, HQ);
    if (at.idle()) return wait_for_previous();
    wait_for_keys(a);
    const int keys = at.keys(), used = (keys + kPage - 1) / kPage, v_bytes = kPage * v_dim * 2, j = thread();  // 256 threads
    const int fresh = a.k && at.has_new_key() ? at.slot - at.base : -1;  // index of the new key, if this block has it
    const uint4* from = nullptr;
    uint4 next[ahead];
    if (warp < used) {
        const int page = at.pages[at.base / kPage + warp];
        from = reinterpret_cast<const uint4*>(head_of(a.cache, a.keys, page, at.kv)) + lane();
#pragma unroll
        for (int i = 0; i < ahead; i++)
            if (i < vectors && j != fresh) next[i] = from[i * kPage];
        const uint8_t* v = head_of(a.cache, a.values, page, at.kv);
        for (int i = lane() * 16; i < v_bytes; i += 512) copy_async(reinterpret_cast<uint8_t*>(room.v) + warp * v_bytes + i, v + i);
    }
    copy_group();
    wait_for_previous();
    const float* table = a.turn ? a.turn + int64_t(at.row) * a.n_rot : nullptr;
    const float* q = a.q + (int64_t(at.row) * a.heads + at.first) * k_dim;
    for (int i = thread(); i < HQ * k_dim; i += threads())
        room.q[i] = i < at.count * k_dim ? turned(q + i / k_dim * k_dim, table, i % k_dim, a.n_rot, a.neox) : 0.0f;
    copies_done<0>();
    sync_block();
    if (fresh >= 0) {  // store the new key and value in shared memory and the cache
        const int s = at.slot % kPage, page = at.pages[at.slot / kPage];
        const Pool &kp = a.keys, &vp = a.values;
        const float* k = a.k + (int64_t(at.row) * kp.heads + at.kv) * k_dim;
        const float* v = a.v + (int64_t(at.row) * vp.heads + at.kv) * v_dim;
        for (int d = thread(); d < k_dim; d += threads()) {
            room.new_k[d] = float_to_half(turned(k, a.turn_k ? table : nullptr, d, a.n_rot, a.neox));
            if (at.sub == 0) reinterpret_cast<uint16_t*>(head_of(a.cache, kp, page, at.kv))[kp.index(s, d)] = room.new_k[d];
        }
        for (int d = thread(); d < v_dim; d += threads()) {
            const uint16_t x = float_to_half(v[d]);
            room.v[fresh * v_dim + d] = x;
            if (at.sub == 0) reinterpret_cast<uint16_t*>(head_of(a.cache, vp, page, at.kv))[vp.index(s, d)] = x;
        }
        if (at.sub == 0 && at.kv == 0 && thread() == 0)
            *reinterpret_cast<int32_t*>(a.cache.pages + page * a.cache.page_bytes + a.cache.positions_at + 4 * s) = at.position;
        sync_block();
    }
    const int64_t distance = j < keys ? at.distance(a, j) : 0;
    const bool seen = j < keys && at.seen(a, j, distance);
    float s[HQ];
#pragma unroll
    for (int h = 0; h < HQ; h++) s[h] = 0.0f;
    if (warp < used) {
        const uint4* mine = reinterpret_cast<const uint4*>(room.new_k);
        for (int i0 = 0; i0 < vectors; i0 += ahead) {
#pragma unroll
            for (int n = 0; n < ahead; n++) {
                const int i = i0 + n;
                if (i >= vectors) break;
                const uint4 w = j == fresh ? mine[i] : next[n];
                if (i + ahead < vectors && j != fresh) next[n] = from[(i + ahead) * kPage];
                score_eight<HQ>(w, room.q + 8 * i, k_dim, s);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < HQ; h++)
        room.e[h * kBlock + j] = seen ? a.mask.score(s[h], at.first + (h < at.count ? h : 0), distance) : as_float(kHidden);
    sync_block();
    for (int h = warp; h < at.count; h += 8) softmax_shared(room.e + h * kBlock, room.state + 2 * h);
    sync_block();
    const bool some_unseen = a.mask.partial() || a.irregular;
    if (warp < used) {
        const int in_page = keys - warp * kPage < kPage ? keys - warp * kPage : kPage;
        const uint16_t* v = room.v + warp * kPage * v_dim;
        const float* e = room.e + warp * kPage;
        float* part = room.parts + warp * HQ * v_dim;
        if (v_dim % 128 == 0)
            for (int d = 4 * lane(); d < v_dim; d += 128) weigh<HQ, 4>(v, e, in_page, v_dim, d, some_unseen, part);
        else
            for (int d = 2 * lane(); d < v_dim; d += 64) weigh<HQ, 2>(v, e, in_page, v_dim, d, some_unseen, part);
    }
    sync_block();
    add_pages(a, at, room.parts, room.state, HQ, used);
}

CROWDED(attend_blocks_1, AttentionArgs, 256, 2) { attend_blocks<1>(a); }
CROWDED(attend_blocks_2, AttentionArgs, 256, 2) { attend_blocks<2>(a); }
CROWDED(attend_blocks_4, AttentionArgs, 256, 2) { attend_blocks<4>(a); }
CROWDED(attend_blocks_8, AttentionArgs, 256, 2) { attend_blocks<8>(a); }

}  // namespace assay
