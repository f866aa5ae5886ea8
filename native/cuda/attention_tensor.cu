// Attention on 16-bit tensor cores, for precision `tensor` (attention.h): heads of 64 or 128 values, an f16 cache.
//
// Queries are rounded to f16, and scores are summed by `mma` over the head in ascending order. A block of 256 keys is
// two halves. With m the largest score so far, the weights 2^((s - m) log2 e) are rounded to f16. l and the weighted
// values are rescaled when m grows, and values are accumulated by `mma`, 16 keys at a time. Blocks are folded in
// ascending order, as everywhere. In both kernels one warp has 16 query rows, all keys of a half and the whole head. So
// the bits do not depend on batch or chunk; they differ from the cpu engine's.
//
//   attend_tensor       a prompt: a thread block takes 128 rows of a sequence (a.tiles) past all keys, and prefetches the
//                       next half
//   attend_tensor_one   one token a sequence: a thread block for each (token, kv head, 256 keys), as in attention_one.h
//
// A NaN among the values reaches every row that is computed together with it.
#include "attention_one.h"

namespace assay {

constexpr int kTiles = kHalfBlock / 8;
constexpr float kLog2e = 1.4426950408889634f;

// Half a block in shared memory: keys as in pages, [page][D / 8][32][8]; values [128][D] with the 16-byte pieces of key
// j at place (piece ^ j % 8).
template <int D>
struct HalfBlock {
    static constexpr int bytes = tensor_keys_bytes(D), line = tensor_query_bytes(D);  // line: bytes of a query row
    uint8_t *k, *v;
    DEVICE HalfBlock(uint8_t* at) : k(at), v(at + kHalfBlock * D * 2) {}
    DEVICE HalfBlock(uint8_t* k, uint8_t* v) : k(k), v(v) {}
    DEVICE static int value_at(int key, int piece) { return key * D * 2 + (piece ^ key % 8) * 16; }

