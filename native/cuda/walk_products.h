// The products of a walk (walk.cu): x, normed and quantised by every block for itself, then a tile of weights a warp.
#pragma once
#include "walk.h"

namespace assay {

// 1 / sqrt(mean x^2 + eps), by a warp, into shared memory; x too is there.
DEVICE void leave_factor(const float* x, int n, float eps, float* to) {
    const float squares = sum_of_squares(x, n);
    const bool near = squares > 0x1p-50f && squares < 0x1p+60f && eps < 1.0f;  // of lane 0; then root is, too
    float mean = near ? divide_near(squares, float(n)) : 1.0f;
    if (!near) mean = squares / float(n);
    const float root = square_root(mean + eps);
    float factor = near ? divide_near(1.0f, root) : 1.0f;
    if (!near) factor = 1.0f / root;
    if (lane() == 0) *to = factor;
}

// x of a step, normed and quantised, into shared memory; a warp takes 256 columns, and 256 more on the way with them.
// `scratch`: room for 4 floats and x, with a norm also for its weights; without one for 256 floats a warp in the place of x.
DEVICE void take_codes(const WalkStep& step, int units, int8_t* q, float2* ds, uint32_t* n, float* scratch) {
    const ProductArgs& p = step.product;
    const bool fresh = step.fresh & X_IS;
    const uint8_t* const source = copy_of(step, p.x);
    const int warp = thread() / 32, warps = team() / 32;
    if (step.fresh & AS_CODES) {
#pragma unroll 1
        for (int i = thread(); i < units * 24; i += team()) {
            const int block = i / 3, which = i - 3 * block;
            uint4 v;
            Patience patience;
            const uint4* const from = reinterpret_cast<const uint4*>(source) + i;
            for (v = load_fresh4(from); fresh && !there(v); v = load_fresh4(from)) patience.lose();
            if (which < 2) reinterpret_cast<uint4*>(q)[2 * block + which] = {v.x ^ kCodes, v.y ^ kCodes, v.z ^ kCodes, v.w ^ kCodes};
            else ds[block] = {as_float(v.x), as_float(v.y)}, n[block] = v.z ^ kSums;
        }
        return sync_team();
    }
    const int columns = p.columns;
    const bool normed = p.norm;
    const float eps = p.eps;
    float *const copy = scratch + 4, *const weights = copy + columns;
    if (normed) {
        const float* const norm = p.norm;
#pragma unroll 1
        for (int i = 256 * warp + 4 * lane(); i < columns; i += 8 * team()) {
            copy_async(weights + i, norm + i);
            if (i + 128 < columns) copy_async(weights + i + 128, norm + i + 128);
        }
        copy_group();
    }
    float f = 0.0f;
    bool told = !normed;
    const auto quantise_unit = [&](int unit, const float* x) {
        const int at = 256 * unit + 8 * lane();
        float v[8] = {}, w[8] = {};
        if (at < columns) {
            load_eight(x + 8 * lane(), v);
            if (normed) load_eight(weights + at, w);
        }
        if (!told) sync_team(), f = *scratch, told = true;
        if (normed)
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = (v[k] * f) * w[k];
        quantise_eight(v, at / 8, q, ds, n);
    };
#pragma unroll 1
    for (int first = warp; first < units; first += 2 * warps) {
        // Neighbouring lanes have neighbouring vectors, four of them on their way.
        uint4 v[4];
        bool wanted[4];
        const float* const from = reinterpret_cast<const float*>(source) + 256 * first + 4 * lane();
        const int left = columns - 256 * first - 4 * lane();
        const auto place = [&](int k) { return 256 * (k / 2) * warps + 128 * (k % 2); };
#pragma unroll
        for (int k = 0; k < 4; k++) wanted[k] = place(k) < left;
        Patience patience;
        for (;; patience.lose()) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (wanted[k]) v[k] = load_fresh4(from + place(k));
            bool more = false;
#pragma unroll
            for (int k = 0; k < 4; k++) wanted[k] = wanted[k] && fresh && !there(v[k]), more |= wanted[k];
            if (!more) break;
        }
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            const int unit = first + i * warps;
            if (unit >= units) break;
            float* const to = copy + (normed ? unit : warp) * 256;
            uint4 *const at = reinterpret_cast<uint4*>(to) + lane();
            if (4 * lane() < columns - 256 * unit) at[0] = i ? v[2] : v[0];
            if (4 * lane() + 128 < columns - 256 * unit) at[32] = i ? v[3] : v[1];
            sync_warp();
            if (!normed) quantise_unit(unit, to), sync_warp();
        }
    }
    if (normed) {
        // Who has stored goes on to its own part of x; the last warp waits for all of it.
        copies_done<0>();
        sync_warp();
        if (warp + 1 < warps) arrive_some(2, team());
        else sync_some(2, team()), leave_factor(copy, columns, eps, scratch);
#pragma unroll 1
        for (int unit = warp; unit < units; unit += warps) quantise_unit(unit, copy + 256 * unit);
        if (!told) sync_team();
    }
    sync_team();
}

