// Products of quantised weights on 16-bit tensor cores, for precision `tensor`. Weights and activations are rounded to
// f16; the tensor core sums in float32, 16 columns at a time, ascending, from +0. Unpaired rows of more than 4096
// columns are cut into `chains` of units, whose sums are added in ascending order. All kernels here do this, so the
// bits do not depend on batch or chunk. They differ from the cpu engine's.
//
// A weight is fma(q, d, m) in f16. q is exact; d and m are multiplied by 64 before rounding, so that no scale of a real
// file is subnormal, and the sum is divided by 64. Columns 4 t to 4 t + 3 of 16 take places 2 t, 8 + 2 t, 2 t + 1 and 9
// + 2 t. A lane's share of a fragment is then one word of codes, and one `and` and one `or` make two halves of it.
// make_factors computes d and m when a matrix is loaded.
//
// Four warps take 64 rows, a warp 16 of them. A warp copies its weights, as they are in memory, to shared memory some
// units ahead, and unpacks fragments into registers. Activations are stored in the order in which they are multiplied
// (half_at). A bulk copy fetches 64 columns of a tile's tokens for all warps of a block; all blocks read them through
// L2.
//   tensor_256, ..., tensor_32  groups of four warps have 64 rows each; the fragments of 64 columns are unpacked while the
//                               64 before are multiplied. Bound by tensor cores, with few tokens by unpacking
//   turns_64, ..., turns_8      64 rows; groups of four warps take the units of 256 columns in turn: each unpacks its own
//                               unit, then gets the sums from the group before. Bound by unpacking and the product chain
#include "gemm.h"
#include "warpgroup.h"

