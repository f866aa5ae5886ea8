// The steps of a walk of two to eight tokens (walk_few.cu): x, normed and quantised once for all blocks of threads, and products by `mma`.
//
// It computes docs/arithmetic.md. Eight tokens are the columns of a fragment of 16 rows x 8 x 32; rows of x behind the last token are
// zeros. Integer sums are exact; behind each comes the float chain. A partial sum of 256 columns goes to shared memory, and a thread adds up
// those of two results, in order. Bound by memory at 7B, by the way from block to block at TinyLlama's shape (docs/gpu.md).
#pragma once
#include "gemm.h"
#include "walk_attention.h"
#include "walk_products.h"

namespace assay {

// ---- x ----------------------------------------------------------------------------------------------------------------
// N vectors of 16 bytes, `step` bytes apart, of which some are wanted; all that is missing is asked for again together.
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

// 256 columns of a row by a warp, a lane has eight of them. Who looks for them tells them from what was there before, or, where x is taken
// in parts, from a count of the rows that are there, which lies behind all units: less one, as it begins with what clears memory.
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

// Rows quantised for all who multiply them. With a norm a block of threads has a row, adds up its squares, and shares its columns with
// others that have the same row; without one a warp has 256 columns of a row.
DEVICE void quantise_rows_step(const WalkStep& step, uint8_t* work) {
    OWN_THREAD;
    const ProductArgs& p = step.product;
    const bool fresh = step.fresh & X_IS;
    const int units = p.parts[0].w.units, columns = p.columns, rows = p.tokens, me = block_of(step);
    const int warp = thread() / 32, warps = team() / 32;
    uint8_t* const to = reinterpret_cast<uint8_t*>(p.parts[0].out);
    int* const counted = step.fresh & COUNTED ? reinterpret_cast<int*>(to + units * kColumns) : nullptr;
    if (!p.norm) {
#pragma unroll 1
        for (int i = warp * grid_x() + me; i < units * rows; i += warps * grid_x()) {
            const int unit = i / rows, row = i - unit * rows, at = 256 * unit + 8 * lane();
            uint4 v[2];
            await_vectors(p.x + int64_t(row) * columns + at, 16, fresh, v, [&](int) { return at < columns; });
            sync_warp();
            leave_unit(to, row, unit, {as_float(v[0].x), as_float(v[0].y), as_float(v[0].z), as_float(v[0].w), as_float(v[1].x),
                                       as_float(v[1].y), as_float(v[1].z), as_float(v[1].w)}, counted);
        }
        return;
    }
    const int at_once = int(grid_x()) < rows ? grid_x() : rows, share = grid_x() / at_once;  // rows, and blocks of threads of each
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
        if (row >= at_once) sync_team();  // others still read the row before
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

// x into shared memory, as it lies. Nobody writes rows behind the last token; there must be numbers.
DEVICE void take_rows(const WalkStep& step, int units, uint4* x) {
    OWN_THREAD;
    const uint4* const from = reinterpret_cast<const uint4*>(step.product.x);
    const int vectors = units * (kColumns / 16), tokens = step.product.tokens;
#pragma unroll 1
    for (int i = thread(); i < vectors; i += 4 * team()) {
        uint4 v[4];
        const auto codes = [&](int k) { return (i + k * team()) % (kColumns / 16) < kOfCodes / 16; };
        const int row = (i & 31) >> 2, pair = (i & 3) * 2;  // the same for all four: so many threads are whole warps
        const auto is = [&](int k) { return i + k * team() < vectors && (codes(k) ? row : pair) < tokens; };
        await_vectors(from + i, 16 * team(), step.fresh & X_IS, v, is);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (codes(k)) v[k] = {v[k].x ^ kCodes, v[k].y ^ kCodes, v[k].z ^ kCodes, v[k].w ^ kCodes};
            if (i + k * team() < vectors) x[i + k * team()] = v[k];
        }
    }
}

// ---- products ---------------------------------------------------------------------------------------------------------
// A row of a tile: the words of this lane of a block's codes, scales in registers, the rest in shared memory.
template <class L>
struct TileRow {
    const uint8_t* rest;
    uint4 scales = {}, minima = {};
    uint32_t super = 0, own[2] = {};
    int first = 0;  // chunk of the own words
    DEVICE TileRow(const uint8_t* rest, int item) : rest(rest + item * 16) {
        const uint4* const at = reinterpret_cast<const uint4*>(this->rest);
        if constexpr (L::scales_kind != FLOATS) scales = at[L::codes * 32];
        if constexpr (L::scales_kind == HALVES && L::min) minima = at[(L::codes + 1) * 32];
        if constexpr (L::word) super = reinterpret_cast<const uint32_t*>(rest + L::chunks * 512)[item];
    }
    DEVICE uint32_t operator()(int c, int w) const {
        if (c < (L::kind == N8 ? 16 : 8)) return own[c - first];
        if (L::scales_kind != FLOATS && c >= L::codes) return Half<L>::word(c == L::codes ? scales : minima, w);
        return *reinterpret_cast<const uint32_t*>(rest + c * 512 + w * 4);
    }
};

// 16 rows of a tile, from item `base` on, by 256 columns of x: rows g and g + 8, tokens 2 t and 2 t + 1. `rest`: where the tile lies
// from its eighth chunk on, less these.
template <class L>
DEVICE void multiply_rows(const uint8_t* tile, const uint8_t* rest, int base, const uint4* x, float (&part)[4]) {
    const int g = lane() / 4, t = lane() % 4;
    TileRow<L> rows[2] = {{rest, base + g}, {rest, base + g + 8}};
    const float4* const scales = reinterpret_cast<const float4*>(x + kOfCodes / 16) + t;
    const uint32_t mine = (lane() / 16) * 512 + (base + lane() % 16) * 16;
    constexpr bool wide = L::kind == N8;  // two chunks a block
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
                uint32_t low, high;
                L::words(rows[r], first + k, t, low, high);
                a[r] = signed_codes<L>(low), a[2 + r] = signed_codes<L>(high);
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
            const typename L::Values f[2] = {L::factors(rows[0], rows[0].super, first + k), L::factors(rows[1], rows[1].super, first + k)};
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

// ---- who does what ------------------------------------------------------------------------------------------------------
// Twelve warps multiply, one fetches weights; of a product one more brings x, where it is taken in parts, and two add up. Sums of a group of
// rows over a part of x (all of it, or `stages` units) have one of `slots` places; they and parts of x are counted from the kernel's beginning on,
// by everybody for himself.
constexpr int kAdd = 2, kPlaces = 4, kMost = 64;  // warps that add up; places of sums, and tiles of one, at most
constexpr int kAdded = 64;  // who looks for sums that were added up must not find those of so many before: more than there are pieces
constexpr int kDesk = kPlaces + kAdded + 4;
struct Desk {
    Arrival* first = nullptr;
    int sums = 0, parts = 0;
    DEVICE Arrival* full(int n) const { return first + n % kPlaces; }
    DEVICE Arrival* added(int n) const { return first + kPlaces + n % kAdded; }
    DEVICE Arrival* here(int n) const { return first + kPlaces + kAdded + n % 2; }
    DEVICE Arrival* room(int n) const { return first + kPlaces + kAdded + 2 + n % 2; }
    DEVICE void make() const {
        make_places(full(0), kPlaces, kMost * kTold), make_places(added(0), kAdded, kAdd * kTold);
        make_places(here(0), 2), make_places(room(0), 2, team() / 32 * kTold);
    }
    DEVICE void wait_full(int n) const { piece_here(full(n), n / kPlaces & 1); }
    DEVICE void wait_added(int n) const { piece_here(added(n), n / kAdded & 1); }
    DEVICE void all_added() const {
        if (sums) wait_added(sums - 1);
    }
};
// Where things lie: x, or two parts of it; places of sums, [units][rows][tokens]; of a product in parts, sums so far.
struct Plan {
    int units, some, each;  // floats of a place of sums
    bool in_parts;
    uint8_t* x;
    float* sums;
    DEVICE Plan(const ProductArgs& p, uint8_t* work) : units(p.parts[0].w.units), some(p.stages), x(work) {
        in_parts = some < units, each = (some << p.shift) * kRows;
        sums = reinterpret_cast<float*>(work + (in_parts ? 2 * some : some) * kColumns);
    }
    DEVICE int here(int u0) const { return units - u0 < some ? units - u0 : some; }
};

template <class A, class B>
DEVICE int multiply_rows_step(const WalkStep& step, Ring ring, Desk& desk, uint8_t* work) {
    const ProductArgs& p = step.product;
    const Share my(step);
    if (!my.groups) return 0;
    OWN_THREAD;
    const Plan plan(p, work);
    const int shift = p.shift, places = p.slots, warps = team() / 32, cut = step.fresh & CUT ? 1 : 0;
    int tile = thread() / 32;  // the warp's next one, from the part's first
    ring.skip(tile << cut);
    if (plan.in_parts) {
        sync_warp();
        tell(desk.room(0)), tell(desk.room(1));
    } else {
        take_rows(step, plan.units, reinterpret_cast<uint4*>(work));
        sync_team();
    }
#pragma unroll 1
    for (int u0 = 0; u0 < plan.units; u0 += plan.some) {
        const int here = plan.here(u0), tiles = ((here << shift) + 31) >> 5;
        const uint4* x = reinterpret_cast<const uint4*>(work);
        if (plan.in_parts) {
            x += desk.parts % 2 * plan.some * (kColumns / 16);
            piece_here(desk.here(desk.parts), desk.parts / 2 & 1);
        }
        int group = 0;
#pragma unroll 1
        for (;; tile += warps) {
#pragma unroll 1
            for (; tile >= tiles; tile -= tiles) group++;
            if (group >= my.groups) break;
            const int use = desk.sums + group;
            float* const sums = plan.sums + (use & (places - 1)) * plan.each;
            const uint8_t* const piece = ring.take();
            const uint8_t* rest = piece;
            if (cut) {
                Ring then = ring;
                then.skip(1);
                rest = then.take() - kCut;
            }
#pragma unroll 1
            for (int half = 0; half < 32; half += 16) {
                const int item = tile * 32 + half, unit = item >> shift, row = (item & ((1 << shift) - 1)) + lane() / 4;
                if (unit >= here) break;
                float part[4];
                const uint4* const of = x + unit * (kColumns / 16);
                if (A::number == B::number || my.begin + group < step.second) multiply_rows<A>(piece, rest, half, of, part);
                else multiply_rows<B>(piece, rest, half, of, part);
                if (use >= places) desk.wait_added(use - places);
                float* const to = sums + ((unit << shift) + row) * kRows + lane() % 4 * 2;
                *reinterpret_cast<float2*>(to) = {part[0], part[1]};
                *reinterpret_cast<float2*>(to + 8 * kRows) = {part[2], part[3]};
            }
            sync_warp();
            tell(desk.full(use), tile ? 1 : kMost + 1 - tiles);
            if (cut) ring.leave(1);
            ring.leave((warps << cut) - cut);
        }
        tile += (group - my.groups) * tiles, desk.sums += my.groups;
        if (!plan.in_parts) continue;
        sync_warp();
        if (u0 + 2 * plan.some < plan.units) tell(desk.room(desk.parts));
        desk.parts++;
    }
    return my.groups * my.tiles << cut;
}

// Parts of x, by one warp, when all who quantise have left theirs and there is room.
DEVICE void bring_parts(const WalkStep& step, Desk& desk, uint8_t* work) {
    const ProductArgs& p = step.product;
    const Plan plan(p, work);
    if (!plan.in_parts || !Share(step).groups) return;
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(p.x);
    const int* const counted = reinterpret_cast<const int*>(from + plan.units * kColumns);
#pragma unroll 1
    for (int u0 = 0; u0 < plan.units; u0 += plan.some, desk.parts++) {
        const int here = plan.here(u0);
        piece_here(desk.room(desk.parts), desk.parts / 2 & 1);
        Patience patience;
        const bool mine = lane() < here && step.fresh & X_IS;
        while (any_lane(mine && load_acquire(counted + u0 + lane()) < p.tokens - 1)) patience.lose();
        copies_may_begin();
        copy_strips(work + desk.parts % 2 * plan.some * kColumns, from + u0 * kColumns, here * kColumns, 1, 0, desk.here(desk.parts));
    }
}

// Sums in order, and what follows them, by two warps: a thread has two rows of a token, eight apart, or a gate and its up.
DEVICE void add_up_step(const WalkStep& step, Desk& desk, uint8_t* work) {
    const ProductArgs& p = step.product;
    const Share my(step);
    if (!my.groups) return;
    const Plan plan(p, work);
    const int shift = p.shift, places = p.slots, me = thread() & (32 * kAdd - 1), token = me >> 3;
    const bool paired = p.parts[0].paired;
    const int row_shift = paired ? shift - 1 : shift, apart = paired ? 1 << row_shift : 8, turn = paired ? 8 : 16;
    float* const so_far = plan.sums + places * plan.each;  // [group][row][token]
#pragma unroll 1
    for (int u0 = 0; u0 < plan.units; u0 += plan.some) {
        const int here = plan.here(u0);
        const bool last = u0 + plan.some >= plan.units;
#pragma unroll 1
        for (int group = 0; group < my.groups; group++, desk.sums++) {
            const float* const sums = plan.sums + (desk.sums & (places - 1)) * plan.each;
#pragma unroll 1
            for (int row = me & 7; row < 1 << row_shift; row += turn) {
                // What follows the sum of a row is looked up before it is there.
                float *out[2] = {}, residual[2] = {-0.0f, -0.0f}, bias[2] = {-0.0f, -0.0f};
                const float* residual_at[2] = {};
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    int at = ((my.begin + group) << row_shift) + row + 8 * k;
                    const Product* of = p.parts;
#pragma unroll 1
                    while (of + 1 < p.parts + p.n_parts && at >= of[1].first_group << row_shift) of++;
                    at -= of->first_group << row_shift;
                    if (!last || token >= p.tokens || at >= of->w.rows || (paired && k)) continue;
                    const int64_t place = int64_t(token) * of->out_stride + at;
                    out[k] = of->out + place;
                    if (of->residual) residual_at[k] = of->residual + place, residual[k] = load_fresh(residual_at[k]);
                    if (of->bias) bias[k] = of->bias[at];
                }
                float* const mine = so_far + ((group << shift) + row) * kRows + token;
                const float* at = sums + row * kRows + token;
                float y[2] = {-0.0f, -0.0f};
                if (u0) y[0] = mine[0], y[1] = mine[apart * kRows];
                desk.wait_full(desk.sums);
#pragma unroll 1
                for (int u = 0; u < here; u += 8, at += 8 * kRows << shift) {  // eight on their way; what is behind the last changes nothing
                    float v[2][8];
#pragma unroll
                    for (int k = 0; k < 8; k++)
#pragma unroll
                        for (int r = 0; r < 2; r++) v[r][k] = u + k < here ? at[((k << shift) + r * apart) * kRows] : -0.0f;
#pragma unroll
                    for (int k = 0; k < 8; k++) y[0] = y[0] + v[0][k], y[1] = y[1] + v[1][k];
                }
                if (!last) mine[0] = y[0], mine[apart * kRows] = y[1];
                if (paired && out[0]) {
                    const int act = p.parts[0].act;
                    const float size = as_float(bits(y[0]) & 0x7fffffffu);
                    if (act == SILU && size < 0x1p+6f && size > 0x1p-60f) y[0] = divide_near(y[0], 1.0f + exponential(-y[0])) * y[1];
                    else y[0] = gate(act, y[0]) * y[1];
                }
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    if (!out[k]) continue;
                    if (bits(residual[k]) == kNotYet && residual_at[k]) residual[k] = await(residual_at[k], step.fresh & RESIDUAL_IS);
                    store_fresh(out[k], (y[k] + bias[k]) + residual[k]);
                }
            }
            sync_warp();
            tell(desk.added(desk.sums));
        }
    }
}

