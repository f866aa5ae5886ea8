// Attention for one token a sequence over a cache of any type (attention.h). Latency-bound.
#include "attention_one.h"

namespace assay {

struct One {  // layout of shared memory
    float *q, *k, *v, *e, *state, *parts;
    DEVICE One(uint8_t* shared, int heads, int k_dim, int v_dim) {
        q = reinterpret_cast<float*>(shared);     // [heads][k dim]
        k = q + heads * k_dim;  // the new key and value, rounded to the cache's type
        v = k + (k_dim + 31) / 32 * 32;
        e = v + (v_dim + 31) / 32 * 32;           // [heads][256]
        state = e + heads * kBlock;               // m, l of each head
        parts = state + 2 * heads;                // [8 pages][heads][v dim]
    }
};

template <int HQ>
DEVICE void scores_of(const AttentionArgs& a, const One& room, const uint8_t* head, int slot, bool fresh, int count, float (&s)[HQ]) {
    const int dim = a.keys.dim;
#pragma unroll
    for (int h = 0; h < HQ; h++) s[h] = 0.0f;
    if (!fresh && a.keys.type == KV_F16 && dim % 8 == 0) {
        const uint4* at = reinterpret_cast<const uint4*>(head) + slot;
#pragma unroll 4
        for (int i = 0; i < dim / 8; i++) score_eight<HQ>(at[i * kPage], room.q + 8 * i, dim, s);
        return;
    }
    for (int d = 0; d < dim; d++) {
        const float k = fresh ? room.k[d] : read_value(a.keys, head, slot, d);
#pragma unroll
        for (int h = 0; h < HQ; h++)
            if (h < count) s[h] = fma(room.q[h * dim + d], k, s[h]);
    }
}

template <int HQ>
DEVICE void attend_token(const AttentionArgs& a) {
    SHARED;
    const int k_dim = a.keys.dim, v_dim = a.values.dim, warp = thread() / 32;
    NEEDS_SHARED(attend_one_bytes(HQ, k_dim, v_dim));
    const One room(shared, HQ, k_dim, v_dim);
    next_may_start();
    const Where at(a, HQ);
    if (at.idle()) return wait_for_previous();
    const int slot = at.slot, base = at.base, keys = at.keys(), kv = at.kv, first = at.first, count = at.count, row = at.row;
    const int32_t* pages = at.pages;
    wait_for_previous();
    const float* table = a.turn ? a.turn + int64_t(row) * a.n_rot : nullptr;
    const float* q = a.q + int64_t(row) * a.heads * k_dim + int64_t(first) * k_dim;
    for (int i = thread(); i < HQ * k_dim; i += threads())
        room.q[i] = i < count * k_dim ? turned(q + i / k_dim * k_dim, table, i % k_dim, a.n_rot, a.neox) : 0.0f;
    if (a.k && at.has_new_key()) {  // this block has the new key: store it, and read it from shared memory
        const bool store = at.sub == 0;
        const int page = pages[slot / kPage];
        const float* k = a.k + (int64_t(row) * a.keys.heads + kv) * k_dim;
        const float* v = a.v + (int64_t(row) * a.values.heads + kv) * v_dim;
        for (int d0 = warp * 32; d0 < (k_dim + 31) / 32 * 32; d0 += threads()) {
            const int d = d0 + lane();
            const float x = d < k_dim ? turned(k, a.turn_k ? table : nullptr, d, a.n_rot, a.neox) : 0.0f;
            room.k[d] = write_value(a.keys, head_of(a.cache, a.keys, page, kv), slot % kPage, d, x, store);
        }
        for (int d0 = warp * 32; d0 < (v_dim + 31) / 32 * 32; d0 += threads()) {
            const int d = d0 + lane();
            room.v[d] = write_value(a.values, head_of(a.cache, a.values, page, kv), slot % kPage, d, d < v_dim ? v[d] : 0.0f, store);
        }
        if (thread() == 0 && store && kv == 0)
            *reinterpret_cast<int32_t*>(a.cache.pages + page * a.cache.page_bytes + a.cache.positions_at + 4 * (slot % kPage)) = at.position;
    }
    sync_block();
    for (int j = thread(); j < kBlock; j += threads()) {
        float s[HQ];
        const int64_t distance = j < keys ? at.distance(a, j) : 0;
        const bool seen = j < keys && at.seen(a, j, distance);
        const int key = base + j;
        if (seen) scores_of<HQ>(a, room, head_of(a.cache, a.keys, pages[key / kPage], kv), key % kPage, a.k && key == slot, count, s);
#pragma unroll
        for (int h = 0; h < HQ; h++) {
            const int head = first + (h < count ? h : 0);
            room.e[h * kBlock + j] = seen ? a.mask.score(s[h], head, distance) : as_float(kHidden);
        }
    }
    sync_block();
    for (int h = warp; h < count; h += threads() / 32) softmax_shared(room.e + h * kBlock, room.state + 2 * h);
    sync_block();
    // A warp a page, two neighbouring values a lane.
    const int used = (keys + kPage - 1) / kPage, pairs = (v_dim + 1) / 2;
    for (int i = warp; i < used * ((pairs + 31) / 32); i += threads() / 32) {
        const int p = i % used, d = (i / used * 32 + lane()) * 2;
        if (d >= v_dim) continue;
        const int in_page = keys - p * kPage < kPage ? keys - p * kPage : kPage;
        const uint8_t* head = head_of(a.cache, a.values, pages[base / kPage + p], kv);
        float part[HQ][2];
#pragma unroll
        for (int h = 0; h < HQ; h++) part[h][0] = part[h][1] = 0.0f;
        const bool fast = a.values.type == KV_F16 && !a.values.keys && v_dim % 8 == 0, some_unseen = a.mask.partial() || a.irregular;
        const uint32_t* halves = reinterpret_cast<const uint32_t*>(head) + d / 2;
        const int stride = v_dim / 2;
#pragma unroll 8
        for (int j = 0; j < in_page; j++) {
            float x, y;
            if (a.k && base + p * kPage + j == slot) {
                x = room.v[d], y = room.v[d + 1];
            } else if (fast) {
                const uint32_t two = halves[j * stride];
                x = half_to_float(uint16_t(two)), y = half_to_float(uint16_t(two >> 16));
            } else {
                x = read_value(a.values, head, j, d), y = d + 1 < v_dim ? read_value(a.values, head, j, d + 1) : 0.0f;
            }
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
            if (d + 1 < v_dim) room.parts[(p * HQ + h) * v_dim + d + 1] = part[h][1];
        }
    }
    sync_block();
    add_pages(a, at, room.parts, room.state, HQ, used);
}

KERNEL(attend_one_1, AttentionArgs, 256) { attend_token<1>(a); }
KERNEL(attend_one_4, AttentionArgs, 256) { attend_token<4>(a); }

}  // namespace assay