namespace assay {

constexpr float kLift = 64.0f;

DEVICE uint32_t lifted(float x) { return float_to_half(x * kLift); }

// Factors of a block as words: (d, m), or (d of the first half, d of the second), and for two of each also (m, m).
template <class L, class Chunk>
DEVICE uint2 factor_words(const Chunk& chunk, uint32_t super, int i) {
    const typename L::Values v = L::factors(chunk, super, i);
    uint32_t scales = lifted(v.d[0]), minima = 0;
    if constexpr (L::sub16) scales |= lifted(v.d[1]) << 16;
    else if constexpr (L::min) scales |= lifted(v.m[0]) << 16;
    if constexpr (L::sub16 && L::min) minima = lifted(v.m[0]) | lifted(v.m[1]) << 16;
    return {scales, minima};
}

// The factors of all items of a matrix, once, when it is loaded. A thread has a block of 32 columns.
KERNEL(make_factors, FactorArgs, 256) {
    for (int64_t n = int64_t(block_x()) * threads() + thread(); n < a.tiles * 256; n += int64_t(grid_x()) * threads()) {
        const int i = int(n % 8), of = int(n / 8 % 32);
        const InMemory at{a.w.data + n / 256 * a.w.tile_bytes, of};
        uint32_t* const to = reinterpret_cast<uint32_t*>(a.out + n / 256 * a.chunks * 512 + i / 4 * 512 + of * 16) + i % 4;
        with_layout(a.w.format, [&](auto layout) {
            using L = decltype(layout);
            const uint2 words = factor_words<L>(at, L::word ? at.super(L::chunks) : 0, i);
            to[0] = words.x;
            if constexpr (L::sub16 && L::min) to[256] = words.y;
        });
    }
}

// Codes of columns 16 h + 4 t to 16 h + 4 t + 3 of block i as exact halves of q: first and third, second and fourth.
// The half 1024 + code has the code in its low bits, and 1024 + 16 code in the next ones.
template <class L>
DEVICE void codes_as_halves(const InStage& row, int i, int t, uint32_t (&x)[2][2]) {
    constexpr uint32_t magic = 0x64006400u, off = L::negative ? 128u : uint32_t(L::offset), minus = (0xe400u + off) * 0x10001u;
    if constexpr (L::kind == N4 && L::book == PLAIN) {
        constexpr uint32_t sixteenth = 0x2c002c00u, less = (0xd400u + 16 * off) * 0x10001u;  // 1 / 16, -(64 + off)
        const uint32_t v = row(i, t), w = v >> 8;
        x[0][0] = add_halves(masked_or(v, 0x000f000fu, magic), minus), x[0][1] = add_halves(masked_or(w, 0x000f000fu, magic), minus);
        x[1][0] = fma_halves(masked_or(v, 0x00f000f0u, magic), sixteenth, less), x[1][1] = fma_halves(masked_or(w, 0x00f000f0u, magic), sixteenth, less);
        return;
    }
    uint32_t codes[2];
    L::words(row, i, t, codes[0], codes[1]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (L::negative) codes[h] ^= 0x80808080u;
        x[h][0] = add_halves(masked_or(codes[h], 0x00ff00ffu, magic), minus), x[h][1] = add_halves(permute(codes[h], magic, 0x7371), minus);
    }
}

// Fragments of 16 rows from the even block `first` of a unit on: [codes][16 rows][16], then factors.
template <class L, int S>
DEVICE void unpack_step(const uint8_t* raw, int first, uint32_t (&a)[S][4]) {
    const int g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int two = 0; two < S / 4; two++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const InStage row{raw, 16, g + 8 * r};
            const int i = first + 2 * two, at = ((L::codes + i / 4) * 16 + row.row) * 16 + i % 4 * 4;
            const uint2 scales = *reinterpret_cast<const uint2*>(raw + at);
            const uint2 minima = L::sub16 && L::min ? *reinterpret_cast<const uint2*>(raw + at + 512) : uint2{0, 0};
#pragma unroll
            for (int b = 0; b < 2; b++) {
                const uint32_t s = b ? scales.y : scales.x, n = b ? minima.y : minima.x;
                uint32_t x[2][2];
                codes_as_halves<L>(row, i + b, t, x);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint32_t d = L::sub16 && h ? high_twice(s) : low_twice(s);
                    const uint32_t m = !L::min ? 0 : !L::sub16 ? high_twice(s) : h ? high_twice(n) : low_twice(n);
                    a[4 * two + 2 * b + h][r] = fma_halves(x[h][0], d, m);
                    a[4 * two + 2 * b + h][2 + r] = fma_halves(x[h][1], d, m);
                }
            }
        }
}

// The layouts that a kernel has code for: all, or A and B.
struct AnyLayout {
    template <class F>
    static DEVICE void with(int format, F&& f) { with_layout(format, f); }
};
template <int A, int B>
struct LayoutsOf {
    template <class F>
    static DEVICE void with(int format, F&& f) {
        if constexpr (A != B)
            if (format == B) return f(LayoutOf<B>{});
        f(LayoutOf<A>{});
    }
};

// First unit of a chain; a chain ends where the next one begins.
DEVICE int chain_begin(const TensorArgs& a, int units, int chain) { return chain * units / a.chains; }

