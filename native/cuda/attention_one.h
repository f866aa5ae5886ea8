// What the kernels for a token a sequence share: which keys a block of threads has, and the fold at the end.
#pragma once
#include "attention.h"

namespace assay {

// block_x: 256 keys; block_y: kv head * splits + which of its query heads; block_z: row.
struct Where {
    int row, kv, sub, first, count;      // the query heads of this block of threads: `count` from `first`
    int slot, position, from, to, base;  // blocks of keys that the row sees; the first key of the one at hand
    const int32_t* pages;

    DEVICE Where(const AttentionArgs& a, int heads) {
        const int group = a.heads / a.keys.heads;
        row = block_z(), kv = block_y() / a.splits, sub = block_y() % a.splits;
        first = kv * group + sub * heads, count = group - sub * heads < heads ? group - sub * heads : heads;
        slot = a.rows.slots[row], position = a.rows.positions[row];  // the step's tables are older than any kernel
        pages = a.rows.pages + a.rows.tables[row];
        from = !a.irregular && a.window && slot + 1 > a.window ? (slot + 1 - a.window) / kBlock : 0;
        to = slot < 0 ? 0 : slot / kBlock + 1;
        base = (from + block_x()) * kBlock;
    }
    DEVICE bool idle() const { return slot < 0 || from + block_x() >= to; }
    DEVICE int blocks() const { return to - from; }
    DEVICE int keys() const { return slot + 1 - base < kBlock ? slot + 1 - base : kBlock; }
    DEVICE bool has_new_key() const { return base / kBlock == to - 1; }
    DEVICE bool seen(const AttentionArgs& a, int j) const {  // key j of the block, one of `keys`
        if (!a.irregular) return !a.window || slot - base - j < a.window;
        return sees(a, int64_t(position) - (a.k && base + j == slot ? position : key_position(a, pages, base + j)));
    }
};

// The last block of threads to arrive folds all blocks of keys of `count` heads, ascending. `last`: shared memory.
OUTLINED void fold_blocks(const AttentionArgs& a, int row, int first, int count, int blocks, int* last) {
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
        for (int b = 0; b < blocks; b++, at += 2 + v_dim) {
            const float m2 = load_fresh(at), l2 = load_fresh(at + 1), acc2 = load_fresh(at + 2 + d);
            if (m2 == minus_infinity()) continue;
            if (m == minus_infinity()) {
                m = m2, l = l2, acc = acc2;
                continue;
            }
            float fa, fb;
            fold(m, l, m2, l2, fa, fb);
            acc = acc * fa + acc2 * fb;
        }
        a.out[head * v_dim + d] = acc * (1.0f / l);
    }
    if (thread() == 0) *counter = 0;
}

}  // namespace assay