    // Whole pages of keys from `base` to `end`, or values. The rest is zeroed, because it is multiplied as well. once:
    // only this block reads them, so they are evict-first.
    template <bool once = false>
    DEVICE void fetch(const AttentionArgs& a, const int32_t* pages, int kv, int base, int end, bool values) const {
        constexpr int each = D / 8;
        const Pool& pool = values ? a.values : a.keys;
        const int32_t* const of = pages + base / kPage;
        int page[kHalfBlock / kPage];
#pragma unroll
        for (int p = 0; p < kHalfBlock / kPage; p++) page[p] = base + p * kPage < end ? of[p] : -1;
#pragma unroll
        for (int p = 0; p < kHalfBlock / kPage; p++) {
            const uint8_t* const from = head_of(a.cache, pool, page[p], kv);
#pragma unroll 4
            for (int i = thread(); i < kPage * each; i += threads()) {
                uint8_t* const to = values ? v + value_at(p * kPage + i / each, i % each) : k + (p * kPage * each + i) * 16;
                if (values ? base + p * kPage + i / each < end : page[p] >= 0) once ? copy_once(to, from + i * 16) : copy_async(to, from + i * 16);
                else *reinterpret_cast<uint4*>(to) = {0, 0, 0, 0};
            }
        }
    }
};

template <int C>
struct RowSums {  // rows g and g + 8 of a warp: m, l, and values 8 c + 2 t and the next of C groups of eight
    float m[2], l[2], acc[C][4];
    DEVICE void clear() {
        m[0] = m[1] = minus_infinity(), l[0] = l[1] = 0.0f;
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[c][e] = 0.0f;
    }
};

// Raw scores of a half, in tiles of 8 keys, elements as in `mma`.
template <int D>
DEVICE void score_half(const uint8_t* q, const HalfBlock<D>& at, float (&s)[kTiles][4]) {
#pragma unroll
    for (int j = 0; j < kTiles; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[j][e] = 0.0f;
    const uint8_t* of_q = q + lane() % 16 * HalfBlock<D>::line + lane() / 16 * 16;
    const uint8_t* of_k = at.k + (lane() / 8 % 2 * kPage + lane() % 8 + lane() / 16 * 8) * 16;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t x[4], y[4];
        load_matrices(x, of_q + 32 * i);
#pragma unroll
        for (int j = 0; j < kTiles; j += 2) {
            load_matrices(y, of_k + (j / 4 * (D / 8) + 2 * i) * kPage * 16 + j % 4 * 128);
            mma_f16(s[j], x, y[0], y[1]);
            mma_f16(s[j + 1], x, y[2], y[3]);
        }
    }
}

// Accumulate half a block: scores, with -inf for masked keys, and values from group `first` of eight on. `both`: rows
// from g + 8 on exist; otherwise their scores are 0.
template <int D, int C>
DEVICE void weigh_half(float (&s)[kTiles][4], const HalfBlock<D>& at, int first, RowSums<C>& sums, bool both = true) {
    float factor[2] = {1.0f, 1.0f};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (r && !both) continue;
        float top = sums.m[r];
#pragma unroll
        for (int j = 0; j < kTiles; j++) {
            top = larger(top, s[j][2 * r]);
            top = larger(top, s[j][2 * r + 1]);
        }
        for (int h = 1; h < 4; h *= 2) top = larger(top, shuffle_xor(top, h));
        const float finite = top == minus_infinity() ? 0.0f : top, shift = finite * -kLog2e;
        // 1 if m stays, so a half without visible keys changes nothing
        factor[r] = power_of_two((sums.m[r] - finite) * kLog2e);
        sums.m[r] = top;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < kTiles; j++)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
                s[j][e] = power_of_two(fma(s[j][e], kLog2e, shift));
                sum = sum + s[j][e];
            }
        for (int h = 1; h < 4; h *= 2) sum = sum + shuffle_xor(sum, h);
        sums.l[r] = sums.l[r] * factor[r] + sum;
    }
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums.acc[c][e] = sums.acc[c][e] * factor[e / 2];
#pragma unroll
    for (int i = 0; i < kHalfBlock / 16; i++) {
        const uint32_t p[4] = {two_halves(s[2 * i][0], s[2 * i][1]), two_halves(s[2 * i][2], s[2 * i][3]),
                               two_halves(s[2 * i + 1][0], s[2 * i + 1][1]), two_halves(s[2 * i + 1][2], s[2 * i + 1][3])};
        const int key = 16 * i + lane() % 16;
#pragma unroll
        for (int c = 0; c < C; c += 2) {
            uint32_t v[4];
            load_matrices_turned(v, at.v + HalfBlock<D>::value_at(key, first + c + lane() / 16));
            mma_f16(sums.acc[c], p, v[0], v[1]);
            mma_f16(sums.acc[c + 1], p, v[2], v[3]);
        }
    }
}

// A score if positions differ from slots, or if more than a scale is applied. last: the last slot that the row sees; -1
// if its position says so.
OUTLINED float masked_score(const AttentionArgs& a, float x, int64_t position, int64_t key, int slot, int last, int head, bool inside) {
    const float y = a.mask.score(x, head, position - key);
    return inside && !a.mask.hides(position, key, slot, last) ? y : minus_infinity();
}

// Visible keys of rows g and g + 8 of a warp, and the mask applied to their scores.
struct Sight {
    int64_t position[2];  // of the rows
    int low[2], high[2], head[2];
    bool plain;  // scores are only scaled, and positions equal slots

    DEVICE Sight(const AttentionArgs& a) : plain(a.mask.cap == 0.0f && !a.mask.slopes && !a.irregular) {}

