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

enum StepKind { PRODUCT, ATTEND, FOLD };
enum Fresh { X_IS = 1, RESIDUAL_IS = 2 };  // written by a step of this run

struct WalkStep {
    int32_t kind, fresh, heads, padding[3];  // heads: that a block of threads attends with at a time
    union {
        ProductArgs product;
        AttentionArgs attention;
    };
};
struct WalkArgs {
    const WalkStep* steps;
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
struct Eight {
    uint4 a, b;
    DEVICE void ask(const float* x) { a = load_fresh4(x), b = load_fresh4(x + 4); }
    DEVICE bool there() const {
        const auto most = [](uint32_t x, uint32_t y) { return x > y ? x : y; };
        return most(most(most(a.x, a.y), most(a.z, a.w)), most(most(b.x, b.y), most(b.z, b.w))) != kNotYet;
    }
    DEVICE void await(const float* x, bool fresh) {
        Patience patience;
        while (fresh && !there()) patience.lose(), ask(x);
    }
};

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
// become free, a few at a time: what has been asked for delays what is asked for later.
struct Fetch {
    const WalkArgs& a;
    uint8_t* places;
    Arrival *here, *gone;
    int slot = 0, fill = 0, late = 0, late_fill = 0, asked = 0;  // late: must be here before one more is asked for
    DEVICE void operator()(const uint8_t* from, int bytes) {
        if (fill) piece_here(gone + slot, (fill - 1) & 1);
        if (asked >= a.ahead) {
            piece_here(here + late, late_fill & 1);
            if (++late == a.slots) late = 0, late_fill++;
        }
        sync_warp();  // a lane that looks late must not find the next turn
        copy_piece(places + slot * a.room, from, bytes, here + slot);
        asked++;
        if (++slot == a.slots) slot = 0, fill++;
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
            for (int at = first; at < first + warps && at < end; at++) {
                const Product& of = p.parts[part_of(p, at / my.tiles)];
                constexpr int each = A::tile_bytes / A::pieces;
                fetch(of.w.data + int64_t(at - of.first_group * my.tiles) * A::tile_bytes + i * each, each);
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
        const uint8_t* from = p.parts[i].w.data + int64_t(at - p.parts[i].first_group * my.tiles) * bytes;
#pragma unroll 1
        for (int left = to - at; left > 0; left--, from += bytes) fetch(from, bytes);
        if (to > at) at = to;
    }
}

// The keys of a block of threads: 256 of some heads of one group. A page has `pieces` pieces of keys and as many of values.
struct Item {
    int block, head, kv, used, pieces;
    const int32_t* pages;
    DEVICE Item(const AttentionArgs& t, int heads, int slot, int item) {
        const int of_block = t.heads / heads, left = slot + 1;
        block = item / of_block, head = (item - block * of_block) * heads, kv = head / (t.heads / t.keys.heads);
        const int pages_left = (left - block * kBlock + kPage - 1) / kPage;
        used = pages_left < kPages ? pages_left : kPages, pieces = t.keys.dim <= 64 ? 1 : t.keys.dim / 64;
        pages = t.rows.pages + t.rows.tables[0] + block * kPages;
    }
    static DEVICE int count(const AttentionArgs& t, int heads, int slot) { return (slot / kBlock + 1) * (t.heads / heads); }
};

// All keys of an item before its values: they are used first.
DEVICE void fetch_cache(const WalkStep& step, Fetch& fetch) {
    const AttentionArgs& t = step.attention;
    const int slot = t.rows.slots[0], bytes = t.keys.dim * kPage * 2, heads = step.heads;
#pragma unroll 1
    for (int i = block_x(); i < Item::count(t, heads, slot); i += grid_x()) {
        const Item item(t, heads, slot, i);
#pragma unroll 1
        for (int n = 0; n < 2 * item.used; n++) {
            const uint8_t* from = n < item.used ? head_of(t.cache, t.keys, item.pages[n], item.kv)
                                                : head_of(t.cache, t.values, item.pages[n - item.used], item.kv);
#pragma unroll 1
            for (int k = 0; k < item.pieces; k++) fetch(from + k * (bytes / item.pieces), bytes / item.pieces);
        }
    }
}

// ---- products -------------------------------------------------------------------------------------------------------
// 1 / sqrt(mean x^2 + eps), for the team; x in shared memory, written by all of it.
DEVICE float factor_of(const float* x, int n, float eps, float* room) {
    sync_team();
    if (thread() < 32) {
        const float squares = sum_of_squares(x, n);
        if (thread() == 0) *room = 1.0f / square_root(squares / float(n) + eps);
    }
    sync_team();
    return *room;
}

// x of a step, normed and quantised, into shared memory. `scratch`: room for 4 + 2 columns floats, of a norm.
DEVICE void take_codes(const ProductArgs& p, bool fresh, int stride, int8_t* q, float2* ds, uint32_t* n, float* scratch) {
    const int chunks = stride / 8, all = p.columns / 8;
    float *const copy = scratch + 4, *const weights = copy + p.columns;
    float f = 0.0f;
    if (p.norm) {
#pragma unroll 1
        for (int i = thread(); i < all; i += team()) {
            copy_async(weights + 8 * i, p.norm + 8 * i);
            copy_async(weights + 8 * i + 4, p.norm + 8 * i + 4);
        }
        copy_group();
#pragma unroll 1
        for (int i = thread(); i < all; i += 2 * team()) {
            const int j = i + team() < all ? i + team() : i;
            Eight one, two;
            one.ask(p.x + 8 * i), two.ask(p.x + 8 * j);
            one.await(p.x + 8 * i, fresh), two.await(p.x + 8 * j, fresh);
            uint4* const to = reinterpret_cast<uint4*>(copy);
            to[2 * i] = one.a, to[2 * i + 1] = one.b, to[2 * j] = two.a, to[2 * j + 1] = two.b;
        }
        copies_done<0>();
        f = factor_of(copy, p.columns, p.eps, scratch);
    }
#pragma unroll 1
    for (int i = thread(); i < chunks; i += 2 * team()) {  // whole warps: the stride is a multiple of 256
        Eight two[2];
        if (!p.norm) {
            const int j = i + team();
            if (i < all) two[0].ask(p.x + 8 * i);
            if (j < all) two[1].ask(p.x + 8 * j);
            if (i < all) two[0].await(p.x + 8 * i, fresh);
            if (j < all) two[1].await(p.x + 8 * j, fresh);
        }
#pragma unroll 1
        for (int k = 0, at = i; k < 2 && at < chunks; k++, at += team()) {
            float v[8] = {};
            if (at < all) {
                if (p.norm) {
                    float w[8];
                    load_eight(copy + 8 * at, v), load_eight(weights + 8 * at, w);
#pragma unroll
                    for (int j = 0; j < 8; j++) v[j] = (v[j] * f) * w[j];
                } else {
                    const uint4 x = k ? two[1].a : two[0].a, y = k ? two[1].b : two[0].b;
                    v[0] = as_float(x.x), v[1] = as_float(x.y), v[2] = as_float(x.z), v[3] = as_float(x.w);
                    v[4] = as_float(y.x), v[5] = as_float(y.y), v[6] = as_float(y.z), v[7] = as_float(y.w);
                }
            }
            quantise_eight(v, at, q, ds, n);
        }
    }
    sync_team();
}

DEVICE void take_floats(const ProductArgs& p, bool fresh, int stride, float* row) {
    if (p.columns % 8 == 0) {
#pragma unroll 1
        for (int i = thread(); i < p.columns / 8; i += team()) {
            Eight x;
            x.ask(p.x + 8 * i);
            x.await(p.x + 8 * i, fresh);
            reinterpret_cast<uint4*>(row)[2 * i] = x.a, reinterpret_cast<uint4*>(row)[2 * i + 1] = x.b;
        }
    } else {
        for (int i = thread(); i < p.columns; i += team()) row[i] = await(p.x + i, fresh);
    }
    for (int i = p.columns + thread(); i < stride; i += team()) row[i] = 0.0f;
    if (p.norm) {
        const float f = factor_of(row, p.columns, p.eps, row - 4);
        for (int i = thread(); i < p.columns; i += team()) row[i] = (row[i] * f) * p.norm[i];
    }
    sync_team();
}

struct Ring {  // where the pieces of a step lie
    uint8_t* places;
    Arrival *here, *gone;
    int slots, room, first;  // first: the piece that the step begins with, of all pieces so far
};

// A warp on its way through the pieces of a step.
struct Reader {
    const Ring& ring;
    int slot, fill;
    DEVICE Reader(const Ring& ring, int piece) : ring(ring) {
        piece += ring.first;
        fill = piece / ring.slots, slot = piece - fill * ring.slots;
    }
    DEVICE const uint8_t* take() const {
        piece_here(ring.here + slot, fill & 1);
        return ring.places + slot * ring.room;
    }
    DEVICE void leave(int further) {
        sync_warp();
        leave_place(ring.gone + slot);
        for (slot += further; slot >= ring.slots; slot -= ring.slots) fill++;
    }
};

template <class A, class B>
DEVICE int multiply_step(const WalkStep& step, const Ring& ring, uint8_t* work) {
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
    const int row_shift = paired ? p.shift - 1 : p.shift, rows = 1 << row_shift, all = my.groups * rows;
    Tail tail;
    const auto look = [&](int mine) {
        const int group = my.begin + (mine >> row_shift);
        const Product& of = p.parts[part_of(p, group)];
        tail = Tail(of, group - of.first_group, mine & (rows - 1), 0);
        if (tail.residual_at) tail.residual = await(tail.residual_at, step.fresh & RESIDUAL_IS);
    };
    if (thread() < all) look(thread());
    if constexpr (A::floats) take_floats(p, step.fresh & X_IS, stride, row);
    else take_codes(p, step.fresh & X_IS, stride, q, ds, n, sums);
    Reader reader(ring, warp);
    int tile = warp;
    while (tile >= my.tiles) tile -= my.tiles;
#pragma unroll 1
    for (int at = warp; at < tiles; at += warps) {
        const int whole = (tile * 32 + lane()) >> p.shift, unit = whole < units ? whole : units - 1;
        float part;
        if constexpr (A::floats) {
            float even = 0.0f, odd = 0.0f;
#pragma unroll 1
            for (int i = 0; i < A::pieces; i++) {
                multiply_floats<A::number>(reader.take(), row + unit * 256 + i * (256 / A::pieces), even, odd);
                const int round = tiles - at + warp < warps ? tiles - at + warp : warps;  // tiles of this turn
                reader.leave(i + 1 < A::pieces ? round : warps);
            }
            part = even + odd;
        } else {
            const bool is_first = A::number == B::number || p.parts[part_of(p, my.begin + at / my.tiles)].w.format == A::number;
            const uint8_t* piece = reader.take();
            if (is_first) part = multiply<A>(piece, q + unit * 256, ds + unit * 8, n + unit * 8);
            else part = multiply<B>(piece, q + unit * 256, ds + unit * 8, n + unit * 8);
            reader.leave(warps);
        }
        sums[at * 32 + lane()] = part;
        for (tile += warps; tile >= my.tiles;) tile -= my.tiles;
    }
    sync_team();
#pragma unroll 1
    for (int mine = thread(); mine < all; mine += team()) {
        if (mine != thread()) look(mine);
        const float2 total = totals_of(shape, sums + (mine >> row_shift) * my.tiles * 32 + (mine & (rows - 1)), paired ? rows : 0);
        tail.finish(total.x, total.y);
    }
    return tiles * A::pieces;
}

// ---- attention ------------------------------------------------------------------------------------------------------
// A block of threads takes 256 keys of H query heads of one group at a time, a warp a page of 32; a lane scores a key, and
// weighs PAIRS pairs of values. The cache is in halves and a query sees all keys before it (products.py).
template <int PAIRS, int H>
DEVICE int attend(const WalkStep& step, const Ring& ring, uint8_t* work) {
    const AttentionArgs& t = step.attention;
    const bool fresh = step.fresh & X_IS;
    const int warp = thread() / 32, slot = t.rows.slots[0], dim = t.keys.dim, group = t.heads / t.keys.heads;
    float* const q = reinterpret_cast<float*>(work);                   // [H][dim]
    uint16_t* const new_k = reinterpret_cast<uint16_t*>(q + H * dim);  // [dim], and the new value
    float* const e = reinterpret_cast<float*>(new_k + 2 * dim);        // [H][256]
    float* const tops = e + H * kBlock;                                // [H][8 pages]
    float* const parts = tops + H * kPages;                            // [8 pages][H][dim]
    int pieces = 0;
#pragma unroll 1
    for (int n = block_x(); n < Item::count(t, H, slot); n += grid_x()) {
        const Item item(t, H, slot, n);
        const int head = item.head, kv = item.kv, first = item.block * kBlock, newest = slot - first;
        const int mine = slot + 1 - first - warp * kPage;  // keys from the warp's first one on
        const bool here = newest < kBlock, busy = warp < item.used;
        // An element a thread: of q, of the new key, of the new value.
        const int new_page = here ? item.pages[newest / kPage] : 0;
#pragma unroll 1
        for (int i = thread(); i < (here ? H + 2 : H) * dim; i += team()) {
            const int which = i / dim, d = i - which * dim;
            const float* x = which < H ? t.q + (head + which) * dim : (which == H ? t.k : t.v) + kv * dim;
            float y;
            if (which <= H && d < t.n_rot) {
                const int half = t.n_rot / 2, j = t.neox ? (d < half ? d : d - half) : d / 2;
                const bool second = t.neox ? d >= half : d & 1;
                const float *of = x + d, *with = x + (t.neox ? (second ? j : j + half) : d ^ 1);
                const float c = t.turn[j], s = t.turn[half + j];
                y = load_fresh(of);
                float other = load_fresh(with);
                Patience patience;
                while (fresh && (bits(y) == kNotYet || bits(other) == kNotYet)) patience.lose(), y = load_fresh(of), other = load_fresh(with);
                y = second ? other * s + y * c : y * c - other * s;
            } else {
                y = await(x + d, fresh);
            }
            if (which < H) q[i] = y;
            else {
                const uint16_t h = float_to_half(y);
                new_k[i - H * dim] = h;
                if (head == kv * group) {  // one head of the group puts them into the cache
                    const Pool& pool = which == H ? t.keys : t.values;
                    reinterpret_cast<uint16_t*>(head_of(t.cache, pool, new_page, kv))[pool.index(slot % kPage, d)] = h;
                }
            }
        }
        if (here && head == 0 && thread() == 0) {
            uint8_t* page = t.cache.pages + new_page * t.cache.page_bytes + t.cache.positions_at;
            reinterpret_cast<int32_t*>(page)[slot % kPage] = t.rows.positions[0];
        }
        sync_team();
        float s[H] = {};
        if (busy) {
            const bool is_new = thread() == newest;
            Reader reader(ring, pieces + warp * item.pieces);
            const float* query = q;
#pragma unroll 1
            for (int i = 0; i < item.pieces; i++) {
                const uint4* key = reinterpret_cast<const uint4*>(reader.take()) + lane();
                if (is_new) key = reinterpret_cast<const uint4*>(new_k) + (query - q) / 8;
                const int step_of = is_new ? 1 : kPage;
#pragma unroll 4
                for (int j = 0; j < dim / 8 / item.pieces; j++, query += 8) score_eight<H>(key[j * step_of], query, dim, s);
                reader.leave(1);
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
            float m = minus_infinity();
            bool odd = false;
#pragma unroll 1
            for (int p = 0; p < item.used; p++) m = larger(m, tops[h * kPages + p]), odd |= tops[h * kPages + p] != tops[h * kPages + p];
            return m == minus_infinity() && odd ? as_float(0xff7fffffu) : m;
        };
        if (busy) {
            float* const mine_e = e + warp * kPage;
#pragma unroll
            for (int h = 0; h < H; h++) mine_e[h * kBlock + lane()] = lane() < mine ? exponential(s[h] - top_of(h)) : 0.0f;
            sync_warp();
            const int in_page = mine < kPage ? mine : kPage, new_here = newest - warp * kPage, rows = kPage / item.pieces;
            float2 sum[H][PAIRS] = {};
            Reader reader(ring, pieces + (item.used + warp) * item.pieces);
#pragma unroll 1
            for (int i = 0; i < item.pieces; i++) {
                const uint16_t* value = reinterpret_cast<const uint16_t*>(reader.take());
                const int end = in_page < (i + 1) * rows ? in_page : (i + 1) * rows;
                if (2 * lane() < dim)
#pragma unroll 4
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
                reader.leave(1);
            }
            if (2 * lane() < dim)
#pragma unroll
                for (int h = 0; h < H; h++)
#pragma unroll
                    for (int x = 0; x < PAIRS; x++) *reinterpret_cast<float2*>(parts + (warp * H + h) * dim + 2 * lane() + 64 * x) = sum[h][x];
        }
        sync_team();
#pragma unroll 1
        for (int i = thread(); i < H * dim; i += team()) {
            const int h = i / dim, d = i - h * dim;
            float l = 0.0f, acc = 0.0f;
#pragma unroll 1
            for (int p = 0; p < item.used; p++) l = l + e[h * kBlock + p * kPage + lane()], acc = acc + parts[p * H * dim + i];
#pragma unroll
            for (int x = 16; x; x /= 2) l = l + shuffle_xor(l, x);
            if (t.max_blocks == 1) {
                store_fresh(t.out + head * dim + i, acc * (1.0f / l));
                continue;
            }
            float* to = t.partial + (int64_t(head + h) * t.max_blocks + item.block) * (2 + dim);
            store_fresh(to + 2 + d, acc);
            if (d == 0) store_fresh(to, top_of(h)), store_fresh(to + 1, l);
        }
        pieces += 2 * item.used * item.pieces;
    }
    return pieces;
}

// The blocks of 256 keys of a head, ascending; a lane an element.
DEVICE void fold_step(const WalkStep& step) {
    const AttentionArgs& t = step.attention;
    const int dim = t.values.dim, blocks = t.rows.slots[0] / kBlock + 1, of_head = dim / 32;
#pragma unroll 1
    for (int task = thread() / 32 * grid_x() + block_x(); task < t.heads * of_head; task += team() / 32 * grid_x()) {
        const int head = task / of_head, d = task % of_head * 32 + lane();
        const float* from = t.partial + int64_t(head) * t.max_blocks * (2 + dim);
        float m = minus_infinity(), l = 0.0f, acc = 0.0f;
#pragma unroll 1
        for (int b0 = 0; b0 < blocks; b0 += kFolded) {
            float m2[kFolded], l2[kFolded], acc2[kFolded];
            bool there;
            Patience patience;
            do {
                there = true;
#pragma unroll
                for (int i = 0; i < kFolded; i++) {
                    const float* at = from + (b0 + i < blocks ? b0 + i : blocks - 1) * (2 + dim);
                    m2[i] = load_fresh(at), l2[i] = load_fresh(at + 1), acc2[i] = load_fresh(at + 2 + d);
                }
#pragma unroll
                for (int i = 0; i < kFolded; i++)
                    there &= bits(m2[i]) != kNotYet && bits(l2[i]) != kNotYet && bits(acc2[i]) != kNotYet;
                if (!there) patience.lose();
            } while (!there);
#pragma unroll
            for (int i = 0; i < kFolded; i++) {
                if (b0 + i >= blocks || m2[i] == minus_infinity()) continue;
                float fa = 0.0f, fb = 1.0f;
                if (m == minus_infinity()) m = m2[i], l = l2[i], acc = acc2[i];
                else fold(m, l, m2[i], l2[i], fa, fb), acc = acc * fa + acc2[i] * fb;
            }
        }
        store_fresh(t.out + head * dim + d, acc * (1.0f / l));
    }
}

DEVICE int attend_step(const WalkStep& step, const Ring& ring, uint8_t* work) {
    const bool wide = step.attention.keys.dim == 128;
    if (step.heads == 4) return wide ? attend<2, 4>(step, ring, work) : attend<1, 4>(step, ring, work);
    return wide ? attend<2, 1>(step, ring, work) : attend<1, 1>(step, ring, work);
}

// ---- the walk -------------------------------------------------------------------------------------------------------
template <class A, class B>
DEVICE void walk(const WalkArgs& a) {
    SHARED;
    const int warp = thread() / 32;
    Ring ring = {shared, reinterpret_cast<Arrival*>(shared + a.slots * a.room), nullptr, a.slots, a.room, 0};
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
    if (thread() >= team()) {
        make_arrivals(ring.here, a.slots);
        make_places(ring.gone, a.slots);
    }
    sync_block();
    if (thread() >= team()) {
        wait_for_previous();
        Fetch fetch{a, ring.places, ring.here, ring.gone};
#pragma unroll 1
        for (int s = 0; s < a.n_steps; s++) {
            if (a.steps[s].kind == PRODUCT) fetch_weights<A, B>(a.steps[s].product, fetch);
            else if (a.steps[s].kind == ATTEND) fetch_cache(a.steps[s], fetch);
        }
        return;
    }
    bring(0);
    wait_for_previous();
#pragma unroll 1
    for (int s = 0; s < a.n_steps; s++) {
        copies_done<0>();
        sync_team();
        bring(s + 1);
        const WalkStep& step = steps[s % 2];
        if (step.kind == PRODUCT) ring.first += multiply_step<A, B>(step, ring, work);
        else if (step.kind == ATTEND) ring.first += attend_step(step, ring, work);
        else fold_step(step);
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