DEVICE void take_floats(const WalkStep& step, int stride, float* row) {
    const ProductArgs& p = step.product;
    const bool fresh = step.fresh & X_IS;
    const float* const source = reinterpret_cast<const float*>(copy_of(step, p.x));
    if (p.columns % 8 == 0) {
#pragma unroll 1
        for (int i = thread(); i < p.columns / 8; i += team()) {
            Eight x;
            x.ask(source + 8 * i);
            x.await(source + 8 * i, fresh);
            reinterpret_cast<uint4*>(row)[2 * i] = x.a, reinterpret_cast<uint4*>(row)[2 * i + 1] = x.b;
        }
    } else {
        for (int i = thread(); i < p.columns; i += team()) row[i] = await(source + i, fresh);
    }
    for (int i = p.columns + thread(); i < stride; i += team()) row[i] = 0.0f;
    if (p.norm) {
        sync_team();
        if (thread() < 32) leave_factor(row, p.columns, p.eps, row - 4);
        sync_team();
        const float f = row[-4];
        for (int i = thread(); i < p.columns; i += team()) row[i] = (row[i] * f) * p.norm[i];
    }
    sync_team();
}

template <class A, class B>
DEVICE int multiply_step(const WalkStep& step, Ring ring, uint8_t* work) {
    const ProductArgs& p = step.product;
    const Share my(p);
    if (!my.groups) return 0;
    const Matrix& shape = p.parts[0].w;
    const int units = shape.units, stride = units * 256, tiles = my.groups * my.tiles, warp = thread() / 32, warps = team() / 32;
    float* const row = reinterpret_cast<float*>(work) + 4;
    int8_t* const q = reinterpret_cast<int8_t*>(row);
    float2* const ds = reinterpret_cast<float2*>(q + stride);
    uint32_t* const n = reinterpret_cast<uint32_t*>(ds + stride / 32);
    float* const sums = row + (A::floats ? stride : stride / 32 * 11);
    const bool paired = p.parts[0].paired;
    const int row_shift = paired ? p.shift - 1 : p.shift, rows = 1 << row_shift, all = my.groups << row_shift;
    // What follows the sum of a row is looked up before x is there. Each copy of the result has threads of its own.
    const Product* of = p.parts;
    float *out = nullptr, residual = 0.0f, bias = 0.0f;
    const float* residual_at = nullptr;
    int mine = 0;
    const auto look = [&](int i) {
        int copy = 0;
#pragma unroll 1
        for (mine = i; mine >= all; mine -= all) copy++;
        int at_row = (my.begin << row_shift) + mine;
#pragma unroll 1
        for (of = p.parts; of + 1 < p.parts + p.n_parts && at_row >= of[1].first_group << row_shift;) of++;
        at_row -= of->first_group << row_shift;
        out = at_row < of->w.rows ? of->out + copy * (step.out_bytes / 4) + at_row : nullptr;
        residual_at = out && of->residual ? of->residual + at_row : nullptr;
        if (out && of->bias) bias = of->bias[at_row];
        if (residual_at) residual = load_fresh(residual_at);
    };
    const int threads_of = all * step.out_copies;
    if (thread() < threads_of) look(thread());
    // So is a warp's first tile.
    int tile = warp, group = my.begin, unit = 0;
    const Product* with = p.parts;
    const uint8_t* piece = nullptr;
    bool is_first = true;
    const auto next_tile = [&] {
#pragma unroll 1
        for (; tile >= my.tiles; tile -= my.tiles) group++;
        const int whole = (tile * 32 + lane()) >> p.shift;
        unit = whole < units ? whole : units - 1;
        if constexpr (A::number != B::number) {
#pragma unroll 1
            while (with + 1 < p.parts + p.n_parts && group >= with[1].first_group) with++;
            is_first = with->w.format == A::number;
        }
        piece = ring.take();
    };
    ring.skip(warp);
    if (warp < tiles) next_tile();
    if constexpr (A::floats) take_floats(step, stride, row);
    else take_codes(step, units, q, ds, n, sums);
#pragma unroll 1
    for (int at = warp; at < tiles; at += warps) {
        float part;
        if constexpr (A::floats) {
            float even = 0.0f, odd = 0.0f;
#pragma unroll 1
            for (int i = 0; i < A::pieces; i++) {
                multiply_floats<A::number>(ring.take(), row + unit * 256 + i * (256 / A::pieces), even, odd);
                const int round = tiles - at + warp < warps ? tiles - at + warp : warps;  // tiles of this turn
                ring.leave(i + 1 < A::pieces ? round : warps);
            }
            part = even + odd;
        } else {
            if (is_first) part = multiply<A>(piece, q + unit * 256, ds + unit * 8, n + unit * 8);
            else part = multiply<B>(piece, q + unit * 256, ds + unit * 8, n + unit * 8);
            ring.leave(warps);
        }
        sums[at * 32 + lane()] = part;
        tile += warps;
        if (at + warps < tiles) next_tile();
    }
    const int pair = paired ? rows : 0, group_rows = 1 << p.shift;
    sync_team();
#pragma unroll 1
    for (int i = thread(); i < threads_of; i += team()) {
        if (i != thread()) look(i);
        const float* from = sums + (mine >> row_shift) * my.tiles * 32 + (mine & (rows - 1));
        float y = from[0], up = from[pair];
#pragma unroll 1
        for (int left = units - 1; left > 0; left -= 8) {
            float a[8], b[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                a[k] = b[k] = -0.0f;  // what changes no sum
                if (k < left) from += group_rows, a[k] = from[0], b[k] = from[pair];
            }
#pragma unroll
            for (int k = 0; k < 8; k++) y = y + a[k], up = up + b[k];
        }
        if (!out) continue;
        if (paired) {
            const float size = as_float(bits(y) & 0x7fffffffu);
            if (of->act == SILU && size < 0x1p+6f && size > 0x1p-60f) y = divide_near(y, 1.0f + exponential(-y)) * up;
            else y = gate(of->act, y) * up;
        }
        if (of->bias) y = y + bias;
        if (residual_at) {
            if (bits(residual) == kNotYet) residual = await(residual_at, step.fresh & RESIDUAL_IS);
            y = y + residual;
        }
        store_fresh(out, y);
    }
    return tiles * A::pieces;
}

// A row that is too long for every block to quantise: 32 values a warp.
DEVICE void quantise_step(const WalkStep& step) {
    const ProductArgs& p = step.product;
#pragma unroll 1
    for (int i = thread() / 32 * grid_x() + block_x(); i < p.parts[0].w.units * 8; i += team() / 32 * grid_x()) {
        const int at = 32 * i + lane();
        leave_codes(reinterpret_cast<uint8_t*>(p.parts[0].out) + 48 * i, at < p.columns ? await(p.x + at, step.fresh & X_IS) : 0.0f);
    }
}

}  // namespace assay
