// Products of one token as steps of a walk (walk.cu): every block norms and quantises x for itself, then a warp takes a
// tile.
#pragma once
#include "walk.h"

namespace assay {

// Lane 0 of a warp writes 1 / sqrt(mean x^2 + eps) to shared memory.
OUTLINED float factor_of(float squares, float n, float eps) { return 1.0f / square_root(squares / n + eps); }
DEVICE void leave_factor(float squares, const Divisor& n, float eps, float* to) {
    if (lane()) return;
    float factor = reciprocal_near(square_root_near(n.under(squares) + eps));
    if (!(squares > 0x1p-50f && squares < 0x1p+60f && eps < 1.0f)) factor = factor_of(squares, n.b, eps);
    *to = factor;
}

// x is complete for the warp that sums its squares: that warp waits, and the warps that wrote units arrive. racecheck
// counts barriers without their ids (docs/lab/gpu-measured.md), so in that build all warps wait.
DEVICE void squares_may_begin(bool waits, int adds) {
    if (kRacecheck) sync_team();
    else if (waits) sync_some(2, 32 * adds + 32);
    else arrive_some(2, 32 * adds + 32);
}

// x of a step, normed and quantised, into shared memory. A warp takes units of 256 columns, with two in flight. With a
// norm, one more warp sums squares, in `scratch`: 4 floats, and x before the norm.
DEVICE void take_codes(const WalkStep& step, int units, int8_t* q, float2* ds, uint32_t* n, float* scratch) {
    const ProductArgs& p = step.product;
    const bool fresh = step.fresh & AWAIT_X;
    const uint8_t* const source = copy_of(step, p.x);
    const int warp = thread() / 32, warps = team() / 32;
    if (step.fresh & AS_CODES) {
        const int vectors = p.columns / 32 * 3;  // zeros follow
        const auto store = [&](int i, const uint4& v) {
            const int block = i / 3, which = i - 3 * block;
            if (which < 2) reinterpret_cast<uint4*>(q)[2 * block + which] = {v.x ^ kCodes, v.y ^ kCodes, v.z ^ kCodes, v.w ^ kCodes};
            else ds[block] = {as_float(v.x), as_float(v.y)}, n[block] = v.z ^ kSums;
        };
        int i = thread();
        // Poll all four together; polling in turn adds one latency each.
#pragma unroll 1
        for (; i + 3 * team() < vectors; i += 4 * team()) {
            const uint4* const from = reinterpret_cast<const uint4*>(source) + i;
            uint4 v[4];
            Patience patience;
            for (bool more = true; more; patience.lose()) {
                more = false;
#pragma unroll
                for (int k = 0; k < 4; k++) v[k] = load_fresh4(from + k * team());
#pragma unroll
                for (int k = 0; k < 4; k++) more |= fresh && !there(v[k]);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) store(i + k * team(), v[k]);
        }
#pragma unroll 1
        for (; i < vectors; i += team()) {
            uint4 v;
            Patience patience;
            const uint4* const from = reinterpret_cast<const uint4*>(source) + i;
            for (v = load_fresh4(from); fresh && !there(v); v = load_fresh4(from)) patience.lose();
            store(i, v);
        }
#pragma unroll 1
        for (; i < units * 24; i += team()) store(i, i % 3 < 2 ? uint4{kCodes, kCodes, kCodes, kCodes} : uint4{0, 0, kSums, 0});
        return sync_team();
    }
    const int columns = p.columns;
    const float* const x = reinterpret_cast<const float*>(source);
    const float* const norm = p.norm;
    float* const copy = scratch + 4;
    // warps that have units, and the warp that sums squares
    const int each = norm ? warps - 1 : warps, adds = units < each ? units : each;
    bool told = !norm;
    if (kRacecheck && norm && warp > adds) squares_may_begin(false, adds);
    if (norm && warp == adds) {
        const Divisor count{float(columns)};
        const float eps = p.eps;
        squares_may_begin(true, adds);
        leave_factor(sum_of_squares(copy, columns), count, eps, scratch);
    } else if (warp < each) {
#pragma unroll 1
        for (int first = warp; first < units; first += 2 * each) {
            // Neighbouring lanes have neighbouring vectors, four in flight.
            uint4 v[4] = {};
            bool wanted[4];
            const float* const from = x + 256 * first + 4 * lane();
            const int left = columns - 256 * first - 4 * lane();
            const auto place = [&](int k) { return 256 * (k / 2) * each + 128 * (k % 2); };
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
            uint4* const to = reinterpret_cast<uint4*>(copy + 256 * first) + lane();
            to[0] = v[0], to[32] = v[1];
            if (first + each < units) to[64 * each] = v[2], to[64 * each + 32] = v[3];
            sync_warp();
            const bool last = first + 2 * each >= units;
            if (norm && !last) continue;
            float w[2][8] = {};  // norm weights of the warp's first two units, prefetched while squares are summed
            if (norm) {
                squares_may_begin(false, adds);
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (256 * (warp + i * each) + 8 * lane() < columns) load_eight(norm + 256 * (warp + i * each) + 8 * lane(), w[i]);
            }
#pragma unroll 1
            for (int unit = norm ? warp : first; unit < units && unit <= first + each; unit += each) {
                const int at = 256 * unit + 8 * lane();
                float y[8];
                load_eight(copy + at, y);
                if (norm) {
                    if (unit > warp + each) {  // the warp's third unit
#pragma unroll
                        for (int k = 0; k < 8; k++) w[1][k] = at < columns ? norm[at + k] : 0.0f;
                    }
                    if (!told) sync_team(), told = true;
                    const float f = *scratch;
#pragma unroll
                    for (int k = 0; k < 8; k++) y[k] = (y[k] * f) * (unit > warp ? w[1][k] : w[0][k]);
                }
                quantise_eight(y, at / 8, q, ds, n);
            }
        }
    }
    if (!told) sync_team();
    sync_team();
}

DEVICE void take_floats(const WalkStep& step, int stride, float* row) {
    const ProductArgs& p = step.product;
    const bool fresh = step.fresh & AWAIT_X;
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
        if (thread() < 32) leave_factor(sum_of_squares(row, p.columns), Divisor{float(p.columns)}, p.eps, row - 4);
        sync_team();
        const float f = row[-4];
        for (int i = thread(); i < p.columns; i += team()) row[i] = (row[i] * f) * p.norm[i];
    }
    sync_team();
}

