// Attention for a token a sequence over a cache of halves, where there are more blocks of keys than the GPU runs at once
// (attention.h): what counts is work, not the way from the first instruction to the last. All warps copy a block's keys and
// values to shared memory before the kernel waits; a warp a head makes the softmax; a warp a page weighs the values.
#include "attention_one.h"

namespace assay {

struct Blocks {  // shared memory
    uint16_t *k, *v;
    float *q, *e, *state, *parts;
    DEVICE Blocks(uint8_t* shared, int heads, int k_dim, int v_dim) {
        k = reinterpret_cast<uint16_t*>(shared);           // [8 pages][k dim / 8][32][8]
        v = k + kBlock * k_dim;                            // [8 pages][32][v dim]
        q = reinterpret_cast<float*>(v + kBlock * v_dim);  // [heads][k dim]
        e = q + heads * k_dim;                             // [heads][256]
        state = e + heads * kBlock;                        // m, l of each head
        parts = reinterpret_cast<float*>(shared);          // [8 pages][heads][v dim], over the keys when they are used
    }
};

template <int HQ>
DEVICE void attend_blocks(const AttentionArgs& a) {
    SHARED;
    const int k_dim = a.keys.dim, v_dim = a.values.dim, warp = thread() / 32, warps = threads() / 32;
    const Blocks room(shared, HQ, k_dim, v_dim);
    next_may_start();
    const Where at(a, HQ);
    if (at.idle()) return wait_for_previous();
    if (!a.k) wait_for_previous();  // a kernel of this step wrote the newest keys
    const int keys = at.keys(), used = (keys + kPage - 1) / kPage, k_bytes = kPage * k_dim * 2, v_bytes = kPage * v_dim * 2;
    for (int p = warp; p < used; p += warps) {
        const int page = at.pages[at.base / kPage + p];
        const uint8_t* k = head_of(a.cache, a.keys, page, at.kv);
        const uint8_t* v = head_of(a.cache, a.values, page, at.kv);
        for (int i = lane() * 16; i < k_bytes; i += 512) copy_async(reinterpret_cast<uint8_t*>(room.k) + p * k_bytes + i, k + i);
        for (int i = lane() * 16; i < v_bytes; i += 512) copy_async(reinterpret_cast<uint8_t*>(room.v) + p * v_bytes + i, v + i);
    }
    copy_group();
    wait_for_previous();
    const float* table = a.turn ? a.turn + int64_t(at.row) * a.n_rot : nullptr;
    const float* q = a.q + (int64_t(at.row) * a.heads + at.first) * k_dim;
    for (int i = thread(); i < HQ * k_dim; i += threads())
        room.q[i] = i < at.count * k_dim ? turned(q + i / k_dim * k_dim, table, i % k_dim, a.n_rot, a.neox) : 0.0f;
    copies_done<0>();
    sync_block();
    if (a.k && at.has_new_key()) {  // the new key and value, into shared memory and the cache
        const int p = (at.slot - at.base) / kPage, s = at.slot % kPage, page = at.pages[at.slot / kPage];
        const Pool &kp = a.keys, &vp = a.values;
        const float* k = a.k + (int64_t(at.row) * kp.heads + at.kv) * k_dim;
        const float* v = a.v + (int64_t(at.row) * vp.heads + at.kv) * v_dim;
        for (int d = thread(); d < k_dim; d += threads()) {
            const uint16_t x = float_to_half(turned(k, a.turn_k ? table : nullptr, d, a.n_rot, a.neox));
            room.k[((p * (k_dim / 8) + d / 8) * kPage + s) * 8 + d % 8] = x;
            if (at.sub == 0) reinterpret_cast<uint16_t*>(head_of(a.cache, kp, page, at.kv))[kp.index(s, d)] = x;
        }
        for (int d = thread(); d < v_dim; d += threads()) {
            const uint16_t x = float_to_half(v[d]);
            room.v[(p * kPage + s) * v_dim + d] = x;
            if (at.sub == 0) reinterpret_cast<uint16_t*>(head_of(a.cache, vp, page, at.kv))[vp.index(s, d)] = x;
        }
        if (at.sub == 0 && at.kv == 0 && thread() == 0)
            *reinterpret_cast<int32_t*>(a.cache.pages + page * a.cache.page_bytes + a.cache.positions_at + 4 * s) = at.position;
        sync_block();
    }
    for (int j = thread(); j < kBlock; j += threads()) {
        const int64_t distance = j < keys ? at.distance(a, j) : 0;
        const bool seen = j < keys && at.seen(a, j, distance);
        float s[HQ];
#pragma unroll
        for (int h = 0; h < HQ; h++) s[h] = 0.0f;
        if (seen) {
            const uint4* from = reinterpret_cast<const uint4*>(room.k) + j / kPage * (k_dim / 8) * kPage + j % kPage;
#pragma unroll 4
            for (int i = 0; i < k_dim / 8; i++) {
                const uint4 w = from[i * kPage];
                const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                for (int n = 0; n < 4; n += 2) {
                    const float k0 = half_to_float(uint16_t(words[n])), k1 = half_to_float(uint16_t(words[n] >> 16));
                    const float k2 = half_to_float(uint16_t(words[n + 1])), k3 = half_to_float(uint16_t(words[n + 1] >> 16));
#pragma unroll
                    for (int h = 0; h < HQ; h++) {
                        const float4 x = *reinterpret_cast<const float4*>(room.q + h * k_dim + 8 * i + 2 * n);
                        s[h] = fma(x.x, k0, s[h]);
                        s[h] = fma(x.y, k1, s[h]);
                        s[h] = fma(x.z, k2, s[h]);
                        s[h] = fma(x.w, k3, s[h]);
                    }
                }
            }
        }
#pragma unroll
        for (int h = 0; h < HQ; h++)
            room.e[h * kBlock + j] = seen ? a.mask.score(s[h], at.first + (h < at.count ? h : 0), distance) : as_float(kHidden);
    }
    sync_block();
    for (int h = warp; h < at.count; h += warps) softmax_shared(room.e + h * kBlock, room.state + 2 * h);
    sync_block();
    const bool some_unseen = a.mask.partial() || a.irregular;
    for (int i = warp; i < used * ((v_dim + 63) / 64); i += warps) {  // a warp a page, two neighbouring values a lane
        const int p = i % used, d = (i / used * 32 + lane()) * 2;
        if (d >= v_dim) continue;
        const int in_page = keys - p * kPage < kPage ? keys - p * kPage : kPage;
        const uint16_t* v = room.v + p * kPage * v_dim + d;
        float part[HQ][2];
#pragma unroll
        for (int h = 0; h < HQ; h++) part[h][0] = part[h][1] = 0.0f;
#pragma unroll 4
        for (int j = 0; j < in_page; j++) {
            const uint32_t two = *reinterpret_cast<const uint32_t*>(v + j * v_dim);
            const float x = half_to_float(uint16_t(two)), y = half_to_float(uint16_t(two >> 16));
#pragma unroll
            for (int h = 0; h < HQ; h++) {
                const float e = room.e[h * kBlock + p * kPage + j];
                if (some_unseen && bits(e) == bits(kUnseen)) continue;
                part[h][0] = fma(e, x, part[h][0]);
                part[h][1] = fma(e, y, part[h][1]);
            }
        }
#pragma unroll
        for (int h = 0; h < HQ; h++) {
            room.parts[(p * HQ + h) * v_dim + d] = part[h][0];
            room.parts[(p * HQ + h) * v_dim + d + 1] = part[h][1];
        }
    }
    sync_block();
    add_pages(a, at, room.parts, room.state, HQ, used);
}

KERNEL(attend_blocks_1, AttentionArgs, 256) { attend_blocks<1>(a); }
KERNEL(attend_blocks_2, AttentionArgs, 256) { attend_blocks<2>(a); }
KERNEL(attend_blocks_4, AttentionArgs, 256) { attend_blocks<4>(a); }
KERNEL(attend_blocks_8, AttentionArgs, 256) { attend_blocks<8>(a); }

}  // namespace assay