// ---- what is fetched --------------------------------------------------------------------------------------------------
// Tiles in the order in which they are used: where x is taken in parts, those of a part of all groups, then the next.
template <class A, class B>
DEVICE void fetch_parts(const WalkStep& step, Fetch& fetch) {
    const ProductArgs& p = step.product;
    const Matrix& w = p.parts[0].w;
    if (p.stages >= w.units) return fetch_weights<A, B>(step, fetch);
    const Share my(step);
    const int cut = step.fresh & CUT ? 1 : 0, rest = cut & lane(), each = p.stages << p.shift >> 5;
    const int tile = w.tile_bytes, bytes = rest ? tile - kCut : cut ? kCut : tile, stride = (kAtOnce >> cut) * tile;
#pragma unroll 1
    for (int t = 0; t < my.tiles; t += each)
#pragma unroll 1
        for (int g = 0; g < my.groups; g++) {
            const int count = my.tiles - t < each ? my.tiles - t : each;
            const uint8_t* from = w.data + int64_t((my.begin + g) * my.tiles + t + (lane() >> cut)) * tile + rest * kCut;
#pragma unroll 1
            for (int left = count << cut; left > 0; left -= kAtOnce, from += stride) fetch(from, bytes, left < kAtOnce ? left : kAtOnce);
        }
}

}  // namespace assay
