// Attention of patches on 16-bit tensor cores, for towers in precision `tensor` (attention.h): every row of a picture sees
// every other one. Heads are a multiple of 8 wide, and D at most, a multiple of 16; the rest of D is zero in shared memory.
//
// Queries, keys and values are rounded to f16, and scores are summed by `mma` over the head in ascending order. Keys are
// taken kPatchKeys at a time. With m the largest score so far and c = scale log2 e, the weights 2^(c s - c m) are summed in
// float32 and rounded to f16. Values are accumulated by `mma`, 16 keys at a time. Sums are rescaled when m grows. One warp has
// 16 or 32 query rows, all keys and the whole head. So the bits do not depend on the batch; they differ from the cpu engine's.
//
// A thread block takes kPatchRows query rows of a head past all keys, and prefetches the next ones. Bound by shared memory,
// which every warp reads each key from. A NaN among the values reaches every row of the picture.
#include "attention.h"

namespace assay {

constexpr float kLog2e = 1.4426950408889634f;

// Keys and values of kPatchKeys rows in shared memory: keys [page][D / 8][32][8], as in pages; values [key][line], where an
// odd number of 16-byte pieces a line spreads eight keys over all banks.
template <int D>
struct PatchStage {
    static constexpr int pieces = D / 8, value_line = 2 * D + 16, bytes = patch_stage_bytes(D);
    uint8_t *k, *v;
    DEVICE PatchStage(uint8_t* at) : k(at), v(at + kPatchKeys * D * 2) {}

