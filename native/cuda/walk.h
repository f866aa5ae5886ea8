// Shared by the steps of a walk (walk.cu): values that one thread block publishes for others, and the ring buffer of
// weights, keys and values that producer warps fill and consumer warps read.
#pragma once
#include "attention_one.h"
#include "multiply.h"

namespace assay {

// Kernels with MORE (walk_more.cu) also have norms as steps and gates before a row is quantised. Their attention has
// head norms, a factor of q, windows, caps and heads of 256. The other kernels omit these: code costs registers and
// instruction cache even if it never runs. StepFlag (abi.h) has the flags of a step.

// ---- values that blocks publish for each other ---------------------------------------------------------------------
DEVICE float await(const float* p, bool fresh) {
    float v = load_fresh(p);
    Patience patience;
    while (fresh && bits(v) == kNotYet) patience.lose(), v = load_fresh(p);
    return v;
}
// Operands of a step that earlier steps of the walk may write, and results that later ones may read (map.h, Plain).
struct Awaited {
    bool fresh;
    DEVICE float operator()(const float* p) const { return await(p, fresh); }
    // Poll all that is missing together; polling in turn adds one latency each.
    template <int N>
    DEVICE void read(const float* const (&from)[N], float (&v)[N]) const {
        bool wanted[N];
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = 0.0f, wanted[k] = from[k];
        Patience patience;
        for (bool more = true; more; patience.lose()) {
            more = false;
#pragma unroll
            for (int k = 0; k < N; k++)
                if (wanted[k]) v[k] = load_fresh(from[k]);
#pragma unroll
            for (int k = 0; k < N; k++) wanted[k] = wanted[k] && fresh && bits(v[k]) == kNotYet, more |= wanted[k];
        }
    }
    static DEVICE void put(float* p, float y) { store_fresh(p, y); }
};
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

// A block of 32 quantised values that is published: codes, then (d, d * sum, sums of the halves), 48 bytes. No code is
// -128 and no sum is -32768, so these words, xor-ed with the masks, are never `kNotYet`.
constexpr uint32_t kCodes = 0x7f7f7f7fu, kSums = 0x7fff7fffu;

// Values that all blocks read have copies, because one address in L2 cannot serve all readers at once: this block's
// copy.
DEVICE const uint8_t* copy_of(const WalkStep& step, const void* x) {
    return static_cast<const uint8_t*>(x) + (block_x() & (step.in_copies - 1)) * step.in_bytes;
}

// A warp publishes 32 quantised values, one a lane.
DEVICE void leave_codes(uint8_t* to, float y) {
    const Scale scale = block_scale(reduce_max(bits(y) & 0x7fffffffu));
    const int code = quantise(y, scale), all = reduce_add(code), first = reduce_add(lane() < 16 ? code : 0);
    uint32_t word = uint32_t(code & 255) << 8 * (lane() & 3);
    word |= uint32_t(shuffle_xor(int(word), 1));
    word |= uint32_t(shuffle_xor(int(word), 2));
    word ^= kCodes;
    // Lanes 0, 4, ... have the codes; lanes 1, 5, 9 and 13 have d, d * sum and the half sums.
    if (lane() == 1) word = bits(scale.d);
    if (lane() == 5) word = bits(scale.d * float(all));
    if (lane() == 9) word = (uint32_t(first & 0xffff) | uint32_t(all - first) << 16) ^ kSums;
    if (lane() == 13) word = 0;
    uint32_t* const at = reinterpret_cast<uint32_t*>(to) + lane() / 4 + (lane() % 4 ? 8 : 0);
    if (lane() % 4 == 0 || (lane() % 4 == 1 && lane() < 16)) store_fresh(at, word == kNotYet ? 0x7fffffffu : word);
}

// Gating (abi.h), in `paired` of a step's first part, says what is computed before a row is quantised.

// Quantised values of eight rows (walk_few.h): 256 columns take `kWalkUnitBytes` bytes. Codes are laid out as the
// second operand of `mma` m16n8k32: [two blocks][lane][16 bytes], two words of the first block and two of the second.
// Then come (d, d * sum), [block][row].
DEVICE uint32_t* code_at(uint8_t* x, int row, int column) {  // word of four neighbouring columns
    const int block = column >> 5 & 7, word = column >> 2 & 7, lane_of = row * 4 + (word & 3);
    return reinterpret_cast<uint32_t*>(x + (column >> 8) * kWalkUnitBytes + (block >> 1) * 512 + lane_of * 16) + (block & 1) * 2 + (word >> 2);
}
DEVICE float* scale_at(uint8_t* x, int row, int column) {
    return reinterpret_cast<float*>(x + (column >> 8) * kWalkUnitBytes + kWalkCodeBytes) + ((column >> 5 & 7) * kWalkRows + row) * 2;
}
// A warp publishes 32 values of a row from `column` on, one a lane.
DEVICE void leave_codes_of(uint8_t* to, int row, int column, float y) {
    const Scale scale = block_scale(reduce_max(bits(y) & 0x7fffffffu));
    const int code = quantise(y, scale), all = reduce_add(code);
    uint32_t word = uint32_t(code & 255) << 8 * (lane() & 3);
    word |= uint32_t(shuffle_xor(int(word), 1));
    word |= uint32_t(shuffle_xor(int(word), 2));
    if (lane() % 4 == 0) store_fresh(code_at(to, row, column + lane()), word ^ kCodes);
    if (lane() < 2) store_fresh(scale_at(to, row, column) + lane(), lane() ? scale.d * float(all) : scale.d);
}

// Consumer threads. The producer warp comes after them; walk_few.cu and walk_two.cu have one more warp.
#ifndef TEAM
#define TEAM (threads() - 32)
#endif
DEVICE int team() { return TEAM; }
DEVICE void sync_team() { sync_some(1, team()); }

// thread() and lane() recomputed in a function: the compiler would keep the usual ones in registers from step to step.
#define OWN_THREAD(is)                                                                      \
    [[maybe_unused]] const int own_thread = (is) ? opaque(::thread()) : 0;                  \
    [[maybe_unused]] const auto thread = [=] { return (is) ? own_thread : ::thread(); };    \
    [[maybe_unused]] const auto lane = [=] { return (is) ? own_thread & 31 : ::lane(); }

// Thread blocks are numbered from the step's first one.
DEVICE int block_of(const WalkStep& step) {
    const int at = int(block_x()) - step.first;
    return at + (at >> 31 & int(grid_x()));
}
// The groups of rows of this thread block.
struct Share {
    int begin, groups, tiles;
    DEVICE Share(const WalkStep& step) {
        const ProductArgs& p = step.product;
        const int at = block_of(step);
        begin = at * p.share + (at < p.extra ? at : p.extra);
        groups = p.share + (at < p.extra), tiles = p.parts[0].w.tiles;
    }
};

// ---- what the producer warps fetch ---------------------------------------------------------------------------------
// Pieces of weights, keys and values, in the order in which the steps use them. The producer warp requests them as ring
// slots become free; up to kAtOnce lanes request a piece each. `ahead` limits the pieces in flight, because earlier
// requests delay later ones. A piece of weights is a tile. In a step whose tiles are larger than a slot it is half a
// tile: its first `kCutBytes` bytes, the chunks of low bits, and the rest. TWO: two producer warps take alternate
// pieces. `ahead` is odd, so each waits on the other's slots and is never a whole turn of the ring in front of it.
constexpr int kAtOnce = 4;
template <bool TWO>
struct Fetch {
    const WalkArgs& a;
    uint8_t* places;
    Arrival *here, *gone;
    int which = 0, ahead = 0, slot = 0, fill = 0, before = 0;
    DEVICE void operator()(const uint8_t* from, int bytes, int count) {  // by lanes 0 to count - 1, at most kAtOnce
        const bool mine = lane() < count && (!TWO || (before + lane()) % 2 == which);
        int at = slot + lane(), of = fill, late = at - ahead, late_of = fill;
        if (at >= a.slots) at -= a.slots, of++;
        if (late < 0) late += a.slots, late_of--;
        if (mine && of > 0) piece_here(gone + at, (of - 1) & 1);
        for (int i = 0; kRacecheck && i < count; i++) {  // racecheck attributes all copies to the first lane
            const int place = slot + i, turn = place < a.slots ? fill - 1 : fill;
            if (turn >= 0) piece_here(gone + (place < a.slots ? place : place - a.slots), turn & 1);
        }
        if (mine && late_of >= 0) piece_here(here + late, late_of & 1);
        sync_warp();  // a lane that waits late must not see the next phase
        if (mine) copy_by_lane(places + at * a.room, from, bytes, here + at);
        slot += count, before += count;
        if (slot >= a.slots) slot -= a.slots, fill++;
    }
};

// A float tile has several pieces: first pieces of all warps' tiles, then second pieces, and so on.
template <class A, bool TWO>
DEVICE void fetch_floats(const WalkStep& walk_step, Fetch<TWO>& fetch) {
    const ProductArgs& p = walk_step.product;
    const Share my(walk_step);
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

template <class A, class B, bool TWO>
DEVICE void fetch_weights(const WalkStep& walk_step, Fetch<TWO>& fetch) {
    if constexpr (A::floats) return fetch_floats<A>(walk_step, fetch);
    const ProductArgs& p = walk_step.product;
    const Share my(walk_step);
    const int cut = walk_step.fresh & SPLIT_TILE ? 1 : 0, end = (my.begin + my.groups) * my.tiles, n_parts = p.n_parts;
    const int rest = cut & lane();
    int at = my.begin * my.tiles;
#pragma unroll 1
    for (int i = 0; i < n_parts && at < end; i++) {
        const int stop = i + 1 < n_parts ? p.parts[i + 1].first_group * my.tiles : end, to = stop < end ? stop : end;
        const bool is_first = A::number == B::number || p.parts[i].w.format == A::number;
        const int tile = is_first ? A::tile_bytes : B::tile_bytes, step = (kAtOnce >> cut) * tile;
        const int bytes = rest ? tile - kCutBytes : cut ? kCutBytes : tile;
        const uint8_t* from = p.parts[i].w.data + int64_t(at - p.parts[i].first_group * my.tiles + (lane() >> cut)) * tile + rest * kCutBytes;
#pragma unroll 1
        for (int left = (to - at) << cut; left > 0; left -= kAtOnce, from += step) fetch(from, bytes, left < kAtOnce ? left : kAtOnce);
        if (to > at) at = to;
    }
}

// The first key that a query sees.
template <bool MORE>
DEVICE int first_seen(const WalkStep& step, int slot) {
    if constexpr (!MORE) return 0;
    const int window = step.attention.mask.window, first = slot + 1 - window;
    return window && first > 0 ? first : 0;
}

// An item of a thread block: 256 keys of some heads of one group; the block takes its items in turn. A page has
// `pieces` pieces of keys (one, two or four) and as many of values. Query and key heads are numbered through all rows.
// A row of padding has slot -1 and an item without keys, because other blocks spin-wait for its result.
template <bool MANY, bool MORE>
struct Item {
    const int* slots;
    // block: of 256 keys, from the first that the query sees; of: its heads; row, slot: its query
    int block, of, pieces, row, slot;
    int seen;  // first visible key
    DEVICE Item(const WalkStep& step, const int* slots) : slots(slots), block(0), of(block_of(step)), row(0), slot(*slots) {
        pieces = step.dim_shift <= 6 ? 1 : 1 << (step.dim_shift - 6);
        seen = first_seen<MORE>(step, slot);
        find(step);
    }
    DEVICE void find(const WalkStep& step) {
        if constexpr (!MANY) {  // a loop costs 50 cycles a turn and may take 16 turns
            const int blocks = int(uint64_t(of) * uint32_t(step.second) >> 24);
            of -= blocks * step.of_block, block += blocks;
            return;
        }
#pragma unroll 1
        for (;; of += grid_x()) {
#pragma unroll 1
            while (of >= step.of_block) of -= step.of_block, block++;
            if (!more(step)) return;
            row = kv(step) * step.per_row >> 16, slot = slots[row], seen = first_seen<MORE>(step, slot);
            if (!block || begin() <= slot) return;
        }
    }
    DEVICE int at() const { return MORE ? seen / kBlock + block : block; }  // among all blocks of the sequence
    DEVICE int begin() const { return at() * kBlock; }  // its first key
    DEVICE bool more(const WalkStep& step) const { return MANY ? block < step.attention.max_blocks : begin() <= slot; }
    DEVICE void next(const WalkStep& step) { of += grid_x(), find(step); }
    DEVICE int head(const WalkStep& step) const { return of * step.heads; }
    DEVICE int kv(const WalkStep& step) const { return head(step) * step.per_group >> 16; }
    // Masked keys at the beginning of the item; its first visible page, and one past its last.
    DEVICE int low() const { return MORE && seen > begin() ? seen - begin() : 0; }
    DEVICE int first() const { return low() / kPage; }
    DEVICE int used() const {
        const int pages = (slot >> 5) + 1 - at() * kPages;
        return pages < kPages ? pages : kPages;
    }
    DEVICE const int32_t* pages(const AttentionArgs& t) const { return t.rows.pages + t.rows.tables[row] + at() * kPages; }
    DEVICE uint8_t* cached(const AttentionArgs& t, bool values, int page, int kv) const {
        return head_of(t.cache, values ? t.values : t.keys, page, kv - row * t.keys.heads);
    }
};

// All keys of an item before its values, and first pieces of all pages before second pieces: the order of use.
template <bool MANY, bool MORE, bool TWO>
DEVICE void fetch_cache(const WalkStep& step, const int* slots, Fetch<TWO>& fetch) {
    const AttentionArgs& t = step.attention;
#pragma unroll 1
    for (Item<MANY, MORE> item(step, slots); item.more(step); item.next(step)) {
        const int kv = item.kv(step), used = item.used() - item.first(), half = used * item.pieces;
        const int bytes = item.pieces == 1 ? 64 << step.dim_shift : 4096;
        const int32_t* pages = item.pages(t) + item.first();
#pragma unroll 1
        for (int n = 0; n < 2 * half; n += kAtOnce) {
            const int left = 2 * half - n < kAtOnce ? 2 * half - n : kAtOnce, mine = n + (lane() < left ? lane() : 0);
            const bool values = mine >= half;
            const int piece = values ? mine - half : mine;
            const int turn = MORE ? (piece >= used) + (piece >= 2 * used) + (piece >= 3 * used) : piece >= used;
            fetch(item.cached(t, values, pages[piece - turn * used], kv) + turn * bytes, bytes, left);
        }
    }
}

// Kinds of steps behind NORM: a kernel that has some (walk_all.cu) defines how they run and what they fetch.
struct NoOthers {
    static constexpr bool any = false;
    static constexpr int kept = 2;  // descriptions of steps in shared memory, a power of two
    static constexpr int bytes = 0;  // shared memory before that of the steps
};

template <class A, class B, bool MORE, class Others, bool TWO>
DEVICE void fetch_all(const WalkArgs& a, int slot, Fetch<TWO> fetch, [[maybe_unused]] uint8_t* own) {
#pragma unroll 1
    for (int s = 0; s < a.n_steps; s++) {
        fetch.ahead = a.steps[s].ahead;
        if (a.steps[s].kind == PRODUCT) fetch_weights<A, B>(a.steps[s], fetch);
        else if (a.steps[s].kind == ATTEND) fetch_cache<false, MORE>(a.steps[s], &slot, fetch);
        else if constexpr (Others::any) Others::fetch(a.steps[s], fetch, own);
    }
}

struct Ring {  // the ring buffer, and the slot of the step's first piece
    uint8_t* places;
    Arrival *here, *gone;
    int slots, room, slot, fill;
    DEVICE void skip(int pieces) {
#pragma unroll 1
        for (slot += pieces; slot >= slots; slot -= slots) fill++;
    }
    // `late`: the slot's previous piece may not have been left yet, so wait for that first.
    DEVICE const uint8_t* take(bool late = false) const {
        if (late && fill) piece_here(gone + slot, (fill - 1) & 1);
        piece_here(here + slot, fill & 1);
        return places + slot * room;
    }
    DEVICE void leave(int further, bool by_two = false) {
        sync_warp();
        leave_place(gone + slot, by_two);
        skip(further);
    }
};
DEVICE void make_ring(Arrival* here, int slots) {
    if (!kRacecheck) return make_places(here, 2 * slots);
    make_places(here, slots), make_places(here + slots, slots, kLeavers);
}

}  // namespace assay