// The rows of a warp, 16 from `first`. A lane's two rows are a pair if matrices are paired, 8 or 16 apart. A lane
// copies every other chunk of row lane % 16.
struct WarpRows {
    int second, row, item, per, tile_bytes, unit_bytes;  // unit_bytes: of 16 rows
    const uint8_t *from, *factors;
    DEVICE WarpRows(const TensorArgs& a, int part, int first, int warp) {
        const Product& p = a.product.parts[part];
        second = p.paired ? p.w.group / 2 : 8;
        row = second == 16 ? first + warp / 2 * 32 + warp % 2 * 8 : first + warp * 16;
        int at = row + lane() % 8 + lane() / 8 % 2 * second;
        if (at >= p.w.all_rows) at = p.w.all_rows - 1;
        item = at % p.w.group, per = p.w.group, tile_bytes = p.w.tile_bytes;
        unit_bytes = (a.codes[part] + a.pairs[part]) * 256;
        from = p.w.tile(at / p.w.group, 0);
        factors = a.factors[part] + int64_t(at / p.w.group) * p.w.tiles * a.pairs[part] * 512;
    }
    // once: evict-first, as only blocks that run now read these weights.
    template <class L, bool once>
    DEVICE void fetch(uint8_t* to, int u) const {
        constexpr int pairs = L::sub16 && L::min ? 4 : 2;
        const auto copy = [](uint8_t* to, const uint8_t* from) { once ? copy_once(to, from) : copy_async(to, from); };
        const int at = u * per + item, tile = at >> 5, first = lane() / 16;
        const uint8_t* x = from + int64_t(tile) * tile_bytes + (at & 31) * 16 + first * 512;
        const uint8_t* y = factors + int64_t(tile) * (pairs * 512) + (at & 31) * 16 + first * 512;
        to += lane() % 16 * 16 + first * 256;
#pragma unroll
        for (int c = 0; c < L::codes; c += 2) copy(to + c * 256, x + c * 512);
#pragma unroll
        for (int c = 0; c < pairs; c += 2) copy(to + (L::codes + c) * 256, y + c * 512);
    }
};

template <int J>
DEVICE void clear_rows(float (&sum)[J][4]) {
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[j][e] = 0.0f;
}

// The residual of a warp's sums, loaded together. For absent tokens and rows another element is loaded and ignored.
// With more tokens registers do not suffice, and pairs have no residual.
template <int J>
struct Residual {
    static constexpr bool few = J <= 8;
    float y[few ? J : 1][4];
    bool here;
    DEVICE Residual(const Product& p, int row, int second, int token, int tokens) : here(few && p.residual && !p.paired) {
        if constexpr (few) {
            if (!here) return;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int at = row + lane() / 4 + r * second;
                if (at >= p.w.rows) at = p.w.rows - 1;
#pragma unroll
                for (int j = 0; j < J; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        int of = token + lane() % 4 * 2 + 8 * j + e;
                        if (of >= tokens) of = tokens - 1;
                        y[j][2 * r + e] = p.residual[int64_t(of) * p.out_stride + at];
                    }
            }
        }
    }
};

// Epilogue of a warp's sums: rows g of 8 from `row` and g of 8 from `row + second`, tokens 8 j + 2 t and the next from
// `token`. All loads come before the first store.
template <int J>
DEVICE void store_rows(const Product& p, int room, float (&sum)[J][4], const Residual<J>& residual, int row, int second, int token, int tokens) {
    const int g = lane() / 4, half = p.paired ? p.w.group / 2 : p.w.group;
    token += lane() % 4 * 2;
    const auto each = [&](auto&& f) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = row + g + r * second, out = p.paired ? at / p.w.group * half + at % p.w.group : at;
            if ((p.paired && r) || out >= p.w.rows) continue;  // the second row of a pair is the up of the first
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (token + 8 * j + e < tokens) f(sum[j][2 * r + e], sum[j][2 + e], out, token + 8 * j + e, int64_t(token + 8 * j + e) * p.out_stride + out);
        }
    };
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[j][e] = sum[j][e] * (1.0f / kLift);
    bool gated = false;
    if constexpr (J <= 8)
        if (p.paired && p.act == SILU && !p.gate_out && !p.up_out) gated = silu_pairs<J>(sum);
    if (p.paired && !gated)
        each([&](float& y, float up, int, int, int64_t to) {
            if (p.gate_out) p.gate_out[to] = y;
            if (p.up_out) p.up_out[to] = up;
            y = gate(p.act, y) * up;
        });
    if (p.bias) each([&](float& y, float, int out, int, int64_t) { y = y + p.bias[out]; });
    if constexpr (Residual<J>::few)
        if (residual.here)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[j][e] = sum[j][e] + residual.y[j][e];
    if (p.residual && !residual.here) each([&](float& y, float, int, int, int64_t to) { y = y + p.residual[to]; });
    if (room) each([&](float& y, float, int out, int of, int64_t) { reinterpret_cast<uint16_t*>(p.out)[half_at(of, out, room)] = float_to_half(y); });
    else each([&](float& y, float, int, int, int64_t to) { p.out[to] = y; });
}