    // Mask N tiles of scores from slot `base` on; key(slot) is the position of that key.
    template <int N, class Key>
    DEVICE void apply(const AttentionArgs& a, float (&s)[N][4], int base, int end, Key&& key) const {
        const bool all = low[0] <= base && low[1] <= base && high[0] >= base + 8 * N && high[1] >= base + 8 * N;
        if (!plain) {
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int slot = base + 8 * j + lane() % 4 * 2 + e % 2;
                    s[j][e] = masked_score(a, s[j][e], position[e / 2], slot < end ? key(slot) : slot, slot, a.last ? high[e / 2] - 1 : -1, head[e / 2], slot < end);
                }
            return;
        }
        const bool some = any_lane(!all);
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int slot = base + 8 * j + lane() % 4 * 2 + e % 2;
                const float x = s[j][e] * a.mask.scale;
                s[j][e] = !some || (slot >= low[e / 2] && slot < high[e / 2]) ? x : minus_infinity();
            }
    }
};

template <int D, int C>
DEVICE void store_results(const AttentionArgs& a, int halved, const RowSums<C>& sums, int first, int r, int64_t row, int head) {
    float* const out = a.out + row * D + 8 * first + lane() % 4 * 2;
#pragma unroll
    for (int c = 0; c < C; c++) {
        float y[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float m = sums.m[r], l = sums.l[r], acc = sums.acc[c][2 * r + e];
            add_sink(a.mask, head, m, l, acc);
            y[e] = acc * (1.0f / l);
        }
        if (halved)
#pragma unroll
            for (int e = 0; e < 2; e++) store_halved(a.out, halved, row / a.heads, head * D + 8 * (first + c) + lane() % 4 * 2 + e, y[e]);
        else *reinterpret_cast<float2*>(out + 8 * c) = {y[0], y[1]};
    }
}

