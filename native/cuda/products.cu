// Matrix products for few tokens: out[t, r] = sum_i W[r, i] x[t, i], a thread an item of 256 columns.
//
// A block takes a group of rows: its warps copy the group's tiles to shared memory, the first of them before it waits for
// the kernel that computes x; then it norms and quantises x for itself, multiplies, leaves the partial sums of all units
// in shared memory, and one thread a row adds them in order. Bound by memory: the weights are read once.
#include "product.h"

namespace assay {

// Partial sums of a group lie [unit][row].
DEVICE float total_of(const Matrix& w, const float* parts, int r) {
    float total = parts[r];
#pragma unroll 4
    for (int u = 1; u < w.units; u++) total = total + parts[u * w.group + r];
    return total;
}

// The partial sums of P items of this thread, which have their columns in common: x is read once.
template <class L, int P>
DEVICE void multiply(const uint8_t* const (&tiles)[P], const int8_t* q, const float2* ds, const uint32_t* n, float (&part)[P]) {
    InRegisters<L::chunks> w[P];
    uint32_t super[P];
#pragma unroll
    for (int k = 0; k < P; k++) {
#pragma unroll
        for (int c = 0; c < L::chunks; c++) w[k].chunk[c] = reinterpret_cast<const uint4*>(tiles[k])[c * 32 + lane()];
        super[k] = L::word ? reinterpret_cast<const uint32_t*>(tiles[k] + L::chunks * 512)[lane()] : 0;
        part[k] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int4 x = reinterpret_cast<const int4*>(q)[2 * i], y = reinterpret_cast<const int4*>(q)[2 * i + 1];
        const float2 s = ds[i];
        const uint32_t sums = L::offset != 0 || (L::sub16 && L::min) ? n[i] : 0;
#pragma unroll
        for (int k = 0; k < P; k++) {
            uint32_t c[8];
#pragma unroll
            for (int g = 0; g < 4; g++) L::words(w[k], i, g, c[g], c[g + 4]);
            const typename L::Values f = L::factors(w[k], super[k], i);
            // Two chains of integers; where the halves have one scale they meet, and the second starts at nothing.
            int a = int(kMagicBits) - L::offset * low_sum(sums), b = (L::sub16 ? int(kMagicBits) : 0) - L::offset * high_sum(sums);
            a = dp4a(int(c[0]), x.x, a);
            b = dp4a(int(c[4]), y.x, b);
            a = dp4a(int(c[1]), x.y, a);
            b = dp4a(int(c[5]), y.y, b);
            a = dp4a(int(c[2]), x.z, a);
            b = dp4a(int(c[6]), y.z, b);
            a = dp4a(int(c[3]), x.w, a);
            b = dp4a(int(c[7]), y.w, b);
            if constexpr (L::sub16) {
                const float low = (as_float(uint32_t(a)) - kMagic) * f.d[0];
                part[k] = fma(fma(as_float(uint32_t(b)) - kMagic, f.d[1], low), s.x, part[k]);
                if constexpr (L::min) {
                    part[k] = fma(f.m[0], s.x * float(low_sum(sums)), part[k]);
                    part[k] = fma(f.m[1], s.x * float(high_sum(sums)), part[k]);
                }
            } else {
                part[k] = fma((as_float(uint32_t(a + b)) - kMagic) * f.d[0], s.x, part[k]);
                if constexpr (L::min) part[k] = fma(f.m[0], s.y, part[k]);
            }
        }
    }
}

// Where a block's activations, partial sums and weights lie in shared memory.
struct Room {
    int8_t* q;
    float2* ds;
    uint32_t* n;
    float *chains, *parts;
    uint8_t* slots;
    DEVICE Room(uint8_t* shared, int stride, int items) {
        q = reinterpret_cast<int8_t*>(shared);
        ds = reinterpret_cast<float2*>(shared + stride);
        n = reinterpret_cast<uint32_t*>(ds + stride / 32);
        chains = reinterpret_cast<float*>(n + stride / 32);
        parts = chains + 4;
        slots = reinterpret_cast<uint8_t*>(parts + items);
    }
};

// `together` groups of rows at a time, P of them by the same warps; a warp copies tiles to slots of shared memory, the
// first before it waits for x, each further one while the one before is multiplied. Matrices of two layouts can share a
// launch, one group a warp.
template <class A, class B, int P>
DEVICE void one_token(const ProductArgs& a) {
    SHARED;
    static_assert(P == 1 || A::number == B::number);
    constexpr int tile_room = A::tile_bytes > B::tile_bytes ? A::tile_bytes : B::tile_bytes;
    const Matrix& shape = a.parts[0].w;  // all parts are alike but for rows and layout
    const int tiles = shape.tiles, items = tiles * 32, rows = shape.group, stride = shape.units * 256, step = grid_x() * a.together;
    const int warps = threads() / 32 * P / a.together, sub = thread() / 32 / warps * P, warp = thread() / 32 % warps;
    const Room room(shared, stride, 2 * a.together * items);
    const int turn_bytes = threads() / 32 * P * tile_room;  // the first tiles of all warps, then the next ones
    uint8_t* const slots = room.slots + thread() / 32 * P * tile_room;
    float* const row = reinterpret_cast<float*>(room.slots + turn_bytes);  // while it is normed, before the next ones come
    const Early early(a.norm, a.columns);
    next_may_start();
    int64_t expert = 0;
    const float* x = a.x;
    if (a.experts) {  // the expert is known only when the kernel before is done
        wait_for_previous();
        const float id = a.experts[block_y()];
        expert = id >= 0.0f && id < float(a.n_experts) ? int64_t(id) : 0;
        x = a.x + int64_t(block_y() / a.rows_of_x) * a.x_stride;
    }
    const auto fetch = [&](int group, int tile, uint8_t* to) {
#pragma unroll
        for (int k = 0; k < P; k++, group++, to += tile_room) {
            if (group >= a.groups || tile >= tiles) break;
            const Product& p = a.parts[part_of(a, group)];
            const uint8_t* from = p.w.tile(group - p.first_group, tile) + expert * a.expert_bytes + lane() * 16;
            const bool first = A::number == B::number || p.w.format == A::number;
            const int chunks = first ? A::chunks : B::chunks;
#pragma unroll
            for (int c = 0; c < (A::chunks > B::chunks ? A::chunks : B::chunks); c++)
                if (c < chunks) copy_async(to + lane() * 16 + c * 512, from + c * 512);
            if (first ? A::word : B::word) copy_async4(to + lane() * 4 + chunks * 512, from + chunks * 512 - lane() * 12);
        }
        copy_group();
    };
    fetch(block_x() * a.together + sub, warp, slots);
    if (!a.experts) wait_for_previous();
    quantise_row(x, a.norm, early, a.eps, a.columns, stride, row, room.chains, room.q, room.ds, room.n);
    sync_block();
    int turn = 0, round = 0;  // where the tile at hand lies; which partial sums are written
    for (int first = block_x() * a.together; first < a.groups; first += step, round++) {
        const int group = first + sub;
        // One thread a row adds its partial sums; another warp in every round, as the others go on meanwhile.
        const int mine = (thread() + 32 * round) % threads(), owned = first + mine / rows;
        const bool owner = mine < a.together * rows && owned < a.groups;
        const Product& of = a.parts[part_of(a, owner ? owned : 0)];
        const Tail tail(of, owner ? owned - of.first_group : of.w.rows, mine % rows, a.experts ? block_y() : 0);
        float* const sums = room.parts + round % 2 * a.together * items;
        for (int tile = warp; tile < tiles; tile += warps, turn ^= a.slots - 1) {
            const uint8_t* slot = slots + turn * turn_bytes;
            const bool more = tile + warps < tiles;
            if (a.slots == 2) {
                fetch(more ? group : group + step, more ? tile + warps : warp, slots + (turn ^ 1) * turn_bytes);
                copies_done<1>();
            } else {
                copies_done<0>();
            }
            sync_warp();
            const int at = tile * 32 + lane(), unit = at / rows < shape.units ? at / rows : shape.units - 1;
            const int8_t* q = room.q + unit * 256;
            float part[P];
            const uint8_t* of_groups[P];
#pragma unroll
            for (int k = 0; k < P; k++) of_groups[k] = slot + k * tile_room;
            if (A::number == B::number || a.parts[part_of(a, group)].w.format == A::number)
                multiply<A, P>(of_groups, q, room.ds + unit * 8, room.n + unit * 8, part);
            else
                multiply<B, P>(of_groups, q, room.ds + unit * 8, room.n + unit * 8, part);
#pragma unroll
            for (int k = 0; k < P; k++) sums[(sub + k) * items + at] = part[k];  // garbage where there is no such group
            sync_warp();
            if (a.slots == 1) fetch(more ? group : group + step, more ? tile + warps : warp, slots);
        }
        sync_block();
        const auto total = [&](int row, int pair) {
            return total_of(shape, sums + row / rows * items, pair ? (row % rows + pair) % rows : row % rows);
        };
        if (owner) tail.finish(total(mine, 0), of.paired ? total(mine, rows / 2) : 0.0f);
        for (int more = mine + threads(); more < a.together * rows && first + more / rows < a.groups; more += threads()) {
            const Product& p = a.parts[part_of(a, first + more / rows)];
            const float up = p.paired ? total(more, rows / 2) : 0.0f;
            finish(p, first + more / rows - p.first_group, more % rows, a.experts ? block_y() : 0, total(more, 0), up);
        }
    }
}

// One kernel a layout, one for each pair that the usual mixes put side by side, and for the usual layouts one whose warps
// take two groups.
#define ONE(name, A, B) CROWDED(product_one_##name, ProductArgs, 512, 1) { one_token<LayoutOf<A>, LayoutOf<B>, 1>(a); }
#define TWO(name, A) CROWDED(product_two_##name, ProductArgs, 512, 1) { one_token<LayoutOf<A>, LayoutOf<A>, 2>(a); }
ONE(q4_0, Q4_0, Q4_0)
ONE(q4_1, Q4_1, Q4_1)
ONE(q5_0, Q5_0, Q5_0)
ONE(q5_1, Q5_1, Q5_1)
ONE(q8_0, Q8_0, Q8_0)
ONE(q4_k, Q4_K, Q4_K)
ONE(q5_k, Q5_K, Q5_K)
ONE(q6_k, Q6_K, Q6_K)
ONE(iq4_nl, IQ4_NL, IQ4_NL)
ONE(iq4_xs, IQ4_XS, IQ4_XS)
ONE(mxfp4, MXFP4, MXFP4)
ONE(wide16, WIDE16, WIDE16)
ONE(wide16_min, WIDE16_MIN, WIDE16_MIN)
ONE(q4_k_q6_k, Q4_K, Q6_K)
ONE(q5_k_q6_k, Q5_K, Q6_K)
TWO(q4_0, Q4_0)
TWO(q4_1, Q4_1)
TWO(q4_k, Q4_K)
TWO(q5_k, Q5_K)
TWO(q6_k, Q6_K)

// ---- floats ---------------------------------------------------------------------------------------------------------
DEVICE const float4* quad(const float* x, int i) { return reinterpret_cast<const float4*>(x) + i; }

// The same for F32, F16 and BF16: two chains, even and odd columns. x lies in shared memory as it is, or normed.

constexpr int ahead = 16;  // chunks of a lane on their way

DEVICE void load_ahead(const uint8_t* tile, uint4 (&next)[ahead]) {
#pragma unroll
    for (int c = 0; c < ahead; c++) next[c] = load_stream(reinterpret_cast<const uint4*>(tile) + c * 32 + lane());
}

template <int FORMAT, int M>
DEVICE void multiply_floats(const uint8_t* tile, uint4 (&next)[ahead], const float* x, int stride, int unit, float (&part)[M]) {
    constexpr int per = FORMAT == F32 ? 4 : 8, chunks = 256 / per;
    float even[M], odd[M];
#pragma unroll
    for (int t = 0; t < M; t++) even[t] = odd[t] = 0.0f;
    for (int c0 = 0; c0 < chunks; c0 += ahead) {
#pragma unroll
        for (int k = 0; k < ahead; k++) {
            const uint4 v = next[k];
            const int c = c0 + k;
            if (c + ahead < chunks) next[k] = load_stream(reinterpret_cast<const uint4*>(tile) + (c + ahead) * 32 + lane());
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
            float w[per];
#pragma unroll
            for (int j = 0; j < per; j++) {
                const uint16_t half = uint16_t(words[j / 2 % 4] >> 16 * (j % 2));
                w[j] = FORMAT == F32 ? as_float(words[j % 4]) : FORMAT == F16 ? half_to_float(half) : brain_to_float(half);
            }
#pragma unroll
            for (int t = 0; t < M; t++)
#pragma unroll
                for (int j = 0; j < per; j += 4) {
                    const float4 y = *quad(x + t * stride + unit * 256, (c * per + j) / 4);
                    even[t] = fma(w[j], y.x, even[t]);
                    odd[t] = fma(w[j + 1], y.y, odd[t]);
                    even[t] = fma(w[j + 2], y.z, even[t]);
                    odd[t] = fma(w[j + 3], y.w, odd[t]);
                }
        }
    }
#pragma unroll
    for (int t = 0; t < M; t++) part[t] = even[t] + odd[t];
}

template <int M>
DEVICE void few_tokens_floats(const ProductArgs& a) {
    SHARED;
    const int first = a.experts ? 0 : block_y() * M, left = a.experts ? 1 : a.tokens - first, tokens = left < M ? left : M;
    const int warp = thread() / 32, warps = threads() / 32;
    const int stride = a.parts[0].w.units * 256;
    float* rows = reinterpret_cast<float*>(shared);
    float* parts = rows + M * stride;
    next_may_start();
    uint4 next[ahead];
    if (!a.experts && warp < a.parts[0].w.tiles && block_x() < a.groups) {
        const Product& p = a.parts[part_of(a, block_x())];
        load_ahead(p.w.tile(block_x() - p.first_group, warp), next);
    }
    wait_for_previous();
    int64_t expert = 0;
    const float* x = a.x + int64_t(first) * a.x_stride;
    if (a.experts) {
        const float id = a.experts[block_y()];
        expert = id >= 0.0f && id < float(a.n_experts) ? int64_t(id) : 0;
        x = a.x + int64_t(block_y() / a.rows_of_x) * a.x_stride;
    }
    for (int t = 0; t < M; t++)
        for (int c = thread(); c < stride; c += threads())
            rows[t * stride + c] = t < tokens && c < a.columns ? x[int64_t(t) * a.x_stride + c] : 0.0f;
    sync_block();
    if (a.prologue == NORMED_ROWS)
        for (int t = 0; t < tokens; t++) {
            const float f = norm_factor(sum_of_squares(rows + t * stride, a.columns, parts), a.columns, a.eps);
            for (int i = thread(); i < a.columns; i += threads()) rows[t * stride + i] = (rows[t * stride + i] * f) * a.norm[i];
            sync_block();
        }
    for (int group = block_x(); group < a.groups; group += grid_x()) {
        const Product& p = a.parts[part_of(a, group)];
        const int local = group - p.first_group, items = p.w.tiles * 32;
        for (int tile = warp; tile < p.w.tiles; tile += warps) {
            const int at = tile * 32 + lane(), unit = at / p.w.group < p.w.units ? at / p.w.group : p.w.units - 1;
            const uint8_t* base = p.w.tile(local, tile) + expert * a.expert_bytes;
            float part[M];
            if (a.experts || tile != warp || group != block_x()) load_ahead(base, next);
            if (p.w.format == F32) multiply_floats<F32, M>(base, next, rows, stride, unit, part);
            else if (p.w.format == F16) multiply_floats<F16, M>(base, next, rows, stride, unit, part);
            else multiply_floats<BF16, M>(base, next, rows, stride, unit, part);
#pragma unroll
            for (int t = 0; t < M; t++) parts[t * items + at] = part[t];
        }
        sync_block();
        for (int i = thread(); i < tokens * p.w.group; i += threads()) {
            const int t = i / p.w.group;
            const int r = i % p.w.group, pair = p.paired ? p.w.group / 2 : 0;
            const float* mine = parts + t * items;
            finish(p, local, r, a.experts ? block_y() : first + t, total_of(p.w, mine, r), total_of(p.w, mine, (r + pair) % p.w.group));
        }
        sync_block();
    }
}

KERNEL(product_floats_1, ProductArgs, 512) { few_tokens_floats<1>(a); }
KERNEL(product_floats_4, ProductArgs, 512) { few_tokens_floats<4>(a); }

}  // namespace assay
