// Walks with experts, recurrences and single operations of rows, beside all that walk_more.cu has.
//
// Experts: a step publishes the router's logits. The producer warp of every block waits for them and chooses the experts
// itself, by the arithmetic of the separate kernels. So it requests their tiles one latency after the last logit. The next
// step is gate and up of all chosen experts, and one more is down: a block has some rows of all chosen experts, weighs and
// adds them in order, and adds the residual. The choice stays in shared memory.
//
// Everything else here is a small step: its cost is the latency of its operands.
#define WALK_MORE
#include "recurrent.h"
#include "walk.cu"
#include "walk_delta.h"
#include "walk_experts.h"

namespace assay {

// ---- rows of float weights -----------------------------------------------------------------------------------------
// A matrix of floats beside quantised ones (a router, gates of a recurrence): a block has a row or a few. It requests
// them before x arrives. Units of 256 columns have a lane each.

// dot(x, x) as `sum_of_squares`, of a row in units of kPadded floats.
DEVICE float padded_squares(const float* x, int n) {
    float s = 0.0f, t = 0.0f;
    int left = n / 256;
    x += 2 * lane();
    const auto units = [&](auto some) {  // unrolled: issue all loads, then accumulate
#pragma unroll 1
        for (; left >= some.value; left -= some.value, x += some.value * kPadded)
#pragma unroll
            for (int k = 0; k < 4 * some.value; k++) {
                const float2 v = *reinterpret_cast<const float2*>(x + k / 4 * kPadded + k % 4 * 64);
                s = fma(v.x, v.x, s), t = fma(v.y, v.y, t);
            }
    };
    units(Constant<4>{});
    units(Constant<1>{});
#pragma unroll 1
    for (int i = 2 * lane(); i < n % 256; i += 64, x += 64) {
        s = fma(x[0], x[0], s);
        if (i + 1 < n % 256) t = fma(x[1], x[1], t);
    }
#pragma unroll
    for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h), t = t + shuffle_down(t, h);
    return s + t;
}

