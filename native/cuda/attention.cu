// Attention over the paged cache: scores, softmax and weighted values in one pass, in blocks of 256 keys.
//
//   attend_one    a token a sequence: RoPE of q and k, the new key and value into the cache, and a block of threads for
//                 each (token, heads, 256 keys); the one that finishes last folds the blocks in ascending order
//   attend_tile   many tokens of a sequence: a block of threads takes 8 ROWS query rows past all their keys; lane = key
//
// Both compute docs/arithmetic.md: float32, one chain over the head for a score, 32 chains for the sum of exponentials,
// a chain per page of values. Bound by latency (one), by fma (tile).
#include "cache.h"

namespace assay {

constexpr int kBlock = 256, kPages = kBlock / kPage;

struct AttentionArgs {
    const float* q;        // [tokens][heads * k dim], before RoPE if `turn` is given
    const float* k;        // attend_one: [tokens][kv heads * dim], to be turned and stored; or null: they are in the cache
    const float* v;
    const float* turn;     // [tokens][n_rot]: cosines, then sines; or null
    float* out;            // [tokens][heads * v dim]
    float* partial;        // attend_one: [tokens][heads][blocks][2 + v dim]
    int32_t* arrived;      // attend_one: [tokens][kv heads * splits], zero before and after
    const int32_t* tiles;  // attend_tile: [tiles][8]: first token, first row, rows, keys, tokens, offset of scores (2 words)
    float* kq;             // of a trace: raw scores [head][token][key] of each chunk ...
    float* state;          // ... and (m, l) of each row [token][head]
    Cache cache;
    Pool keys, values;
    Rows rows;
    const int32_t* query_rows;  // null, or the token of each query row (when only outputs are attended)
    int32_t heads, window, n_rot, neox, n_tokens, splits, irregular, turn_k;
    int32_t max_blocks, padding;
    float scale, cap;
};

DEVICE bool sees(const AttentionArgs& a, int64_t distance) { return distance >= 0 && (!a.window || distance < a.window); }

DEVICE int key_position(const AttentionArgs& a, const int32_t* pages, int slot) {
    const uint8_t* page = a.cache.pages + pages[slot / kPage] * a.cache.page_bytes + a.cache.positions_at;
    return reinterpret_cast<const int32_t*>(page)[slot % kPage];
}

// Element d of a head after RoPE; `x` is the head.
DEVICE float turned(const float* x, const float* table, int d, int n_rot, int neox) {
    if (!table || d >= n_rot) return x[d];
    const int half = n_rot / 2, i = neox ? d % half : d / 2;
    const bool second = neox ? d >= half : d % 2;
    const float p = neox ? x[i] : x[2 * i], q = neox ? x[i + half] : x[2 * i + 1], c = table[i], s = table[half + i];
    return second ? p * s + q * c : p * c - q * s;
}

DEVICE float larger(float a, float b) { return a < b ? b : a; }

// The weight of a key that a row does not see: adding it times a finite value changes nothing, and it can be told from
// a weight that is small. Only where a value is not finite must it be left out.
constexpr float kUnseen = -0.0f;

// m and l of 256 scores, 8 a lane (page p: e[p]); e becomes exp(s - m). `seen`: bit p says that the row sees that key.
DEVICE void softmax_block(float (&e)[kPages], uint32_t seen, float& m, float& l) {
    float top = minus_infinity();
    int odd = 0;
#pragma unroll
    for (int p = 0; p < kPages; p++)
        if (seen >> p & 1) {
            top = top < e[p] ? e[p] : top;
            odd |= e[p] != e[p];
        }
    for (int h = 16; h; h /= 2) {
        top = larger(top, shuffle_xor(top, h));
        odd |= shuffle_xor(odd, h);
    }
    m = top == minus_infinity() && odd ? as_float(0xff7fffffu) : top;
    float s = 0.0f;
#pragma unroll
    for (int p = 0; p < kPages; p++) {
        e[p] = seen >> p & 1 ? exponential(e[p] - m) : kUnseen;
        s = s + e[p];
    }
    for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
    l = shuffle(s, 0);
}

// ---- a token a sequence ---------------------------------------------------------------------------------------------
// block_x: 256 keys (and every grid_x-th after them); block_y: kv head * splits + which of its query heads; block_z: row.

struct One {  // shared memory
    float *q, *k, *v, *e, *state, *parts;
    DEVICE One(uint8_t* shared, int heads, int k_dim, int v_dim) {
        q = reinterpret_cast<float*>(shared);     // [heads][k dim]
        k = q + heads * k_dim;                    // the new key and value, as the cache will give them back
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
        for (int i = 0; i < dim / 8; i++) {
            const uint4 w = at[i * kPage];
            const uint32_t words[4] = {w.x, w.y, w.z, w.w};
            float k[8];
#pragma unroll
            for (int j = 0; j < 8; j++) k[j] = half_to_float(uint16_t(words[j / 2] >> 16 * (j % 2)));
#pragma unroll
            for (int h = 0; h < HQ; h++)
#pragma unroll
                for (int j = 0; j < 8; j += 4) {
                    const float4 q = *reinterpret_cast<const float4*>(room.q + h * dim + 8 * i + j);
                    s[h] = fma(q.x, k[j], s[h]);
                    s[h] = fma(q.y, k[j + 1], s[h]);
                    s[h] = fma(q.z, k[j + 2], s[h]);
                    s[h] = fma(q.w, k[j + 3], s[h]);
                }
        }
        return;
    }
    for (int d = 0; d < dim; d++) {
        const float k = fresh ? room.k[d] : read_value(a.keys, head, slot, d);
#pragma unroll
        for (int h = 0; h < HQ; h++)
            if (h < count) s[h] = fma(room.q[h * dim + d], k, s[h]);
    }
}

DEVICE void fold(float& m, float& l, float m2, float l2, float& fa, float& fb) {
    const float top = larger(m, m2);
    fa = exponential(m - top), fb = exponential(m2 - top);
    m = top;
    l = l * fa + l2 * fb;
}

// The last block of threads to arrive folds all blocks of keys of `count` heads, ascending. `last`: shared memory.
OUTLINED void fold_blocks(const AttentionArgs& a, int row, int first, int count, int blocks, int* last) {
    const int v_dim = a.values.dim;
    fence();
    sync_block();
    int32_t* counter = a.arrived + row * a.keys.heads * a.splits + block_y();
    const int others = blocks < grid_x() ? blocks : grid_x();
    if (thread() == 0) *last = fetch_add(counter, 1) == others - 1;
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

template <int HQ>
DEVICE void attend_token(const AttentionArgs& a) {
    SHARED;
    const int row = block_z(), group = a.heads / a.keys.heads, kv = block_y() / a.splits, sub = block_y() % a.splits;
    const int first = kv * group + sub * HQ, count = group - sub * HQ < HQ ? group - sub * HQ : HQ;
    const int k_dim = a.keys.dim, v_dim = a.values.dim, warp = thread() / 32;
    const One room(shared, HQ, k_dim, v_dim);
    next_may_start();
    const int slot = a.rows.slots[row];  // the step's tables are older than the kernel before
    const int32_t* pages = a.rows.pages + a.rows.tables[row];
    if (slot < 0) return wait_for_previous();
    const int from = !a.irregular && a.window && slot + 1 > a.window ? (slot + 1 - a.window) / kBlock : 0, to = slot / kBlock + 1;
    if (from + block_x() >= to) return wait_for_previous();
    const int position = a.rows.positions[row];
    wait_for_previous();
    const float* table = a.turn ? a.turn + int64_t(row) * a.n_rot : nullptr;
    const float* q = a.q + int64_t(row) * a.heads * k_dim + int64_t(first) * k_dim;
    for (int i = thread(); i < HQ * k_dim; i += threads())
        room.q[i] = i < count * k_dim ? turned(q + i / k_dim * k_dim, table, i % k_dim, a.n_rot, a.neox) : 0.0f;
    const bool last_block = from + block_x() <= slot / kBlock && (slot / kBlock - from - block_x()) % grid_x() == 0;
    if (a.k && last_block) {  // the block that holds the new key: store it, and take it from here
        const bool store = sub == 0;
        const int page = pages[slot / kPage];
        const float* k = a.k + (int64_t(row) * a.keys.heads + kv) * k_dim;
        const float* v = a.v + (int64_t(row) * a.values.heads + kv) * v_dim;
        for (int at = warp * 32; at < (k_dim + 31) / 32 * 32; at += threads()) {
            const int d = at + lane();
            const float x = d < k_dim ? turned(k, a.turn_k ? table : nullptr, d, a.n_rot, a.neox) : 0.0f;
            room.k[d] = write_value(a.keys, head_of(a.cache, a.keys, page, kv), slot % kPage, d, x, store);
        }
        for (int at = warp * 32; at < (v_dim + 31) / 32 * 32; at += threads()) {
            const int d = at + lane();
            room.v[d] = write_value(a.values, head_of(a.cache, a.values, page, kv), slot % kPage, d, d < v_dim ? v[d] : 0.0f, store);
        }
        if (thread() == 0 && sub == 0 && kv == 0)
            *reinterpret_cast<int32_t*>(a.cache.pages + page * a.cache.page_bytes + a.cache.positions_at + 4 * (slot % kPage)) = position;
    }
    sync_block();
    const int blocks = to - from;
    for (int block = from + block_x(); block < to; block += grid_x()) {
        const int base = block * kBlock, keys = slot + 1 - base < kBlock ? slot + 1 - base : kBlock;
        for (int j = thread(); j < kBlock; j += threads()) {
            float s[HQ];
            bool seen = j < keys;
            if (seen) {
                const int at = base + j;
                const bool fresh = a.k && at == slot;
                const int where = a.irregular ? (fresh ? position : key_position(a, pages, at)) : at;
                seen = sees(a, int64_t(a.irregular ? position : slot) - where);
                if (seen) scores_of<HQ>(a, room, head_of(a.cache, a.keys, pages[at / kPage], kv), at % kPage, fresh, count, s);
            }
#pragma unroll
            for (int h = 0; h < HQ; h++) {
                float x = seen ? s[h] : 0.0f;
                if (seen && a.cap != 0.0f) x = softcap(x, a.cap);
                room.e[h * kBlock + j] = seen ? x * a.scale : as_float(0xffc00001u);  // a NaN of our own: not seen
            }
        }
        sync_block();
        for (int h = warp; h < count; h += threads() / 32) {
            float e[kPages], m, l;
            uint32_t seen = 0;
            for (int p = 0; p < kPages; p++) {
                e[p] = room.e[h * kBlock + p * 32 + lane()];
                seen |= uint32_t(bits(e[p]) != 0xffc00001u) << p;
            }
            softmax_block(e, seen, m, l);
            for (int p = 0; p < kPages; p++) room.e[h * kBlock + p * 32 + lane()] = e[p];
            if (lane() == 0) room.state[2 * h] = m, room.state[2 * h + 1] = l;
        }
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
            const bool fast = a.values.type == KV_F16 && v_dim % 8 == 0, some_unseen = a.window || a.irregular;
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
        for (int i = thread(); i < count * v_dim; i += threads()) {
            const int h = i / v_dim, d = i % v_dim;
            float acc = 0.0f;
            for (int p = 0; p < used; p++) acc = acc + room.parts[(p * HQ + h) * v_dim + d];
            const int64_t head = int64_t(row) * a.heads + first + h;
            if (blocks == 1) {
                a.out[head * v_dim + d] = acc * (1.0f / room.state[2 * h + 1]);
                continue;
            }
            float* to_fold = a.partial + (head * a.max_blocks + (block - from)) * (2 + v_dim);
            to_fold[2 + d] = acc;
            if (d < 2) to_fold[d] = room.state[2 * h + d];
        }
        sync_block();
    }
    if (blocks > 1) fold_blocks(a, row, first, count, blocks, reinterpret_cast<int*>(room.state));
}

KERNEL(attend_one_1, AttentionArgs, 256) { attend_token<1>(a); }
KERNEL(attend_one_4, AttentionArgs, 256) { attend_token<4>(a); }

// ---- the same over halves -------------------------------------------------------------------------------------------
// The keys and values that are in the cache already are copied to shared memory before the kernel waits for the one that
// computes q, k and v; what is left then is arithmetic.

struct Halves {  // shared memory
    float *q, *e, *state, *parts;
    uint16_t *k, *v;
    DEVICE Halves(uint8_t* shared, int heads, int k_dim, int v_dim) {
        k = reinterpret_cast<uint16_t*>(shared);             // [8 pages][k dim / 8][32][8]
        v = k + kBlock * k_dim;                              // [8 pages][32][v dim]
        q = reinterpret_cast<float*>(v + kBlock * v_dim);    // [heads][k dim]
        e = q + heads * k_dim;                               // [heads][256]
        state = e + heads * kBlock;                          // m, l of each head
        parts = reinterpret_cast<float*>(shared);            // [8 pages][heads][v dim], over the keys when they are used
    }
};

template <int HQ>
DEVICE void attend_halves(const AttentionArgs& a) {
    SHARED;
    const int row = block_z(), group = a.heads / a.keys.heads, kv = block_y() / a.splits, sub = block_y() % a.splits;
    const int first = kv * group + sub * HQ, count = group - sub * HQ < HQ ? group - sub * HQ : HQ;
    const int k_dim = a.keys.dim, v_dim = a.values.dim, warp = thread() / 32, warps = threads() / 32;
    const Halves room(shared, HQ, k_dim, v_dim);
    next_may_start();
    const int slot = a.rows.slots[row], position = a.rows.positions[row];  // the step's tables are older than any kernel
    const int32_t* pages = a.rows.pages + a.rows.tables[row];
    if (slot < 0) return wait_for_previous();
    const int from = !a.irregular && a.window && slot + 1 > a.window ? (slot + 1 - a.window) / kBlock : 0, to = slot / kBlock + 1;
    if (from + block_x() >= to) return wait_for_previous();
    const int blocks = to - from;
    bool ready = false;
    for (int block = from + block_x(); block < to; block += grid_x()) {
        const int base = block * kBlock, keys = slot + 1 - base < kBlock ? slot + 1 - base : kBlock, used = (keys + kPage - 1) / kPage;
        const int k_bytes = kPage * k_dim * 2, v_bytes = kPage * v_dim * 2;  // of a page's head
        for (int p = warp; p < used; p += warps) {
            const int page = pages[base / kPage + p];
            const uint8_t* k = head_of(a.cache, a.keys, page, kv);
            const uint8_t* v = head_of(a.cache, a.values, page, kv);
            for (int i = lane() * 16; i < k_bytes; i += 512) copy_async(reinterpret_cast<uint8_t*>(room.k) + p * k_bytes + i, k + i);
            for (int i = lane() * 16; i < v_bytes; i += 512) copy_async(reinterpret_cast<uint8_t*>(room.v) + p * v_bytes + i, v + i);
        }
        copy_group();
        const float* table = a.turn ? a.turn + int64_t(row) * a.n_rot : nullptr;
        if (!ready) {
            wait_for_previous();
            ready = true;
            const float* q = a.q + (int64_t(row) * a.heads + first) * k_dim;
            for (int i = thread(); i < HQ * k_dim; i += threads())
                room.q[i] = i < count * k_dim ? turned(q + i / k_dim * k_dim, table, i % k_dim, a.n_rot, a.neox) : 0.0f;
        }
        if (a.k && block == to - 1) {  // the new key and value, into shared memory and the cache
            const int p = slot / kPage - base / kPage, at = slot % kPage, page = pages[slot / kPage];
            uint8_t* k_head = head_of(a.cache, a.keys, page, kv);
            uint8_t* v_head = head_of(a.cache, a.values, page, kv);
            const float* k = a.k + (int64_t(row) * a.keys.heads + kv) * k_dim;
            const float* v = a.v + (int64_t(row) * a.values.heads + kv) * v_dim;
            const int d = thread();
            uint16_t new_k = 0, new_v = 0;
            if (d < k_dim) new_k = float_to_half(turned(k, a.turn_k ? table : nullptr, d, a.n_rot, a.neox));
            if (d < v_dim) new_v = float_to_half(v[d]);
            copies_done<0>();
            sync_block();
            if (d < k_dim) room.k[((p * (k_dim / 8) + d / 8) * kPage + at) * 8 + d % 8] = new_k;
            if (d < v_dim) room.v[(p * kPage + at) * v_dim + d] = new_v;
            if (sub == 0) {
                if (d < k_dim) reinterpret_cast<uint16_t*>(k_head)[a.keys.index(at, d)] = new_k;
                if (d < v_dim) reinterpret_cast<uint16_t*>(v_head)[a.values.index(at, d)] = new_v;
                if (kv == 0 && d == 0)
                    *reinterpret_cast<int32_t*>(a.cache.pages + page * a.cache.page_bytes + a.cache.positions_at + 4 * at) = position;
            }
        } else {
            copies_done<0>();
        }
        sync_block();
        for (int j = thread(); j < kBlock; j += threads()) {
            float s[HQ];
            bool seen = j < keys;
            if (seen && (a.irregular || a.window)) {
                const int where = !a.irregular ? base + j : a.k && base + j == slot ? position : key_position(a, pages, base + j);
                seen = sees(a, int64_t(a.irregular ? position : slot) - where);
            }
#pragma unroll
            for (int h = 0; h < HQ; h++) s[h] = 0.0f;
            if (seen) {
                const uint4* at = reinterpret_cast<const uint4*>(room.k) + j / kPage * (k_dim / 8) * kPage + j % kPage;
#pragma unroll 4
                for (int i = 0; i < k_dim / 8; i++) {
                    const uint4 w = at[i * kPage];
                    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                    for (int n = 0; n < 4; n += 2) {
                        const float k0 = half_to_float(uint16_t(words[n])), k1 = half_to_float(uint16_t(words[n] >> 16));
                        const float k2 = half_to_float(uint16_t(words[n + 1])), k3 = half_to_float(uint16_t(words[n + 1] >> 16));
#pragma unroll
                        for (int h = 0; h < HQ; h++) {
                            const float4 q = *reinterpret_cast<const float4*>(room.q + h * k_dim + 8 * i + 2 * n);
                            s[h] = fma(q.x, k0, s[h]);
                            s[h] = fma(q.y, k1, s[h]);
                            s[h] = fma(q.z, k2, s[h]);
                            s[h] = fma(q.w, k3, s[h]);
                        }
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < HQ; h++) {
                float x = s[h];
                if (a.cap != 0.0f) x = softcap(x, a.cap);
                room.e[h * kBlock + j] = seen ? x * a.scale : as_float(0xffc00001u);  // a NaN of our own: not seen
            }
        }
        sync_block();
        for (int h = warp; h < count; h += warps) {
            float e[kPages], m, l;
            uint32_t seen = 0;
#pragma unroll
            for (int p = 0; p < kPages; p++) {
                e[p] = room.e[h * kBlock + p * 32 + lane()];
                seen |= uint32_t(bits(e[p]) != 0xffc00001u) << p;
            }
            softmax_block(e, seen, m, l);
#pragma unroll
            for (int p = 0; p < kPages; p++) room.e[h * kBlock + p * 32 + lane()] = e[p];
            if (lane() == 0) room.state[2 * h] = m, room.state[2 * h + 1] = l;
        }
        sync_block();
        const bool some_unseen = a.window || a.irregular;
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
        for (int i = thread(); i < count * v_dim; i += threads()) {
            const int h = i / v_dim, d = i % v_dim;
            float acc = 0.0f;
#pragma unroll 4
            for (int p = 0; p < used; p++) acc = acc + room.parts[(p * HQ + h) * v_dim + d];
            const int64_t head = int64_t(row) * a.heads + first + h;
            if (blocks == 1) {
                a.out[head * v_dim + d] = acc * (1.0f / room.state[2 * h + 1]);
                continue;
            }
            float* to_fold = a.partial + (head * a.max_blocks + (block - from)) * (2 + v_dim);
            to_fold[2 + d] = acc;
            if (d < 2) to_fold[d] = room.state[2 * h + d];
        }
        sync_block();
    }
    if (blocks > 1) fold_blocks(a, row, first, count, blocks, reinterpret_cast<int*>(room.state));
}

KERNEL(attend_halves_1, AttentionArgs, 256) { attend_halves<1>(a); }
KERNEL(attend_halves_2, AttentionArgs, 256) { attend_halves<2>(a); }
KERNEL(attend_halves_4, AttentionArgs, 256) { attend_halves<4>(a); }
KERNEL(attend_halves_8, AttentionArgs, 256) { attend_halves<8>(a); }

// ---- many tokens of a sequence --------------------------------------------------------------------------------------
// block_x: a tile of 8 ROWS query rows (row r: token r / group, head r % group of that group); block_y: kv head.
// Four pages of keys, then of values, lie in shared memory as floats; a warp has ROWS rows, a lane a key of each page.

constexpr int kStaged = 4;

DEVICE float low_half(uint32_t two) { return half_to_float(uint16_t(two)); }
DEVICE float high_half(uint32_t two) { return half_to_float(uint16_t(two >> 16)); }
DEVICE bool strange_half(uint32_t two) { return (two & 0x7c00u) == 0x7c00u || (two & 0x7c000000u) == 0x7c000000u; }

// What a block of keys does to a row's running sum.
enum Fold { LEFT_OUT, FIRST, FOLDED };
struct RowState {  // of one row, in shared memory
    float m, l, fa, fb;
    int32_t fold, padding[3];
};

template <int ROWS, int DPL>
DEVICE void attend_many(const AttentionArgs& a) {
    SHARED;
    const int32_t* tile = a.tiles + block_x() * 8;
    const int kv = block_y(), group = a.heads / a.keys.heads, k_dim = a.keys.dim, v_dim = a.values.dim;
    const int k_quads = (k_dim + 3) / 4, warp = thread() / 32;
    float* q = reinterpret_cast<float*>(shared);           // [8 ROWS][k dim rounded to 4]
    float* stage = q + 8 * ROWS * 4 * k_quads;             // keys: [page][d / 4][32][4]; values: [page][32][v dim]
    const int wider = 4 * k_quads > v_dim ? 4 * k_quads : v_dim;
    float* e = stage + kStaged * kPage * wider + warp * ROWS * kBlock;  // [ROWS][256] of this warp: scores, then weights
    RowState* states = reinterpret_cast<RowState*>(stage + kStaged * kPage * wider + 8 * ROWS * kBlock) + warp * ROWS;
    int* strange = reinterpret_cast<int*>(states + (8 - warp) * ROWS);  // a staged value is not finite
    next_may_start();
    const int first_token = tile[0], first_row = tile[1], rows = tile[2], n_keys = tile[3], chunk_tokens = tile[4];
    const int64_t score_at = (int64_t(uint32_t(tile[5])) | int64_t(tile[6]) << 32) * a.heads;
    wait_for_previous();
    if (rows == 0) return;
    const auto token_of = [&](int r) { return first_token + (first_row + r) / group; };
    const auto batch_row = [&](int token) { return a.query_rows ? a.query_rows[token] : token; };
    const auto head_index = [&](int r) { return kv * group + (first_row + r) % group; };
    const int32_t* pages = a.rows.pages + a.rows.tables[batch_row(first_token)];
    for (int i = thread(); i < 8 * ROWS * 4 * k_quads; i += threads()) {
        const int r = i / (4 * k_quads), d = i % (4 * k_quads);
        q[i] = r < rows && d < k_dim ? a.q[(int64_t(token_of(r)) * a.heads + head_index(r)) * k_dim + d] : 0.0f;
    }
    if (lane() < ROWS) states[lane()] = {minus_infinity(), 0.0f, 0.0f, 0.0f, LEFT_OUT, {0, 0, 0}};
    const bool whole = a.irregular || a.kq;
    const int low = a.rows.slots[batch_row(token_of(0))], high = a.rows.slots[batch_row(token_of(rows - 1))];
    const int from = whole || !a.window || low + 1 < a.window ? 0 : (low + 1 - a.window) / kBlock;
    const int end = whole ? n_keys : high + 1;
    float acc[ROWS][DPL];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < DPL; i++) acc[r][i] = 0.0f;
    for (int base = from * kBlock; base < end; base += kBlock) {
#pragma unroll 1
        for (int half = 0; half < kPages && base + half * kPage < end; half += kStaged) {
            sync_block();
            const bool halves = a.keys.type == KV_F16 && k_dim % 8 == 0;
            for (int i = thread(); halves && i < kStaged * kPage * (k_dim / 8); i += threads()) {
                const int key = i % kPage, n = i / kPage % (k_dim / 8), p = i / (kPage * (k_dim / 8)), at = base + (half + p) * kPage;
                uint4 w = {0, 0, 0, 0};
                if (at < end) w = reinterpret_cast<const uint4*>(head_of(a.cache, a.keys, pages[at / kPage], kv))[n * kPage + key];
                float4* to = reinterpret_cast<float4*>(stage) + (p * k_quads + 2 * n) * kPage + key;
                to[0] = {low_half(w.x), high_half(w.x), low_half(w.y), high_half(w.y)};
                to[kPage] = {low_half(w.z), high_half(w.z), low_half(w.w), high_half(w.w)};
            }
            for (int i = thread(); !halves && i < kStaged * kPage * k_quads; i += threads()) {
                const int key = i % kPage, d = i / kPage % k_quads * 4, p = i / (kPage * k_quads), at = base + (half + p) * kPage + key;
                float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
                if (at < end) {
                    const uint8_t* head = head_of(a.cache, a.keys, pages[at / kPage], kv);
                    x.x = read_value(a.keys, head, key, d);
                    if (d + 1 < k_dim) x.y = read_value(a.keys, head, key, d + 1);
                    if (d + 2 < k_dim) x.z = read_value(a.keys, head, key, d + 2);
                    if (d + 3 < k_dim) x.w = read_value(a.keys, head, key, d + 3);
                }
                reinterpret_cast<float4*>(stage)[i] = x;
            }
            sync_block();
            float s[ROWS][kStaged];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int p = 0; p < kStaged; p++) s[r][p] = 0.0f;
#pragma unroll 2
            for (int i = 0; i < k_quads; i++) {
                float4 k[kStaged];
#pragma unroll
                for (int p = 0; p < kStaged; p++) k[p] = reinterpret_cast<const float4*>(stage)[(p * k_quads + i) * kPage + lane()];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float4 x = reinterpret_cast<const float4*>(q)[(warp * ROWS + r) * k_quads + i];
#pragma unroll
                    for (int p = 0; p < kStaged; p++) {
                        float y = fma(x.x, k[p].x, s[r][p]);
                        y = fma(x.y, k[p].y, y);
                        y = fma(x.z, k[p].z, y);
                        s[r][p] = fma(x.w, k[p].w, y);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int p = 0; p < kStaged; p++) e[r * kBlock + (half + p) * kPage + lane()] = s[r][p];
        }
        sync_warp();
#pragma unroll 1
        for (int r = 0; r < ROWS; r++) {
            const int row = warp * ROWS + r < rows ? warp * ROWS + r : rows - 1;
            const int token = batch_row(token_of(row)), slot = a.rows.slots[token];
            const int64_t position = a.irregular ? a.rows.positions[token] : slot;
            float x[kPages], block_m, block_l;
            uint32_t seen = 0;
#pragma unroll
            for (int p = 0; p < kPages; p++) {
                const int at = base + p * kPage + lane();
                x[p] = at < end ? e[r * kBlock + p * kPage + lane()] : 0.0f;
                if (at < n_keys && a.kq && warp * ROWS + r < rows)
                    a.kq[score_at + (int64_t(head_index(row)) * chunk_tokens + token_of(row) - tile[7]) * n_keys + at] = x[p];
                if (at < end) seen |= uint32_t(sees(a, position - (a.irregular ? key_position(a, pages, at) : at))) << p;
                if (a.cap != 0.0f) x[p] = softcap(x[p], a.cap);
                x[p] = x[p] * a.scale;
            }
            softmax_block(x, seen, block_m, block_l);
#pragma unroll
            for (int p = 0; p < kPages; p++) e[r * kBlock + p * kPage + lane()] = x[p];
            if (lane() == 0) {
                RowState& state = states[r];
                if (block_m == minus_infinity()) {
                    state.fold = LEFT_OUT;
                } else if (state.m == minus_infinity()) {
                    state.m = block_m, state.l = block_l, state.fold = FIRST;
                } else {
                    fold(state.m, state.l, block_m, block_l, state.fa, state.fb);
                    state.fold = FOLDED;
                }
            }
        }
        sync_warp();
        float block_acc[ROWS][DPL];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < DPL; i++) block_acc[r][i] = 0.0f;
#pragma unroll 1
        for (int half = 0; half < kPages && base + half * kPage < end; half += kStaged) {
            sync_block();
            if (thread() == 0) *strange = 0;
            sync_block();
            const bool halves = a.values.type == KV_F16 && v_dim % 8 == 0;
            for (int i = thread(); halves && i < kStaged * kPage * (v_dim / 8); i += threads()) {
                const int n = i % (v_dim / 8), key = i / (v_dim / 8) % kPage, p = i / (kPage * (v_dim / 8)), at = base + (half + p) * kPage;
                uint4 w = {0, 0, 0, 0};
                if (at + key < end) w = reinterpret_cast<const uint4*>(head_of(a.cache, a.values, pages[at / kPage], kv))[key * (v_dim / 8) + n];
                float4* to = reinterpret_cast<float4*>(stage) + ((p * kPage + key) * v_dim + 8 * n) / 4;
                to[0] = {low_half(w.x), high_half(w.x), low_half(w.y), high_half(w.y)};
                to[1] = {low_half(w.z), high_half(w.z), low_half(w.w), high_half(w.w)};
                if (strange_half(w.x) || strange_half(w.y) || strange_half(w.z) || strange_half(w.w)) *strange = 1;
            }
            for (int i = thread(); !halves && i < kStaged * kPage * v_dim; i += threads()) {
                const int d = i % v_dim, key = i / v_dim % kPage, p = i / (kPage * v_dim), at = base + (half + p) * kPage + key;
                stage[i] = at < end ? read_value(a.values, head_of(a.cache, a.values, pages[at / kPage], kv), key, d) : 0.0f;
                if ((bits(stage[i]) & 0x7f800000u) == 0x7f800000u) *strange = 1;
            }
            sync_block();
            const bool careful = *strange;
#pragma unroll 1
            for (int p = 0; p < kStaged && base + (half + p) * kPage < end; p++) {
                float part[ROWS][DPL];
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int i = 0; i < DPL; i++) part[r][i] = 0.0f;
#pragma unroll 1
                for (int j = 0; j < kPage; j += 4) {
                    float v[4][DPL];
#pragma unroll
                    for (int k = 0; k < 4; k++)
#pragma unroll
                        for (int i = 0; i < DPL; i++) {
                            const int d = i * 32 + lane();
                            v[k][i] = d < v_dim ? stage[(p * kPage + j + k) * v_dim + d] : 0.0f;
                        }
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        const float4 w = *reinterpret_cast<const float4*>(e + r * kBlock + (half + p) * kPage + j);
                        const float four[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            if (careful && bits(four[k]) == bits(kUnseen)) continue;
#pragma unroll
                            for (int i = 0; i < DPL; i++) part[r][i] = fma(four[k], v[k][i], part[r][i]);
                        }
                    }
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int i = 0; i < DPL; i++) block_acc[r][i] = block_acc[r][i] + part[r][i];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const RowState state = states[r];
#pragma unroll
            for (int i = 0; i < DPL; i++)
                acc[r][i] = state.fold == FOLDED ? acc[r][i] * state.fa + block_acc[r][i] * state.fb
                            : state.fold == FIRST ? block_acc[r][i] : acc[r][i];
        }
        sync_warp();
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = warp * ROWS + r;
        if (row >= rows) break;
        const int64_t at = int64_t(token_of(row)) * a.heads + head_index(row);
        const float inverse = 1.0f / states[r].l;
#pragma unroll
        for (int i = 0; i < DPL; i++)
            if (i * 32 + lane() < v_dim) a.out[at * v_dim + i * 32 + lane()] = acc[r][i] * inverse;
        if (a.state && lane() == 0) a.state[2 * at] = states[r].m, a.state[2 * at + 1] = states[r].l;
    }
}

KERNEL(attend_tile_64, AttentionArgs, 256) { attend_many<8, 2>(a); }    // v dim up to 64
KERNEL(attend_tile_128, AttentionArgs, 256) { attend_many<8, 4>(a); }
KERNEL(attend_tile_256, AttentionArgs, 256) { attend_many<4, 8>(a); }
KERNEL(attend_tile_512, AttentionArgs, 256) { attend_many<2, 16>(a); }

}  // namespace assay
