// Steps of a walk of two to eight tokens (walk_few.cu): x is normed and quantised once for all thread blocks, and
// products use `mma`.
//
// The arithmetic is that of docs/reference/arithmetic.md. Eight tokens are the columns of a 16 x 8 x 32 fragment; rows of x past
// the last token are zeros. Integer sums are exact, and the float chain follows each. A partial sum of 256 columns goes
// to shared memory, and one thread adds those of a result in order. Memory-bound at 7B; at TinyLlama's shape bound by
// the latency from block to block (docs/lab/gpu-measured.md).
#pragma once
#include "gemm.h"
#include "walk_attention.h"
#include "walk_products.h"

namespace assay {

// ---- x -------------------------------------------------------------------------------------------------------------
// N vectors of 16 bytes, `step` bytes apart, some of which are needed. All missing vectors are polled together.
template <int N, class Is>
DEVICE void await_vectors(const void* first, int step, bool fresh, uint4 (&v)[N], Is&& is) {
    const uint8_t* const from = static_cast<const uint8_t*>(first);
    bool wanted[N];
#pragma unroll
    for (int k = 0; k < N; k++) wanted[k] = is(k), v[k] = {};
    Patience patience;
    for (;; patience.lose()) {
#pragma unroll
        for (int k = 0; k < N; k++)
            if (wanted[k]) v[k] = load_fresh4(from + k * step);
        bool more = false;
#pragma unroll
        for (int k = 0; k < N; k++) wanted[k] = wanted[k] && fresh && !there(v[k]), more |= wanted[k];
        if (!more) return;
    }
}

// A warp quantises and publishes 256 columns of a row, eight a lane. Readers spin-wait for the words to differ from
// kNotYet. If x is taken in parts, they wait for a counter of finished rows instead, which is stored behind all units.
// The counter is one less than the rows, because clearing memory sets it to -1.
DEVICE void leave_unit(uint8_t* to, int row, int unit, const float (&y)[8], int* counted) {
    const EightCodes of = codes_of(y);
    const int column = 256 * unit + 8 * lane();
    const uint32_t turned = counted ? 0 : kCodes;
    store_fresh(code_at(to, row, column), of.low ^ turned);
    store_fresh(code_at(to, row, column + 4), of.high ^ turned);
    if (lane() % 4 < 2) store_fresh(scale_at(to, row, column) + lane() % 4, lane() % 4 ? of.ds.y : of.ds.x);
    if (!counted) return;
    fence();
    sync_warp();
    if (lane() == 0) fetch_add(counted + unit, 1);
}

// The same for values that are gated first. A loop keeps one copy of the gate's code.
OUTLINED void leave_gated_unit(const WalkStep& step, int row, int unit, uint8_t* to, int* counted) {
    const ProductArgs& p = step.product;
    const int columns = p.columns, at = 256 * unit + 8 * lane(), act = p.parts[0].act;
    const bool split = p.parts[0].paired == SPLIT;
    const float* const x = p.x + int64_t(row) * (split ? 2 * columns : columns) + at;
    uint4 v[2], u[2];
    await_vectors(x, 16, step.fresh & AWAIT_X, v, [&](int) { return at < columns; });
    await_vectors(x + columns, 16, step.fresh & AWAIT_X, u, [&](int) { return split && at < columns; });
    sync_warp();
    float y[8] = {as_float(v[0].x), as_float(v[0].y), as_float(v[0].z), as_float(v[0].w), as_float(v[1].x), as_float(v[1].y), as_float(v[1].z), as_float(v[1].w)};
    float z[8] = {as_float(u[0].x), as_float(u[0].y), as_float(u[0].z), as_float(u[0].w), as_float(u[1].x), as_float(u[1].y), as_float(u[1].z), as_float(u[1].w)};
#pragma unroll 1
    for (int k = 0; k < 8; k++) {
        float next = gate(act, y[0]);
        if (split) next = next * z[0];
#pragma unroll
        for (int i = 0; i < 7; i++) y[i] = y[i + 1], z[i] = z[i + 1];
        y[7] = next;
    }
    leave_unit(to, row, unit, y, counted);
}

// Quantise rows for all blocks that multiply them. With a norm, a thread block has a row, sums its squares, and shares
// its columns with the other blocks of that row. Without one, a warp has 256 columns of a row.
template <bool MORE>
DEVICE void quantise_rows_step(const WalkStep& step, uint8_t* work) {
    OWN_THREAD(true);
    const ProductArgs& p = step.product;
    const bool fresh = step.fresh & AWAIT_X;
    const int units = p.parts[0].w.units, columns = p.columns, rows = p.tokens, me = block_of(step);
    const int warp = thread() / 32, warps = team() / 32;
    uint8_t* const to = reinterpret_cast<uint8_t*>(p.parts[0].out);
    int* const counted = step.fresh & COUNTED ? reinterpret_cast<int*>(to + units * kWalkUnitBytes) : nullptr;
    if (!p.norm) {
#pragma unroll 1
        for (int i = warp * grid_x() + me; i < units * rows; i += warps * grid_x()) {
            const int unit = i / rows, row = i - unit * rows, at = 256 * unit + 8 * lane();
            if constexpr (MORE)
                if (p.parts[0].paired != AS_IT_IS) {
                    leave_gated_unit(step, row, unit, to, counted);
                    continue;
                }
            uint4 v[2];
            await_vectors(p.x + int64_t(row) * columns + at, 16, fresh, v, [&](int) { return at < columns; });
            sync_warp();
            leave_unit(to, row, unit, {as_float(v[0].x), as_float(v[0].y), as_float(v[0].z), as_float(v[0].w), as_float(v[1].x),
                                       as_float(v[1].y), as_float(v[1].z), as_float(v[1].w)}, counted);
        }
        return;
    }
    // rows at a time, and thread blocks of each
    const int at_once = int(grid_x()) < rows ? grid_x() : rows, share = grid_x() / at_once;
    float* const factor = reinterpret_cast<float*>(work);
    float* const copy = factor + 4;
    if (me >= at_once * share) return;
#pragma unroll 1
    for (int row = me % at_once; row < rows; row += at_once) {
        const int first = me / at_once + share * warp;  // unit
        if (first - share * warp >= units) return;
        float w[8] = {};
        if (first < units && 256 * first + 8 * lane() < columns) load_eight(p.norm + 256 * first + 8 * lane(), w);
        const Divisor count{float(columns)};
        const float eps = p.eps;
        const float* const x = p.x + int64_t(row) * columns;
        if (row >= at_once) sync_team();  // other warps still read the row before
#pragma unroll 1
        for (int i = thread(); 4 * i < columns; i += 4 * team()) {
            uint4 v[4];
            const auto is = [&](int k) { return 4 * (i + k * team()) < columns; };
            await_vectors(x + 4 * i, 16 * team(), fresh, v, is);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (is(k)) reinterpret_cast<uint4*>(copy)[i + k * team()] = v[k];
        }
        sync_team();
        if (warp == 0) leave_factor(sum_of_squares(copy, columns), count, eps, factor);
        sync_team();
#pragma unroll 1
        for (int unit = first; unit < units; unit += share * warps) {
            const int at = 256 * unit + 8 * lane();
            float y[8] = {};
            if (at < columns) {
                if (unit != first) load_eight(p.norm + at, w);
                load_eight(copy + at, y);
                const float f = *factor;
#pragma unroll
                for (int k = 0; k < 8; k++) y[k] = (y[k] * f) * w[k];
            }
            sync_warp();
            leave_unit(to, row, unit, y, counted);
        }
    }
}

template <bool MORE>
DEVICE void row_step_of(const WalkStep& step, uint8_t* work) {
    if constexpr (MORE)
        if (step.kind == NORM) return norm_step<true>(step, work);
    quantise_rows_step<MORE>(step, work);
}

// Copy x into shared memory, unchanged. Rows past the last token are never written, so zeros take their place.
DEVICE void take_rows(const WalkStep& step, int units, uint4* x) {
    OWN_THREAD(true);
    const uint4* const from = reinterpret_cast<const uint4*>(step.product.x);
    const int vectors = units * (kWalkUnitBytes / 16), tokens = step.product.tokens;
#pragma unroll 1
    for (int i = thread(); i < vectors; i += 4 * team()) {
        uint4 v[4];
        const auto codes = [&](int k) { return (i + k * team()) % (kWalkUnitBytes / 16) < kWalkCodeBytes / 16; };
        // the same in all four rounds: the number of threads is a multiple of 32
        const int row = (i & 31) >> 2, pair = (i & 3) * 2;
        const auto is = [&](int k) { return i + k * team() < vectors && (codes(k) ? row : pair) < tokens; };
        await_vectors(from + i, 16 * team(), step.fresh & AWAIT_X, v, is);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (codes(k)) v[k] = {v[k].x ^ kCodes, v[k].y ^ kCodes, v[k].z ^ kCodes, v[k].w ^ kCodes};
            if (i + k * team() < vectors) x[i + k * team()] = v[k];
        }
    }
}

