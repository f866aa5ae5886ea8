// Attention as steps of a walk (walk.cu), over an f16 cache: blocks of 256 keys, then their fold if there are several.
#pragma once
#include "walk.h"

namespace assay {

// Write 32 result values of a head, one a lane; `at` is the index of the first, through all heads of all rows.
template <bool MANY>
DEVICE void leave_values(const WalkStep& step, int row, int at, float y) {
    float* const out = step.attention.out;
    uint8_t* const codes = reinterpret_cast<uint8_t*>(out);
    if (!(step.fresh & AS_CODES)) store_fresh(out + at + lane(), y);
    else if constexpr (MANY) leave_codes_of(codes, row, at - (row * step.attention.heads << step.dim_shift), y);
    else leave_codes(codes + at / 32 * 48, y);
}

// Partial result of 256 keys for a head: the largest score, the sum of exponentials, the weighted values.
template <bool MORE>
constexpr int kPart = 2 + (MORE ? kWalkHead : 128);

// A warp norms a head of q or the new key and applies RoPE: `q` gets floats or `k` gets halves.
template <int DIM>
OUTLINED void take_normed(const WalkAttention& t, const float* x, const float* turn, bool fresh, float* work, float* q, uint16_t* k) {
    constexpr int PAIRS = DIM > 64 ? DIM / 64 : 1;
    const float* const weights = q ? t.q_norm : t.k_norm;
    float y[PAIRS][2], w[PAIRS][2];
    const bool mine = 2 * lane() < DIM;
    const int at = mine ? 2 * lane() : 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) w[i][0] = weights[at + 64 * i], w[i][1] = weights[at + 64 * i + 1];
    Patience patience;
    for (bool more = true; more; patience.lose()) {
        more = false;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) y[i][0] = load_fresh(x + at + 64 * i), y[i][1] = load_fresh(x + at + 64 * i + 1);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) more |= fresh && (bits(y[i][0]) == kNotYet || bits(y[i][1]) == kNotYet);
    }
    sync_warp();
    float s[2] = {};  // as sum_of_squares
    if (mine)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) s[0] = fma(y[i][0], y[i][0], s[0]), s[1] = fma(y[i][1], y[i][1], s[1]);
#pragma unroll
    for (int h = 16; h; h /= 2) s[0] = s[0] + shuffle_down(s[0], h), s[1] = s[1] + shuffle_down(s[1], h);
    const float f = 1.0f / square_root(shuffle(s[0] + s[1], 0) * (1.0f / DIM) + t.eps);
    if (mine)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) work[at + 64 * i] = (y[i][0] * f) * w[i][0], work[at + 64 * i + 1] = (y[i][1] * f) * w[i][1];
    sync_warp();
#pragma unroll 1
    for (int d = lane(); d < DIM; d += 32) {
        const float z = turned(work, turn, d, t.n_rot, t.neox);
        if (q) q[d] = z * t.factor;
        else k[d] = float_to_half(z);
    }
}

