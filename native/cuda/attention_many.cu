// Attention for many tokens of a sequence over any cache (attention.h). Bound by fma.
#include "attention.h"

namespace assay {

// block_x: a tile of 8 ROWS query rows (row r: token r / group, head r % group of that group); block_y: kv head. STAGED
// pages of keys, then of values, are in shared memory as floats. A warp has ROWS rows, a lane a key of each page.

DEVICE float low_half(uint32_t two) { return half_to_float(uint16_t(two)); }
DEVICE float high_half(uint32_t two) { return half_to_float(uint16_t(two >> 16)); }
DEVICE bool strange_half(uint32_t two) { return (two & 0x7c00u) == 0x7c00u || (two & 0x7c000000u) == 0x7c000000u; }

template <int ROWS, int DPL, int STAGED>
DEVICE void attend_many(const AttentionArgs& a) {
    SHARED;
    const int32_t* tile = a.tiles + block_x() * kTileWords;
    const int kv = block_y(), group = a.heads / a.keys.heads, k_dim = a.keys.dim, v_dim = a.values.dim;
    const int k_quads = (k_dim + 3) / 4, warp = thread() / 32;
    NEEDS_SHARED(attend_tile_bytes(ROWS, STAGED, k_quads, v_dim));
    float* q = reinterpret_cast<float*>(shared);           // [8 ROWS][k dim rounded to 4]
    float* stage = q + 8 * ROWS * 4 * k_quads;             // keys: [page][d / 4][32][4]; values: [page][32][v dim]
    const int wider = 4 * k_quads > v_dim ? 4 * k_quads : v_dim;
    float* e = stage + STAGED * kPage * wider + warp * ROWS * kBlock;  // [ROWS][256] of this warp: scores, then weights
    RowState* states = reinterpret_cast<RowState*>(stage + STAGED * kPage * wider + 8 * ROWS * kBlock) + warp * ROWS;
    int* strange = reinterpret_cast<int*>(states + (8 - warp) * ROWS);  // set if a staged value is not finite
    next_may_start();
    const int first_token = tile[TILE_TOKEN], first_row = tile[TILE_ROW], rows = tile[TILE_ROWS], n_keys = tile[TILE_KEYS], chunk_tokens = tile[TILE_TOKENS];
    const int64_t score_at = (int64_t(uint32_t(tile[TILE_SCORES])) | int64_t(tile[TILE_SCORES_HIGH]) << 32) * a.heads;
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
    if (lane() < ROWS) states[lane()].clear();
    const bool whole = a.irregular || a.kq || a.last;
    const int low = a.rows.slots[batch_row(token_of(0))], high = a.rows.slots[batch_row(token_of(rows - 1))];
    const int from = whole ? 0 : a.mask.from(low) / kBlock;
    const int end = whole ? n_keys : a.mask.to(high, n_keys);
    float acc[ROWS][DPL];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < DPL; i++) acc[r][i] = 0.0f;
    for (int base = from * kBlock; base < end; base += kBlock) {
#pragma unroll 1
        for (int half = 0; half < kPages && base + half * kPage < end; half += STAGED) {
            sync_block();
            const bool halves = a.keys.type == KV_F16 && k_dim % 8 == 0;
            for (int i = thread(); halves && i < STAGED * kPage * (k_dim / 8); i += threads()) {
                const int key = i % kPage, n = i / kPage % (k_dim / 8), p = i / (kPage * (k_dim / 8)), at = base + (half + p) * kPage;
                uint4 w = {0, 0, 0, 0};
                if (at < end) w = reinterpret_cast<const uint4*>(head_of(a.cache, a.keys, pages[at / kPage], kv))[n * kPage + key];
                float4* to = reinterpret_cast<float4*>(stage) + (p * k_quads + 2 * n) * kPage + key;
                to[0] = {low_half(w.x), high_half(w.x), low_half(w.y), high_half(w.y)};
                to[kPage] = {low_half(w.z), high_half(w.z), low_half(w.w), high_half(w.w)};
            }
            for (int i = thread(); !halves && i < STAGED * kPage * k_quads; i += threads()) {
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
            float s[ROWS][STAGED];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int p = 0; p < STAGED; p++) s[r][p] = 0.0f;
#pragma unroll 2
            for (int i = 0; i < k_quads; i++) {
                float4 k[STAGED];
#pragma unroll
                for (int p = 0; p < STAGED; p++) k[p] = reinterpret_cast<const float4*>(stage)[(p * k_quads + i) * kPage + lane()];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float4 x = reinterpret_cast<const float4*>(q)[(warp * ROWS + r) * k_quads + i];
#pragma unroll
                    for (int p = 0; p < STAGED; p++) {
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
                for (int p = 0; p < STAGED; p++) e[r * kBlock + (half + p) * kPage + lane()] = s[r][p];
        }
        sync_warp();
#pragma unroll 1
        for (int r = 0; r < ROWS; r++) {
            const int row = warp * ROWS + r < rows ? warp * ROWS + r : rows - 1;
            const int token = batch_row(token_of(row)), slot = a.rows.slots[token];
            const int64_t position = a.irregular ? a.rows.positions[token] : slot;
            const int last = a.last ? int(a.last[token]) : -1;
            float x[kPages], block_m, block_l;
            uint32_t seen = 0;
#pragma unroll
            for (int p = 0; p < kPages; p++) {
                const int at = base + p * kPage + lane();
                x[p] = at < end ? e[r * kBlock + p * kPage + lane()] : 0.0f;
                if (at < n_keys && a.kq && warp * ROWS + r < rows)
                    a.kq[score_at + (int64_t(head_index(row)) * chunk_tokens + token_of(row) - tile[TILE_CHUNK_TOKEN]) * n_keys + at] = x[p];
                const int64_t key = a.irregular && at < end ? key_position(a, pages, at) : at;
                if (at < end) seen |= uint32_t(!a.mask.hides(position, key, at, last)) << p;
                x[p] = a.mask.score(x[p], head_index(row), position - key);
            }
            softmax_block(x, seen, block_m, block_l);
#pragma unroll
            for (int p = 0; p < kPages; p++) e[r * kBlock + p * kPage + lane()] = x[p];
            if (lane() == 0) states[r].take(block_m, block_l);
        }
        sync_warp();
        float block_acc[ROWS][DPL];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < DPL; i++) block_acc[r][i] = 0.0f;
#pragma unroll 1
        for (int half = 0; half < kPages && base + half * kPage < end; half += STAGED) {
            sync_block();
            if (thread() == 0) *strange = 0;
            sync_block();
            const bool halves = a.values.type == KV_F16 && !a.values.keys && v_dim % 8 == 0;
            for (int i = thread(); halves && i < STAGED * kPage * (v_dim / 8); i += threads()) {
                const int n = i % (v_dim / 8), key = i / (v_dim / 8) % kPage, p = i / (kPage * (v_dim / 8)), at = base + (half + p) * kPage;
                uint4 w = {0, 0, 0, 0};
                if (at + key < end) w = reinterpret_cast<const uint4*>(head_of(a.cache, a.values, pages[at / kPage], kv))[key * (v_dim / 8) + n];
                float4* to = reinterpret_cast<float4*>(stage) + ((p * kPage + key) * v_dim + 8 * n) / 4;
                to[0] = {low_half(w.x), high_half(w.x), low_half(w.y), high_half(w.y)};
                to[1] = {low_half(w.z), high_half(w.z), low_half(w.w), high_half(w.w)};
                if (strange_half(w.x) || strange_half(w.y) || strange_half(w.z) || strange_half(w.w)) *strange = 1;
            }
            for (int i = thread(); !halves && i < STAGED * kPage * v_dim; i += threads()) {
                const int d = i % v_dim, key = i / v_dim % kPage, p = i / (kPage * v_dim), at = base + (half + p) * kPage + key;
                stage[i] = at < end ? read_value(a.values, head_of(a.cache, a.values, pages[at / kPage], kv), key, d) : 0.0f;
                if ((bits(stage[i]) & 0x7f800000u) == 0x7f800000u) *strange = 1;
            }
            sync_block();
            const bool careful = *strange;
#pragma unroll 1
            for (int p = 0; p < STAGED && base + (half + p) * kPage < end; p++) {
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
            for (int i = 0; i < DPL; i++) acc[r][i] = state.sum(acc[r][i], block_acc[r][i]);
        }
        sync_warp();
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = warp * ROWS + r;
        if (row >= rows) break;
        const int64_t at = int64_t(token_of(row)) * a.heads + head_index(row);
        float m = minus_infinity(), l = 0.0f;
#pragma unroll
        for (int i = 0; i < DPL; i++) {
            m = states[r].m, l = states[r].l;
            add_sink(a.mask, head_index(row), m, l, acc[r][i]);
            if (i * 32 + lane() < v_dim) a.out[at * v_dim + i * 32 + lane()] = acc[r][i] * (1.0f / l);
        }
        if (a.state && lane() == 0) a.state[2 * at] = m, a.state[2 * at + 1] = l;
    }
}

CROWDED(attend_tile_64, AttentionArgs, 256, 2) { attend_many<8, 2, 2>(a); }  // v dim up to 64
KERNEL(attend_tile_128, AttentionArgs, 256) { attend_many<8, 4, 4>(a); }
KERNEL(attend_tile_256, AttentionArgs, 256) { attend_many<4, 8, 4>(a); }
KERNEL(attend_tile_512, AttentionArgs, 256) { attend_many<2, 16, 4>(a); }
// for GPUs whose shared memory holds fewer than four pages
KERNEL(attend_tile_512_small, AttentionArgs, 256) { attend_many<2, 16, 2>(a); }

}  // namespace assay