// Parts of x, double-buffered in shared memory. A producer warp of its own fills them and the consumer warps read them;
// both count parts from the start of the kernel. A part is copied when all quantising warps have published it and all
// consumer warps have left the buffer.
struct Parts {
    Arrival* first = nullptr;
    int count = 0;
    DEVICE Arrival* here() const { return first + count % 2; }
    DEVICE Arrival* room() const { return first + 2 + count % 2; }
    DEVICE int phase() const { return count / 2 & 1; }
    DEVICE void make() const { make_places(first, 2), make_places(first + 2, 2, team() / 32 * kLeavers); }
};
DEVICE void bring_parts(const WalkStep& step, Parts& parts, uint8_t* work) {
    const ProductArgs& p = step.product;
    const int units = p.parts[0].w.units, some = p.stages;
    if (some >= units || !Share(step).groups) return;
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(p.x);
    const int* const counted = reinterpret_cast<const int*>(from + units * kWalkUnitBytes);
#pragma unroll 1
    for (int u0 = 0; u0 < units; u0 += some, parts.count++) {
        const int here = units - u0 < some ? units - u0 : some;
        piece_here(parts.room(), parts.phase());
        const bool mine = lane() < here && step.fresh & AWAIT_X;
        Patience patience;
        while (any_lane(mine && load_acquire(counted + u0 + lane()) < p.tokens - 1)) patience.lose();
        sync_warp();  // all lanes have seen the counter before one lane starts the copy
        copies_may_begin();
        copy_strips(work + parts.count % 2 * some * kWalkUnitBytes, from + u0 * kWalkUnitBytes, here * kWalkUnitBytes, 1, 0, parts.here());
    }
}