    // Zero what a narrower head leaves free.
    DEVICE void clear(int each) const {
        const int free = pieces - each;
        for (int i = thread(); i < kPatchKeys * free; i += threads()) {
            const int key = i / free, piece = each + i % free;
            *reinterpret_cast<uint4*>(k + ((key / kPage * pieces + piece) * kPage + key % kPage) * 16) = {0, 0, 0, 0};
            *reinterpret_cast<uint4*>(v + key * value_line + piece * 16) = {0, 0, 0, 0};
        }
    }
};

// How a thread goes over the keys of a page, a piece of `each` at a time, without divisions.
struct PatchWalk {
    int each, key, piece, keys_on, pieces_on;
    DEVICE PatchWalk(int each) : each(each), key(thread() / each), piece(thread() % each), keys_on(threads() / each), pieces_on(threads() % each) {}
    template <class F>
    DEVICE void over(F&& f) const {
        int n = key, i = piece;
        for (int at = thread(); at < kPage * each; at += threads()) {
            f(n, i, at);
            n += keys_on, i += pieces_on;
            if (i >= each) i -= each, n++;
        }
    }
};

// block_x: query tile; block_y: kv head. A warp has M times 16 query rows. Shared memory: queries [kPatchRows][line], two
// stages.
template <int D, int M>
DEVICE void attend_patches(const TensorAttentionArgs& all) {
    const AttentionArgs& a = all.of;
    SHARED;
    using Stage = PatchStage<D>;
    constexpr int line = tensor_query_bytes(D), kTiles = kPatchKeys / 8, C = D / 8, kStagePages = kPatchKeys / kPage;
    NEEDS_SHARED(attend_patches_bytes(D));
    const int32_t* tile = a.tiles + block_x() * kTileWords;
    const int kv = block_y(), group = a.heads / a.keys.heads, warp = thread() / 32, dim = a.keys.dim, each = dim / 8;
    uint8_t* const q = shared;
    const auto stage = [&](int n) { return Stage(shared + kPatchRows * line + n % 2 * Stage::bytes); };
    next_may_start();
    const int first_token = tile[TILE_TOKEN], first_row = tile[TILE_ROW], rows = tile[TILE_ROWS], end = tile[TILE_KEYS], chunk_tokens = tile[TILE_TOKENS];
    if (each < Stage::pieces) stage(0).clear(each), stage(1).clear(each);
    wait_for_previous();
    if (rows == 0) return;
    const auto token_of = [&](int r) { return first_token + (first_row + (r < rows ? r : rows - 1)) / group; };
    const auto head_of_row = [&](int r) { return kv * group + (first_row + (r < rows ? r : rows - 1)) % group; };
    const int32_t* pages = a.rows.pages + a.rows.tables[a.query_rows ? a.query_rows[first_token] : first_token];
    const PatchWalk walk(each);
    // Keys behind the last page and values behind the last key are zeros, because they are multiplied as well.
    const auto fetch = [&](const Stage& to, int base) {
        const bool whole = base + kPatchKeys <= end;
#pragma unroll
        for (int p = 0; p < kStagePages; p++) {
            const int first = base + p * kPage, page = pages[(first < end ? first : base) / kPage];
            const uint8_t* const k = head_of(a.cache, a.keys, page, kv);
            uint8_t* const at = to.k + p * kPage * Stage::pieces * 16;
            for (int i = thread(); i < kPage * each; i += threads()) {
                if (whole || first < end) copy_async(at + i * 16, k + i * 16);
                else *reinterpret_cast<uint4*>(at + i * 16) = {0, 0, 0, 0};
            }
            const uint8_t* const v = head_of(a.cache, a.values, page, kv);
            uint8_t* const v_at = to.v + p * kPage * Stage::value_line;
            walk.over([&](int key, int piece, int i) {
                uint8_t* const at = v_at + key * Stage::value_line + piece * 16;
                if (whole || first + key < end) copy_async(at, v + i * 16);
                else *reinterpret_cast<uint4*>(at) = {0, 0, 0, 0};
            });
        }
    };
    fetch(stage(0), 0);
    copy_group();
    for (int i = thread(); i < kPatchRows * (D / 2); i += threads()) {
        const int r = i / (D / 2), d = i % (D / 2) * 2;
        float2 x = {0.0f, 0.0f};
        if (r < rows && d < dim) x = *reinterpret_cast<const float2*>(a.q + (int64_t(token_of(r)) * a.heads + head_of_row(r)) * dim + d);
        *reinterpret_cast<uint32_t*>(q + r * line + d * 2) = uint32_t(float_to_half(x.x)) | uint32_t(float_to_half(x.y)) << 16;
    }
    const float c = a.mask.scale * kLog2e;
    // Rows g and g + 8 of each 16: the largest score, the sum of the weights of this lane's keys, and the weighted values.
    float m[M][2], l[M][2], acc[M][C][4];
#pragma unroll
    for (int u = 0; u < M; u++) {
        m[u][0] = m[u][1] = minus_infinity(), l[u][0] = l[u][1] = 0.0f;
#pragma unroll
        for (int i = 0; i < C; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[u][i][e] = 0.0f;
    }
    const int first_own = warp * 16 * M;
    const uint8_t* const of_q = q + (first_own + lane() % 16) * line + lane() / 16 * 16;
    for (int base = 0, n = 0; base < end; base += kPatchKeys, n++) {
        copies_done<0>();
        sync_block();  // these keys have arrived, and all warps have finished with the ones before
        if (base + kPatchKeys < end) fetch(stage(n + 1), base + kPatchKeys);
        copy_group();
        const Stage at = stage(n);
        float s[M][kTiles][4];
#pragma unroll
        for (int u = 0; u < M; u++)
#pragma unroll
            for (int j = 0; j < kTiles; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[u][j][e] = 0.0f;
        const uint8_t* const of_k = at.k + (lane() / 8 % 2 * kPage + lane() % 8 + lane() / 16 * 8) * 16;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t x[M][4], y[4];
#pragma unroll
            for (int u = 0; u < M; u++) load_matrices(x[u], of_q + u * 16 * line + 32 * i);
#pragma unroll
            for (int j = 0; j < kTiles; j += 2) {
                load_matrices(y, of_k + (j / 4 * Stage::pieces + 2 * i) * kPage * 16 + j % 4 * 128);
#pragma unroll
                for (int u = 0; u < M; u++) {
                    mma_f16(s[u][j], x[u], y[0], y[1]);
                    mma_f16(s[u][j + 1], x[u], y[2], y[3]);
                }
            }
        }
        const auto slot_of = [&](int j, int e) { return base + 8 * j + lane() % 4 * 2 + e % 2; };
        if (a.kq)
#pragma unroll
            for (int u = 0; u < M; u++)
#pragma unroll
                for (int j = 0; j < kTiles; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int row = first_own + 16 * u + lane() / 4 + e / 2 * 8;
                        const int64_t scores = (int64_t(uint32_t(tile[TILE_SCORES])) | int64_t(tile[TILE_SCORES_HIGH]) << 32) * a.heads +
                                               (int64_t(head_of_row(row)) * chunk_tokens + token_of(row) - tile[TILE_CHUNK_TOKEN]) * end;
                        if (slot_of(j, e) < end && row < rows) a.kq[scores + slot_of(j, e)] = s[u][j][e];
                    }
        if (base + kPatchKeys > end)
#pragma unroll
            for (int u = 0; u < M; u++)
#pragma unroll
                for (int j = 0; j < kTiles; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (slot_of(j, e) >= end) s[u][j][e] = minus_infinity();
#pragma unroll
        for (int u = 0; u < M; u++) {
            float factor[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = m[u][r];
#pragma unroll
                for (int j = 0; j < kTiles; j++) top = most(most(top, s[u][j][2 * r]), s[u][j][2 * r + 1]);
                for (int h = 1; h < 4; h *= 2) top = most(top, shuffle_xor(top, h));
                const float finite = top == minus_infinity() ? 0.0f : top, shift = -finite * c;
                factor[r] = power_of_two((m[u][r] - finite) * c);
                m[u][r] = top;
                float sum = 0.0f;
#pragma unroll
                for (int j = 0; j < kTiles; j++)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; e++) {
                        s[u][j][e] = power_of_two(fma(s[u][j][e], c, shift));
                        sum = sum + s[u][j][e];
                    }
                l[u][r] = l[u][r] * factor[r] + sum;
            }
#pragma unroll
            for (int i = 0; i < C; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) acc[u][i][e] = acc[u][i][e] * factor[e / 2];
        }
#pragma unroll
        for (int i = 0; i < kPatchKeys / 16; i++) {
            uint32_t p[M][4];
#pragma unroll
            for (int u = 0; u < M; u++)
#pragma unroll
                for (int e = 0; e < 4; e++) p[u][e] = two_halves(s[u][2 * i + e / 2][e % 2 * 2], s[u][2 * i + e / 2][e % 2 * 2 + 1]);
            const uint8_t* const of_v = at.v + (16 * i + lane() % 16) * Stage::value_line + lane() / 16 * 16;
#pragma unroll
            for (int j = 0; j < C; j += 2) {
                uint32_t w[4];
                load_matrices_turned(w, of_v + 16 * j);
#pragma unroll
                for (int u = 0; u < M; u++) {
                    mma_f16(acc[u][j], p[u], w[0], w[1]);
                    mma_f16(acc[u][j + 1], p[u], w[2], w[3]);
                }
            }
        }
    }
    // A result of halves has zeros behind its last column, up to whole units.
    const int of = all.halved >> kHalvedShift, room = all.halved & ((1 << kHalvedShift) - 1), width = a.heads * dim;
#pragma unroll
    for (int u = 0; u < M; u++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int h = 1; h < 4; h *= 2) l[u][r] = l[u][r] + shuffle_xor(l[u][r], h);
            const int row = first_own + 16 * u + lane() / 4 + 8 * r;
            if (row >= rows) continue;
            const int64_t token = token_of(row);
            const int head = head_of_row(row);
            const float share = 1.0f / l[u][r];
#pragma unroll
            for (int i = 0; i < C; i++) {
                const int d = 8 * i + lane() % 4 * 2, column = head * dim + d;
                if (d >= dim) continue;
                const float y[2] = {acc[u][i][2 * r] * share, acc[u][i][2 * r + 1] * share};
                if (!all.halved) *reinterpret_cast<float2*>(a.out + token * width + column) = {y[0], y[1]};
                else if (of == ORDERED_F16) *reinterpret_cast<uint32_t*>(reinterpret_cast<uint16_t*>(a.out) + float_at(token, column, room)) = uint32_t(float_to_half(y[0])) | uint32_t(float_to_half(y[1])) << 16;
                else
#pragma unroll
                    for (int e = 0; e < 2; e++) store_halved(a.out, all.halved, token, column + e, y[e]);
            }
            if (all.halved && head == a.heads - 1)
                for (int column = width + lane() % 4; column < all.columns; column += 4) store_halved(a.out, all.halved, token, column, 0.0f);
            const int64_t at = token * a.heads + head;
            if (a.state && lane() % 4 == 0) a.state[2 * at] = m[u][r] * a.mask.scale, a.state[2 * at + 1] = l[u][r];
        }
}

CROWDED(attend_patches_64, TensorAttentionArgs, 256, 2) { attend_patches<64, 1>(a); }
CROWDED(attend_patches_80, TensorAttentionArgs, 256, 2) { attend_patches<80, 1>(a); }
CROWDED(attend_patches_96, TensorAttentionArgs, 256, 2) { attend_patches<96, 1>(a); }
CROWDED(attend_patches_128, TensorAttentionArgs, 256, 1) { attend_patches<128, 1>(a); }

}  // namespace assay
