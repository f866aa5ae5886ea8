// Attention for one token a sequence over an f16 cache (attention.h).
//
// A warp has a page. It copies keys and values to shared memory before the kernel waits for the one that computes q, k
// and v. Then it scores the keys and weighs the values. Warps synchronise twice: for the largest score, and before the
// sum over pages. Latency-bound.
#include "attention_one.h"

namespace assay {

struct Halves {  // layout of shared memory
    uint16_t *k, *v, *new_k, *new_v;
    float *q, *e, *tops;
    int k_page;  // f16 values of a page's keys
    DEVICE Halves(uint8_t* shared, int heads, int k_dim, int v_dim) {
        k_page = kPage * k_dim;
        k = reinterpret_cast<uint16_t*>(shared);           // [8 pages][k dim / 8][32][8]
        v = k + kBlock * k_dim;                            // [8 pages][32][v dim]
        new_k = v + kBlock * v_dim;  // [k dim], [v dim]: of this token
        new_v = new_k + k_dim;
        q = reinterpret_cast<float*>(new_v + v_dim);       // [heads][k dim]
        e = q + heads * k_dim;                             // [heads][256]
        tops = e + heads * kBlock;  // [heads][8 pages][2]: the largest score; 1 if one is NaN
    }
    // Weighted values of a page, [heads][v dim]: they overwrite its keys once these are used.
    DEVICE float* part(int page) const { return reinterpret_cast<float*>(k + page * k_page); }
};

template <int HQ>
DEVICE void attend_halves(const AttentionArgs& a) {
    SHARED;
    const int k_dim = a.keys.dim, v_dim = a.values.dim, warp = thread() / 32;
    NEEDS_SHARED(attend_halves_bytes(HQ, k_dim, v_dim));
    const Halves room(shared, HQ, k_dim, v_dim);
    next_may_start();
    const Where at(a, HQ);
    if (at.idle()) return wait_for_previous();
    wait_for_keys(a);
    // keys of this warp's page
    const int keys = at.keys(), used = (keys + kPage - 1) / kPage, mine = keys - warp * kPage;
    const int fresh = a.k && at.has_new_key() ? at.slot - at.base : -1;  // index of the new key, if this block has it
    if (mine > 0) {
        const int page = at.pages[at.base / kPage + warp], k_bytes = kPage * k_dim * 2, v_bytes = kPage * v_dim * 2;
        const uint8_t* k = head_of(a.cache, a.keys, page, at.kv);
        const uint8_t* v = head_of(a.cache, a.values, page, at.kv);
        for (int i = lane() * 16; i < k_bytes; i += 512) copy_async(reinterpret_cast<uint8_t*>(room.k) + warp * k_bytes + i, k + i);
        copy_group();
        for (int i = lane() * 16; i < v_bytes; i += 512) copy_async(reinterpret_cast<uint8_t*>(room.v) + warp * v_bytes + i, v + i);
        copy_group();
    }
    wait_for_previous();
    // Apply RoPE to the queries and the new key, and load the new value: an element a thread.
    const float* table = a.turn ? a.turn + int64_t(at.row) * a.n_rot : nullptr;
    const int of_q = HQ * k_dim, all = of_q + (fresh >= 0 ? k_dim + v_dim : 0);
    for (int i = thread(); i < all; i += threads()) {
        int h = 0, d = i;  // head h; HQ: the new key, HQ + 1: the new value
        while (h <= HQ && d >= k_dim) d -= k_dim, h++;
        const float* x = h < HQ ? a.q + (int64_t(at.row) * a.heads + at.first + h) * k_dim
                       : h == HQ ? a.k + (int64_t(at.row) * a.keys.heads + at.kv) * k_dim
                                 : a.v + (int64_t(at.row) * a.values.heads + at.kv) * v_dim;
        const float* by = h < HQ || (h == HQ && a.turn_k) ? table : nullptr;
        const float y = h < at.count || h >= HQ ? turned(x, by, d, a.n_rot, a.neox) : 0.0f;
        if (h < HQ) room.q[i] = y;
        else (h == HQ ? room.new_k : room.new_v)[d] = float_to_half(y);
    }
    sync_block();
    if (fresh >= 0 && at.sub == 0) {  // write to the cache
        const int page = at.pages[at.slot / kPage], s = at.slot % kPage;
        const Pool &kp = a.keys, &vp = a.values;
        for (int d = thread(); d < k_dim; d += threads()) reinterpret_cast<uint16_t*>(head_of(a.cache, kp, page, at.kv))[kp.index(s, d)] = room.new_k[d];
        for (int d = thread(); d < v_dim; d += threads()) reinterpret_cast<uint16_t*>(head_of(a.cache, vp, page, at.kv))[vp.index(s, d)] = room.new_v[d];
        if (at.kv == 0 && thread() == 0)
            *reinterpret_cast<int32_t*>(a.cache.pages + page * a.cache.page_bytes + a.cache.positions_at + 4 * s) = at.position;
    }
    const int j = thread();
    const int64_t distance = j < keys ? at.distance(a, j) : 0;
    const bool seen = j < keys && at.seen(a, j, distance);
    float s[HQ];
#pragma unroll
    for (int h = 0; h < HQ; h++) s[h] = 0.0f;
    if (mine > 0) {
        copies_done<1>();
        sync_warp();
        const uint4* k = j == fresh ? reinterpret_cast<const uint4*>(room.new_k) : reinterpret_cast<const uint4*>(room.k + warp * room.k_page) + lane();
        const int stride = j == fresh ? 1 : kPage;
#pragma unroll 4
        for (int i = 0; i < k_dim / 8; i++) score_eight<HQ>(k[i * stride], room.q + 8 * i, k_dim, s);
#pragma unroll
        for (int h = 0; h < HQ; h++) {
            s[h] = a.mask.score(s[h], at.first + (h < at.count ? h : 0), distance);
            float top = seen && s[h] == s[h] ? s[h] : minus_infinity();
            for (int d = 16; d; d /= 2) top = larger(top, shuffle_xor(top, d));
            const bool odd = any_lane(seen && s[h] != s[h]);
            if (lane() == 0) room.tops[(h * kPages + warp) * 2] = top, room.tops[(h * kPages + warp) * 2 + 1] = odd ? 1.0f : 0.0f;
        }
    }
    sync_block();
    const auto largest = [&](int h) {
        float m = minus_infinity(), odd = 0.0f;
        for (int p = 0; p < used; p++) {
            m = larger(m, room.tops[(h * kPages + p) * 2]);
            odd = odd + room.tops[(h * kPages + p) * 2 + 1];
        }
        return m == minus_infinity() && odd != 0.0f ? as_float(0xff7fffffu) : m;
    };
    if (mine > 0) {
#pragma unroll
        for (int h = 0; h < HQ; h++) room.e[h * kBlock + j] = seen ? exponential(s[h] - largest(h)) : kUnseen;
        copies_done<0>();
        sync_warp();
        const bool some_unseen = a.mask.partial() || a.irregular;
        const int in_page = mine < kPage ? mine : kPage, new_here = fresh / kPage == warp ? fresh % kPage : -1;
        for (int d = 2 * lane(); d < v_dim; d += 64) {  // two neighbouring values a lane
            const uint16_t* v = room.v + warp * kPage * v_dim + d;
            float part[HQ][2];
#pragma unroll
            for (int h = 0; h < HQ; h++) part[h][0] = part[h][1] = 0.0f;
#pragma unroll 4
            for (int n = 0; n < in_page; n++) {
                const uint32_t two = *reinterpret_cast<const uint32_t*>(n == new_here ? room.new_v + d : v + n * v_dim);
                const float x = half_to_float(uint16_t(two)), y = half_to_float(uint16_t(two >> 16));
#pragma unroll
                for (int h = 0; h < HQ; h++) {
                    const float e = room.e[h * kBlock + warp * kPage + n];
                    if (some_unseen && bits(e) == bits(kUnseen)) continue;
                    part[h][0] = fma(e, x, part[h][0]);
                    part[h][1] = fma(e, y, part[h][1]);
                }
            }
#pragma unroll
            for (int h = 0; h < HQ; h++) *reinterpret_cast<float2*>(room.part(warp) + h * v_dim + d) = {part[h][0], part[h][1]};
        }
    }
    sync_block();
    const int turns = (v_dim + 31) / 32;
    for (int h = 0, d = warp * 32 + lane(); h < at.count; d += 256) {
        while (d >= turns * 32) d -= turns * 32, h++;
        if (h >= at.count) break;
        float l = 0.0f, acc = 0.0f;
        for (int p = 0; p < used; p++) {
            l = l + room.e[h * kBlock + p * kPage + lane()];
            if (d < v_dim) acc = acc + room.part(p)[h * v_dim + d];
        }
        for (int n = 16; n; n /= 2) l = l + shuffle_down(l, n);
        l = shuffle(l, 0);
        const int64_t head = int64_t(at.row) * a.heads + at.first + h;
        if (at.blocks() == 1) {
            float m = a.mask.sinks ? largest(h) : 0.0f;
            add_sink(a.mask, at.first + h, m, l, acc);
            if (d < v_dim) a.out[head * v_dim + d] = acc * (1.0f / l);
            continue;
        }
        float* to_fold = a.partial + (head * a.max_blocks + block_x()) * (2 + v_dim);
        if (d < v_dim) to_fold[2 + d] = acc;
        if (d == 0) to_fold[0] = largest(h), to_fold[1] = l;
    }
    if (at.blocks() > 1) fold_blocks(a, at.row, at.first, at.count, at.blocks(), reinterpret_cast<int*>(room.tops));
}

KERNEL(attend_halves_1, AttentionArgs, 256) { attend_halves<1>(a); }
KERNEL(attend_halves_2, AttentionArgs, 256) { attend_halves<2>(a); }
KERNEL(attend_halves_4, AttentionArgs, 256) { attend_halves<4>(a); }
KERNEL(attend_halves_8, AttentionArgs, 256) { attend_halves<8>(a); }

}  // namespace assay