OUTLINED void float_rows_step(const WalkStep& step, uint8_t* work) {
    const ProductArgs& p = step.product;
    const Matrix& w = p.parts[0].w;  // all parts have its layout
    const int first = block_of(step), blocks = grid_x(), units = w.units, columns = p.columns, warp = thread() / 32, all = p.groups;
    if (first >= all) return;
    const auto part_with = [&](int& r) {  // the part that has row r; r becomes its row there
        const Product* of = p.parts;
#pragma unroll 1
        for (; r >= of->w.rows; of++) r -= of->w.rows;
        return of;
    };
    const int chunks = w.format == F32 ? 64 : 32, chunk_shift = w.format == F32 ? 6 : 5, mine = (all - first + blocks - 1) / blocks;
    float* const factor = reinterpret_cast<float*>(work);
    float* const x = factor + 4;
    uint4* const weights = reinterpret_cast<uint4*>(x + units * kPadded);  // [row][unit][chunks and one]
    NEEDS_SHARED(walk_float_rows_bytes(units, mine, chunks));
#pragma unroll 1
    for (int local = 0; local < mine; local++) {
        int r = first + local * blocks;
        const int group = w.group;
        const uint8_t* const of = part_with(r)->w.tile(r / group, 0);
        uint4* const to = weights + local * units * (chunks + 1);
#pragma unroll 1
        for (int i = thread(); i < units << chunk_shift; i += team()) {
            const int c = i & (chunks - 1), unit = i >> chunk_shift, at = unit * group + (r & (group - 1));
            copy_async(to + unit * (chunks + 1) + c, of + int64_t(at / 32) * w.tile_bytes + c * 512 + at % 32 * 16);
        }
    }
    copy_group();
    const bool fresh = step.fresh & AWAIT_X, whole = columns % 8 == 0;
    const float* const source = reinterpret_cast<const float*>(copy_of(step, p.x));
    float gain[8] = {};  // of this thread's first eight columns, requested before x arrives
    if (p.norm && whole && 8 * int(thread()) < columns) load_eight(p.norm + 8 * thread(), gain);
    const auto place = [&](int i) { return x + i + (i >> 8) * (kPadded - 256); };
    if (whole) {
#pragma unroll 1
        for (int i = 8 * thread(); i < columns; i += 8 * team()) {
            Eight v;
            v.ask(source + i);
            v.await(source + i, fresh);
            uint4* const to = reinterpret_cast<uint4*>(place(i));
            to[0] = v.a, to[1] = v.b;
        }
    } else {
        for (int i = thread(); i < columns; i += team()) *place(i) = await(source + i, fresh);
    }
    for (int i = columns + thread(); i < units * 256; i += team()) *place(i) = 0.0f;
    sync_team();
    if (p.norm) {
        if (warp == 0) leave_factor(padded_squares(x, columns), Divisor{float(columns)}, p.eps, factor);
        sync_team();
        const float f = *factor;
        if (whole) {
#pragma unroll 1
            for (int i = 8 * thread(); i < columns; i += 8 * team()) {
                float y[8];
                load_eight(place(i), y);
                if (i != 8 * int(thread())) load_eight(p.norm + i, gain);
                float4* const to = reinterpret_cast<float4*>(place(i));
                to[0] = {(y[0] * f) * gain[0], (y[1] * f) * gain[1], (y[2] * f) * gain[2], (y[3] * f) * gain[3]};
                to[1] = {(y[4] * f) * gain[4], (y[5] * f) * gain[5], (y[6] * f) * gain[6], (y[7] * f) * gain[7]};
            }
        } else {
            for (int i = thread(); i < columns; i += team()) *place(i) = (*place(i) * f) * p.norm[i];
        }
    }
    copies_done<0>();
    sync_team();
#pragma unroll 1
    for (int local = warp; local < mine; local += team() / 32) {
        float total = -0.0f;
#pragma unroll 1
        for (int begin = 0; begin < units; begin += 32) {
            const int unit = begin + lane() < units ? begin + lane() : units - 1;
            const uint4* const of = weights + (local * units + unit) * (chunks + 1);
            const float* const y = x + unit * kPadded;
            const float part = w.format == F32 ? row_part<F32>(of, y) : w.format == F16 ? row_part<F16>(of, y) : row_part<BF16>(of, y);
#pragma unroll 1
            for (int k = 0; k < 32 && begin + k < units; k++) total = total + shuffle(part, k);
        }
        int r = first + local * blocks;
        const Product* const of = part_with(r);
        if (lane() == 0) store_fresh(of->out + r, of->bias ? total + of->bias[r] : total);
    }
}

// ---- experts -------------------------------------------------------------------------------------------------------
static_assert(kChoiceBytes == 2 * sizeof(Chosen));

DEVICE Chosen& chosen_of(const WalkExperts& e, uint8_t* own) { return reinterpret_cast<Chosen*>(own)[e.which]; }

// A group of a step is `count` groups of rows, one after the other in the ring: those of gate and up of one expert, or
// those of all chosen experts. If `halved`, down has two groups for each: those of the first half of the experts, and
// those of the second half. The block that has the first publishes its sum, and the other goes on with it.
struct Subgroups {
    int count, per_expert, halved;
    bool down;
    DEVICE Subgroups(const WalkExperts& e)
        : count(e.down ? e.used >> e.halved : e.n_parts), per_expert(e.parts[0].w.all_rows >> e.shift), halved(e.halved), down(e.down) {}
    DEVICE int first_expert(int group) const { return down ? 0 : group / per_expert; }
    // Of down: the first of the chosen experts that a group has, and its rows.
    DEVICE int chosen_from(int group) const { return (group & halved) * count; }
    DEVICE int rows_of(int group) const { return group >> halved; }
};

