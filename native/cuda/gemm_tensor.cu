// Products of quantised weights on 16-bit tensor cores, for precision `tensor`: weights and activations rounded to f16, sums in
// float32 by the tensor core, 16 columns after 16, ascending, from +0. Every kernel here does that, so any batch and any chunk
// gives the same bits; they are not the cpu engine's.
//
// A weight is fma(q, d, m) in f16, q being exact, d and m rounded to f16 after they were multiplied by 64: so that no scale of a
// real file is subnormal. The sum is divided by 64. Columns 4 t to 4 t + 3 of 16 take places 2 t, 8 + 2 t, 2 t + 1 and 9 + 2 t: what
// a lane holds of a fragment is then one word of codes, and two halves of it are made by one `and` and `or`. d and m are made when
// a matrix is loaded (make_factors).
//
// Four warps take 64 rows, a warp 16 of them. A warp copies its weights, as they lie in memory, to shared memory some units ahead,
// and makes fragments in registers; tokens come to shared memory once for all four.
//   tensor_256, tensor_128,     128 or 64 rows; fragments of 64 columns are made while the 64 before are multiplied. Bound by tensor
//   tensor_64                   cores, the last by unpacking
//   tensor_32, tensor_16,       64 rows; groups of four warps take the units of 256 columns in turn: each makes the fragments of its
//   tensor_8                    own unit, then gets the sums from the group before. Bound by unpacking and the chain of products
#include "gemm.h"
#include "warpgroup.h"

