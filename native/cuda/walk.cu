// One token through a run of products and attentions by one kernel: a block of threads on every multiprocessor that stays.
//
// It computes docs/arithmetic.md. A run is a list of steps in device memory. The last warp of a block asks for weights, step
// after step, as places in shared memory become free: it does not wait for x, so the stream does not pause between steps.
// The other warps take x of a step when it is there (norm and quantisation are done by every block for itself), multiply a
// tile each, add up partial sums in order, and leave rows of the result in global memory.
//
// There is no barrier between steps. What one step leaves for another is `kNotYet` before (kernel `clear`) and never after:
// readers look until it is something else. So all blocks must run at the same time (`together`), and a value is written once.
// Bound by memory at 7B; a small model by the way of x from block to block, about 1,000 cycles a step.
#include "attention_one.h"
#include "multiply.h"

namespace assay {

enum StepKind { PRODUCT, ATTEND, FOLD, QUANTISE };
enum Fresh { X_IS = 1, RESIDUAL_IS = 2, AS_CODES = 4 };  // written by a step of this run; the result of attention as codes

struct WalkStep {
    int32_t kind, fresh;
    int32_t heads, of_block, dim_shift, per_group;  // of attention: that a block of threads has at a time, all of them by that,
                                                    // log2 of their width, and 65536 / heads of a group, rounded up
    int32_t in_copies, in_bytes, out_copies, out_bytes;  // of x and of the result, 1 or a power of two; from one to the next
    union {
        ProductArgs product;
        AttentionArgs attention;
    };
};
struct WalkArgs {
    const WalkStep* steps;
    const int32_t* slot;                  // of the token, in the cache
    int32_t n_steps, slots, room, ahead;  // places for pieces of weights, their bytes, how many are on their way at most
};

struct ClearArgs {
    uint4* at;
    int64_t vectors;
};
KERNEL(clear, ClearArgs, 256) {
    next_may_start();
    wait_for_previous();
    for (int64_t i = int64_t(block_x()) * threads() + thread(); i < a.vectors; i += int64_t(grid_x()) * threads())
        a.at[i] = {kNotYet, kNotYet, kNotYet, kNotYet};
}

// ---- values from block to block -------------------------------------------------------------------------------------
DEVICE float await(const float* p, bool fresh) {
    float v = load_fresh(p);
    Patience patience;
    while (fresh && bits(v) == kNotYet) patience.lose(), v = load_fresh(p);
    return v;
}
DEVICE bool there(const uint4& v) {
    const uint32_t x = v.x > v.y ? v.x : v.y, y = v.z > v.w ? v.z : v.w;
    return (x > y ? x : y) != kNotYet;
}
struct Eight {
    uint4 a, b;
    DEVICE void ask(const float* x) { a = load_fresh4(x), b = load_fresh4(x + 4); }
    DEVICE void await(const float* x, bool fresh) {
        Patience patience;
        while (fresh && !(there(a) && there(b))) patience.lose(), ask(x);
    }
};

// 32 quantised values on their way: their codes, then (d, d * sum, sums of the halves), 48 bytes. No code is -128 and no sum
// -32768, so that these words, turned over, are never `kNotYet`.
constexpr uint32_t kCodes = 0x7f7f7f7fu, kSums = 0x7fff7fffu;

// Of what all blocks read there are copies, as one place in memory cannot answer all of them at once: which one is mine.
DEVICE const uint8_t* copy_of(const WalkStep& step, const void* x) {
    return static_cast<const uint8_t*>(x) + (block_x() & (step.in_copies - 1)) * step.in_bytes;
}

// A warp leaves its 32 values, one a lane.
DEVICE void leave_codes(uint8_t* to, float y) {
    const Scale scale = block_scale(reduce_max(bits(y) & 0x7fffffffu));
    const int code = quantise(y, scale), all = reduce_add(code), first = reduce_add(lane() < 16 ? code : 0);
    uint32_t word = uint32_t(code & 255) << 8 * (lane() & 3);
    word |= uint32_t(shuffle_xor(int(word), 1));
    word |= uint32_t(shuffle_xor(int(word), 2));
    word ^= kCodes;
    // Lanes 0, 4, ... have the codes, lanes 1, 5, 9 and 13 the rest.
    if (lane() == 1) word = bits(scale.d);
    if (lane() == 5) word = bits(scale.d * float(all));
    if (lane() == 9) word = (uint32_t(first & 0xffff) | uint32_t(all - first) << 16) ^ kSums;
    if (lane() == 13) word = 0;
    uint32_t* const at = reinterpret_cast<uint32_t*>(to) + lane() / 4 + (lane() % 4 ? 8 : 0);
    if (lane() % 4 == 0 || (lane() % 4 == 1 && lane() < 16)) store_fresh(at, word == kNotYet ? 0x7fffffffu : word);
}

// The warps that compute; the last one of the block fetches.
DEVICE int team() { return threads() - 32; }
DEVICE void sync_team() { sync_some(1, team()); }

// The groups of rows of this block.
struct Share {
    int begin, groups, tiles;
    DEVICE Share(const ProductArgs& p) {
        begin = block_x() * p.share + (block_x() < p.extra ? block_x() : p.extra);
        groups = p.share + (block_x() < p.extra), tiles = p.parts[0].w.tiles;
    }
};

// ---- what is fetched ------------------------------------------------------------------------------------------------
// Pieces of weights, and of keys and values, in the order in which the steps use them. The last warp asks for them as places
// become free, some lanes for a piece each, and not too far ahead: what has been asked for delays what is asked for later.
constexpr int kAtOnce = 4;
struct Fetch {
    const WalkArgs& a;
    uint8_t* places;
    Arrival *here, *gone;
    int slot = 0, fill = 0;
    DEVICE void operator()(const uint8_t* from, int bytes, int count) {  // of lanes 0 to count - 1, at most kAtOnce
        const bool mine = lane() < count;
        int at = slot + lane(), of = fill, late = at - a.ahead, late_of = fill;
        if (at >= a.slots) at -= a.slots, of++;
        if (late < 0) late += a.slots, late_of--;
        if (mine && of > 0) piece_here(gone + at, (of - 1) & 1);
        if (mine && late_of >= 0) piece_here(here + late, late_of & 1);
        sync_warp();  // a lane that looks late must not find the next turn
        if (mine) copy_by_lane(places + at * a.room, from, bytes, here + at);
        slot += count;
        if (slot >= a.slots) slot -= a.slots, fill++;
    }
};

// Floats come in several pieces a tile: the first ones of all warps' tiles, the second ones, and so on.
template <class A>
DEVICE void fetch_floats(const ProductArgs& p, Fetch& fetch) {
    const Share my(p);
    const int begin = my.begin * my.tiles, end = begin + my.groups * my.tiles, warps = team() / 32;
#pragma unroll 1
    for (int first = begin; first < end; first += warps)
#pragma unroll 1
        for (int i = 0; i < A::pieces; i++)
#pragma unroll 1
            for (int round = end - first < warps ? end - first : warps, w = 0; w < round; w += kAtOnce) {
                const int left = round - w < kAtOnce ? round - w : kAtOnce, at = first + w + (lane() < left ? lane() : 0);
                const Product& of = p.parts[part_of(p, at / my.tiles)];
                constexpr int each = A::tile_bytes / A::pieces;
                fetch(of.w.data + int64_t(at - of.first_group * my.tiles) * A::tile_bytes + i * each, each, left);
            }
}

template <class A, class B>
DEVICE void fetch_weights(const ProductArgs& p, Fetch& fetch) {
    if constexpr (A::floats) return fetch_floats<A>(p, fetch);
    const Share my(p);
    const int end = (my.begin + my.groups) * my.tiles, n_parts = p.n_parts;
    int at = my.begin * my.tiles;
#pragma unroll 1
    for (int i = 0; i < n_parts && at < end; i++) {
        const int stop = i + 1 < n_parts ? p.parts[i + 1].first_group * my.tiles : end, to = stop < end ? stop : end;
        const bool is_first = A::number == B::number || p.parts[i].w.format == A::number;
        const int bytes = is_first ? A::tile_bytes : B::tile_bytes;
        const uint8_t* from = p.parts[i].w.data + int64_t(at - p.parts[i].first_group * my.tiles + lane()) * bytes;
#pragma unroll 1
        for (int left = to - at; left > 0; left -= kAtOnce, from += kAtOnce * bytes) fetch(from, bytes, left < kAtOnce ? left : kAtOnce);
        if (to > at) at = to;
    }
}

// The keys of a block of threads: 256 of some heads of one group, all of them items in turn. A page has `pieces` pieces of
// keys and as many of values.
struct Item {
    int block, of, pieces;  // 256 keys; which heads
    DEVICE Item(const WalkStep& step) : block(0), of(block_x()) {
        pieces = step.dim_shift <= 6 ? 1 : 1 << (step.dim_shift - 6);
        wrap(step);
    }
    DEVICE void wrap(const WalkStep& step) {
#pragma unroll 1
        while (of >= step.of_block) of -= step.of_block, block++;
    }
    DEVICE void next(const WalkStep& step) { of += grid_x(), wrap(step); }
    DEVICE int head(const WalkStep& step) const { return of * step.heads; }
    DEVICE int kv(const WalkStep& step) const { return head(step) * step.per_group >> 16; }
    DEVICE int used(int slot) const {
        const int pages = (slot >> 5) + 1 - block * kPages;
        return pages < kPages ? pages : kPages;
    }
    DEVICE const int32_t* pages(const AttentionArgs& t) const { return t.rows.pages + t.rows.tables[0] + block * kPages; }
};

// All keys of an item before its values: they are used first.
DEVICE void fetch_cache(const WalkStep& step, int slot, Fetch& fetch) {
    const AttentionArgs& t = step.attention;
#pragma unroll 1
    for (Item item(step); item.block * kBlock <= slot; item.next(step)) {
        const int kv = item.kv(step), used = item.used(slot), half = used * item.pieces;
        const int bytes = item.pieces == 1 ? 64 << step.dim_shift : 4096;
        const int32_t* pages = item.pages(t);
#pragma unroll 1
        for (int n = 0; n < 2 * half; n += kAtOnce) {
            const int left = 2 * half - n < kAtOnce ? 2 * half - n : kAtOnce, mine = n + (lane() < left ? lane() : 0);
            const bool values = mine >= half;
            const int piece = values ? mine - half : mine, page = item.pieces == 1 ? piece : piece >> (step.dim_shift - 6);
            const uint8_t* from = head_of(t.cache, values ? t.values : t.keys, pages[page], kv);
            fetch(from + (piece & (item.pieces - 1)) * bytes, bytes, left);
        }
    }
}

template <class A, class B>
DEVICE void fetch_all(const WalkArgs& a, int slot, Fetch fetch) {
#pragma unroll 1
    for (int s = 0; s < a.n_steps; s++) {
        if (a.steps[s].kind == PRODUCT) fetch_weights<A, B>(a.steps[s].product, fetch);
        else if (a.steps[s].kind == ATTEND) fetch_cache(a.steps[s], slot, fetch);
    }
}

struct Ring {  // where pieces lie, and the place of the one that a step begins with
    uint8_t* places;
    Arrival *here, *gone;
    int slots, room, slot, fill;
    DEVICE void skip(int pieces) {
#pragma unroll 1
        for (slot += pieces; slot >= slots; slot -= slots) fill++;
    }
    DEVICE const uint8_t* take() const {
        piece_here(here + slot, fill & 1);
        return places + slot * room;
    }
    DEVICE void leave(int further) {
        sync_warp();
        leave_place(gone + slot);
        skip(further);
    }
};

// ---- products -------------------------------------------------------------------------------------------------------
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

// ---- attention ------------------------------------------------------------------------------------------------------
// The result of 32 values of a head, one a lane, `at`: the first of them, in all heads.
DEVICE void leave_values(const WalkStep& step, int at, float y) {
    float* const out = step.attention.out;
    if (step.fresh & AS_CODES) leave_codes(reinterpret_cast<uint8_t*>(out) + at / 32 * 48, y);
    else store_fresh(out + at + lane(), y);
}

// A block of threads takes 256 keys of H query heads of one group at a time, a warp a page of 32; a lane scores a key, and
// weighs PAIRS pairs of values. The cache is in halves and a query sees all keys before it (attention.py).
template <int PAIRS, int H>
DEVICE int attend(const WalkStep& step, int slot, Ring ring, uint8_t* work) {
    constexpr int UNROLL = H == 1 ? 8 : 4;
    const AttentionArgs& t = step.attention;
    const bool fresh = step.fresh & X_IS;
    const int warp = thread() / 32, dim_shift = step.dim_shift, dim = 1 << dim_shift;
    float* const q = reinterpret_cast<float*>(work);                   // [H][dim]
    uint16_t* const new_k = reinterpret_cast<uint16_t*>(q + H * dim);  // [dim], and the new value
    float* const e = reinterpret_cast<float*>(new_k + 2 * dim);        // [H][256]
    float* const tops = e + H * kBlock;                                // [H][8 pages]
    float* const parts = tops + H * kPages;                            // [8 pages][H][dim]
    int pieces = 0;
#pragma unroll 1
    for (Item item(step); item.block * kBlock <= slot; item.next(step)) {
        const int head = item.head(step), kv = item.kv(step), newest = slot - item.block * kBlock, used = item.used(slot);
        const int mine = newest + 1 - warp * kPage;  // keys from the warp's first one on
        const bool here = newest < kBlock, busy = warp < used;
        // Two elements a thread: of q, of the new key, of the new value.
#pragma unroll 1
        for (int i = thread(); i < (here ? H + 2 : H) << (dim_shift - 1); i += team()) {
            const int which = i >> (dim_shift - 1), j = i - (which << (dim_shift - 1)), half = t.n_rot / 2;
            const float* const x = which < H ? t.q + ((head + which) << dim_shift) : (which == H ? t.k : t.v) + (kv << dim_shift);
            const bool turned = which <= H && j < half;
            const int first = turned && t.neox ? j : 2 * j, second = turned && t.neox ? j + half : first + 1;
            float c = 1.0f, s = 0.0f;
            if (turned) c = t.turn[j], s = t.turn[half + j];
            float y = load_fresh(x + first), z = load_fresh(x + second);
            Patience patience;
            while (fresh && (bits(y) == kNotYet || bits(z) == kNotYet)) patience.lose(), y = load_fresh(x + first), z = load_fresh(x + second);
            if (turned) {
                const float y2 = y * c - z * s;
                z = y * s + z * c, y = y2;
            }
            if (which < H) q[(which << dim_shift) + first] = y, q[(which << dim_shift) + second] = z;
            else {
                const uint16_t g = float_to_half(y), h = float_to_half(z);
                uint16_t* const to = new_k + ((which - H) << dim_shift);
                to[first] = g, to[second] = h;
                if (head == kv * (t.heads / t.keys.heads)) {  // one head of the group puts them into the cache
                    const int page = item.pages(t)[newest / kPage], in_page = slot % kPage;
                    uint16_t* const at = reinterpret_cast<uint16_t*>(head_of(t.cache, which == H ? t.keys : t.values, page, kv));
                    const auto place = [&](int d) { return which == H ? (d / 8 * kPage + in_page) * 8 + d % 8 : (in_page << dim_shift) + d; };
                    at[place(first)] = g, at[place(second)] = h;
                    if (i == H << (dim_shift - 1) && head == 0)
                        reinterpret_cast<int32_t*>(t.cache.pages + page * t.cache.page_bytes + t.cache.positions_at)[in_page] = t.rows.positions[0];
                }
            }
        }
        sync_team();
        float s[H] = {};
        Ring keys = ring;
        if (busy) {
            const bool is_new = thread() == newest;
            keys.skip(pieces + warp * item.pieces);
            const float* query = q;
            const int vectors = dim / 8 / item.pieces, step_of = is_new ? 1 : kPage;
#pragma unroll 1
            for (int i = 0; i < item.pieces; i++) {
                const uint4* key = reinterpret_cast<const uint4*>(keys.take()) + lane();
                if (is_new) key = reinterpret_cast<const uint4*>(new_k) + i * vectors;
#pragma unroll UNROLL
                for (int j = 0; j < vectors; j++, query += 8) score_eight<H>(key[j * step_of], query, dim, s);
                keys.leave(1);
            }
#pragma unroll
            for (int h = 0; h < H; h++) {
                s[h] = s[h] * t.mask.scale;
                // The largest of the page, NaN left out; a page of nothing else says so by a NaN.
                const bool counts = lane() < mine && s[h] == s[h];
                float top = counts ? s[h] : minus_infinity();
#pragma unroll
                for (int i = 16; i; i /= 2) top = larger(top, shuffle_xor(top, i));
                if (top == minus_infinity() && any_lane(lane() < mine && s[h] != s[h])) top = not_a_number();
                if (lane() == 0) tops[h * kPages + warp] = top;
            }
        }
        sync_team();
        const auto top_of = [&](int h) {
            const float x = lane() < used ? tops[h * kPages + lane()] : minus_infinity();
            float m = x == x ? x : minus_infinity();
#pragma unroll
            for (int i = 4; i; i /= 2) m = larger(m, shuffle_xor(m, i));
            m = shuffle(m, 0);
            return any_lane(x != x) && m == minus_infinity() ? as_float(0xff7fffffu) : m;
        };
        if (busy) {
            float* const mine_e = e + warp * kPage;
#pragma unroll
            for (int h = 0; h < H; h++) {
                const float m = top_of(h);
                mine_e[h * kBlock + lane()] = lane() < mine ? exponential(s[h] - m) : 0.0f;
            }
            sync_warp();
            const int in_page = mine < kPage ? mine : kPage, new_here = newest - warp * kPage, rows = kPage / item.pieces;
            float2 sum[H][PAIRS] = {};
            Ring values = ring;
            values.skip(pieces + (used + warp) * item.pieces);
#pragma unroll 1
            for (int i = 0; i < item.pieces; i++) {
                const uint16_t* value = reinterpret_cast<const uint16_t*>(values.take());
                const int end = in_page < (i + 1) * rows ? in_page : (i + 1) * rows;
                if (2 * lane() < dim)
#pragma unroll UNROLL
                    for (int j = i * rows; j < end; j++, value += dim) {
                        const uint16_t* of = (j == new_here ? new_k + dim : value) + 2 * lane();
#pragma unroll
                        for (int x = 0; x < PAIRS; x++) {
                            const uint32_t two = *reinterpret_cast<const uint32_t*>(of + 64 * x);
                            const float low = half_to_float(uint16_t(two)), high = half_to_float(uint16_t(two >> 16));
#pragma unroll
                            for (int h = 0; h < H; h++) {
                                const float by = mine_e[h * kBlock + j];
                                sum[h][x] = {fma(by, low, sum[h][x].x), fma(by, high, sum[h][x].y)};
                            }
                        }
                    }
                values.leave(1);
            }
            if (2 * lane() < dim)
#pragma unroll
                for (int h = 0; h < H; h++)
#pragma unroll
                    for (int x = 0; x < PAIRS; x++) *reinterpret_cast<float2*>(parts + (warp * H + h) * dim + 2 * lane() + 64 * x) = sum[h][x];
        }
        sync_team();
#pragma unroll 1
        for (int i = thread(); i < H << dim_shift; i += team()) {
            const int h = i >> dim_shift, d = i - (h << dim_shift);
            float l = 0.0f, acc = 0.0f;
#pragma unroll 2
            for (int p = 0; p < used; p++) l = l + e[h * kBlock + p * kPage + lane()], acc = acc + parts[(p * H << dim_shift) + i];
#pragma unroll
            for (int x = 16; x; x /= 2) l = l + shuffle_xor(l, x);
            if (t.max_blocks == 1) {
                leave_values(step, (head << dim_shift) + i - lane(), acc * (1.0f / l));
                continue;
            }
            float* to = t.partial + (int64_t(head + h) * t.max_blocks + item.block) * (2 + dim);
            store_fresh(to + 2 + d, acc);
            const float m = top_of(h);
            if (d == 0) store_fresh(to, m), store_fresh(to + 1, l);
        }
        pieces += 2 * used * item.pieces;
    }
    return pieces;
}

// The blocks of 256 keys of a head, ascending; a lane an element. What they are weighed with, a lane computes for a block.
DEVICE void fold_step(const WalkStep& step, int slot) {
    const AttentionArgs& t = step.attention;
    const int dim = t.values.dim, blocks = slot / kBlock + 1, of_head = step.dim_shift - 5;
    constexpr int some = 8;
#pragma unroll 1
    for (int task = thread() / 32 * grid_x() + block_x(); task < t.heads << of_head; task += team() / 32 * grid_x()) {
        const int head = task >> of_head, d = (task - (head << of_head)) * 32 + lane();
        const float* const from = t.partial + int64_t(head) * t.max_blocks * (2 + dim);
        float m = minus_infinity(), l = 0.0f, acc = 0.0f;
        bool any = false;
#pragma unroll 1
        for (int b0 = 0; b0 < blocks; b0 += 32) {
            const int mine = b0 + lane();
            const float m2 = mine < blocks ? await(from + mine * (2 + dim), true) : minus_infinity();
            const float l2 = mine < blocks ? await(from + mine * (2 + dim) + 1, true) : 0.0f;
            float top = m2;  // the largest so far, this block's included
#pragma unroll
            for (int h = 1; h < 32; h *= 2) {
                const float other = shuffle(top, lane() >= h ? lane() - h : lane());
                top = larger(other, top);
            }
            top = larger(m, top);
            float before = shuffle(top, lane() ? lane() - 1 : 0);
            if (lane() == 0) before = m;
            const float fa = exponential(before - top), fb = exponential(m2 - top);
            m = shuffle(top, 31);
#pragma unroll 1
            for (int b = b0; b < blocks && b < b0 + 32; b += some) {
                float acc2[some];
#pragma unroll
                for (int i = 0; i < some; i++) acc2[i] = load_fresh(from + (b + i < blocks ? b + i : blocks - 1) * (2 + dim) + 2 + d);
#pragma unroll
                for (int i = 0; i < some; i++) {
                    const float a = shuffle(fa, (b + i) & 31), c = shuffle(fb, (b + i) & 31), more = shuffle(l2, (b + i) & 31);
                    const bool counts = b + i < blocks && shuffle(m2, (b + i) & 31) != minus_infinity();
                    if (bits(acc2[i]) == kNotYet) acc2[i] = await(from + (b + i < blocks ? b + i : blocks - 1) * (2 + dim) + 2 + d, true);
                    if (counts && !any) l = more, acc = acc2[i], any = true;
                    else if (counts) l = l * a + more * c, acc = acc * a + acc2[i] * c;
                }
            }
        }
        sync_warp();
        leave_values(step, head * dim + d - lane(), acc * (1.0f / l));
    }
}

DEVICE int attend_step(const WalkStep& step, int slot, const Ring& ring, uint8_t* work) {
    const bool wide = step.dim_shift == 7;
    if (step.heads == 4) return wide ? attend<2, 4>(step, slot, ring, work) : attend<1, 4>(step, slot, ring, work);
    return wide ? attend<2, 1>(step, slot, ring, work) : attend<1, 1>(step, slot, ring, work);
}

// ---- the walk -------------------------------------------------------------------------------------------------------
template <class A, class B>
DEVICE void walk(const WalkArgs& a) {
    SHARED;
    Ring ring = {shared, reinterpret_cast<Arrival*>(shared + a.slots * a.room), nullptr, a.slots, a.room, 0, 0};
    ring.gone = ring.here + a.slots;
    WalkStep* const steps = reinterpret_cast<WalkStep*>(ring.gone + a.slots);  // two
    uint8_t* const work = reinterpret_cast<uint8_t*>(steps + 2);
    constexpr int vectors = sizeof(WalkStep) / 16;
    static_assert(sizeof(WalkStep) % 16 == 0);
    const auto bring = [&](int s) {
        if (s < a.n_steps && thread() < vectors)
            copy_async(reinterpret_cast<uint4*>(steps + s % 2) + thread(), reinterpret_cast<const uint4*>(a.steps + s) + thread());
        copy_group();
    };
    next_may_start();
    if (thread() >= team()) make_places(ring.here, 2 * a.slots);
    sync_block();
    wait_for_previous();
    const int slot = *a.slot;
    if (thread() >= team()) return fetch_all<A, B>(a, slot, Fetch{a, ring.places, ring.here, ring.gone});
    bring(0);
#pragma unroll 1
    for (int s = 0; s < a.n_steps; s++) {
        copies_done<0>();
        sync_team();
        bring(s + 1);
        const WalkStep& step = steps[s % 2];
        int pieces = 0;
        if (step.kind == PRODUCT) pieces = multiply_step<A, B>(step, ring, work);
        else if (step.kind == ATTEND) pieces = attend_step(step, slot, ring, work);
        else if (step.kind == FOLD) fold_step(step, slot);
        else quantise_step(step);
        ring.skip(pieces);
    }
}

#define WALK(name, A, B) \
    TOGETHER(walk_##name, WalkArgs, 416) { walk<A, B>(a); }
#define WALK_OF(name, A) WALK(name, Codes<A>, Codes<A>)
WALK(f32, F32s, F32s)
WALK(f16, F16s, F16s)
WALK(bf16, BF16s, BF16s)
WALK_OF(q4_0, Q4_0)
WALK_OF(q4_1, Q4_1)
WALK_OF(q5_0, Q5_0)
WALK_OF(q5_1, Q5_1)
WALK_OF(q8_0, Q8_0)
WALK_OF(iq4_nl, IQ4_NL)
WALK_OF(iq4_xs, IQ4_XS)
WALK_OF(mxfp4, MXFP4)
WALK_OF(wide16, WIDE16)
WALK_OF(wide16_min, WIDE16_MIN)
WALK(q4_k_q6_k, Codes<Q4_K>, Codes<Q6_K>)
WALK(q5_k_q6_k, Codes<Q5_K>, Codes<Q6_K>)

}  // namespace assay