// ---- products ------------------------------------------------------------------------------------------------------
// A row of a tile: this lane's words of a block's codes and its scales in registers, the rest in shared memory.
template <class L>
struct TileRow {
    const uint8_t* rest;
    uint4 scales = {}, minima = {};
    uint2 high = {};  // high bits of a block of N6
    uint32_t super = 0, own[2] = {};
    int first = 0;  // chunk of the lane's words
    DEVICE TileRow(const uint8_t* rest, int item) : rest(rest + item * 16) {
        const uint4* const at = reinterpret_cast<const uint4*>(this->rest);
        if constexpr (L::scales_kind != FLOATS) scales = at[L::codes * 32];
        if constexpr (L::scales_kind == HALVES && L::min) minima = at[(L::codes + 1) * 32];
        if constexpr (L::word) super = reinterpret_cast<const uint32_t*>(rest + L::chunks * 512)[item];
    }
    DEVICE uint32_t operator()(int c, int w) const {
        if (c < (L::kind == N8 ? 16 : 8)) return own[c - first];
        if (L::kind == N6 && c < 12) return w % 2 ? high.y : high.x;
        if (L::scales_kind != FLOATS && c >= L::codes) return Half<L>::word(c == L::codes ? scales : minima, w);
        return *reinterpret_cast<const uint32_t*>(rest + c * 512 + w * 4);
    }
};

