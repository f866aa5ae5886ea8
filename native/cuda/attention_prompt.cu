// Attention for many tokens of a sequence, fast path (attention.h): heads of 64 or 128 values, an f16 cache, positions
// equal to slots, and no trace.
//
// block_x: a tile of ROWS query rows, last tile first; block_y: kv head. 128 keys, then their values, are in shared
// memory as floats, while the next 128 are prefetched into registers. A thread has 8 rows x 4 keys of the scores and D
// / 16 rows x 4 columns of the result. Lanes are 4 x 8, so that a warp reads each float once. Bound by fma: 128 of them
// for 12 loads.
#include "attention.h"

namespace assay {

constexpr int kScores = kBlock + 8;  // floats between the scores of two rows

DEVICE float4 low_halves(uint32_t x, uint32_t y) {
    return {half_to_float(uint16_t(x)), half_to_float(uint16_t(x >> 16)), half_to_float(uint16_t(y)), half_to_float(uint16_t(y >> 16))};
}
DEVICE bool not_finite(uint32_t two) { return (two & 0x7c00u) == 0x7c00u || (two & 0x7c000000u) == 0x7c000000u; }

// acc += e v over 32 keys. CAREFUL: skip masked keys, whose values may not be finite.
template <int D, int R, bool CAREFUL>
DEVICE void weigh_page(const float* e, const float4* v, float (&part)[R][4]) {
#pragma unroll 2
    for (int j = 0; j < kPage; j += 4) {
        float4 values[4];
#pragma unroll
        for (int k = 0; k < 4; k++) values[k] = v[(j + k) * (D / 4)];
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float4 w = *reinterpret_cast<const float4*>(e + 4 * r * kScores + j);
            const float four[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (CAREFUL && bits(four[k]) == bits(kUnseen)) continue;
                part[r][0] = fma(four[k], values[k].x, part[r][0]);
                part[r][1] = fma(four[k], values[k].y, part[r][1]);
                part[r][2] = fma(four[k], values[k].z, part[r][2]);
                part[r][3] = fma(four[k], values[k].w, part[r][3]);
            }
        }
    }
}