// A thread block takes 256 keys of H query heads of one group at a time, a warp a page of 32. A lane scores a key, and
// weighs WIDE neighbouring elements of values. A query sees all keys before it, or those of its window.
template <int DIM, int H, bool MANY, bool MORE>
DEVICE int attend(const WalkStep& step, const int* slots, Ring ring, uint8_t* work) {
    OWN_THREAD(MANY);
    constexpr int PIECES = DIM > 64 ? DIM / 64 : 1, ROWS = kPage / PIECES, VECTORS = DIM / 8 / PIECES, STEP = H == 1 ? 8 : 4;
    constexpr int WIDE = DIM > 64 ? DIM / 32 : 2;
    const WalkAttention& t = step.attention;
    const bool fresh = step.fresh & AWAIT_X;
    const int warp = thread() / 32, max_blocks = t.max_blocks;
    float* const q = reinterpret_cast<float*>(work);                   // [H][DIM]
    uint16_t* const new_k = reinterpret_cast<uint16_t*>(q + H * DIM);  // [DIM], and the new value
    float* const scores = reinterpret_cast<float*>(new_k + 2 * DIM);   // [H][256]
    float* const e = scores + H * kBlock;                              // [H][256]
    float* const tops = e + H * kBlock;                                // [H][8 pages]
    float* const inverses = tops + H * kPages;                         // [H], of 4
    float* const parts = inverses + 4;                                 // [8 pages][H][DIM]
    int pieces = 0;
#pragma unroll 1
    for (Item<MANY, MORE> item(step, slots); item.more(step); item.next(step)) {
        const int slot = item.slot, head = item.head(step), kv = item.kv(step), newest = slot - item.begin();
        // Masked keys; first page, end, number of pages.
        const int low = MORE ? item.low() : 0, first = MORE ? item.first() : 0, end = item.used(), used = MORE ? end - first : end;
        const float* const turn = t.turn + item.row * t.n_rot;
        const int mine = newest + 1 - warp * kPage;  // keys from the warp's first one to the newest
        const bool here = newest < kBlock && (!MANY || newest >= 0), busy = (!MORE || warp >= first) && warp < end;
        Ring keys = ring, values = ring;
        if (busy) keys.skip(pieces + warp - first), values.skip(pieces + used * PIECES + warp - first);
        else if (warp < kPages && lane() < H) tops[lane() * kPages + warp] = minus_infinity();
        // Two elements a thread: of q, of the new key, of the new value. With head norms a warp has a whole head, and
        // other warps have the new value.
        const bool normed = MORE && t.q_norm;
        if (normed && warp < (here ? H + 1 : H)) {
            const bool is_k = warp == H;
            const float* const x = is_k ? t.k + kv * DIM : t.q + (head + warp) * t.q_step;
            take_normed<DIM>(t, x, turn, fresh, scores + warp * DIM, is_k ? nullptr : q + warp * DIM, new_k);
        }
#pragma unroll 1
        for (int i = normed ? (H + 1) * (DIM / 2) + team() - 1 - thread() : thread(); i < (here ? H + 2 : H) * (DIM / 2); i += team()) {
            const int which = i / (DIM / 2), j = i % (DIM / 2), half = t.n_rot >> 1;
            const float* const x = which < H ? t.q + (head + which) * (MORE ? t.q_step : DIM) : (which == H ? t.k : t.v) + kv * DIM;
            const bool turned = which <= H && j < half;
            const int one = turned && t.neox ? j : 2 * j, two = turned && t.neox ? j + half : one + 1;
            float c = 1.0f, s = 0.0f;
            if (turned) c = turn[j], s = turn[half + j];
            float y = load_fresh(x + one), z = load_fresh(x + two);
            Patience patience;
            while (fresh && (bits(y) == kNotYet || bits(z) == kNotYet)) patience.lose(), y = load_fresh(x + one), z = load_fresh(x + two);
            if (turned) {
                const float y2 = y * c - z * s;
                z = y * s + z * c, y = y2;
            }
            if constexpr (MORE)
                if (which < H) y = y * t.factor, z = z * t.factor;
            if (which < H) q[which * DIM + one] = y, q[which * DIM + two] = z;
            else new_k[(which - H) * DIM + one] = float_to_half(y), new_k[(which - H) * DIM + two] = float_to_half(z);
        }
        sync_team();
        float s[H] = {};
        if (busy) {
            const bool is_new = thread() == newest;
            const float* query = q;
#pragma unroll 1
            for (int i = 0; i < PIECES; i++) {
                const uint4* key = reinterpret_cast<const uint4*>(keys.take()) + lane();
                if (is_new) key = reinterpret_cast<const uint4*>(new_k) + i * VECTORS;
#pragma unroll 1
                for (int j = 0; j < VECTORS; j += 4)
#pragma unroll
                    for (int k = 0; k < 4; k++, query += 8, key += is_new ? 1 : kPage) score_eight<H>(*key, query, DIM, s);
                keys.leave(used);
            }
            // The largest score of the page, ignoring NaN; the lowest finite float if there is no other.
            const float scale = t.mask.scale;
            const bool seen = lane() < mine && (!MORE || thread() >= low);
            bool odd = false;
            float top[H];
            if (MORE && t.mask.cap != 0.0f)
#pragma unroll
                for (int h = 0; h < H; h++) s[h] = softcap(s[h], t.mask.cap);
#pragma unroll
            for (int h = 0; h < H; h++) {
                s[h] = s[h] * scale, odd |= s[h] != s[h];
                scores[h * kBlock + thread()] = s[h];
                top[h] = from_ordered(reduce_max(ordered(seen && s[h] == s[h] ? s[h] : minus_infinity())));
            }
            if (any_lane(seen && odd))
#pragma unroll
                for (int h = 0; h < H; h++)
                    if (any_lane(seen && s[h] != s[h]) && top[h] == minus_infinity()) top[h] = as_float(0xff7fffffu);
            if (lane() == 0)
#pragma unroll
                for (int h = 0; h < H; h++) tops[h * kPages + warp] = top[h];
        }
        sync_team();
        const auto top_of = [&](int h) {
            const float4 a = reinterpret_cast<const float4*>(tops)[2 * h], b = reinterpret_cast<const float4*>(tops)[2 * h + 1];
            return most(most(most(a.x, a.y), most(a.z, a.w)), most(most(b.x, b.y), most(b.z, b.w)));
        };
        if (busy) {
            float* const mine_e = e + warp * kPage;
#pragma unroll
            // without a branch, so that all heads overlap
            for (int h = 0; h < H; h++) s[h] = exponential(s[h] - top_of(h));
#pragma unroll
            for (int h = 0; h < H; h++) mine_e[h * kBlock + lane()] = lane() < mine && (!MORE || thread() >= low) ? s[h] : 0.0f;
            sync_warp();
            // From the new slot on use the new value: later slots have no weight.
            const int in_page = mine < kPage ? mine : kPage, new_here = here ? newest - warp * kPage : kPage;
            const int at = WIDE * lane() < DIM ? WIDE * lane() : 0;
            float sum[H][WIDE] = {};
#pragma unroll 1
            for (int i = 0; i < PIECES; i++) {
                const uint8_t* const piece = values.take();
                const uint16_t* value = reinterpret_cast<const uint16_t*>(piece) + at;
                // Masked values may be NaN: use zeros.
                const int unseen = MORE ? (low - warp * kPage - i * ROWS) * (DIM / 8) : 0;
                if (MORE && unseen > 0) {
#pragma unroll 1
                    for (int v = lane(); v < unseen && v < ROWS * (DIM / 8); v += 32) reinterpret_cast<uint4*>(const_cast<uint8_t*>(piece))[v] = {};
                    copies_may_begin();
                    sync_warp();
                }
#pragma unroll 1
                for (int j = i * ROWS; j < (i + 1) * ROWS && j < in_page; j += STEP) {
                    float by[H][STEP];
#pragma unroll
                    for (int h = 0; h < H; h++)
#pragma unroll
                        for (int k = 0; k < STEP; k += 4) {
                            const float4 four = *reinterpret_cast<const float4*>(mine_e + h * kBlock + j + k);
                            by[h][k] = four.x, by[h][k + 1] = four.y, by[h][k + 2] = four.z, by[h][k + 3] = four.w;
                        }
#pragma unroll
                    for (int k = 0; k < STEP; k++, value += DIM) {
                        const uint16_t* const of = j + k < new_here ? value : new_k + DIM + at;
                        uint2 words = {}, more = {};
                        if constexpr (WIDE >= 4) words = *reinterpret_cast<const uint2*>(of);
                        else words.x = *reinterpret_cast<const uint32_t*>(of);
                        if constexpr (WIDE == 8) more = *reinterpret_cast<const uint2*>(of + 4);
#pragma unroll
                        for (int x = 0; x < WIDE; x++) {
                            const uint2 four = x < 4 ? words : more;
                            const float v = half_to_float(uint16_t((x % 4 < 2 ? four.x : four.y) >> 16 * (x % 2)));
#pragma unroll
                            for (int h = 0; h < H; h++) sum[h][x] = fma(by[h][k], v, sum[h][x]);
                        }
                    }
                }
                values.leave(used);
            }
            if (WIDE * lane() < DIM)
#pragma unroll
                for (int h = 0; h < H; h++)
#pragma unroll
                    for (int x = 0; x < WIDE; x += 2)
                        *reinterpret_cast<float2*>(parts + (warp * H + h) * DIM + at + x) = {sum[h][x], sum[h][x + 1]};
        }
        if (warp >= kPages && warp < kPages + H) {  // the sum of exponentials of a head
            const int h = warp - kPages;
            const float m = top_of(h);
            float l = 0.0f;
#pragma unroll 1
            for (int j = lane(); j < end * kPage; j += kPage) l = l + ((!MORE || j >= low) && j <= newest ? exponential(scores[h * kBlock + j] - m) : 0.0f);
#pragma unroll
            for (int x = 16; x; x /= 2) l = l + shuffle_xor(l, x);
            const float inverse = l > 0x1p-10f && l < 0x1p+10f ? divide_near(1.0f, l) : 1.0f / l;
            if (lane() == 0) {
                inverses[h] = MORE && t.mask.sinks ? l : inverse;
                float* const to = t.partial + (int64_t(head + h) * max_blocks + item.block) * kPart<MORE>;
                if (max_blocks > 1) store_fresh(to, m), store_fresh(to + 1, l);
            }
        }
        // One head of a group writes the new key and value to the cache, two neighbouring elements a lane.
        if (warp == kPages + 3 && here && (head - 1) * step.per_group >> 16 != kv) {
            const int page = item.pages(t)[newest / kPage], in_page = slot % kPage;
#pragma unroll 1
            for (int d = 2 * lane(); d < 2 * DIM; d += 64) {
                uint8_t* const to = item.cached(t, d >= DIM, page, kv);
                const int place = d < DIM ? (d / 8 * kPage + in_page) * 8 + d % 8 : in_page * DIM + d - DIM;
                reinterpret_cast<uint32_t*>(to)[place / 2] = reinterpret_cast<const uint32_t*>(new_k)[d / 2];
            }
            if (lane() == 0 && head == item.row * t.heads)
                reinterpret_cast<int32_t*>(t.cache.pages + page * t.cache.page_bytes + t.cache.positions_at)[in_page] = t.rows.positions[item.row];
        }
        sync_team();
        constexpr int EACH = H * DIM > 256 ? 2 : 1, STEPS = H * DIM / EACH;  // elements of a thread
        if (thread() < STEPS) {
            float acc[EACH] = {};
            const auto add = [&](int p) {
#pragma unroll
                for (int k = 0; k < EACH; k++) acc[k] = acc[k] + parts[p * H * DIM + k * STEPS + thread()];
            };
            if (used == kPages) {  // issue all loads at once
#pragma unroll
                for (int p = 0; p < kPages; p++) add(p);
            } else {
#pragma unroll 1
                for (int p = first; p < end; p++) add(p);
            }
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                const int i = k * STEPS + thread(), h = i / DIM;
                if (MORE && t.mask.sinks && max_blocks == 1) {
                    float m = top_of(h), l = inverses[h];
                    add_sink(t.mask, head + h - item.row * t.heads, m, l, acc[k]);
                    leave_values<MANY>(step, item.row, head * DIM + i - lane(), acc[k] * (1.0f / l));
                } else if (max_blocks == 1) leave_values<MANY>(step, item.row, head * DIM + i - lane(), acc[k] * inverses[h]);
                else store_fresh(t.partial + (int64_t(head + h) * max_blocks + item.block) * kPart<MORE> + 2 + i % DIM, acc[k]);
            }
        }
        pieces += 2 * used * PIECES;
        if (MORE && t.mask.sinks) sync_team();  // the next item overwrites the largest scores, which sinks read last
    }
    return pieces;
}

