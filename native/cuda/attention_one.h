// Shared by the kernels for one token a sequence: which keys a thread block has, and the fold of all blocks at the end.
#pragma once
#include "attention.h"

namespace assay {

// block_x: 256 keys; block_y: kv head * splits + which part of its query heads; block_z: row.
struct Where {
    int row, kv, sub, first, count;  // query heads of this thread block: `count` from `first`
    int slot, position, low;  // low: the first visible key, if positions are slots
    int from, to, base;  // blocks of keys that the row sees; base: first key of this block
    const int32_t* pages;

    DEVICE Where(const AttentionArgs& a, int heads) {
        const int group = a.heads / a.keys.heads;
        row = block_z(), kv = block_y() / a.splits, sub = block_y() % a.splits;
        first = kv * group + sub * heads, count = group - sub * heads < heads ? group - sub * heads : heads;
        slot = a.rows.slots[row], position = a.rows.positions[row];  // written before the launch: no wait needed
        pages = a.rows.pages + a.rows.tables[row];
        low = a.irregular || slot < 0 ? 0 : a.mask.from(slot);
        from = low / kBlock;
        to = slot < 0 ? 0 : slot / kBlock + 1;
        base = (from + block_x()) * kBlock;
    }
    DEVICE bool idle() const { return slot < 0 || from + block_x() >= to; }
    DEVICE int blocks() const { return to - from; }
    DEVICE int keys() const { return slot + 1 - base < kBlock ? slot + 1 - base : kBlock; }
    DEVICE bool has_new_key() const { return base / kBlock == to - 1; }
    // Distance from the query to key j of the block.
    DEVICE int64_t distance(const AttentionArgs& a, int j) const {
        if (!a.irregular) return slot - base - j;
        return int64_t(position) - (a.k && base + j == slot ? position : key_position(a, pages, base + j));
    }
    DEVICE bool seen(const AttentionArgs& a, int j, int64_t away) const {
        return a.irregular ? !a.mask.hides(position, position - away) : base + j >= low;
    }
};

// If an earlier kernel of this step writes the keys, there is no new key here, and the cache must not be read before
// that kernel is done. With programmatic launch, more than one earlier kernel may still be running.
DEVICE void wait_for_keys(const AttentionArgs& a) {
    if (!a.k) wait_for_previous();
}

// Continue the chains of HQ queries over eight neighbouring f16 elements of a key; queries are `stride` apart.
template <int HQ>
DEVICE void score_eight(const uint4& key, const float* q, int stride, float (&s)[HQ]) {
    const uint32_t words[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
    for (int t = 0; t < 4; t += 2) {
        const float k0 = half_to_float(uint16_t(words[t])), k1 = half_to_float(uint16_t(words[t] >> 16));
        const float k2 = half_to_float(uint16_t(words[t + 1])), k3 = half_to_float(uint16_t(words[t + 1] >> 16));
#pragma unroll
        for (int h = 0; h < HQ; h++) {
            const float4 x = *reinterpret_cast<const float4*>(q + h * stride + 2 * t);
            s[h] = fma(x.x, k0, s[h]);
            s[h] = fma(x.y, k1, s[h]);
            s[h] = fma(x.z, k2, s[h]);
            s[h] = fma(x.w, k3, s[h]);
        }
    }
}

constexpr int kFolded = 8;
constexpr uint32_t kHidden = 0xffc00001u;  // a NaN payload of our own in place of a score: the key is masked

// A warp turns a head's 256 scores in shared memory into exponentials; m and l go to `state`.
DEVICE void softmax_shared(float* scores, float* state) {
    float e[kPages], m, l;
    uint32_t seen = 0;
#pragma unroll
    for (int p = 0; p < kPages; p++) {
        e[p] = scores[p * kPage + lane()];
        seen |= uint32_t(bits(e[p]) != kHidden) << p;
    }
    softmax_block(e, seen, m, l);
#pragma unroll
    for (int p = 0; p < kPages; p++) scores[p * kPage + lane()] = e[p];
    if (lane() == 0) state[0] = m, state[1] = l;
}

// The last thread block to arrive folds all blocks of keys of `count` heads in ascending order. `last`: shared memory.
OUTLINED void fold_blocks(const AttentionArgs& a, int row, int first, int count, int blocks, int* last, int halved = 0) {
    const int v_dim = a.values.dim;
    fence();
    sync_block();
    int32_t* counter = a.arrived + row * a.keys.heads * a.splits + block_y();
    if (thread() == 0) *last = fetch_add(counter, 1) == blocks - 1;
    sync_block();
    if (!*last) return;
    fence();
    for (int i = thread(); i < count * v_dim; i += threads()) {
        const int h = i / v_dim, d = i % v_dim;
        const int64_t head = int64_t(row) * a.heads + first + h;
        float m = minus_infinity(), l = 0.0f, acc = 0.0f;
        const float* at = a.partial + head * a.max_blocks * (2 + v_dim);
        for (int b0 = 0; b0 < blocks; b0 += kFolded) {  // kFolded loads in flight: results of other blocks come from L2
            float m2[kFolded], l2[kFolded], acc2[kFolded];
#pragma unroll
            for (int k = 0; k < kFolded; k++) {
                const float* of = at + (b0 + k < blocks ? b0 + k : blocks - 1) * (2 + v_dim);
                m2[k] = load_fresh(of), l2[k] = load_fresh(of + 1), acc2[k] = load_fresh(of + 2 + d);
            }
#pragma unroll
            for (int k = 0; k < kFolded; k++) {
                if (b0 + k >= blocks || m2[k] == minus_infinity()) continue;
                if (m == minus_infinity()) {
                    m = m2[k], l = l2[k], acc = acc2[k];
                    continue;
                }
                float fa, fb;
                fold(m, l, m2[k], l2[k], fa, fb);
                acc = acc * fa + acc2[k] * fb;
            }
        }
        add_sink(a.mask, first + h, m, l, acc);
        const float y = acc * (1.0f / l);
        const int column = (first + h) * v_dim + d;  // in the token's row
        if (halved) store_halved(a.out, halved, row, column, y);
        else a.out[head * v_dim + d] = y;
    }
    if (thread() == 0) *counter = 0;
}

// Sum the weighted values of `used` pages, [page][heads][v dim]: the result, or this block's part of the fold.
DEVICE void add_pages(const AttentionArgs& a, const Where& at, const float* parts, float* state, int heads, int used) {
    const int v_dim = a.values.dim;
    for (int i = thread(); i < at.count * v_dim; i += threads()) {
        const int h = i / v_dim, d = i % v_dim;
        float acc = 0.0f;
#pragma unroll 4
        for (int p = 0; p < used; p++) acc = acc + parts[(p * heads + h) * v_dim + d];
        const int64_t head = int64_t(at.row) * a.heads + at.first + h;
        if (at.blocks() == 1) {
            float m = state[2 * h], l = state[2 * h + 1];
            add_sink(a.mask, at.first + h, m, l, acc);
            a.out[head * v_dim + d] = acc * (1.0f / l);
            continue;
        }
        float* to_fold = a.partial + (head * a.max_blocks + block_x()) * (2 + v_dim);
        to_fold[2 + d] = acc;
        if (d < 2) to_fold[d] = state[2 * h + d];
    }
    if (at.blocks() > 1) fold_blocks(a, at.row, at.first, at.count, at.blocks(), reinterpret_cast<int*>(state));
}

}  // namespace assay