// The producer warp: of gate and up, choose the experts first. All that does not depend on them is looked up before.
template <class A, class B, bool TWO>
DEVICE void fetch_experts(const WalkStep& step, Fetch<TWO>& fetch, Chosen& chosen) {
    const WalkExperts& e = step.experts;
    const Share my(step);
    const Subgroups of(e);
    const bool down = e.down;
    const int cut = step.fresh & SPLIT_TILE ? 1 : 0, rest = cut & lane(), used = e.used;
    const int64_t expert_bytes = e.expert_bytes, group_bytes = e.parts[0].w.group_bytes;
    const uint8_t *const first = e.parts[0].w.data + rest * kCutBytes, *const second = e.parts[e.n_parts - 1].w.data + rest * kCutBytes;
    const int tile = A::number == B::number || e.parts[0].w.format == A::number ? A::tile_bytes : B::tile_bytes;
    const int bytes = rest ? tile - kCutBytes : cut ? kCutBytes : tile, all = (my.groups * of.count * my.tiles) << cut;
    // The piece of this lane, one of kAtOnce that are requested together. Divisions would delay the requests.
    int piece = (lane() & (kAtOnce - 1)) >> cut, part = 0, expert = of.first_expert(my.begin), at = my.begin - expert * of.per_expert;
    // Of down, `at` counts groups of the step.
    if (!down) choose(e, e.logits, chosen);
#pragma unroll 1
    for (int n = 0; n < all; n += kAtOnce, piece += kAtOnce >> cut) {
#pragma unroll 1
        for (; piece >= my.tiles; piece -= my.tiles)
            if (++part == of.count) {
                part = 0;
                if (++at == of.per_expert && !down) at = 0, expert++;
            }
        const int left = all - n < kAtOnce ? all - n : kAtOnce, which = down ? of.chosen_from(at) + part : expert < used ? expert : 0;
        const int group = down ? of.rows_of(at) : at;
        fetch((down || !part ? first : second) + chosen.id[which] * expert_bytes + group * group_bytes + int64_t(piece) * tile, bytes, left);
    }
    if (!down) weigh(e, chosen);
}

// Rows of `count` chosen experts from the first on, quantised: the input of down.
DEVICE void take_rows(const WalkStep& step, int first_row, int count, int units, int8_t* q, float2* ds, uint32_t* n) {
    const WalkExperts& e = step.experts;
    const bool fresh = step.fresh & AWAIT_X;
    const int all = count * units, warps = team() / 32, columns = e.columns;
    const float* const x = e.x + first_row * columns;
#pragma unroll 1
    for (int first = thread() / 32; first < all; first += 2 * warps) {
        Eight v[2];
        const float* from[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int unit = first + k * warps, row = unit / units, at = 256 * (unit - row * units) + 8 * lane();
            from[k] = unit < all && at < columns ? x + row * columns + at : nullptr;
            v[k].a = v[k].b = {};
            if (from[k]) v[k].ask(from[k]);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int unit = first + k * warps;
            if (from[k]) v[k].await(from[k], fresh);
            const float y[8] = {as_float(v[k].a.x), as_float(v[k].a.y), as_float(v[k].a.z), as_float(v[k].a.w),
                                as_float(v[k].b.x), as_float(v[k].b.y), as_float(v[k].b.z), as_float(v[k].b.w)};
            sync_warp();
            if (unit < all) quantise_eight(y, unit * 32 + lane(), q, ds, n);
        }
    }
    sync_team();
}

