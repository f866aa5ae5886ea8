// Attention for one token a sequence, fast path: a thread block a head and 256 keys, in few instructions.
//
// It needs an f16 cache, a causal mask without window, positions equal to slots, and neither cap nor slope nor sink;
// attention_halves.cu has all of these. A warp has a page of 32 keys. It copies keys and values to shared memory before
// the kernel waits for the one that computes q, k and v. Then it scores the keys, a lane each, and weighs the values,
// two a lane. The result is stored as floats and, if `acts` is given, quantised for the product that reads it. Bound by
// latency, including instruction fetch: the code is short on purpose (docs/lab/gpu-measured.md).
#include "activations.h"
#include "attention_one.h"

namespace assay {

// Store the result of a head. Thread d has element d; whole warps call this.
DEVICE void leave(const ShortArgs& s, int64_t head, int d, float y) {
    const AttentionArgs& a = s.attention;
    const int64_t at = head * a.values.dim + d;
    a.out[at] = y;
    if (!s.acts.q) return;
    const Scale scale = block_scale(reduce_max(bits(y) & 0x7fffffffu));
    const int code = quantise(y, scale);
    int sum = code;
#pragma unroll
    for (int h = 1; h < 16; h *= 2) sum += shuffle_xor(sum, h);
    const int second = shuffle_xor(sum, 16);
#pragma unroll 1
    for (int c = 0; c < s.copies; c++) {
        const int64_t to = at + c * s.acts.stride;
        s.acts.q[to] = int8_t(code);
        if (lane() == 0) {
            s.acts.ds[to / 32] = {scale.d, scale.d * float(sum + second)};
            s.acts.n[to / 32] = uint32_t(sum & 0xffff) | uint32_t(second) << 16;
        }
    }
}

KERNEL(attend_short, ShortArgs, 768) {
    SHARED;
    const AttentionArgs& t = a.attention;
    const int dim = t.keys.dim, warp = thread() / 32, page_halves = kPage * dim;
    NEEDS_SHARED(attend_short_bytes(dim));
    next_may_start();
    const int row = block_z(), head = block_y(), kv = head / t.splits, slot = t.rows.slots[row], first = block_x() * kBlock;
    if (slot < first) return wait_for_previous();  // also for a row of padding
    const int keys = slot + 1 - first < kBlock ? slot + 1 - first : kBlock, used = (keys + kPage - 1) / kPage;
    // keys of this warp; index of the new key, if this block has it
    const int mine = keys - warp * kPage, fresh = slot - first;
    const int32_t* pages = t.rows.pages + t.rows.tables[row] + first / kPage;
    uint16_t* const k = reinterpret_cast<uint16_t*>(shared) + warp * 2 * page_halves;  // [dim / 8][32][8], of the warp's page
    uint16_t* const v = k + page_halves;                                               // [32][dim]
    float* const q = reinterpret_cast<float*>(shared + kPages * 4 * page_halves);      // [dim]
    uint16_t* const new_k = reinterpret_cast<uint16_t*>(q + dim);                      // [dim], and the new value
    float* const e = q + 2 * dim;                                                      // [256]
    float* const tops = e + kBlock;                                                    // [8 pages]: the largest score
    float* const parts = tops + kPages;                                                // [8 pages][dim]
    if (mine > 0) {
        const int page = pages[warp];
        const uint8_t* from = head_of(t.cache, t.keys, page, kv) + lane() * 16;
        const int64_t to_values = t.values.offset - t.keys.offset + int64_t(kv) * (t.values.head_bytes - t.keys.head_bytes);
#pragma unroll 1
        for (int i = 0; i < page_halves * 2; i += 512) {
            copy_async(reinterpret_cast<uint8_t*>(k) + i + lane() * 16, from + i);
            copy_async(reinterpret_cast<uint8_t*>(v) + i + lane() * 16, from + to_values + i);
        }
        copy_group();
    }
    const float* table = t.turn + int64_t(row) * t.n_rot;
    const bool here = fresh < kBlock;
    const int new_page = here ? pages[fresh / kPage] : 0, position = t.rows.positions[row];
    touch(a);
    wait_for_previous();
    // An element a thread: of q, of the new key, of the new value.
#pragma unroll 1
    for (int i = thread(); i < (here ? 3 : 1) * dim; i += threads()) {
        const int which = (i >= dim) + (i >= 2 * dim), d = i - which * dim;
        const float* x = which == 0 ? t.q + (int64_t(row) * t.heads + head) * dim
                                    : (which == 1 ? t.k : t.v) + (int64_t(row) * t.keys.heads + kv) * dim;
        float y = x[d];
        if (which < 2 && d < t.n_rot) {
            const int half = t.n_rot / 2, j = t.neox ? (d < half ? d : d - half) : d / 2;
            const bool second = t.neox ? d >= half : d & 1;
            const float other = x[t.neox ? (second ? j : j + half) : d ^ 1], c = table[j], s = table[half + j];
            y = second ? other * s + y * c : y * c - other * s;
        }
        if (which == 0) q[d] = y;
        else {
            const uint16_t h = float_to_half(y);
            new_k[d + (which - 1) * dim] = h;
            if (head == kv * t.splits) {  // one head of the group writes them to the cache
                const Pool& pool = which == 1 ? t.keys : t.values;
                reinterpret_cast<uint16_t*>(head_of(t.cache, pool, new_page, kv))[pool.index(slot % kPage, d)] = h;
            }
        }
    }
    if (here && head == 0 && thread() == 0) {
        uint8_t* page = t.cache.pages + new_page * t.cache.page_bytes + t.cache.positions_at;
        reinterpret_cast<int32_t*>(page)[slot % kPage] = position;
    }
    copies_done<0>();
    sync_block();
    float s = 0.0f;
    if (mine > 0) {
        const bool is_new = thread() == fresh;
        const uint4* from = is_new ? reinterpret_cast<const uint4*>(new_k) : reinterpret_cast<const uint4*>(k) + lane();
        const int step = is_new ? 1 : kPage;
        float sum[1] = {0.0f};
#pragma unroll 4
        for (int i = 0; i < dim / 8; i++) score_eight<1>(from[i * step], q + 8 * i, dim, sum);
        s = sum[0];
        s = s * t.mask.scale;
        // The largest score of the page, ignoring NaN; NaN if there is no other.
        const bool counts = lane() < mine && s == s;
        float top = counts ? s : minus_infinity();
#pragma unroll
        for (int h = 16; h; h /= 2) top = larger(top, shuffle_xor(top, h));
        if (top == minus_infinity() && any_lane(lane() < mine && s != s)) top = not_a_number();
        if (lane() == 0) tops[warp] = top;
    }
    sync_block();
    float m = minus_infinity();
    bool odd = false;
#pragma unroll 1
    for (int p = 0; p < used; p++) m = larger(m, tops[p]), odd |= tops[p] != tops[p];
    if (m == minus_infinity() && odd) m = as_float(0xff7fffffu);
    if (mine > 0) {
        e[thread()] = lane() < mine ? exponential(s - m) : 0.0f;
        sync_warp();
        const int in_page = mine < kPage ? mine : kPage, new_here = fresh - warp * kPage;
        const auto weigh = [&](auto pairs) {  // a lane has two neighbouring values, and further pairs 64 values apart
            constexpr int n = pairs.value;
#pragma unroll 1
            for (int d = 2 * lane(); d < dim; d += 64 * n) {
                float2 sum[n] = {};
#pragma unroll 8
                for (int j = 0; j < in_page; j++) {
                    const uint16_t* of = (j == new_here ? new_k + dim : v + j * dim) + d;
                    const float by = e[warp * kPage + j];
#pragma unroll
                    for (int i = 0; i < n; i++) {
                        const uint32_t two = *reinterpret_cast<const uint32_t*>(of + 64 * i);
                        sum[i] = {fma(by, half_to_float(uint16_t(two)), sum[i].x), fma(by, half_to_float(uint16_t(two >> 16)), sum[i].y)};
                    }
                }
#pragma unroll
                for (int i = 0; i < n; i++) *reinterpret_cast<float2*>(parts + warp * dim + d + 64 * i) = sum[i];
            }
        };
        if (dim % 128 == 0) weigh(Constant<2>{});
        else weigh(Constant<1>{});
    }
    sync_block();
    const int blocks = slot / kBlock + 1;
    const int64_t of = int64_t(row) * t.heads + head;
    float* const partial = t.partial + of * t.max_blocks * (2 + dim);  // [blocks]: m, l, [dim]
    const int d = thread();
    float l = 0.0f, acc = 0.0f;
    if (d < dim) {
#pragma unroll 1
        for (int p = 0; p < used; p++) l = l + e[p * kPage + lane()], acc = acc + parts[p * dim + d];
#pragma unroll
        for (int h = 16; h; h /= 2) l = l + shuffle_down(l, h);
        l = shuffle(l, 0);
        if (blocks == 1) return leave(a, of, d, acc * (1.0f / l));
        float* to = partial + block_x() * (2 + dim);
        to[2 + d] = acc;
        if (d == 0) to[0] = m, to[1] = l;
    }
    if (blocks == 1) return;
    // The last thread block to arrive folds all blocks in ascending order.
    fence();
    sync_block();
    int32_t* const counter = t.arrived + of;
    if (thread() == 0) *reinterpret_cast<int*>(tops) = fetch_add(counter, 1) == blocks - 1;
    sync_block();
    if (!*reinterpret_cast<int*>(tops) || d >= dim) return;
    fence();
    m = minus_infinity(), l = acc = 0.0f;
#pragma unroll 1
    for (int b0 = 0; b0 < blocks; b0 += 4) {  // four loads in flight
        float m2[4], l2[4], acc2[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* from = partial + (b0 + i < blocks ? b0 + i : blocks - 1) * (2 + dim);
            m2[i] = load_fresh(from), l2[i] = load_fresh(from + 1), acc2[i] = load_fresh(from + 2 + d);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (b0 + i >= blocks || m2[i] == minus_infinity()) continue;
            float fa = 0.0f, fb = 1.0f;
            if (m == minus_infinity()) m = m2[i], l = l2[i], acc = acc2[i];
            else fold(m, l, m2[i], l2[i], fa, fb), acc = acc * fa + acc2[i] * fb;
        }
    }
    if (thread() == 0) *counter = 0;
    leave(a, of, d, acc * (1.0f / l));
}

}  // namespace assay