// 16 rows of a tile, from item `base` on, times 256 columns of x: rows g and g + 8, tokens 2 t and 2 t + 1. `rest`:
// base of the tile's chunks from the eighth on, minus their offset.
template <class L>
DEVICE void multiply_rows(const uint8_t* tile, const uint8_t* rest, int base, const uint4* x, float (&part)[4]) {
    const int g = lane() / 4, t = lane() % 4;
    TileRow<L> rows[2] = {{rest, base + g}, {rest, base + g + 8}};
    const float4* const scales = reinterpret_cast<const float4*>(x + kWalkCodeBytes / 16) + t;
    const uint32_t mine = (lane() / 16) * 512 + (base + lane() % 16) * 16;
    constexpr bool wide = L::kind == N8;  // two chunks a block
    constexpr bool by_four = L::kind == N6;  // codes are multiplied by four
#pragma unroll
    for (int e = 0; e < 4; e++) part[e] = 0.0f;
#pragma unroll
    for (int first = 0; first < 8; first += 2) {  // two blocks
        uint32_t codes[wide ? 2 : 1][4];
#pragma unroll
        for (int k = 0; k < (wide ? 2 : 1); k++) {
            const int chunk = wide ? 2 * (first + k) : first;
            load_matrices(codes[k], (chunk < 8 ? tile : rest) + chunk * 512 + mine);
        }
        const uint4 b = x[first / 2 * 32 + lane()];
        const float4 s[2] = {scales[first * 4], scales[first * 4 + 4]};
        int sums[2][4], more[L::sub16 ? 2 : 1][4];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t a[4];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                rows[r].first = wide ? 2 * (first + k) : first + k;
                rows[r].own[0] = codes[wide ? k : 0][wide ? r : 2 * k + r], rows[r].own[1] = codes[wide ? k : 0][2 + r];
                if constexpr (by_four) rows[r].high = *reinterpret_cast<const uint2*>(rows[r].rest + (8 + first / 2) * 512 + k * 8);
                if constexpr (by_four) L::words_by_four(rows[r], first + k, t, a[r], a[2 + r]);
                else L::signed_words(rows[r], first + k, t, a[r], a[2 + r]);
            }
            const uint32_t b0 = k ? b.z : b.x, b1 = k ? b.w : b.y;
            if constexpr (L::sub16) {
                mma_k16(sums[k], a[0], a[1], b0, int(kMagicBits));
                mma_k16(more[k], a[2], a[3], b1, int(kMagicBits));
            } else {
                mma_k32(sums[k], a, b0, b1, int(kMagicBits));
            }
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            typename L::Values f[2];
#pragma unroll
            for (int r = 0; r < 2; r++) f[r] = L::factors(rows[r], rows[r].super, first + k, by_four ? 0.25f : 1.0f);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const typename L::Values& v = f[e / 2];
                float y = fma(as_float(uint32_t(sums[k][e])), v.d[0], -kMagic * v.d[0]);
                if constexpr (L::sub16) y = fma(as_float(uint32_t(more[k][e])) - kMagic, v.d[1], y);
                part[e] = fma(y, e % 2 ? s[k].z : s[k].x, part[e]);
                if constexpr (L::min) part[e] = fma(v.m[0], e % 2 ? s[k].w : s[k].y, part[e]);
            }
        }
    }
}

