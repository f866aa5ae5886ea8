// Products of F16 and BF16 weights on tensor cores, for precision `tensor`. Activations are rounded to the weights'
// type. Products are exact and summed in float32, in the hardware's order within a unit of 256 columns; units are added
// in ascending order. The order does not depend on the number of tokens, so batches, chunks and cached prefixes give
// the same bits. They differ from the cpu engine's.
//
// Matrices are in groups of 32 rows here, and activations as float_at says. So 32 rows of weights, or 64 columns of
// activations, are contiguous.
//   halves_128_128, ..., halves_64_8   rows x tokens of a tile: a producer group of four warps, and consumer groups that
//                                      use `multiply_rows`, each unit from zero. Bound by tensor cores and L2 bandwidth;
//                                      with few tokens by memory
//   product_tensor_8                   32 rows x 8 tokens, a unit a warp
#include "gemm.h"
#include "warpgroup.h"

namespace assay {

// A unit of 32 rows and 8 J tokens of one warp, for `few_tokens`.
template <int FORMAT, int J>
struct HalfStage {
    static constexpr int rows = 32, tokens = 8 * J, chunks = 32;
    static constexpr int token_bytes = 528;  // padded to spread tokens over the banks
    static constexpr int weights_at = tokens * token_bytes;
    static_assert(weights_at + rows * chunks * 16 == halves_few_stage_bytes(rows, tokens));

    static DEVICE void fetch_acts(uint8_t* to, const Acts& acts, int token, int u) {
        const uint16_t* x = reinterpret_cast<const uint16_t*>(acts.q);
        for (int i = lane(); i < tokens * chunks; i += 32)
            copy_async(to + i / chunks * token_bytes + i % chunks * 16, x + float_at(token + i / chunks, u * 256 + i % chunks * 8, acts.step));
    }
    static DEVICE void multiply(const uint8_t* stage, float (&part)[2][J][4]) {
        const int g = lane() / 4, t = lane() % 4;
        const auto weight = [&](int r, int c) {
            return *reinterpret_cast<const uint32_t*>(stage + weights_at + (c * rows + r) * 16 + t * 4);
        };
#pragma unroll
        for (int f = 0; f < 2; f++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[f][j][e] = 0.0f;
#pragma unroll 4
        for (int i = 0; i < chunks; i += 2) {
            uint32_t a[2][4];
#pragma unroll
            for (int f = 0; f < 2; f++)
#pragma unroll
                for (int e = 0; e < 4; e++) a[f][e] = weight(g + 16 * f + 8 * (e % 2), i + e / 2);
#pragma unroll
            for (int j = 0; j < J; j++) {
                const uint8_t* x = stage + (g + 8 * j) * token_bytes + i * 16 + t * 4;
                const uint32_t b0 = *reinterpret_cast<const uint32_t*>(x), b1 = *reinterpret_cast<const uint32_t*>(x + 16);
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    if (FORMAT == F16) mma_f16(part[f][j], a[f], b0, b1);
                    else mma_bf16(part[f][j], a[f], b0, b1);
                }
            }
        }
    }
};

template <int FORMAT>
struct Halved {
    static constexpr int number = FORMAT;
};
struct SixteenBits {
    template <class F>
    static DEVICE void with(int format, F&& f) {
        if (format == F16) f(Halved<F16>{});
        else f(Halved<BF16>{});
    }
    template <class L, int J, int ROWS>
    using Of = HalfStage<L::number, J>;
};

// Epilogue of a warp's sums: rows g of 8 from `row` and g of 8 from `row + second`, tokens 8 j + 2 t and the next from
// `token`. All loads come before the first store. Residuals are loaded together; for absent rows and tokens another
// element is loaded and ignored.
template <class Type, int J>
DEVICE void store_rows(const Product& p, int room, float (&sum)[J][4], int row, int second, int token, int tokens) {
    int out[2];
    bool wanted[2];
    token += lane() % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int at = row + lane() / 4 + r * second;
        out[r] = p.paired ? at / 32 * 16 + at % 32 : at;
        wanted[r] = out[r] < p.w.rows && !(p.paired && r);  // the second row of a pair is the up of the first
        if (out[r] >= p.w.rows) out[r] = p.w.rows - 1;
    }
    const auto each = [&](auto&& f) {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) f(sum[j][2 * r + e], sum[j][2 + e], r, j, e);
    };
    const auto here = [&](int r, int j, int e) { return wanted[r] && token + 8 * j + e < tokens; };
    const auto at = [&](int r, int of) { return int64_t(of) * p.out_stride + out[r]; };
    if (p.paired && (p.act != SILU || p.gate_out || p.up_out || !silu_pairs<J>(sum)))
        each([&](float& y, float up, int r, int j, int e) {
            if (!here(r, j, e)) return;
            if (p.gate_out) p.gate_out[at(r, token + 8 * j + e)] = y;
            if (p.up_out) p.up_out[at(r, token + 8 * j + e)] = up;
            y = gate(p.act, y) * up;
        });
    if (p.bias) each([&](float& y, float, int r, int, int) { y = y + p.bias[out[r]]; });
    if (p.residual)
        each([&](float& y, float, int r, int j, int e) { y = y + p.residual[at(r, token + 8 * j + e < tokens ? token + 8 * j + e : tokens - 1)]; });
    if (room) {  // eight tokens further is 512 values further
        uint16_t* const to = reinterpret_cast<uint16_t*>(p.out);
        const int64_t first[2][2] = {{float_at(token, out[0], room), float_at(token + 1, out[0], room)}, {float_at(token, out[1], room), float_at(token + 1, out[1], room)}};
        each([&](float& y, float, int r, int j, int e) {
            if (here(r, j, e)) to[first[r][e] + 512 * j] = Type::brain ? float_to_brain(y) : float_to_half(y);
        });
    } else {
        each([&](float& y, float, int r, int j, int e) {
            if (here(r, j, e)) p.out[at(r, token + 8 * j + e)] = y;
        });
    }
}