// block_x: query tile, last first; block_y: kv head. Shared memory: queries [128][line], two halves of blocks.
template <int D>
DEVICE void attend_tensor(const TensorAttentionArgs& all) {
    const AttentionArgs& a = all.of;
    SHARED;
    constexpr int line = HalfBlock<D>::line, kRows = 128;
    NEEDS_SHARED(attend_tensor_bytes(kRows, D));
    const int32_t* tile = a.tiles + (grid_x() - 1 - block_x()) * kTileWords;
    const int kv = block_y(), group = a.heads / a.keys.heads, warp = thread() / 32;
    uint8_t* const q = shared;
    const HalfBlock<D> stages[2] = {HalfBlock<D>(shared + kRows * line), HalfBlock<D>(shared + kRows * line + HalfBlock<D>::bytes)};
    next_may_start();
    const int first_token = tile[TILE_TOKEN], first_row = tile[TILE_ROW], rows = tile[TILE_ROWS], n_keys = tile[TILE_KEYS], chunk_tokens = tile[TILE_TOKENS];
    wait_for_previous();
    if (rows == 0) return;
    const auto token_of = [&](int r) { return first_token + (first_row + (r < rows ? r : rows - 1)) / group; };
    const auto batch_row = [&](int r) { return a.query_rows ? a.query_rows[token_of(r)] : token_of(r); };
    const auto head_of_row = [&](int r) { return kv * group + (first_row + (r < rows ? r : rows - 1)) % group; };
    const int32_t* pages = a.rows.pages + a.rows.tables[batch_row(0)];
    const bool whole = a.irregular || a.kq;
    const int first = whole ? 0 : a.mask.from(a.rows.slots[batch_row(0)]) / kBlock * kBlock;
    int end = whole ? n_keys : a.mask.to(a.rows.slots[batch_row(rows - 1)], n_keys);
    if (a.last && !whole) {  // the farthest key that some row sees
        float farthest = 0.0f;
        for (int r = lane(); r < rows; r += 32) farthest = larger(farthest, a.last[batch_row(r)]);
        for (int h = 16; h; h /= 2) farthest = larger(farthest, shuffle_xor(farthest, h));
        end = int(farthest) + 1;
    }
    const auto fetch = [&](const HalfBlock<D>& to, int base) {
        to.fetch(a, pages, kv, base, end, false);
        to.fetch(a, pages, kv, base, end, true);
    };
    fetch(stages[0], first);
    copy_group();
    for (int i = thread(); i < kRows * (D / 2); i += threads()) {
        const int r = i / (D / 2), d = i % (D / 2) * 2;
        float2 x = {0.0f, 0.0f};
        if (r < rows) x = *reinterpret_cast<const float2*>(a.q + (int64_t(token_of(r)) * a.heads + head_of_row(r)) * D + d);
        *reinterpret_cast<uint32_t*>(q + r * line + d * 2) = uint32_t(float_to_half(x.x)) | uint32_t(float_to_half(x.y)) << 16;
    }
    Sight sight(a);
    const int own = warp * 16 + lane() / 4;
    int64_t scores_at[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = own + 8 * r, slot = a.rows.slots[batch_row(row)];
        sight.position[r] = a.irregular ? a.rows.positions[batch_row(row)] : slot;
        sight.low[r] = a.mask.from(slot), sight.head[r] = head_of_row(row);
        sight.high[r] = a.last ? int(a.last[batch_row(row)]) + 1 : a.mask.to(slot, n_keys);
        scores_at[r] = (int64_t(uint32_t(tile[TILE_SCORES])) | int64_t(tile[TILE_SCORES_HIGH]) << 32) * a.heads +
                       (int64_t(head_of_row(row)) * chunk_tokens + token_of(row) - tile[TILE_CHUNK_TOKEN]) * n_keys;
    }
    RowSums<D / 8> total, sums;
    total.clear();
    sums.clear();
    for (int base = first, n = 0; base < end; base += kHalfBlock, n++) {
        copies_done<0>();
        sync_block();  // this half has arrived, and all warps have finished with the one before
        if (base + kHalfBlock < end) fetch(stages[(n + 1) % 2], base + kHalfBlock);
        copy_group();
        const HalfBlock<D> at(shared + kRows * line + n % 2 * HalfBlock<D>::bytes);
        const bool none = !whole && (base >= sight.high[0] && base >= sight.high[1]);
        if (any_lane(!none) || a.kq) {
            float s[kTiles][4];
            score_half<D>(q + warp * 16 * line, at, s);
            if (a.kq)
#pragma unroll
                for (int j = 0; j < kTiles; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int slot = base + 8 * j + lane() % 4 * 2 + e % 2;
                        if (slot < n_keys && own + e / 2 * 8 < rows) a.kq[scores_at[e / 2] + slot] = s[j][e];
                    }
            sight.apply(a, s, base, end, [&](int slot) { return int64_t(a.irregular ? key_position(a, pages, slot) : slot); });
            weigh_half<D, D / 8>(s, at, 0, sums);
        }
        if (base % kBlock == 0 && base + kHalfBlock < end) continue;
#pragma unroll
        for (int r = 0; r < 2; r++) {  // end of a block of 256 keys
            float fa = 1.0f, fb = 0.0f;
            const bool some = sums.m[r] != minus_infinity() || sums.l[r] != 0.0f;
            if (some && total.m[r] == minus_infinity()) total.m[r] = sums.m[r], total.l[r] = sums.l[r], fa = 0.0f, fb = 1.0f;
            else if (some) fold(total.m[r], total.l[r], sums.m[r], sums.l[r], fa, fb);
#pragma unroll
            for (int c = 0; c < D / 8; c++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) total.acc[c][e] = total.acc[c][e] * fa + sums.acc[c][e] * fb;
        }
        sums.clear();
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = own + 8 * r;
        if (row >= rows) continue;
        const int64_t at = int64_t(token_of(row)) * a.heads + sight.head[r];
        store_results<D, D / 8>(a, all.halved, total, 0, r, at, sight.head[r]);
        float m = total.m[r], l = total.l[r], none = 0.0f;
        add_sink(a.mask, sight.head[r], m, l, none);
        if (a.state && lane() % 4 == 0) a.state[2 * at] = m, a.state[2 * at + 1] = l;
    }
}