// A thread block takes `slots` of its groups of rows at a time, and `stages` units of x at a time. Either all units
// fit, or all groups are taken together while the next part of x is prefetched (bring_parts). A thread has one result:
// row (i & 7) | i >> 6 << 3, token i >> 3 & 7.
template <class A, class B>
DEVICE int multiply_rows_step(const WalkStep& step, Ring ring, Parts& parts, uint8_t* work) {
    OWN_THREAD(true);
    const ProductArgs& p = step.product;
    const Share my(step);
    if (!my.groups) return 0;
    const int units = p.parts[0].w.units, some = p.stages, batch = p.slots, shift = p.shift, warp = thread() / 32, warps = team() / 32;
    const int cut = step.fresh & SPLIT_TILE ? 1 : 0;
    const bool paired = p.parts[0].paired;
    const int row_shift = paired ? shift - 1 : shift, in_group = 1 << row_shift;
    const bool in_parts = some < units;
    uint4* const x = reinterpret_cast<uint4*>(work);
    float* const sums = reinterpret_cast<float*>(x + (in_parts ? 2 * some : some) * (kWalkUnitBytes / 16));  // [units][rows][tokens]
    const int my_row = (thread() & 7) | thread() >> 6 << 3, token = thread() >> 3 & 7;
    int next = warp, before = 0;  // the warp's next tile; tiles of earlier rounds
    ring.skip(warp << cut);
    if (in_parts) leave_place(parts.first + 2), leave_place(parts.first + 3);
#pragma unroll 1
    for (int g0 = 0; g0 < my.groups; g0 += batch) {
        const int groups = my.groups - g0 < batch ? my.groups - g0 : batch, rows = groups << shift;
        // Look up a row's epilogue before x arrives.
        float *out = nullptr, residual = -0.0f, bias = -0.0f;
        const float* residual_at = nullptr;
        if (my_row < groups << row_shift && token < p.tokens) {
            int at = ((my.begin + g0) << row_shift) + my_row;
            const Product* of = p.parts;
#pragma unroll 1
            while (of + 1 < p.parts + p.n_parts && at >= of[1].first_group << row_shift) of++;
            at -= of->first_group << row_shift;
            if (at < of->w.rows) {
                const int64_t place = int64_t(token) * of->out_stride + at;
                out = of->out + place;
                if (of->residual) residual_at = of->residual + place, residual = load_fresh(residual_at);
                if (of->bias) bias = of->bias[at];
            }
        }
        const int from = (((my_row >> row_shift) << shift) + (my_row & (in_group - 1))) * kWalkRows + token;
        float y = -0.0f, up = -0.0f;
#pragma unroll 1
        for (int u0 = 0; u0 < units; u0 += some) {
            const int here = units - u0 < some ? units - u0 : some, tiles = ((here << shift) + 31) >> 5;
            const uint4* const part_of_x = x + (in_parts ? parts.count % 2 * some * (kWalkUnitBytes / 16) : 0);
            if (in_parts) piece_here(parts.here(), parts.phase());
            else if (!g0) take_rows(step, units, x);
            sync_team();  // the threads that add sums of the turn before are done
#pragma unroll 1
            for (; next < before + groups * tiles; next += warps) {
                int group = 0, tile = next - before;
#pragma unroll 1
                for (; tile >= tiles; tile -= tiles) group++;
                const uint8_t* const piece = ring.take(cut);
                const uint8_t* rest = piece;
                if (cut) {
                    Ring then = ring;
                    then.skip(1);
                    rest = then.take(true) - kCutBytes;
                }
#pragma unroll 1
                for (int half = 0; half < 32; half += 16) {
                    const int item = tile * 32 + half, unit = item >> shift, row = (group << shift) + (item & ((1 << shift) - 1)) + lane() / 4;
                    if (unit >= here) break;
                    float part[4];
                    const uint4* const of = part_of_x + unit * (kWalkUnitBytes / 16);
                    if (A::number == B::number || my.begin + g0 + group < step.second) multiply_rows<A>(piece, rest, half, of, part);
                    else multiply_rows<B>(piece, rest, half, of, part);
                    float* const to = sums + (unit * rows + row) * kWalkRows + lane() % 4 * 2;
                    *reinterpret_cast<float2*>(to) = {part[0], part[1]};
                    *reinterpret_cast<float2*>(to + 8 * kWalkRows) = {part[2], part[3]};
                }
                if (cut) ring.leave(1);
                ring.leave((warps << cut) - cut);
            }
            before += groups * tiles;
            sync_team();
            if (in_parts) {
                if (u0 + 2 * some < units) leave_place(parts.room());
                parts.count++;
            }
            if (out) {
                // eight loads in flight; values past the last one change nothing
                const auto add = [&](const float* at, float sum) {
#pragma unroll 1
                    for (int u = 0; u < here; u += 8, at += 8 * rows * kWalkRows) {
                        float v[8];
#pragma unroll
                        for (int k = 0; k < 8; k++) v[k] = u + k < here ? at[k * rows * kWalkRows] : -0.0f;
#pragma unroll
                        for (int k = 0; k < 8; k++) sum = sum + v[k];
                    }
                    return sum;
                };
                y = add(sums + from, y);
                if (paired) up = add(sums + from + in_group * kWalkRows, up);
            }
        }
        if (!out) continue;
        if (paired) {
            const int act = p.parts[0].act;
            const float size = as_float(bits(y) & 0x7fffffffu);
            if (act == SILU && size < 0x1p+6f && size > 0x1p-60f) y = divide_near(y, 1.0f + exponential(-y)) * up;
            else y = gate(act, y) * up;
        }
        if (bits(residual) == kNotYet && residual_at) residual = await(residual_at, step.fresh & AWAIT_RESIDUAL);
        store_fresh(out, (y + bias) + residual);
    }
    return before << cut;
}

// ---- what the producer warp fetches --------------------------------------------------------------------------------
// Tiles in their order of use: if x is taken in parts, those of one part for all groups, then those of the next.
template <class A, class B>
DEVICE void fetch_parts(const WalkStep& step, Fetch<false>& fetch) {
    const ProductArgs& p = step.product;
    const Matrix& w = p.parts[0].w;
    if (p.stages >= w.units) return fetch_weights<A, B>(step, fetch);
    const Share my(step);
    const int cut = step.fresh & SPLIT_TILE ? 1 : 0, rest = cut & lane(), each = p.stages << p.shift >> 5;
    const int tile = w.tile_bytes, bytes = rest ? tile - kCutBytes : cut ? kCutBytes : tile, stride = (kAtOnce >> cut) * tile;
#pragma unroll 1
    for (int t = 0; t < my.tiles; t += each)
#pragma unroll 1
        for (int g = 0; g < my.groups; g++) {
            const int count = my.tiles - t < each ? my.tiles - t : each;
            const uint8_t* from = w.data + int64_t((my.begin + g) * my.tiles + t + (lane() >> cut)) * tile + rest * kCutBytes;
#pragma unroll 1
            for (int left = count << cut; left > 0; left -= kAtOnce, from += stride) fetch(from, bytes, left < kAtOnce ? left : kAtOnce);
        }
}

}  // namespace assay