// Fold a head's blocks of 256 keys in ascending order; a lane has an element. A lane computes the factors of one block;
// a skipped block gets factors that change no sum.
template <bool MANY, bool MORE>
DEVICE void fold_step(const WalkStep& step, const int* slots) {
    const AttentionArgs& t = step.attention;
    const int dim = t.values.dim, of_head = step.dim_shift - 5, heads = MANY ? t.heads * t.n_tokens : t.heads;
    constexpr int some = 16;
#pragma unroll 1
    for (int task = thread() / 32 * grid_x() + block_x(); task < heads << of_head; task += team() / 32 * grid_x()) {
        const int head = task >> of_head, d = (task - (head << of_head)) * 32 + lane();
        const int row = MANY ? (head * step.per_group >> 16) * step.per_row >> 16 : 0;
        const int blocks = slots[row] / kBlock + 1 - (MORE ? first_seen<MORE>(step, slots[row]) / kBlock : 0);
        const float* from = t.partial + int64_t(head) * t.max_blocks * kPart<MORE>;
        float m = minus_infinity(), l = -0.0f, acc = -0.0f;
#pragma unroll 1
        for (int left = blocks; left > 0; left -= some, from += some * kPart<MORE>) {
            // Several loads in flight; values past the last block are ignored.
            const float *const mine = from + (lane() < left ? lane() : left - 1) * kPart<MORE>, *const element = from + 2 + d;
            float m2, l2, acc2[some] = {};
            Patience patience;
            for (bool more = true; more; patience.lose()) {
                m2 = load_fresh(mine), l2 = load_fresh(mine + 1);
#pragma unroll
                for (int i = 0; i < some; i++)
                    if (i < left) acc2[i] = load_fresh(element + i * kPart<MORE>);
                uint32_t largest = bits(m2) > bits(l2) ? bits(m2) : bits(l2);
#pragma unroll
                for (int i = 0; i < some; i++) largest = largest > bits(acc2[i]) ? largest : bits(acc2[i]);
                more = any_lane(largest == kNotYet);
            }
            if (lane() >= some || lane() >= left) m2 = minus_infinity();
            float top = m2;  // the largest so far, including this block's
#pragma unroll
            for (int h = 1; h < 32; h *= 2) {
                const float other = shuffle(top, lane() >= h ? lane() - h : lane());
                top = larger(other, top);
            }
            top = larger(m, top);
            float before = shuffle(top, lane() ? lane() - 1 : 0);
            if (lane() == 0) before = m;
            const bool counts = m2 != minus_infinity();
            const uint32_t all = uint32_t(reduce_add(counts ? int(1u << lane()) : 0));
            float fa = exponential(before - top), fb = exponential(m2 - top);
            l2 = l2 * fb;
            if (!counts) fa = 1.0f, fb = l2 = -0.0f;
            m = shuffle(top, 31);
#pragma unroll
            for (int i = 0; i < some; i++) {
                const float a = shuffle(fa, i), c = shuffle(fb, i);
                l = l * a + shuffle(l2, i), acc = acc * a + (all >> i & 1 ? acc2[i] : 0.0f) * c;
            }
        }
        if constexpr (MORE) add_sink(t.mask, head - row * t.heads, m, l, acc);
        leave_values<MANY>(step, row, head * dim + d - lane(), acc * (1.0f / l));
    }
}

template <bool MANY, bool MORE>
DEVICE int attend_step(const WalkStep& step, const int* slots, const Ring& ring, uint8_t* work) {
    const bool four = step.heads == 4;
    if constexpr (MORE)
        if (step.dim_shift == 8) return attend<256, 1, MANY, MORE>(step, slots, ring, work);
    if constexpr (MANY) {
        if (step.heads == 2 && step.dim_shift == 6) return attend<64, 2, MANY, MORE>(step, slots, ring, work);
        if (step.heads == 2 && step.dim_shift == 7) return attend<128, 2, MANY, MORE>(step, slots, ring, work);
    }
    if (step.dim_shift == 5) return four ? attend<32, 4, MANY, MORE>(step, slots, ring, work) : attend<32, 1, MANY, MORE>(step, slots, ring, work);
    if (step.dim_shift == 6) return four ? attend<64, 4, MANY, MORE>(step, slots, ring, work) : attend<64, 1, MANY, MORE>(step, slots, ring, work);
    return four ? attend<128, 4, MANY, MORE>(step, slots, ring, work) : attend<128, 1, MANY, MORE>(step, slots, ring, work);
}

}  // namespace assay