// Fold the chains of several blocks: each stores its sums, and the last to arrive adds them in ascending order. Returns
// whether this block is the last. `me` of `count` threads; `sync` is their barrier; `last` is in shared memory.
template <int J, class Sync>
DEVICE bool fold_chains(const TensorArgs& a, float (&sum)[J][4], int me, int count, int* last, Sync&& sync) {
    constexpr int at_once = 4, some = J < 4 ? J : 4;
    const int tile = block_y() * grid_x() + block_x();
    float4* const from = a.partial + (int64_t(tile) * a.chains * J) * count + me;
#pragma unroll
    for (int j = 0; j < J; j++) from[int64_t(block_z() * J + j) * count] = {sum[j][0], sum[j][1], sum[j][2], sum[j][3]};
    sync();
    if (me == 0) {  // the fence also covers writes that this thread has observed
        fence();
        *last = fetch_add(a.arrived + tile, 1) == a.chains - 1;
        fence();
    }
    sync();
    if (!*last) return false;
#pragma unroll
    for (int j0 = 0; j0 < J; j0 += some)
        // at_once loads in flight: results of other blocks come from L2
        for (int c0 = 0; c0 < a.chains; c0 += at_once) {
            uint4 v[at_once][some];
#pragma unroll
            for (int c = 0; c < at_once; c++)
#pragma unroll
                for (int j = 0; j < some; j++)
                    v[c][j] = load_fresh4(from + int64_t((c0 + c < a.chains ? c0 + c : a.chains - 1) * J + j0 + j) * count);
#pragma unroll
            for (int c = 0; c < at_once; c++)
#pragma unroll
                for (int j = 0; j < some; j++) {
                    const float y[4] = {as_float(v[c][j].x), as_float(v[c][j].y), as_float(v[c][j].z), as_float(v[c][j].w)};
                    if (c0 + c < a.chains)
#pragma unroll
                        for (int e = 0; e < 4; e++) sum[j0 + j][e] = c0 + c ? sum[j0 + j][e] + y[e] : y[e];
                }
        }
    if (me == 0) a.arrived[tile] = 0;
    return true;
}

