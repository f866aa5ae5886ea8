// The products of a walk (walk.cu): x, normed and quantised by every block for itself, then a tile of weights a warp.
#pragma once
#include "walk.h"

namespace assay {

// 1 / sqrt(mean x^2 + eps), for the team; x in shared memory, written by all of it.
DEVICE float factor_of(const float* x, int n, float eps, float* room) {
    sync_team();
    if (thread() < 32) {
        const float squares = sum_of_squares(x, n);
        const bool power = (n & (n - 1)) == 0;  // then the reciprocal is exact
        const float mean = power ? squares * as_float(0x7f000000u - bits(float(n))) : squares / float(n);
        const float root = square_root(mean + eps);
        if (thread() == 0) *room = root > 0x1p-60f && root < 0x1p+60f ? divide_near(1.0f, root) : 1.0f / root;
    }
    sync_team();
    return *room;
}

// x of a step, normed and quantised, into shared memory. `scratch`: room for 4 + 2 columns floats, of a norm.
DEVICE void take_codes(const WalkStep& step, int stride, int8_t* q, float2* ds, uint32_t* n, float* scratch) {
    const ProductArgs& p = step.product;
    const int fresh = step.fresh;
    const uint8_t* const source = copy_of(step, p.x);
    const int chunks = stride / 8, all = p.columns / 8;
    if (fresh & AS_CODES) {
#pragma unroll 1
        for (int i = thread(); i < stride / 32 * 3; i += team()) {
            const int block = i / 3, which = i - 3 * block;
            uint4 v;
            Patience patience;
            const uint4* const from = reinterpret_cast<const uint4*>(source) + i;
            for (v = load_fresh4(from); (fresh & X_IS) && !there(v); v = load_fresh4(from)) patience.lose();
            if (which < 2) reinterpret_cast<uint4*>(q)[2 * block + which] = {v.x ^ kCodes, v.y ^ kCodes, v.z ^ kCodes, v.w ^ kCodes};
            else ds[block] = {as_float(v.x), as_float(v.y)}, n[block] = v.z ^ kSums;
        }
        return sync_team();
    }
    float *const copy = scratch + 4, *const weights = copy + p.columns;
    float f = 0.0f;
    if (p.norm) {
#pragma unroll 1
        for (int i = thread(); i < all; i += team()) {
            copy_async(weights + 8 * i, p.norm + 8 * i);
            copy_async(weights + 8 * i + 4, p.norm + 8 * i + 4);
        }
        copy_group();
    }
    Eight two[2] = {};
    const auto ask = [&](int i) {
        const float *const x = reinterpret_cast<const float*>(source) + 8 * i, *const y = x + 8 * team();
        const bool both = i + team() < all;
        two[0].ask(x);
        if (both) two[1].ask(y);
        two[0].await(x, fresh & X_IS);
        if (both) two[1].await(y, fresh & X_IS);
    };
    if (p.norm) {
        uint4* const to = reinterpret_cast<uint4*>(copy);
#pragma unroll 1
        for (int i = thread(); i < all; i += 2 * team()) {
            const int j = i + team();
            ask(i);
            to[2 * i] = two[0].a, to[2 * i + 1] = two[0].b;
            if (j < all) to[2 * j] = two[1].a, to[2 * j + 1] = two[1].b;
        }
        copies_done<0>();
        f = factor_of(copy, p.columns, p.eps, scratch);
    }
#pragma unroll 1
    for (int i = thread(); i < chunks; i += 2 * team()) {  // whole warps: the stride is a multiple of 256
        const int j = i + team();
        if (!p.norm && i < all) ask(i);
#pragma unroll 1
        for (int at = i; at < chunks && at <= j; at += team()) {
            float v[8] = {};
            if (at < all) {
                if (p.norm) {
                    float w[8];
                    load_eight(copy + 8 * at, v), load_eight(weights + 8 * at, w);
#pragma unroll
                    for (int k = 0; k < 8; k++) v[k] = (v[k] * f) * w[k];
                } else {
                    const uint4 x = at == j ? two[1].a : two[0].a, y = at == j ? two[1].b : two[0].b;
                    v[0] = as_float(x.x), v[1] = as_float(x.y), v[2] = as_float(x.z), v[3] = as_float(x.w);
                    v[4] = as_float(y.x), v[5] = as_float(y.y), v[6] = as_float(y.z), v[7] = as_float(y.w);
                }
            }
            quantise_eight(v, at, q, ds, n);
        }
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
        const float f = factor_of(row, p.columns, p.eps, row - 4);
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
    if constexpr (A::floats) take_floats(step, stride, row);
    else take_codes(step, stride, q, ds, n, sums);
    ring.skip(warp);
    int tile = warp, group = my.begin;
    const Product* with = p.parts;
#pragma unroll 1
    for (int at = warp; at < tiles; at += warps, tile += warps) {
#pragma unroll 1
        for (; tile >= my.tiles; tile -= my.tiles) group++;
        const int whole = (tile * 32 + lane()) >> p.shift, unit = whole < units ? whole : units - 1;
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
            if constexpr (A::number != B::number) {
#pragma unroll 1
                while (with + 1 < p.parts + p.n_parts && group >= with[1].first_group) with++;
            }
            const bool is_first = A::number == B::number || with->w.format == A::number;
            const uint8_t* piece = ring.take();
            if (is_first) part = multiply<A>(piece, q + unit * 256, ds + unit * 8, n + unit * 8);
            else part = multiply<B>(piece, q + unit * 256, ds + unit * 8, n + unit * 8);
            ring.leave(warps);
        }
        sums[at * 32 + lane()] = part;
    }
    sync_team();
#pragma unroll 1
    for (int i = thread(); i < threads_of; i += team()) {
        if (i != thread()) look(i);
        const float* from = sums + (mine >> row_shift) * my.tiles * 32 + (mine & (rows - 1));
        const int pair = paired ? rows : 0;
        float y = from[0], up = from[pair];
#pragma unroll 1
        for (int u = 1; u < units; u += 8) {
            float a[8], b[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const float* at = from + ((u + k < units ? u + k : 0) << p.shift);
                a[k] = at[0], b[k] = at[pair];
            }
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (u + k < units) y = y + a[k], up = up + b[k];
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