// Shared memory: queries [16][line], values of half a block, scores [8 or 16][kScoreLine], the new key. A warp holds a
// page of keys in registers as `mma` fragments, then computes a quarter of the head.
template <int D>
DEVICE void attend_tensor_one(const TensorAttentionArgs& all) {
    const AttentionArgs& a = all.of;
    SHARED;
    constexpr int line = HalfBlock<D>::line, C = D / 32, kScoreLine = kHalfBlock + 8;
    constexpr bool once = D == 128;  // evict-first; heads of 64 gain nothing by it
    NEEDS_SHARED(attend_tensor_one_bytes(D, a.heads / a.keys.heads));
    uint8_t* const q = shared;
    const HalfBlock<D> stage(nullptr, shared + 16 * line);
    float* const scores = reinterpret_cast<float*>(stage.v + kHalfBlock * D * 2);
    uint16_t* const last_key = reinterpret_cast<uint16_t*>(scores + (a.heads / a.keys.heads > 8 ? 16 : 8) * kScoreLine);
    const int warp = thread() / 32, g = lane() / 4, t = lane() % 4;
    next_may_start();
    const Where at(a, 16);
    if (at.idle()) return wait_for_previous();
    wait_for_keys(a);
    const int end = at.base + at.keys();
    const bool both = at.count > 8;
    uint32_t keys[D / 16][4][2];
    const auto word = [](const uint8_t* at) { return once ? load_once(reinterpret_cast<const uint32_t*>(at)) : *reinterpret_cast<const uint32_t*>(at); };
    const auto fetch = [&](int base) {
        const int page = base + warp * kPage < end ? at.pages[base / kPage + warp] : -1;
        const uint8_t* from = head_of(a.cache, a.keys, page, at.kv) + g * 16 + t * 4;
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) keys[i][j][h] = page < 0 ? 0 : word(from + ((2 * i + h) * kPage + 8 * j) * 16);
        stage.template fetch<once>(a, at.pages, at.kv, base, end, true);
        copy_group();
    };
    fetch(at.base);
    wait_for_previous();
    const float* table = a.turn ? a.turn + int64_t(at.row) * a.n_rot : nullptr;
    const float* x = a.q + (int64_t(at.row) * a.heads + at.first) * D;
    const bool fresh = a.k && at.has_new_key() && thread() < D;
    uint16_t new_k = 0, new_v = 0;
    if (fresh) {
        const int64_t head = int64_t(at.row) * a.keys.heads + at.kv;
        new_k = float_to_half(turned(a.k + head * D, a.turn_k ? table : nullptr, thread(), a.n_rot, a.neox));
        new_v = float_to_half(a.v[head * D + thread()]);
        last_key[thread()] = new_k;
    }
    for (int i = thread(); i < at.count * D; i += threads())
        *reinterpret_cast<uint16_t*>(q + i / D * line + i % D * 2) = float_to_half(turned(x + i / D * D, table, i % D, a.n_rot, a.neox));
    for (int i = at.count * (line / 16) + thread(); i < line; i += threads()) reinterpret_cast<uint4*>(q)[i] = {0, 0, 0, 0};
    Sight sight(a);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int h = g + 8 * r;
        sight.position[r] = a.irregular ? at.position : at.slot;
        sight.low[r] = at.low, sight.high[r] = at.slot + 1, sight.head[r] = at.first + (h < at.count ? h : 0);
    }
    RowSums<C> sums;
    sums.clear();
    for (int base = at.base; base < end; base += kHalfBlock) {
        const bool has_new = a.k && at.slot >= base && at.slot < base + kHalfBlock;
        const int new_slot = at.slot % kPage, new_page = (at.slot - base) / kPage;
        if (base == at.base) sync_block();  // queries have been stored
        if (has_new && fresh && at.sub == 0) {
            const int page = at.pages[at.slot / kPage], d = thread();
            reinterpret_cast<uint16_t*>(head_of(a.cache, a.keys, page, at.kv))[a.keys.index(new_slot, d)] = new_k;
            reinterpret_cast<uint16_t*>(head_of(a.cache, a.values, page, at.kv))[a.values.index(new_slot, d)] = new_v;
            if (at.kv == 0 && d == 0)
                *reinterpret_cast<int32_t*>(a.cache.pages + page * a.cache.page_bytes + a.cache.positions_at + 4 * new_slot) = at.position;
        }
        {
            float mine[4][4];
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) mine[j][e] = 0.0f;
            const uint8_t* of_q = q + lane() % 16 * line + lane() / 16 * 16;
            const bool replace = has_new && warp == new_page && g == new_slot % 8;
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                uint32_t x[4];
                load_matrices(x, of_q + 32 * i);
                uint32_t two[2] = {0, 0};
                if (replace)
#pragma unroll
                    for (int h = 0; h < 2; h++) two[h] = *reinterpret_cast<const uint32_t*>(last_key + 16 * i + 8 * h + 2 * t);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const bool fresh_key = replace && new_slot / 8 == j;
                    mma_f16(mine[j], x, fresh_key ? two[0] : keys[i][j][0], fresh_key ? two[1] : keys[i][j][1]);
                }
            }
            sight.apply<4>(a, mine, base + kPage * warp, end, [&](int slot) {
                return int64_t(!a.irregular ? slot : a.k && slot == at.slot ? at.position : key_position(a, at.pages, slot));
            });
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (!r || both) *reinterpret_cast<float2*>(scores + (g + 8 * r) * kScoreLine + kPage * warp + 8 * j + 2 * t) = {mine[j][2 * r], mine[j][2 * r + 1]};
        }
        copies_done<0>();
        sync_block();  // scores and values have been stored
        if (has_new) {
            const int d = thread();
            if (fresh) *reinterpret_cast<uint16_t*>(stage.v + HalfBlock<D>::value_at(at.slot - base, d / 8) + d % 8 * 2) = new_v;
            sync_block();
        }
        float s[kTiles][4];