// Shared memory: a ring of activations, [16 S columns / 64][tokens][128 bytes]; two units of weights of each warp,
// [chunks][16 rows][16] and words; mbarriers. Warps take turns in fetching activations for all. block_x: tile of
// tokens; block_y: tile of rows.
template <class Layouts, int J, int S>
DEVICE void tensor_tile(const TensorArgs& all) {
    const ProductArgs& a = all.product;
    SHARED;
    constexpr uint32_t parts = 16 / S, tokens = 8 * J, strip = tokens * 128, stage_bytes = strip * S / 4, ring = J == 16 ? 8 : 4, late = ring == 8 ? 3 : 2;
    const int tile = block_y(), first_token = block_x() * tokens, warp = thread() / 32;
    next_may_start();
    const int part = part_of(a, tile);
    const Product& p = a.parts[part];
    const WarpRows of(all, part, (tile - p.first_group) * (threads() / 2), warp);
    const int chain = all.split ? block_z() : 0, chains = all.split ? chain + 1 : all.chains;
    const int first = chain_begin(all, p.w.units, chain), units = chain_begin(all, p.w.units, chains) - first;
    uint8_t* const raw = shared + ring * stage_bytes + warp * 2 * of.unit_bytes;
    Arrival* const here = reinterpret_cast<Arrival*>(shared + ring * stage_bytes + threads() / 32 * 2 * of.unit_bytes);
    Arrival* const gone = here + ring;
    NEEDS_SHARED(tensor_tile_bytes(tokens, ring, S / 4, threads() / 32, of.unit_bytes));
    const int64_t step_bytes = int64_t(a.acts.step) * 128;  // bytes of 64 columns
    const uint8_t* x = reinterpret_cast<const uint8_t*>(a.acts.q) + 4 * first * step_bytes + first_token * 128;
    const uint32_t steps = parts * units;
    const auto fetch_acts = [&](uint32_t n) {
        if (n < steps) copy_strips(shared + n % ring * stage_bytes, x + n * (S / 4 * step_bytes), strip, S / 4, step_bytes, here + n % ring);
    };
    if (warp == 0) {
        make_arrivals(here, ring);
        make_places(gone, ring, threads() / 32 * kLeavers);
    }
    float sum[J][4];
    clear_rows<J>(sum);
    Layouts::with(p.w.format, [&](auto layout) {
        using L = decltype(layout);
        constexpr int unit_bytes = tensor_unit_bytes(L::codes, L::sub16 && L::min ? 4 : 2);
        for (int u = 0; u < 2; u++) {
            if (u < units) of.template fetch<L, J <= 8>(raw + u * unit_bytes, first + u);
            copy_group();
        }
        sync_block();
        wait_for_previous();
        if (warp == 0)
            for (uint32_t n = 0; n < ring; n++) fetch_acts(n);
        int unit = 0;
        // Unpack the fragments of a part of the current unit. After the last part, prefetch the next unit into its
        // place.
        const auto unpack = [&](uint32_t which, uint32_t (&to)[S][4]) {
            uint8_t* const at = raw + unit % 2 * unit_bytes;
            unpack_step<L, S>(at, which * (S / 2), to);
            if (which + 1 < parts) return;
            sync_warp();
            if (unit + 2 < units) of.template fetch<L, J <= 8>(at, first + unit + 2);
            copy_group();
            unit++;
        };
        const auto unit_here = [] {
            copies_done<1>();
            sync_warp();
        };
        uint32_t now[S][4], next[S][4];
        unit_here();
        unpack(0, now);
        const auto step = [&](uint32_t n, auto odd, uint32_t (&now)[S][4], uint32_t (&next)[S][4]) {
            piece_here(here + n % ring, n / ring % 2);
            products_begin();
#pragma unroll
            for (int k = 0; k < S; k++) multiply_rows<J>(sum, now[k], shared + n % ring * stage_bytes + k / 4 * strip, k % 4);
            products_sent();
            products_done<1>();
            if (n > 0) leave_place(gone + (n - 1) % ring);
            // refill the slot that all warps have multiplied
            if ((n & (threads() / 32 - 1)) == uint32_t(warp) && n >= late) {
                piece_here(gone + (n - late) % ring, (n - late) / ring % 2);
                fetch_acts(n - late + ring);
            }
            if constexpr (odd.value) {
                if (n + 1 == steps) return;
                if (parts == 2 || n % parts == parts - 1) unit_here();
            }
            unpack(parts == 2 ? 1 - odd.value : (n + 1) % parts, next);
        };
        uint32_t n = 0;
        for (int c = chain;;) {
            const uint32_t stop = parts * (chain_begin(all, p.w.units, c + 1) - first);
            do {  // at least once: so the compiler knows that only products write the sums
                step(n, Constant<0>{}, now, next);
                step(n + 1, Constant<1>{}, next, now);
                n += 2;
            } while (n < stop);
            products_over<J>(sum);
            if (all.split) break;
            // of this thread
            float4* const total = all.partial + int64_t(tile * grid_x() + block_x()) * J * threads() + thread();
            if (c > 0)
#pragma unroll
                for (int j = 0; j < J; j++) {
                    const float4 y = total[j * threads()];
                    sum[j][0] = y.x + sum[j][0], sum[j][1] = y.y + sum[j][1], sum[j][2] = y.z + sum[j][2], sum[j][3] = y.w + sum[j][3];
                }
            if (++c == chains) break;
#pragma unroll
            for (int j = 0; j < J; j++) total[j * threads()] = {sum[j][0], sum[j][1], sum[j][2], sum[j][3]};
            clear_rows<J>(sum);
        }
    });
    const Residual<J> residual(p, of.row, of.second, first_token, a.tokens);
    if (all.split && !fold_chains<J>(all, sum, thread(), threads(), reinterpret_cast<int*>(gone + ring), [] { sync_block(); })) return;
    store_rows<J>(p, all.room, sum, residual, of.row, of.second, first_token, a.tokens);
}