template <class A, class B, bool TWO>
DEVICE int multiply_step(const WalkStep& step, Ring ring, uint8_t* work) {
    const ProductArgs& p = step.product;
    const Share my(step);
    if (!my.groups) return 0;
    const int units = p.parts[0].w.units, stride = units * 256, tiles = my.groups * my.tiles, warp = thread() / 32, warps = team() / 32;
    float* const row = reinterpret_cast<float*>(work) + 4;
    int8_t* const q = reinterpret_cast<int8_t*>(row);
    float2* const ds = reinterpret_cast<float2*>(q + stride);
    uint32_t* const n = reinterpret_cast<uint32_t*>(ds + stride / 32);
    float* const sums = row + (A::floats ? stride : stride / 32 * 11);
    const bool paired = p.parts[0].paired;
    const int shift = p.shift, row_shift = paired ? shift - 1 : shift, rows = 1 << row_shift, all = my.groups << row_shift;
    const int wide = (units + 7) & ~7;  // partial sums of a row are adjacent, padded with values that change no sum
    // Look up a row's epilogue before x arrives. Each copy of the result has its own threads.
    float *out = nullptr, residual = 0.0f, bias = 0.0f;
    const float *residual_at = nullptr, *from = nullptr;
    const auto look = [&](int i) {
        int copy = 0, mine = i;
#pragma unroll 1
        for (; mine >= all; mine -= all) copy++;
        int at_row = (my.begin << row_shift) + mine;
        const Product* of = p.parts;
#pragma unroll 1
        while (of + 1 < p.parts + p.n_parts && at_row >= of[1].first_group << row_shift) of++;
        at_row -= of->first_group << row_shift;
        out = at_row < of->w.rows ? of->out + copy * (step.out_bytes / 4) + at_row : nullptr;
        residual_at = out && of->residual ? of->residual + at_row : nullptr;
        from = sums + ((mine >> row_shift << shift) + (mine & (rows - 1))) * wide;
        bias = out && of->bias ? of->bias[at_row] : -0.0f;
        residual = residual_at ? load_fresh(residual_at) : -0.0f;
    };
    const int threads_of = all * step.out_copies;
    const int first_row = (warps - 1 - warp) * 32 + lane();  // the last warps have the least work with x
    if (first_row < threads_of) look(first_row);
    // Prefetch a warp's first tile. If tiles are few, two warps share one (`by_two`), and two lanes an item.
    const bool by_two = !A::floats && step.fresh & TWO_LANES;
    const int item = by_two ? warp % 2 * 16 + lane() % 16 : lane(), begin = by_two ? warp / 2 : warp;
    const int cut = !A::floats && step.fresh & SPLIT_TILE ? 1 : 0;  // a tile has two slots
    int tile = begin, group = my.begin, unit = 0;
    const uint8_t* piece = nullptr;
    float* to = nullptr;  // destination of the item's partial sum
    bool is_first = true;
    const auto next_tile = [&] {
#pragma unroll 1
        for (; tile >= my.tiles; tile -= my.tiles) group++;
        const int at = tile * 32 + item, whole = at >> shift;
        unit = whole < units ? whole : units - 1;
        to = whole < units ? sums + (((group - my.begin) << shift) + (at & ((1 << shift) - 1))) * wide + whole : nullptr;
        if constexpr (A::number != B::number) is_first = group < step.second;
        piece = ring.take(TWO && cut);
    };
    ring.skip(begin << cut);
    if (begin < tiles) next_tile();
    // A warp takes two tiles together if they have the same columns, `stages` groups apart, and both have ring slots.
    const bool together = !A::floats && p.stages && tiles <= ring.slots && is_first && !cut;
    if constexpr (A::floats) take_floats(step, stride, row);
    else take_codes(step, units, q, ds, n, sums);
    if (units < wide)  // padding behind the last partial sum of a row
#pragma unroll 1
        for (int i = first_row; i < all; i += team()) {
            float* const of = sums + ((i >> row_shift << shift) + (i & (rows - 1))) * wide;
#pragma unroll 1
            for (int u = units; u < wide; u++) of[u] = of[(paired ? rows : 0) * wide + u] = -0.0f;
        }
    // Leave the last slots only after all partial sums are stored, for which other threads wait, if the ring has slots
    // to spare.
    const bool hold = tiles << cut <= ring.slots;
    int held = 0;
#pragma unroll 1
    for (int at = begin; at < tiles; at += warps) {
        if constexpr (A::floats) {
            float even = 0.0f, odd = 0.0f;
#pragma unroll 1
            for (int i = 0; i < A::pieces; i++) {
                multiply_floats<A::number>(ring.take(), row + unit * 256 + i * (256 / A::pieces), even, odd);
                const int round = tiles - at + warp < warps ? tiles - at + warp : warps;  // tiles of this round
                ring.leave(i + 1 < A::pieces ? round : warps);
            }
            if (to) *to = even + odd;
        } else if (by_two) {
            const float part = multiply_by_two<A>(piece, item, q + unit * 256, ds + unit * 8, n + unit * 8);
            if (to && lane() >= 16) *to = part;
            held = kRacecheck || warp % 2 == 0;
            break;
        } else if (together && at + warps < tiles) {
            Ring then = ring;
            then.skip(warps);
            float parts[2];
            multiply<A, 2>({piece, then.take()}, nullptr, q + unit * 256, ds + unit * 8, n + unit * 8, parts);
            if (to) to[0] = parts[0], to[(p.stages << shift) * wide] = parts[1];
            held = 2;
            break;
        } else {
            const uint8_t* rest = piece;
            if (cut) {
                Ring then = ring;
                then.skip(1);
                rest = then.take(TWO) - kCutBytes;
            }
            float part;
            if (is_first) part = multiply<A>(piece, rest, q + unit * 256, ds + unit * 8, n + unit * 8);
            else part = multiply<B>(piece, rest, q + unit * 256, ds + unit * 8, n + unit * 8);
            if (to) *to = part;
            held = 1 + cut;
            if (hold && at + warps >= tiles) break;
            if (cut) ring.leave(1);
            ring.leave((warps << cut) - cut);
            held = 0;
        }
        tile += warps;
        if (at + warps < tiles) next_tile();
    }
    sync_team();
#pragma unroll 1
    for (; held; held--) ring.leave(cut ? 1 : warps, by_two);
#pragma unroll 1
    for (int i = first_row; i < threads_of; i += team()) {
        if (i != first_row) look(i);
        float y = -0.0f, up = -0.0f;
        const auto add = [](const float* at, float sum) {
            const float4 a = reinterpret_cast<const float4*>(at)[0], b = reinterpret_cast<const float4*>(at)[1];
            return sum + a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
        };
#pragma unroll 1
        for (int u = 0; u < wide; u += 8) {
            y = add(from + u, y);
            if (paired) up = add(from + rows * wide + u, up);
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
    return A::floats ? tiles * A::pieces : tiles << cut;
}

DEVICE float4 as_floats(const uint4& v) { return {as_float(v.x), as_float(v.y), as_float(v.z), as_float(v.w)}; }
DEVICE float4 sum_of(const float4& a, const float4& b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// Norms that are not fused into a product: a thread block publishes 256 columns of a row.
template <bool MANY>
OUTLINED void norm_step(const WalkStep& step, uint8_t* work) {
    const NormArgs& a = step.norm;
    float* const factor = reinterpret_cast<float*>(work);
    float* const row = factor + 4;
#pragma unroll 1
    for (int task = block_of(step); task < a.tasks; task += grid_x()) {
        const Norm& p = a.parts[a.n_parts > 1 && task >= a.parts[1].first];
        const int local = task - p.first, unit = MANY ? local / a.tokens : local, columns = p.columns;
        const int64_t begin = MANY ? int64_t(local - unit * a.tokens) * columns : 0;  // offset of the row
        const int at = 256 * unit + thread();
        const bool mine = thread() < 256 && at < columns, add = mine && p.residual;
        const float w = mine ? p.w[at] : 0.0f, b = mine && p.b ? p.b[at] : -0.0f;
        float residual = add ? load_fresh(p.residual + begin + at) : -0.0f;
        const float* const x = p.x + begin;
        sync_team();  // other warps still read the row before
#pragma unroll 1
        for (int i = thread(); 8 * i < columns; i += team()) {
            Eight v;
            v.ask(x + 8 * i);
            v.await(x + 8 * i, step.fresh & AWAIT_X);
            float4* const to = reinterpret_cast<float4*>(row) + 2 * i;
            to[0] = as_floats(v.a), to[1] = as_floats(v.b);
            if (!p.more) continue;
            v.ask(p.more + begin + 8 * i);
            v.await(p.more + begin + 8 * i, step.fresh & AWAIT_X);
            to[0] = sum_of(to[0], as_floats(v.a)), to[1] = sum_of(to[1], as_floats(v.b));
        }
        sync_team();
        if (mine && p.sum) store_fresh(p.sum + begin + at, row[at]);
        if (p.centred) {
            sync_team();
            if (thread() < 32) {
                float s = 0.0f, t = 0.0f;  // sum64
#pragma unroll 4
                for (int i = 2 * lane(); i < columns; i += 64) s = s + row[i], t = t + row[i + 1];
#pragma unroll
                for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h), t = t + shuffle_down(t, h);
                if (lane() == 0) factor[1] = (s + t) / float(columns);
            }
            sync_team();
            const float mean = factor[1];
#pragma unroll 1
            for (int i = thread(); i < columns; i += team()) row[i] = row[i] - mean;
            sync_team();
        }
        if (thread() < 32) leave_factor(sum_of_squares(row, columns), Divisor{float(columns)}, p.eps, factor);
        sync_team();
        if (add && bits(residual) == kNotYet) residual = await(p.residual + begin + at, step.fresh & AWAIT_RESIDUAL);
        if (mine)
#pragma unroll 1
            for (int copy = 0; copy < step.out_copies; copy++)
                store_fresh(p.out + copy * (step.out_bytes / 4) + begin + at, (row[at] * *factor) * w + b + residual);
    }
}

// Quantise a row that is too long for every block to quantise itself, or that is gated: 32 values a warp.
template <bool MORE>
DEVICE void quantise_step(const WalkStep& step) {
    const ProductArgs& p = step.product;
#pragma unroll 1
    for (int i = thread() / 32 * grid_x() + block_x(); i < p.parts[0].w.units * 8; i += team() / 32 * grid_x()) {
        const int at = 32 * i + lane();
        const auto value = [&] {
            float y = await(p.x + at, step.fresh & AWAIT_X);
            if (MORE && p.parts[0].paired != AS_IT_IS) y = gate(p.parts[0].act, y);
            if (MORE && p.parts[0].paired == SPLIT) y = y * await(p.x + p.columns + at, step.fresh & AWAIT_X);
            return y;
        };
        leave_codes(reinterpret_cast<uint8_t*>(p.parts[0].out) + 48 * i, at < p.columns ? value() : 0.0f);
    }
}
template <bool MORE>
DEVICE void row_step(const WalkStep& step, uint8_t* work) {
    if constexpr (MORE)
        if (step.kind == NORM) return norm_step<false>(step, work);
    quantise_step<MORE>(step);
}

}  // namespace assay