#pragma unroll
        for (int j = 0; j < kTiles; j++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float2 two = {0.0f, 0.0f};
                if (!r || both) two = *reinterpret_cast<const float2*>(scores + (g + 8 * r) * kScoreLine + 8 * j + 2 * t);
                s[j][2 * r] = two.x, s[j][2 * r + 1] = two.y;
            }
        weigh_half<D, C>(s, stage, C * warp, sums, both);
        if (base + kHalfBlock >= end) break;
        sync_block();
        fetch(base + kHalfBlock);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int h = g + 8 * r;
        if (h >= at.count) continue;
        const int64_t head = int64_t(at.row) * a.heads + at.first + h;
        if (at.blocks() == 1) {
            store_results<D, C>(a, all.halved, sums, C * warp, r, head, at.first + h);
            continue;
        }
        float* const to_fold = a.partial + (head * a.max_blocks + block_x()) * (2 + D);
        if (warp == 0 && t == 0) to_fold[0] = sums.m[r], to_fold[1] = sums.l[r];
#pragma unroll
        for (int c = 0; c < C; c++)
            *reinterpret_cast<float2*>(to_fold + 2 + 8 * (C * warp + c) + 2 * t) = {sums.acc[c][2 * r], sums.acc[c][2 * r + 1]};
    }
    if (at.blocks() > 1) fold_blocks(a, at.row, at.first, at.count, at.blocks(), reinterpret_cast<int*>(scores), all.halved);
}

CROWDED(attend_tensor_64, TensorAttentionArgs, 256, 1) { attend_tensor<64>(a); }
CROWDED(attend_tensor_128, TensorAttentionArgs, 256, 1) { attend_tensor<128>(a); }
CROWDED(attend_tensor_one_64, TensorAttentionArgs, 128, 4) { attend_tensor_one<64>(a); }
CROWDED(attend_tensor_one_128, TensorAttentionArgs, 128, 4) { attend_tensor_one<128>(a); }

}  // namespace assay