namespace assay {

constexpr int kStages = 4;  // steps of activations in shared memory
constexpr float kLift = 64.0f;

DEVICE uint32_t lifted(float x) { return float_to_half(x * kLift); }

// The factors of a layout's block as words: (d, m), (d of a half, d of the other), or with two of each (m, m) besides.
template <class L, class Chunk>
DEVICE uint2 factor_words(const Chunk& chunk, uint32_t super, int i) {
    const typename L::Values v = L::factors(chunk, super, i);
    uint32_t scales = lifted(v.d[0]), minima = 0;
    if constexpr (L::sub16) scales |= lifted(v.d[1]) << 16;
    else if constexpr (L::min) scales |= lifted(v.m[0]) << 16;
    if constexpr (L::sub16 && L::min) minima = lifted(v.m[0]) | lifted(v.m[1]) << 16;
    return {scales, minima};
}

struct FactorArgs {
    Matrix w;
    uint8_t* out;   // [tiles][chunks][32][16]: word i % 4 of chunk i / 4 is block i's, minima come two chunks later
    int64_t tiles;  // of the whole matrix
    int32_t chunks, padding;
};

// The factors of all items of a matrix, once, when it is loaded.
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

// Codes of columns 16 h + 4 t to 16 h + 4 t + 3 of block i as the exact halves of q: the first and third, the second and fourth.
// 1024 + code is a half whose low bits are the code, and 1024 + 16 code one whose next bits are.
template <class L>
DEVICE void codes_as_halves(const InStage& row, int i, int t, uint32_t (&x)[2][2]) {
    constexpr uint32_t magic = 0x64006400u, off = L::negative ? 128u : uint32_t(L::offset), minus = (0xe400u + off) * 0x10001u;
    if constexpr (L::kind == N4 && !L::negative) {
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

// Fragments of 16 rows from block `first`, an even one, of a unit on: [codes][16 rows][16], then factors.
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

struct TensorArgs {
    ProductArgs product;         // first_group counts tiles of rows here
    const uint8_t* factors[4];   // of each part, as make_factors left them
    int32_t codes[4], pairs[4];  // chunks of codes and of factors of an item
    int32_t halved, padding;     // whether results are stored as halves, as halve_columns would: `out` is [tokens][out_stride] of them
};

// The rows of a warp, 16 from `first`: a lane's two are a pair where there are pairs, 8 or 16 apart. What a lane copies is of row
// lane % 16, every other chunk.
struct WarpRows {
    int second, row, item, per, tile_bytes, codes, pairs, unit_bytes;  // unit_bytes: of 16 rows
    const uint8_t *from, *factors;
    DEVICE WarpRows(const TensorArgs& a, int part, int first, int warp) {
        const Product& p = a.product.parts[part];
        second = p.paired ? p.w.group / 2 : 8;
        row = second == 16 ? first + warp / 2 * 32 + warp % 2 * 8 : first + warp * 16;
        int at = row + lane() % 8 + lane() / 8 % 2 * second;
        if (at >= p.w.all_rows) at = p.w.all_rows - 1;
        item = at % p.w.group, per = p.w.group, tile_bytes = p.w.tile_bytes, codes = a.codes[part], pairs = a.pairs[part];
        unit_bytes = (codes + pairs) * 256;
        from = p.w.tile(at / p.w.group, 0);
        factors = a.factors[part] + int64_t(at / p.w.group) * p.w.tiles * pairs * 512;
    }
    DEVICE void fetch(uint8_t* to, int u) const {
        const int at = u * per + item, tile = at >> 5, first = lane() / 16;
        const uint8_t* x = from + int64_t(tile) * tile_bytes + (at & 31) * 16;
        to += lane() % 16 * 16;
        for (int c = first; c < codes; c += 2) copy_async(to + c * 256, x + c * 512);
        x = factors + int64_t(tile) * pairs * 512 + (at & 31) * 16;
        for (int c = first; c < pairs; c += 2) copy_async(to + (codes + c) * 256, x + c * 512);
    }
};

template <int J>
DEVICE void clear_rows(float (&sum)[J][4]) {
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[j][e] = 0.0f;
}

// What follows the sums of a warp: rows g of 8 from `row` and g of 8 from `row + second`, tokens 8 j + 2 t and the next from `token`.
// Everything is read before anything is written.
template <int J>
DEVICE void store_rows(const Product& p, bool halved, float (&sum)[J][4], int row, int second, int token, int tokens) {
    const int g = lane() / 4, half = p.paired ? p.w.group / 2 : p.w.group;
    token += lane() % 4 * 2;
    const auto each = [&](auto&& f) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = row + g + r * second, out = p.paired ? at / p.w.group * half + at % p.w.group : at;
            if ((p.paired && r) || out >= p.w.rows) continue;  // of a pair the second row is the first one's up
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (token + 8 * j + e < tokens) f(sum[j][2 * r + e], sum[j][2 + e], out, int64_t(token + 8 * j + e) * p.out_stride + out);
        }
    };
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[j][e] = sum[j][e] * (1.0f / kLift);
    if (p.paired)
        each([&](float& y, float up, int, int64_t to) {
            if (p.gate_out) p.gate_out[to] = y;
            if (p.up_out) p.up_out[to] = up;
            y = gate(p.act, y) * up;
        });
    if (p.bias) each([&](float& y, float, int out, int64_t) { y = y + p.bias[out]; });
    if (p.residual) each([&](float& y, float, int, int64_t to) { y = y + p.residual[to]; });
    if (halved) each([&](float& y, float, int out, int64_t to) { reinterpret_cast<uint16_t*>(p.out)[to - out + half_place(out)] = float_to_half(y); });
    else each([&](float& y, float, int, int64_t to) { p.out[to] = y; });
}

// Shared memory: kStages steps of activations, [tokens][128 bytes], then two units of weights of each warp, [chunks][16 rows][16] and
// words. block_x: tile of tokens; block_y: tile of rows.
template <int J, int GROUPS>
DEVICE void tensor_tile(const TensorArgs& all) {
    const ProductArgs& a = all.product;
    SHARED;
    constexpr int S = 4, tokens = 8 * J, count = 128 * GROUPS, stage_bytes = tokens * 128;
    const int tile = block_y(), first_token = block_x() * tokens, me = thread(), warp = me / 32;
    next_may_start();
    const int part = part_of(a, tile);
    const Product& p = a.parts[part];
    const WarpRows of(all, part, (tile - p.first_group) * 64 * GROUPS, warp);
    const int units = p.w.units, steps = (p.w.columns + 127) / 128 * 2, format = p.w.format;
    uint8_t* const raw = shared + kStages * stage_bytes + warp * 2 * of.unit_bytes;
    const auto fetch_unit = [&](int u) {
        if (u < units) of.fetch(raw + u % 2 * of.unit_bytes, u);
    };
    const uint16_t* x = reinterpret_cast<const uint16_t*>(a.acts.q) + int64_t(first_token + me / 8) * a.acts.stride + me % 8 * 8;
    const auto fetch_acts = [&](int n) {
        uint8_t* const to = shared + n % kStages * stage_bytes + me / 8 * 128 + (me % 8 ^ me / 8 % 8) * 16;
        if (n < steps)
#pragma unroll
            for (int i = 0; i < tokens * 8 / count; i++)
                copy_async(to + i * (count / 8) * 128, x + int64_t(i * (count / 8)) * a.acts.stride + n * 64);
        copy_group();
    };
    const auto unpack = [&](int n, uint32_t (&to)[S][4]) {
        with_layout(format, [&](auto layout) { unpack_step<decltype(layout), S>(raw + n / 4 % 2 * of.unit_bytes, n % 4 * 2, to); });
    };
    float sum[J][4];
    clear_rows<J>(sum);
    fetch_unit(0);
    fetch_unit(1);
    copy_group();
    wait_for_previous();
    fetch_acts(0);
    fetch_acts(1);
    copies_done<2>();
    sync_warp();
    uint32_t here[S][4], there[S][4];
    unpack(0, here);
    const auto step = [&](int n, uint32_t (&now)[S][4], uint32_t (&next)[S][4]) {
        copies_done<1>();
        fence_copies();
        sync_block();  // step n is there, and step n - 2 has been multiplied by all
        products_begin();
#pragma unroll
        for (int k = 0; k < S; k++) multiply_rows<J>(sum, now[k], shared + n % kStages * stage_bytes, k);
        products_sent();
        products_done<1>();
        if (n % 4 == 3) fetch_unit((n + 1) / 4 + 1);
        fetch_acts(n + 2);
        if (n + 1 < steps) unpack(n + 1, next);
    };
    int n = 0;
    do {  // at least once: so the compiler knows that nothing but products writes the sums
        step(n, here, there);
        step(n + 1, there, here);
        n += 2;
    } while (n < steps);
    products_over<J>(sum);
    store_rows<J>(p, all.halved, sum, of.row, of.second, first_token, a.tokens);
}

// Shared memory: sums on their way, [J][128 lanes], activations of a unit of each group, [4][tokens][128 bytes], and two units of
// weights of each warp. Barriers: 1 + group for sums, 8 + group for the group alone.
template <int J>
DEVICE void tensor_turns(const TensorArgs& all) {
    const ProductArgs& a = all.product;
    SHARED;
    constexpr int S = 16, tokens = 8 * J, acts_bytes = 512 * tokens;
    const int tile = block_y(), first_token = block_x() * tokens, groups = threads() / 128, group = thread() / 128, me = thread() % 128;
    next_may_start();
    const int part = part_of(a, tile);
    const Product& p = a.parts[part];
    const WarpRows of(all, part, (tile - p.first_group) * 64, me / 32);
    const int units = p.w.units, format = p.w.format;
    float4* const passed = reinterpret_cast<float4*>(shared) + me;
    uint8_t* const acts = shared + 256 * tokens + group * acts_bytes;
    uint8_t* const raw = shared + 256 * tokens + groups * acts_bytes + thread() / 32 * 2 * of.unit_bytes;
    const auto fetch_unit = [&](int u, int slot) {
        if (u < units) of.fetch(raw + slot * of.unit_bytes, u);
    };
    const uint16_t* x = reinterpret_cast<const uint16_t*>(a.acts.q) + int64_t(first_token + me / 32) * a.acts.stride + me % 32 * 8;
    const auto fetch_acts = [&](int u) {
        uint8_t* const to = acts + me % 32 / 8 * tokens * 128;
        if (u < units)
#pragma unroll
            for (int i = 0; i < tokens / 4; i++) {
                const int token = me / 32 + 4 * i;
                copy_async(to + token * 128 + (me % 8 ^ token % 8) * 16, x + int64_t(4 * i) * a.acts.stride + u * 256);
            }
    };
    fetch_unit(group, 0);
    fetch_unit(group + groups, 1);
    copy_group();
    wait_for_previous();
    fetch_acts(group);
    copy_group();
    int slot = 0;
    for (int u = group; u < units; u += groups, slot = 1 - slot) {
        uint32_t fragments[S][4];
        copies_done<1>();
        sync_warp();
        with_layout(format, [&](auto layout) { unpack_step<decltype(layout), S>(raw + slot * of.unit_bytes, 0, fragments); });
        sync_warp();
        fetch_unit(u + 2 * groups, slot);
        copy_group();
        copies_done<1>();
        fence_copies();
        sync_some(8 + group, 128);
        float sum[J][4];
        clear_rows<J>(sum);
        if (u > 0) {
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
        if (u + 1 == units) {
            store_rows<J>(p, all.halved, sum, of.row, of.second, first_token, a.tokens);
            return;
        }
#pragma unroll
        for (int j = 0; j < J; j++) passed[j * 128] = {sum[j][0], sum[j][1], sum[j][2], sum[j][3]};
        arrive_some(1 + (group + 1) % groups, 256);
        sync_some(8 + group, 128);  // nobody reads the activations any more
        fetch_acts(u + groups);
        copy_group();
    }
}

CROWDED(tensor_256, TensorArgs, 256, 1) { tensor_tile<32, 2>(a); }
CROWDED(tensor_128, TensorArgs, 256, 1) { tensor_tile<16, 2>(a); }
CROWDED(tensor_64, TensorArgs, 128, 4) { tensor_tile<8, 1>(a); }
CROWDED(tensor_32, TensorArgs, 512, 1) { tensor_turns<4>(a); }
CROWDED(tensor_16, TensorArgs, 512, 1) { tensor_turns<2>(a); }
CROWDED(tensor_8, TensorArgs, 512, 1) { tensor_turns<1>(a); }

struct HalveArgs {
    const float* x;
    const float* norm;  // weights of a norm before, or null
    uint16_t* out;      // [rows][stride]
    int32_t width, stride;
    float eps;
    int32_t padding;
};

// Rows as halves, normed if there are weights, their columns in the order of the fragments above, zeros behind them; block_x: row.
KERNEL(halve_columns, HalveArgs, 512) {
    SHARED;
    next_may_start();
    wait_for_previous();
    const float* x = a.x + int64_t(block_x()) * a.width;
    float* const row = reinterpret_cast<float*>(shared) + 4;
    float f = 0.0f;
    if (a.norm) {
        for (int i = thread(); i < a.width; i += threads()) row[i] = x[i];
        sync_block();
        f = norm_factor(row, a.width, a.eps, row - 4);
        x = row;
    }
    uint32_t* const to = reinterpret_cast<uint32_t*>(a.out + int64_t(block_x()) * a.stride);
    for (int i = thread(); i < a.stride / 4; i += threads()) {
        uint32_t h[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int c = 4 * i + j;
            h[j] = c >= a.width ? 0 : float_to_half(a.norm ? (x[c] * f) * a.norm[c] : x[c]);
        }
        to[i / 4 * 8 + i % 4] = h[0] | h[2] << 16;
        to[i / 4 * 8 + 4 + i % 4] = h[1] | h[3] << 16;
    }
}

}  // namespace assay
