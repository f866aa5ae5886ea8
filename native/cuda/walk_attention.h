// The attention of a walk (walk.cu), of the usual kind: blocks of 256 keys, then their fold where there are several.
#pragma once
#include "walk.h"

namespace assay {

// The result of 32 values of a head, one a lane, `at`: the first of them, in all heads.
DEVICE void leave_values(const WalkStep& step, int at, float y) {
    float* const out = step.attention.out;
    if (step.fresh & AS_CODES) leave_codes(reinterpret_cast<uint8_t*>(out) + at / 32 * 48, y);
    else store_fresh(out + at + lane(), y);
}

// A block of threads takes 256 keys of H query heads of one group at a time, a warp a page of 32; a lane scores a key, and
// weighs PAIRS pairs of values. The cache is in halves and a query sees all keys before it (attention.py).
template <int PAIRS, int H>
DEVICE int attend(const WalkStep& step, int slot, Ring ring, uint8_t* work) {
    constexpr int UNROLL = H == 1 ? 8 : 4;
    const AttentionArgs& t = step.attention;
    const bool fresh = step.fresh & X_IS;
    const int warp = thread() / 32, dim_shift = step.dim_shift, dim = 1 << dim_shift;
    float* const q = reinterpret_cast<float*>(work);                   // [H][dim]
    uint16_t* const new_k = reinterpret_cast<uint16_t*>(q + H * dim);  // [dim], and the new value
    float* const e = reinterpret_cast<float*>(new_k + 2 * dim);        // [H][256]
    float* const tops = e + H * kBlock;                                // [H][8 pages]
    float* const parts = tops + H * kPages;                            // [8 pages][H][dim]
    int pieces = 0;
#pragma unroll 1
    for (Item item(step); item.block * kBlock <= slot; item.next(step)) {
        const int head = item.head(step), kv = item.kv(step), newest = slot - item.block * kBlock, used = item.used(slot);
        const int mine = newest + 1 - warp * kPage;  // keys from the warp's first one on
        const bool here = newest < kBlock, busy = warp < used;
        // Two elements a thread: of q, of the new key, of the new value.
#pragma unroll 1
        for (int i = thread(); i < (here ? H + 2 : H) << (dim_shift - 1); i += team()) {
            const int which = i >> (dim_shift - 1), j = i - (which << (dim_shift - 1)), half = t.n_rot / 2;
            const float* const x = which < H ? t.q + ((head + which) << dim_shift) : (which == H ? t.k : t.v) + (kv << dim_shift);
            const bool turned = which <= H && j < half;
            const int first = turned && t.neox ? j : 2 * j, second = turned && t.neox ? j + half : first + 1;
            float c = 1.0f, s = 0.0f;
            if (turned) c = t.turn[j], s = t.turn[half + j];
            float y = load_fresh(x + first), z = load_fresh(x + second);
            Patience patience;
            while (fresh && (bits(y) == kNotYet || bits(z) == kNotYet)) patience.lose(), y = load_fresh(x + first), z = load_fresh(x + second);
            if (turned) {
                const float y2 = y * c - z * s;
                z = y * s + z * c, y = y2;
            }
            if (which < H) q[(which << dim_shift) + first] = y, q[(which << dim_shift) + second] = z;
            else {
                const uint16_t g = float_to_half(y), h = float_to_half(z);
                uint16_t* const to = new_k + ((which - H) << dim_shift);
                to[first] = g, to[second] = h;
                if (head == kv * (t.heads / t.keys.heads)) {  // one head of the group puts them into the cache
                    const int page = item.pages(t)[newest / kPage], in_page = slot % kPage;
                    uint16_t* const at = reinterpret_cast<uint16_t*>(head_of(t.cache, which == H ? t.keys : t.values, page, kv));
                    const auto place = [&](int d) { return which == H ? (d / 8 * kPage + in_page) * 8 + d % 8 : (in_page << dim_shift) + d; };
                    at[place(first)] = g, at[place(second)] = h;
                    if (i == H << (dim_shift - 1) && head == 0)
                        reinterpret_cast<int32_t*>(t.cache.pages + page * t.cache.page_bytes + t.cache.positions_at)[in_page] = t.rows.positions[0];
                }
            }
        }
        sync_team();
        float s[H] = {};
        Ring keys = ring;
        if (busy) {
            const bool is_new = thread() == newest;
            keys.skip(pieces + warp * item.pieces);
            const float* query = q;
            const int vectors = dim / 8 / item.pieces, step_of = is_new ? 1 : kPage;
#pragma unroll 1
            for (int i = 0; i < item.pieces; i++) {
                const uint4* key = reinterpret_cast<const uint4*>(keys.take()) + lane();
                if (is_new) key = reinterpret_cast<const uint4*>(new_k) + i * vectors;
#pragma unroll UNROLL
                for (int j = 0; j < vectors; j++, query += 8) score_eight<H>(key[j * step_of], query, dim, s);
                keys.leave(1);
            }
#pragma unroll
            for (int h = 0; h < H; h++) {
                s[h] = s[h] * t.mask.scale;
                // The largest of the page, NaN left out; a page of nothing else says so by a NaN.
                const bool counts = lane() < mine && s[h] == s[h];
                float top = counts ? s[h] : minus_infinity();
#pragma unroll
                for (int i = 16; i; i /= 2) top = larger(top, shuffle_xor(top, i));
                if (top == minus_infinity() && any_lane(lane() < mine && s[h] != s[h])) top = not_a_number();
                if (lane() == 0) tops[h * kPages + warp] = top;
            }
        }
        sync_team();
        const auto top_of = [&](int h) {
            const float x = lane() < used ? tops[h * kPages + lane()] : minus_infinity();
            float m = x == x ? x : minus_infinity();
#pragma unroll
            for (int i = 4; i; i /= 2) m = larger(m, shuffle_xor(m, i));
            m = shuffle(m, 0);
            return any_lane(x != x) && m == minus_infinity() ? as_float(0xff7fffffu) : m;
        };
        if (busy) {
            float* const mine_e = e + warp * kPage;
#pragma unroll
            for (int h = 0; h < H; h++) {
                const float m = top_of(h);
                mine_e[h * kBlock + lane()] = lane() < mine ? exponential(s[h] - m) : 0.0f;
            }
            sync_warp();
            const int in_page = mine < kPage ? mine : kPage, new_here = newest - warp * kPage, rows = kPage / item.pieces;
            float2 sum[H][PAIRS] = {};
            Ring values = ring;
            values.skip(pieces + (used + warp) * item.pieces);
#pragma unroll 1
            for (int i = 0; i < item.pieces; i++) {
                const uint16_t* value = reinterpret_cast<const uint16_t*>(values.take());
                const int end = in_page < (i + 1) * rows ? in_page : (i + 1) * rows;
                if (2 * lane() < dim)
#pragma unroll UNROLL
                    for (int j = i * rows; j < end; j++, value += dim) {
                        const uint16_t* of = (j == new_here ? new_k + dim : value) + 2 * lane();
#pragma unroll
                        for (int x = 0; x < PAIRS; x++) {
                            const uint32_t two = *reinterpret_cast<const uint32_t*>(of + 64 * x);
                            const float low = half_to_float(uint16_t(two)), high = half_to_float(uint16_t(two >> 16));
#pragma unroll
                            for (int h = 0; h < H; h++) {
                                const float by = mine_e[h * kBlock + j];
                                sum[h][x] = {fma(by, low, sum[h][x].x), fma(by, high, sum[h][x].y)};
                            }
                        }
                    }
                values.leave(1);
            }
            if (2 * lane() < dim)
#pragma unroll
                for (int h = 0; h < H; h++)
#pragma unroll
                    for (int x = 0; x < PAIRS; x++) *reinterpret_cast<float2*>(parts + (warp * H + h) * dim + 2 * lane() + 64 * x) = sum[h][x];
        }
        sync_team();
#pragma unroll 1
        for (int i = thread(); i < H << dim_shift; i += team()) {
            const int h = i >> dim_shift, d = i - (h << dim_shift);
            float l = 0.0f, acc = 0.0f;
#pragma unroll 2
            for (int p = 0; p < used; p++) l = l + e[h * kBlock + p * kPage + lane()], acc = acc + parts[(p * H << dim_shift) + i];
#pragma unroll
            for (int x = 16; x; x /= 2) l = l + shuffle_xor(l, x);
            if (t.max_blocks == 1) {
                leave_values(step, (head << dim_shift) + i - lane(), acc * (1.0f / l));
                continue;
            }
            float* to = t.partial + (int64_t(head + h) * t.max_blocks + item.block) * (2 + dim);
            store_fresh(to + 2 + d, acc);
            const float m = top_of(h);
            if (d == 0) store_fresh(to, m), store_fresh(to + 1, l);
        }
        pieces += 2 * used * item.pieces;
    }
    return pieces;
}

// The blocks of 256 keys of a head, ascending; a lane an element. What they are weighed with, a lane computes for a block.
DEVICE void fold_step(const WalkStep& step, int slot) {
    const AttentionArgs& t = step.attention;
    const int dim = t.values.dim, blocks = slot / kBlock + 1, of_head = step.dim_shift - 5;
    constexpr int some = 8;
#pragma unroll 1
    for (int task = thread() / 32 * grid_x() + block_x(); task < t.heads << of_head; task += team() / 32 * grid_x()) {
        const int head = task >> of_head, d = (task - (head << of_head)) * 32 + lane();
        const float* const from = t.partial + int64_t(head) * t.max_blocks * (2 + dim);
        float m = minus_infinity(), l = 0.0f, acc = 0.0f;
        bool any = false;
#pragma unroll 1
        for (int b0 = 0; b0 < blocks; b0 += 32) {
            const int mine = b0 + lane();
            const float m2 = mine < blocks ? await(from + mine * (2 + dim), true) : minus_infinity();
            const float l2 = mine < blocks ? await(from + mine * (2 + dim) + 1, true) : 0.0f;
            float top = m2;  // the largest so far, this block's included
#pragma unroll
            for (int h = 1; h < 32; h *= 2) {
                const float other = shuffle(top, lane() >= h ? lane() - h : lane());
                top = larger(other, top);
            }
            top = larger(m, top);
            float before = shuffle(top, lane() ? lane() - 1 : 0);
            if (lane() == 0) before = m;
            const float fa = exponential(before - top), fb = exponential(m2 - top);
            m = shuffle(top, 31);
#pragma unroll 1
            for (int b = b0; b < blocks && b < b0 + 32; b += some) {
                float acc2[some];
#pragma unroll
                for (int i = 0; i < some; i++) acc2[i] = load_fresh(from + (b + i < blocks ? b + i : blocks - 1) * (2 + dim) + 2 + d);
#pragma unroll
                for (int i = 0; i < some; i++) {
                    const float a = shuffle(fa, (b + i) & 31), c = shuffle(fb, (b + i) & 31), more = shuffle(l2, (b + i) & 31);
                    const bool counts = b + i < blocks && shuffle(m2, (b + i) & 31) != minus_infinity();
                    if (bits(acc2[i]) == kNotYet) acc2[i] = await(from + (b + i < blocks ? b + i : blocks - 1) * (2 + dim) + 2 + d, true);
                    if (counts && !any) l = more, acc = acc2[i], any = true;
                    else if (counts) l = l * a + more * c, acc = acc * a + acc2[i] * c;
                }
            }
        }
        sync_warp();
        leave_values(step, head * dim + d - lane(), acc * (1.0f / l));
    }
}

DEVICE int attend_step(const WalkStep& step, int slot, const Ring& ring, uint8_t* work) {
    const bool wide = step.dim_shift == 7;
    if (step.heads == 4) return wide ? attend<2, 4>(step, slot, ring, work) : attend<1, 4>(step, slot, ring, work);
    return wide ? attend<2, 1>(step, slot, ring, work) : attend<1, 1>(step, slot, ring, work);
}

}  // namespace assay