// Gate and up, or down: two functions, because each is faster without the other's code.
template <class A, class B, bool DOWN>
OUTLINED int experts_step(const WalkStep& step, Ring ring, const Chosen& chosen, uint8_t* work) {
    const WalkExperts& e = step.experts;
    const Share my(step);
    if (!my.groups) return 0;
    const Subgroups of(e);
    const Matrix& w = e.parts[0].w;
    // Of down, a block with one group needs the rows of its half of the experts.
    const int x_first = my.groups == 1 ? of.chosen_from(my.begin) : 0, x_rows = my.groups == 1 ? of.count : e.used;
    const int units = w.units, x_units = DOWN ? x_rows * units : units, shift = e.shift, rows = 1 << shift;
    const int warp = thread() / 32, warps = team() / 32, wide = units | 1, subs = my.groups * of.count, tiles = subs * my.tiles;
    float* const row = reinterpret_cast<float*>(work) + 4;
    int8_t* const q = reinterpret_cast<int8_t*>(row);
    float2* const ds = reinterpret_cast<float2*>(q + x_units * 256);
    uint32_t* const n = reinterpret_cast<uint32_t*>(ds + x_units * 8);
    float* const sums = row + x_units * 88;              // [subgroup][row][wide]
    float* const totals = sums + (subs << shift) * wide;  // of down: [subgroup][row]
    NEEDS_SHARED(walk_experts_bytes(x_units, units, subs << shift, DOWN));
    const int cut = step.fresh & SPLIT_TILE ? 1 : 0, first_expert = of.first_expert(my.begin);
    const bool is_first = A::number == B::number || w.format == A::number;
    int sub = 0, part_of_x = 0, item_at = my.begin, tile = warp;  // of this warp's next tile
    const auto find = [&] {
#pragma unroll 1
        for (; tile >= my.tiles; tile -= my.tiles) {
            sub++;
            if (++part_of_x == of.count) part_of_x = 0, item_at++;
        }
    };
    find();
    // The residual of this thread's first row is requested before x arrives.
    const int own_row = (of.rows_of(my.begin + (int(thread()) >> shift)) << shift) + (int(thread()) & (rows - 1));
    const bool ask = DOWN && e.parts[0].residual && int(thread()) < my.groups << shift && own_row < w.rows;
    const float asked = ask ? load_fresh(e.parts[0].residual + own_row) : 0.0f;
    ring.skip(warp << cut);
    if (DOWN) take_rows(step, x_first, x_rows, units, q, ds, n);
    else take_codes(step, units, q, ds, n, sums);
#pragma unroll 1
    for (int at = warp; at < tiles; at += warps, tile += warps, find()) {
        const int item = tile * 32 + lane(), whole = item >> shift;
        const int unit = (whole < units ? whole : units - 1) + (DOWN ? (of.chosen_from(item_at) - x_first + part_of_x) * units : 0);
        const uint8_t *const piece = ring.take(), *rest = piece;
        if (cut) {
            Ring then = ring;
            then.skip(1);
            rest = then.take() - kCutBytes;
        }
        float part;
        if (is_first) part = multiply<A>(piece, rest, q + unit * 256, ds + unit * 8, n + unit * 8);
        else part = multiply<B>(piece, rest, q + unit * 256, ds + unit * 8, n + unit * 8);
        if (whole < units) sums[((sub << shift) + (item & (rows - 1))) * wide + whole] = part;
        if (cut) ring.leave(1);
        ring.leave((warps << cut) - cut);
    }
    sync_team();
    const auto total_of = [&](int i) {  // row i of all subgroups
        float y = -0.0f;
#pragma unroll 4
        for (int u = 0; u < units; u++) y = y + sums[i * wide + u];
        return y;
    };
    if constexpr (!DOWN) {
#pragma unroll 1
        for (int i = thread(); i < my.groups << shift; i += team()) {
            const int local = i >> shift, r = i & (rows - 1);
            int expert = first_expert, group = my.begin + local - expert * of.per_expert;
#pragma unroll 1
            for (; group >= of.per_expert; group -= of.per_expert) expert++;
            const int at_row = (group << shift) + r;
            if (at_row >= w.rows) continue;
            const int64_t biased = int64_t(chosen.id[expert]) * w.rows + at_row;
            const int act = e.parts[0].act;
            float y = total_of((local * of.count << shift) + r), up = 0.0f;
            if (e.parts[0].bias) y = y + e.parts[0].bias[biased];
            if (e.gated != NO_GATE) {
                up = total_of(((local * of.count + 1) << shift) + r);
                if (e.parts[1].bias) up = up + e.parts[1].bias[biased];
            }
            const float size = as_float(bits(y) & 0x7fffffffu);
            if (e.gated == OAI_GATE) y = glu_oai(y, up, e.alpha, e.limit);
            else if (e.gated == ACT_GATE && act == SILU && size < 0x1p+6f && size > 0x1p-60f) y = divide_near(y, 1.0f + exponential(-y)) * up;
            else y = e.gated == ACT_GATE ? gate(act, y) * up : gate(act, y);
            store_fresh(e.parts[0].out + expert * w.rows + at_row, y);
        }
        return tiles << cut;
    }
#pragma unroll 1
    for (int i = thread(); i < subs << shift; i += team()) {
        int group = my.begin, j = i >> shift;
#pragma unroll 1
        for (; j >= of.count; j -= of.count) group++;
        j += of.chosen_from(group);
        const int at_row = (of.rows_of(group) << shift) + (i & (rows - 1));
        float y = total_of(i);
        if (e.parts[0].bias && at_row < w.rows) y = y + e.parts[0].bias[int64_t(chosen.id[j]) * w.rows + at_row];
        totals[i] = y * chosen.weight[j];
    }
    sync_team();
    // First halves before second halves, which wait for those of other blocks.
#pragma unroll 1
    for (int half = 0; half <= of.halved; half++) {
#pragma unroll 1
        for (int i = thread(); i < my.groups << shift; i += team()) {
            const int local = i >> shift, r = i & (rows - 1), group = my.begin + local, at_row = (of.rows_of(group) << shift) + r;
            if (at_row >= w.rows || (group & of.halved) != half) continue;
            const float* const of_row = totals + (local * of.count << shift) + r;
            float y = half ? await(e.partial + at_row, true) + of_row[0] : of_row[0];
#pragma unroll 4
            for (int j = 1; j < of.count; j++) y = y + of_row[j << shift];
            if (half < of.halved) {
                store_fresh(e.partial + at_row, y);
                continue;
            }
            if (e.addend) {
                const float v = await(e.addend + at_row, true);
                y = y + (e.addend_gate ? v * (1.0f / (1.0f + exponential(-await(e.addend_gate, true)))) : v);
            }
            if (e.parts[0].residual) {
                const bool there = i == int(thread()) && (bits(asked) != kNotYet || !(step.fresh & AWAIT_RESIDUAL));
                y = y + (there ? asked : await(e.parts[0].residual + at_row, step.fresh & AWAIT_RESIDUAL));
            }
            for (int copy = 0; copy < step.out_copies; copy++) store_fresh(e.parts[0].out + copy * (step.out_bytes / 4) + at_row, y);
        }
        sync_warp();
    }
    return tiles << cut;
}