// Shared memory: a unit of activations of each group, [4][tokens][128 bytes]; sums that are passed on, [J][128 lanes];
// two units of weights of each warp; mbarriers. Barriers: 1 + group for sums, 8 + group within a group.
template <class Layouts, int J>
DEVICE void tensor_turns(const TensorArgs& all) {
    const ProductArgs& a = all.product;
    SHARED;
    constexpr int S = 16, tokens = 8 * J, acts_bytes = 512 * tokens;
    const int tile = block_y(), first_token = block_x() * tokens, groups = threads() / 128, group = thread() / 128, me = thread() % 128;
    next_may_start();
    const int part = part_of(a, tile);
    const Product& p = a.parts[part];
    const WarpRows of(all, part, (tile - p.first_group) * 64, me / 32);
    const int first = chain_begin(all, p.w.units, block_z()), units = chain_begin(all, p.w.units, block_z() + 1);
    float4* const passed = reinterpret_cast<float4*>(shared + groups * acts_bytes) + me;
    uint8_t* const acts = shared + group * acts_bytes;
    uint8_t* const raw = shared + groups * acts_bytes + 256 * tokens + thread() / 32 * 2 * of.unit_bytes;
    Arrival* const here = reinterpret_cast<Arrival*>(shared + groups * (acts_bytes + 8 * of.unit_bytes) + 256 * tokens) + group;
    NEEDS_SHARED(tensor_turns_bytes(tokens, groups, of.unit_bytes));
    const int64_t step_bytes = int64_t(a.acts.step) * 128;
    const uint8_t* x = reinterpret_cast<const uint8_t*>(a.acts.q) + first_token * 128;
    const auto fetch_acts = [&](int u) {
        if (u < units && me < 32) copy_strips(acts, x + 4 * u * step_bytes, acts_bytes / 4, 4, step_bytes, here);
    };
    if (me < 32) make_arrivals(here, 1);
    float sum[J][4];
    bool last = false;
    Layouts::with(p.w.format, [&](auto layout) {
        using L = decltype(layout);
        constexpr int unit_bytes = tensor_unit_bytes(L::codes, L::sub16 && L::min ? 4 : 2);
        for (int i = 0, u = first + group; i < 2; i++, u += groups) {
            if (u < units) of.template fetch<L, J <= 8>(raw + i * unit_bytes, u);
            copy_group();
        }
        sync_some(8 + group, 128);
        wait_for_previous();
        fetch_acts(first + group);
        uint8_t* at = raw;
        int phase = 0;
        for (int u = first + group; u < units; u += groups, phase = 1 - phase) {
            uint32_t fragments[S][4];
            copies_done<1>();
            sync_warp();
            unpack_step<L, S>(at, 0, fragments);
            sync_warp();
            if (u + 2 * groups < units) of.template fetch<L, J <= 8>(at, u + 2 * groups);
            copy_group();
            at = phase ? raw : raw + unit_bytes;
            clear_rows<J>(sum);
            piece_here(here, phase);
            if (u > first) {
                sync_some(1 + group, 256);
#pragma unroll
                for (int j = 0; j < J; j++) {
                    const float4 y = passed[j * 128];
                    sum[j][0] = y.x, sum[j][1] = y.y, sum[j][2] = y.z, sum[j][3] = y.w;
                }
            }
            products_begin();
#pragma unroll
            for (int k = 0; k < S; k++) multiply_rows<J>(sum, fragments[k], acts + k / 4 * tokens * 128, k % 4);
            products_sent();
            products_over<J>(sum);
            last = u + 1 == units;
            if (last) break;
#pragma unroll
            for (int j = 0; j < J; j++) passed[j * 128] = {sum[j][0], sum[j][1], sum[j][2], sum[j][3]};
            arrive_some(1 + (group + 1) % groups, 256);
            sync_some(8 + group, 128);  // all warps have finished reading the activations
            fetch_acts(u + groups);
        }
    });
    if (!last) return;
    const auto sync = [&] { sync_some(8 + group, 128); };
    const Residual<J> residual(p, of.row, of.second, first_token, a.tokens);
    if (all.split && !fold_chains<J>(all, sum, me, 128, reinterpret_cast<int*>(here - group + groups), sync)) return;
    store_rows<J>(p, all.room, sum, residual, of.row, of.second, first_token, a.tokens);
}