// R consumer groups of four warps have 64 rows each and the same 8 J tokens. A producer group fetches steps of 64 S
// columns into a ring of `stages` slots. Each of its warps fetches a quarter of the weights and of the activations,
// because one lane needs 150 cycles or more to issue a copy. A slot has activations [S][tokens][128 bytes] and weights
// [2 R][8 S chunks][32 rows][16]; the mbarriers follow the ring. A thread block takes tiles in turn, and prefetches
// weights of the next one during the epilogue. Consecutive tiles have the same rows.
template <class Type, int J, int R, int S>
DEVICE void share_tiles(const ProductArgs& a) {
    SHARED;
    // steps of a unit
    constexpr int tokens = 8 * J, strip = 128 * tokens, stage_bytes = S * (strip + 128 * 64 * R), steps = 4 / S;
    const int warp = shuffle(thread() / 32, 0), ring = a.stages, columns = (a.tokens + tokens - 1) / tokens;
    Arrival* const here = reinterpret_cast<Arrival*>(shared + ring * stage_bytes);
    Arrival* const gone = here + ring;
    NEEDS_SHARED(ring * halves_step_bytes(64 * R, tokens, S));
    next_may_start();
    if (warp == 0) {
        make_places(here, ring, 8 * kPieceLanes);
        make_places(gone, ring, 4 * R * kLeavers);
    }
    sync_block();
    int slot = 0, phase = 0;  // of the current step
    const auto advance = [&] {
        if (++slot == ring) slot = 0, phase ^= 1;
    };
    if (warp >= 4 * R) {
        if constexpr (J == 16) fewer_registers();
        static_assert(R * S == 2, "a quarter of the weights is half a group of 32 rows, or a whole one");
        // pieces of a group, of a strip; their bytes
        constexpr int w_parts = 4 / (2 * R), x_parts = 4 / S, w_bytes = 4096, x_bytes = strip / x_parts;
        const int mine = warp - 4 * R;
        const int64_t strips = int64_t(a.acts.step) * 128;
        uint8_t* const to_x = shared + mine * x_bytes;
        uint8_t* const to_w = shared + S * strip + mine * w_bytes;
        for (int tile = block_x(); tile < a.groups * columns; tile += grid_x()) {
            const Product& p = a.parts[part_of(a, tile / columns)];
            const int last = p.w.all_rows / 32 - 1, wanted = (tile / columns - p.first_group) * 2 * R + mine / w_parts;
            // A group past the end is replaced by the last one; its sums are not stored.
            const uint8_t* const w = p.w.tile(wanted < last ? wanted : last, 0) + mine % w_parts * w_bytes;
            const uint8_t* const x = reinterpret_cast<const uint8_t*>(a.acts.q) + mine / x_parts * strips + tile % columns * strip + mine % x_parts * x_bytes;
            const bool first = tile == block_x();
            // steps whose weights are prefetched before the kernel waits
            const int n = p.w.units * steps, ahead = !first ? 0 : n < ring ? n : ring;
            const auto weights = [&](int i) { copy_strips(to_w + slot * stage_bytes, w + i * (S * 4096), w_bytes, 1, 0, here + slot); };
            if (first) {
                for (; slot < ahead; slot++) weights(slot);
                slot = 0;
                wait_for_previous();
            }
            for (int i = 0; i < n; i++, advance()) {
                if (i >= ahead) {
                    piece_here(gone + slot, phase ^ 1);  // returns at once for a slot that was never used
                    weights(i);
                }
                copy_strips(to_x + slot * stage_bytes, x + i * (S * strips), x_bytes, 1, 0, here + slot);
            }
        }
        return;
    }
    if constexpr (J == 16) more_registers();
    wait_for_previous();
    for (int tile = block_x(); tile < a.groups * columns; tile += grid_x()) {
        const Product& p = a.parts[part_of(a, tile / columns)];
        const int second = p.paired ? 16 : 8, mine = warp / 4 * 64 + (p.paired ? warp % 4 / 2 * 32 + warp % 2 * 8 : warp % 4 * 16);
        // Addresses for `ldmatrix`: rows l % 8 of the first and of the second eight, first of chunk 0, then of chunk 1.
        const int from = mine + lane() % 8 + lane() / 8 % 2 * second;
        const uint8_t* const fragments = shared + S * strip + from / 32 * (S * 4096) + lane() / 16 * 512 + from % 32 * 16;
        const auto load = [&](uint32_t (&to)[4 * S][4]) {
            piece_here(here + slot, phase);
#pragma unroll
            for (int k = 0; k < 4 * S; k++) load_matrices(to[k], fragments + slot * stage_bytes + k * 1024);
        };
        float total[J][4], part[J][4];
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) total[j][e] = -0.0f;  // adding the first partial sum gives exactly that sum
        uint32_t now[4 * S][4], next[4 * S][4];
        load(now);
        // Load the fragments of the next step while this one is multiplied.
        const auto step = [&](int i, bool last, uint32_t (&now)[4 * S][4], uint32_t (&next)[4 * S][4]) {
            const int at = slot, before = slot ? slot - 1 : ring - 1;
            products_begin();
#pragma unroll
            for (int k = 0; k < 4 * S; k++) multiply_rows<J, Type>(part, now[k], shared + at * stage_bytes + k / 4 * strip, k % 4);
            products_sent();
            advance();
            if (i) {
                products_done<1>();
                leave_place(gone + before);
            }
            if (!last) load(next);
            if (i < steps - 1) return;
            products_over<J>(part);
            leave_place(gone + at);
        };
        for (int u = 0; u < p.w.units; u++) {
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[j][e] = 0.0f;
#pragma unroll
            for (int i = 0; i < steps; i += 2) {
                step(i, false, now, next);
                step(i + 1, i + 2 == steps && u + 1 == p.w.units, next, now);
            }
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) total[j][e] = total[j][e] + part[j][e];
        }
        store_rows<Type, J>(p, a.share, total, (tile / columns - p.first_group) * 64 * R + mine, second, tile % columns * tokens, a.tokens);
    }
}
template <int J, int R, int S>
DEVICE void many_tokens(const ProductArgs& a) {
    if (a.parts[0].w.format == F16) share_tiles<AsHalf, J, R, S>(a);
    else share_tiles<AsBrain, J, R, S>(a);
}

KERNEL(product_tensor_8, ProductArgs, 256) { few_tokens<SixteenBits, 1, 8>(a); }
// for GPUs whose shared memory holds fewer than eight units
KERNEL(product_tensor_8_small, ProductArgs, 128) { few_tokens<SixteenBits, 1, 4>(a); }
CROWDED(halves_128_128, ProductArgs, 384, 1) { many_tokens<16, 2, 1>(a); }
CROWDED(halves_128_64, ProductArgs, 384, 1) { many_tokens<8, 2, 1>(a); }
CROWDED(halves_64_64, ProductArgs, 256, 1) { many_tokens<8, 1, 2>(a); }
CROWDED(halves_64_32, ProductArgs, 256, 1) { many_tokens<4, 1, 2>(a); }
CROWDED(halves_64_16, ProductArgs, 256, 1) { many_tokens<2, 1, 2>(a); }
CROWDED(halves_64_8, ProductArgs, 256, 1) { many_tokens<1, 1, 2>(a); }

}  // namespace assay