// ---- single operations of a row ------------------------------------------------------------------------------------
OUTLINED void map_step(const WalkStep& step) { run_chain(step); }

// rms_norm of parts of a row, or l2_norm: a warp has a part of up to 256 values.
OUTLINED void part_norms_step(const WalkStep& step) {
    const RowArgs& a = step.row;
    const int n = a.width / a.parts;
    const Awaited get{bool(step.fresh & AWAIT_X)};
#pragma unroll 1
    for (int part = thread() / 32 * grid_x() + block_of(step); part < a.parts; part += team() / 32 * grid_x()) {
        const Channels<8> x(a.x + part * n, n, 1, get);
        const float square = dot(x, x);
        float f;
        if (step.kind == PART_NORMS) {
            f = 1.0f / square_root(square / float(n) + a.eps);
        } else {
            const float size = square_root(a.w_step ? square : square + a.eps);
            f = 1.0f / (a.w_step && size < a.eps ? a.eps : size);
        }
        const float* const w = a.w ? a.w + part * a.w_step : nullptr;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int i = lane() + 32 * k;
            if (i < n) store_fresh(a.out + part * n + i, w ? (x.v[k] * f) * w[i] : x.v[k] * f);
        }
    }
}

// A convolution over one more token, with the activation behind it: a thread a channel.
constexpr int kMostTaps = 8;
OUTLINED void window_step(const WalkStep& step) {
    const ScanArgs& a = step.scan;
    const Sequence of = sequence_of(a, 0);
    const int taps = a.rows, before = taps - 1;
#pragma unroll 1
    for (int c = block_of(step) * team() + thread(); c < a.channels; c += grid_x() * team()) {
        float w[kMostTaps], old[kMostTaps];
#pragma unroll
        for (int k = 0; k < kMostTaps; k++) {
            w[k] = k < taps ? a.weight[c * taps + k] : 0.0f;
            old[k] = k < before && of.from ? of.from[c * before + k] : 0.0f;
        }
        const float x = await(a.x[0] + c, step.fresh & AWAIT_X);
        float y = 0.0f;
#pragma unroll
        for (int k = 0; k < kMostTaps; k++) {
            if (k < taps) y = fma(w[k], k < before ? old[k] : x, y);
            if (k < before) of.to[c * before + k] = k + 1 < before ? old[k + 1 < kMostTaps ? k + 1 : k] : x;
        }
        store_fresh(a.out + c, a.kind ? gate(a.kind - 1, y) : y);
    }
}