template <int D, int ROWS>
DEVICE void attend_prompt(const AttentionArgs& a) {
    SHARED;
    constexpr int count = 4 * ROWS, line = D + 4, held_each = 4 * D / ROWS, R = D / 16, wide = D / 32;
    float* const q = reinterpret_cast<float*>(shared);                   // [ROWS][line]
    float* const stage = q + ROWS * line;                                // keys: [D / 4][128][4]; values: [128][D]
    float* const e = stage + kPromptKeys * D;                                // [ROWS][kScores]: scores, then weights
    RowState* const states = reinterpret_cast<RowState*>(e + ROWS * kScores);
    int* const strange = reinterpret_cast<int*>(states + ROWS);  // [2]: set if a staged value is not finite
    const int32_t* tile = a.tiles + (grid_x() - 1 - block_x()) * kTileWords;
    const int kv = block_y(), group = a.heads / a.keys.heads, warp = thread() / 32;
    NEEDS_SHARED(attend_prompt_bytes(ROWS, D));
    // Lanes are 4 x 8. Neighbouring lanes share a row, and every second pair a column, so two quarters of a warp read
    // as one.
    const int rg = lane() >> 1 & 1 | lane() >> 2 & 2, cg = lane() & 1 | lane() >> 1 & 2 | lane() >> 2 & 4;
    next_may_start();
    const int first_token = tile[TILE_TOKEN], first_row = tile[TILE_ROW], rows = tile[TILE_ROWS], n_keys = tile[TILE_KEYS];
    wait_for_previous();
    if (rows == 0) return;
    const auto token_of = [&](int r) { return first_token + (first_row + r) / group; };
    const auto slot_of = [&](int r) {
        const int token = token_of(r < rows ? r : rows - 1);
        return a.rows.slots[a.query_rows ? a.query_rows[token] : token];
    };
    const auto head_index = [&](int r) { return kv * group + (first_row + r) % group; };
    const int low = slot_of(0), from = a.mask.from(low) / kBlock, end = a.mask.to(slot_of(rows - 1), n_keys);
    const int32_t* pages = a.rows.pages + a.rows.tables[a.query_rows ? a.query_rows[first_token] : first_token];
    for (int i = thread(); i < ROWS * (D / 4); i += count) {
        const int r = i / (D / 4), d = i % (D / 4) * 4;
        float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
        if (r < rows) x = *reinterpret_cast<const float4*>(a.q + (int64_t(token_of(r)) * a.heads + head_index(r)) * D + d);
        *reinterpret_cast<float4*>(q + r * line + d) = x;
    }
    if (thread() < ROWS) states[thread()].clear();
    if (thread() == 0) strange[0] = strange[1] = 0;

    uint4 held[held_each];
    const auto load_keys = [&](int at) {
#pragma unroll
        for (int n = 0; n < held_each; n++) {
            const int i = thread() + n * count, page = at / kPage + i / (kPage * (D / 8));
            held[n] = {0, 0, 0, 0};
            if (page * kPage < end) held[n] = reinterpret_cast<const uint4*>(head_of(a.cache, a.keys, pages[page], kv))[i % (kPage * (D / 8))];
        }
    };
    const auto load_values = [&](int at) {
#pragma unroll
        for (int n = 0; n < held_each; n++) {
            const int i = thread() + n * count, key = at + i / (D / 8);
            held[n] = {0, 0, 0, 0};
            if (key < end) held[n] = reinterpret_cast<const uint4*>(head_of(a.cache, a.values, pages[key / kPage], kv))[i % (kPage * (D / 8))];
        }
    };
    float acc[R][4];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[r][i] = 0.0f;

    load_keys(from * kBlock);
    for (int base = from * kBlock; base < end; base += kBlock) {
        const int halves = base + kPromptKeys < end ? 2 : 1;
#pragma unroll 1
        for (int half = 0; half < halves; half++) {
            sync_block();  // all threads have finished reading the stage
#pragma unroll
            for (int n = 0; n < held_each; n++) {
                const int i = thread() + n * count, key = i / (kPage * (D / 8)) * kPage + i % kPage, d = i / kPage % (D / 8);
                float4* to = reinterpret_cast<float4*>(stage) + 2 * d * kPromptKeys + key;
                to[0] = low_halves(held[n].x, held[n].y);
                to[kPromptKeys] = low_halves(held[n].z, held[n].w);
            }
            sync_block();
            if (half + 1 < halves) load_keys(base + kPromptKeys);
            else load_values(base);
            // Rows rg + 4 r of the warp's 32, keys cg + 8 n of its 32.
            const float* of_q = q + (warp / 4 * 32 + rg) * line;
            const float4* of_k = reinterpret_cast<const float4*>(stage) + warp % 4 * 32 + cg;
            float s[8][4];
#pragma unroll
            for (int r = 0; r < 8; r++)
#pragma unroll
                for (int n = 0; n < 4; n++) s[r][n] = 0.0f;
#pragma unroll 2
            for (int i = 0; i < D / 4; i++) {
                float4 k[4];
#pragma unroll
                for (int n = 0; n < 4; n++) k[n] = of_k[i * kPromptKeys + 8 * n];
#pragma unroll
                for (int r = 0; r < 8; r++) {
                    const float4 x = *reinterpret_cast<const float4*>(of_q + 4 * r * line + 4 * i);
#pragma unroll
                    for (int n = 0; n < 4; n++) {
                        float y = fma(x.x, k[n].x, s[r][n]);
                        y = fma(x.y, k[n].y, y);
                        y = fma(x.z, k[n].z, y);
                        s[r][n] = fma(x.w, k[n].w, y);
                    }
                }
            }
            float* to = e + (warp / 4 * 32 + rg) * kScores + half * kPromptKeys + warp % 4 * 32 + cg;
#pragma unroll
            for (int r = 0; r < 8; r++)
#pragma unroll
                for (int n = 0; n < 4; n++) to[4 * r * kScores + 8 * n] = s[r][n];
        }
        sync_block();
        // A warp has 8 rows, four at a time. Row r sees the keys from `lowest` of lane r to its `highest`.
        const bool plain = a.mask.causal && !a.mask.partial() && base + kBlock <= low + 1, simple = a.mask.cap == 0.0f && !a.mask.slopes;
        const int own = warp * 8 + lane() % 8, slot = plain && simple ? 0 : slot_of(own);
        const int lowest = plain ? 0 : a.mask.from(slot), highest = plain ? end : a.mask.to(slot, n_keys);
        if (!simple) {
#pragma unroll 1
            for (int i = 0; i < 8 * kPages; i++) {
                const int row = warp * 8 + i / kPages, key = i % kPages * kPage + lane();
                float& x = e[row * kScores + key];
                x = a.mask.score(x, head_index(row < rows ? row : rows - 1), shuffle(slot, i / kPages) - base - key);
            }
        }
        const float scale = simple ? a.mask.scale : 1.0f;
#pragma unroll 1
        for (int first = warp * 8; first < warp * 8 + 8; first += 4) {
            float x[4][kPages], top[4], sum[4];
            uint32_t seen[4];
            int odd = 0;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int from_key = shuffle(lowest, first + r) - base - lane(), to_key = shuffle(highest, first + r) - base - lane();
                seen[r] = 0;
                top[r] = minus_infinity();
#pragma unroll
                for (int p = 0; p < kPages; p++) {
                    const bool is_seen = p * kPage >= from_key && p * kPage < to_key;
                    x[r][p] = e[(first + r) * kScores + p * kPage + lane()] * scale;
                    seen[r] |= uint32_t(is_seen) << p;
                    odd |= int(is_seen && x[r][p] != x[r][p]) << r;
                    const float y = is_seen ? x[r][p] : minus_infinity();
                    top[r] = top[r] < y ? y : top[r];
                }
            }
            for (int h = 16; h; h /= 2) {
#pragma unroll
                for (int r = 0; r < 4; r++) top[r] = larger(top[r], shuffle_xor(top[r], h));
            }
            if (any_lane(odd))
                for (int h = 16; h; h /= 2) odd |= shuffle_xor(odd, h);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                if (top[r] == minus_infinity() && (odd >> r & 1)) top[r] = as_float(0xff7fffffu);
                sum[r] = 0.0f;
#pragma unroll
                for (int p = 0; p < kPages; p++) {
                    const float y = exponential(x[r][p] - top[r]);
                    x[r][p] = seen[r] >> p & 1 ? y : kUnseen;
                    sum[r] = sum[r] + x[r][p];
                    e[(first + r) * kScores + p * kPage + lane()] = x[r][p];
                }
            }
            for (int h = 16; h; h /= 2) {
#pragma unroll
                for (int r = 0; r < 4; r++) sum[r] = sum[r] + shuffle_down(sum[r], h);
            }
            if (lane() == 0) {
#pragma unroll
                for (int r = 0; r < 4; r++) states[first + r].fa = top[r], states[first + r].fb = sum[r];
            }
        }
        sync_warp();
        if (lane() < 8) {  // fold the block's m and l into those of the row
            RowState& state = states[warp * 8 + lane()];
            state.take(state.fa, state.fb);
        }
        // Rows rg + 4 r of the warp's 4 R, columns 4 cg of its 32.
        const int row = warp / wide * 4 * R + rg, column = warp % wide * 8 + cg;
        float block_acc[R][4];
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) block_acc[r][i] = 0.0f;
#pragma unroll 1
        for (int half = 0; half < halves; half++) {
            sync_block();
#pragma unroll
            for (int n = 0; n < held_each; n++) {
                const uint4 w = held[n];
                float4* to = reinterpret_cast<float4*>(stage) + 2 * (thread() + n * count);
                to[0] = low_halves(w.x, w.y);
                to[1] = low_halves(w.z, w.w);
                if (not_finite(w.x) || not_finite(w.y) || not_finite(w.z) || not_finite(w.w)) strange[half] = 1;
            }
            sync_block();
            if (half + 1 < halves) load_values(base + kPromptKeys);
            else if (base + kBlock < end) load_keys(base + kBlock);
            const bool careful = strange[half];
            if (thread() == 0) strange[1 - half] = 0;
#pragma unroll 1
            for (int p = 0; p < kPromptKeys / kPage && base + half * kPromptKeys + p * kPage < end; p++) {
                float part[R][4];
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) part[r][i] = 0.0f;
                const float* weights = e + row * kScores + half * kPromptKeys + p * kPage;
                const float4* values = reinterpret_cast<const float4*>(stage) + p * kPage * (D / 4) + column;
                if (careful) weigh_page<D, R, true>(weights, values, part);
                else weigh_page<D, R, false>(weights, values, part);
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) block_acc[r][i] = block_acc[r][i] + part[r][i];
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const RowState state = states[row + 4 * r];
#pragma unroll
            for (int i = 0; i < 4; i++) acc[r][i] = state.sum(acc[r][i], block_acc[r][i]);
        }
    }
    sync_block();
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int row = warp / wide * 4 * R + rg + 4 * r;
        if (row >= rows) continue;
        float* out = a.out + (int64_t(token_of(row)) * a.heads + head_index(row)) * D + (warp % wide * 8 + cg) * 4;
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float m = states[row].m, l = states[row].l;
            add_sink(a.mask, head_index(row), m, l, acc[r][i]);
            y[i] = acc[r][i] * (1.0f / l);
        }
        *reinterpret_cast<float4*>(out) = {y[0], y[1], y[2], y[3]};
    }
}

CROWDED(attend_prompt_64, AttentionArgs, 512, 1) { attend_prompt<64, 128>(a); }
CROWDED(attend_prompt_128, AttentionArgs, 256, 1) { attend_prompt<128, 64>(a); }

}  // namespace assay