CROWDED(tensor_256, TensorArgs, 256, 1) { tensor_tile<AnyLayout, 32, 4>(a); }
CROWDED(tensor_128, TensorArgs, 256, 1) { tensor_tile<AnyLayout, 16, 4>(a); }
// For up to 64 tokens a kernel has one layout, or two that common files mix: with all layouts in each kernel a step of
// 64 tokens took up to a tenth longer. turns_64 has 384 threads, and the registers of 512, so that an attention block
// fits beside it.
#define TENSOR(name, A, B)                                                                                      \
    CROWDED(tensor_64_##name, TensorArgs, 512, 1) { tensor_tile<LayoutsOf<A, B>, 8, 8>(a); }                    \
    CROWDED(tensor_64_alone_##name, TensorArgs, 128, 2) { tensor_tile<LayoutsOf<A, B>, 8, 8>(a); }              \
    CROWDED(tensor_32_##name, TensorArgs, 512, 1) { tensor_tile<LayoutsOf<A, B>, 4, 8>(a); }                    \
    CROWDED(turns_64_##name, TensorArgs, 512, 1) { tensor_turns<LayoutsOf<A, B>, 8>(a); }                       \
    CROWDED(turns_32_##name, TensorArgs, 512, 1) { tensor_turns<LayoutsOf<A, B>, 4>(a); }                       \
    CROWDED(turns_16_##name, TensorArgs, 512, 1) { tensor_turns<LayoutsOf<A, B>, 2>(a); }                       \
    CROWDED(turns_8_##name, TensorArgs, 512, 1) { tensor_turns<LayoutsOf<A, B>, 1>(a); }
TENSOR(q4_0, Q4_0, Q4_0)
TENSOR(q4_1, Q4_1, Q4_1)
TENSOR(q5_0, Q5_0, Q5_0)
TENSOR(q5_1, Q5_1, Q5_1)
TENSOR(q8_0, Q8_0, Q8_0)
TENSOR(q4_k, Q4_K, Q4_K)
TENSOR(q5_k, Q5_K, Q5_K)
TENSOR(q6_k, Q6_K, Q6_K)
TENSOR(iq4_nl, IQ4_NL, IQ4_NL)
TENSOR(iq4_xs, IQ4_XS, IQ4_XS)
TENSOR(mxfp4, MXFP4, MXFP4)
TENSOR(wide16, WIDE16, WIDE16)
TENSOR(wide16_min, WIDE16_MIN, WIDE16_MIN)
TENSOR(q4_k_q6_k, Q4_K, Q6_K)
TENSOR(q5_k_q6_k, Q5_K, Q6_K)

}  // namespace assay