// One token of a recurrence. A warp has four rows of the state of a head: it reads them before the operands arrive, and
// polls all operands together.
template <bool DELTA, int K>
DEVICE void recurrence(const WalkStep& step) {
    const ScanArgs& a = step.scan;
    const Sequence of = sequence_of(a, 0);
    const Awaited get{bool(step.fresh & AWAIT_X)};
    const int per_head = (a.rows + kScanRows - 1) / kScanRows, n = a.channels;
#pragma unroll 1
    for (int i = thread() / 32 * grid_x() + block_of(step); i < a.heads * per_head; i += team() / 32 * grid_x()) {
        const int head = i / per_head, in_head = (i - head * per_head) * kScanRows, row = head * a.rows + in_head;
        const int rows = a.rows - in_head < kScanRows ? a.rows - in_head : kScanRows;
        const auto state = [&](int k) { return Channels<K>(of.from && k < rows ? of.from + int64_t(row + k) * n : nullptr, n); };
        Channels<K> S[kScanRows] = {state(0), state(1), state(2), state(3)};
        recur<DELTA, K>(a, of, head, row, rows, S, get);
#pragma unroll
        for (int k = 0; k < kScanRows; k++)
            if (k < rows) S[k].store(of.to + int64_t(row + k) * n, n);
    }
}
// The producer warp brings this block's rows of the state to the second-level cache: weights in flight would delay them.
DEVICE void fetch_states(const WalkStep& step) {
    const ScanArgs& a = step.scan;
    const Sequence of = sequence_of(a, 0);
    if (!of.from) return;
    const int per_head = (a.rows + kScanRows - 1) / kScanRows, n = a.channels;
#pragma unroll 1
    for (int i = block_of(step); i < a.heads * per_head; i += grid_x()) {
        const int head = i / per_head, in_head = (i - head * per_head) * kScanRows;
        const int rows = a.rows - in_head < kScanRows ? a.rows - in_head : kScanRows;
        const float* const from = of.from + int64_t(head * a.rows + in_head) * n;
#pragma unroll 1
        for (int at = 32 * lane(); at < rows * n; at += 32 * 32) prefetch(from + at);
    }
    sync_warp();
}
OUTLINED void recurrence_step(const WalkStep& step) {
    const bool delta = step.scan.kind == DELTA_RULE;
    if (step.scan.channels <= 64) delta ? recurrence<true, 2>(step) : recurrence<false, 2>(step);
    else delta ? recurrence<true, 4>(step) : recurrence<false, 4>(step);
}

template <class A, class B>
struct AllSteps {
    static constexpr bool any = true;
    static constexpr int kept = kStepsKept, bytes = kChoiceBytes;
    template <bool TWO>
    static DEVICE void fetch(const WalkStep& step, Fetch<TWO>& fetch, uint8_t* own) {
        if (step.kind == RECURRENCE) fetch_states(step);
        if (step.kind == DELTA) fetch_delta(step);
        if (step.kind == EXPERT_ROWS) fetch_experts<A, B>(step, fetch, chosen_of(step.experts, own));
    }
    static DEVICE int run(const WalkStep& step, const Ring& ring, uint8_t* own, uint8_t* work) {
        switch (step.kind) {
            case EXPERT_ROWS: {
                const Chosen& chosen = chosen_of(step.experts, own);
                return step.experts.down ? experts_step<A, B, true>(step, ring, chosen, work) : experts_step<A, B, false>(step, ring, chosen, work);
            }
            case FLOAT_ROWS: float_rows_step(step, work); break;
            case MAP_ROW: map_step(step); break;
            case PART_NORMS:
            case PART_LENGTHS: part_norms_step(step); break;
            case RECURRENCE: recurrence_step(step); break;
            case WINDOW: window_step(step); break;
            case DELTA: delta_step(step, work); break;
            case GATED_NORMS: gated_norms_step(step); break;
        }
        return 0;
    }
};

#define WALK(name, A, B) \
    TOGETHER(walk_all_##name, WalkArgs, 416) { walk<A, B, true, false, AllSteps<A, B>>(a); }
WALK(q8_0, Codes<Q8_0>, Codes<Q8_0>)
WALK(q4_k_q6_k, Codes<Q4_K>, Codes<Q6_K>)
WALK(q5_k_q6_k, Codes<Q5_K>, Codes<Q6_K>)
WALK(mxfp4_q8_0, Codes<MXFP4>, Codes<Q8_0>)

}  // namespace assay
