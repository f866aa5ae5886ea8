// Matrix products for few tokens: out[t, r] = sum_i W[r, i] x[t, i], a thread an item of 256 columns.
//
// A block takes a group of rows: its warps read the group's tiles straight into registers, the first of them before it
// waits for the kernel that computes x; then it norms and quantises x for itself, multiplies, leaves the partial sums
// of all units in shared memory, and one thread a row adds them in order. Bound by memory: the weights are read once.
#include "product.h"

namespace assay {

// Partial sums of a group lie [unit][row].
DEVICE float total_of(const Matrix& w, const float* parts, int r) {
    float total = parts[r];
#pragma unroll 4
    for (int u = 1; u < w.units; u++) total = total + parts[u * w.group + r];
    return total;
}

template <class L>
struct Item {
    InRegisters<L::chunks> q;
    uint32_t super;
    DEVICE void load(const uint8_t* tile) {
#pragma unroll
        for (int c = 0; c < L::chunks; c++) q.chunk[c] = load_stream(reinterpret_cast<const uint4*>(tile) + c * 32 + lane());
        super = L::word ? load_stream(reinterpret_cast<const uint32_t*>(tile + L::chunks * 512) + lane()) : 0;
    }
};

// The partial sums of this thread's item for M tokens.
template <class L, int M>
DEVICE void multiply(const Item<L>& w, const int8_t* q, const float2* ds, const uint32_t* n, int stride, int unit, float (&part)[M]) {
#pragma unroll
    for (int t = 0; t < M; t++) part[t] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t c[8];
#pragma unroll
        for (int g = 0; g < 4; g++) L::words(w.q, i, g, c[g], c[g + 4]);
        const typename L::Values f = L::factors(w.q, w.super, i);
#pragma unroll
        for (int t = 0; t < M; t++) {
            const int block = t * (stride / 32) + unit * 8 + i;
            const int4 x = reinterpret_cast<const int4*>(q)[2 * block], y = reinterpret_cast<const int4*>(q)[2 * block + 1];
            const float2 s = ds[block];
            const uint32_t sums = L::offset != 0 || (L::sub16 && L::min) ? n[block] : 0;
            int a = int(kMagicBits) - L::offset * low_sum(sums), b = L::sub16 ? int(kMagicBits) - L::offset * high_sum(sums) : 0;
            if (!L::sub16 && L::offset) a -= L::offset * high_sum(sums);
            a = dp4a(int(c[0]), x.x, a);
            a = dp4a(int(c[1]), x.y, a);
            a = dp4a(int(c[2]), x.z, a);
            a = dp4a(int(c[3]), x.w, a);
            if constexpr (L::sub16) {
                b = dp4a(int(c[4]), y.x, b);
                b = dp4a(int(c[5]), y.y, b);
                b = dp4a(int(c[6]), y.z, b);
                b = dp4a(int(c[7]), y.w, b);
                const float low = (as_float(uint32_t(a)) - kMagic) * f.d[0];
                part[t] = fma(fma(as_float(uint32_t(b)) - kMagic, f.d[1], low), s.x, part[t]);
                if constexpr (L::min) {
                    part[t] = fma(f.m[0], s.x * float(low_sum(sums)), part[t]);
                    part[t] = fma(f.m[1], s.x * float(high_sum(sums)), part[t]);
                }
            } else {
                a = dp4a(int(c[4]), y.x, a);
                a = dp4a(int(c[5]), y.y, a);
                a = dp4a(int(c[6]), y.z, a);
                a = dp4a(int(c[7]), y.w, a);
                part[t] = fma((as_float(uint32_t(a)) - kMagic) * f.d[0], s.x, part[t]);
                if constexpr (L::min) part[t] = fma(f.m[0], s.y, part[t]);
            }
        }
    }
}

// Where a block's activations and partial sums lie in shared memory.
struct Room {
    int8_t* q;
    float2* ds;
    uint32_t* n;
    float *parts, *row;
    DEVICE Room(uint8_t* shared, int tokens, int stride, int items) {
        q = reinterpret_cast<int8_t*>(shared);
        ds = reinterpret_cast<float2*>(shared + tokens * stride);
        n = reinterpret_cast<uint32_t*>(ds + tokens * (stride / 32));
        parts = reinterpret_cast<float*>(n + tokens * (stride / 32));
        row = parts + (tokens * items < 64 ? 64 : tokens * items);  // one row of floats, while it is normed
    }
};

DEVICE const float4* quad(const float* x, int i) { return reinterpret_cast<const float4*>(x) + i; }

template <int M>
DEVICE void fill_activations(const ProductArgs& a, const Room& room, int stride, int first, int tokens, const float* x) {
    if (a.prologue == GIVEN) {
        for (int t = 0; t < tokens; t++) {
            const int4* from = reinterpret_cast<const int4*>(a.acts.q + int64_t(first + t) * stride);
            for (int i = thread(); i < stride / 16; i += threads()) reinterpret_cast<int4*>(room.q + t * stride)[i] = from[i];
            const int64_t blocks = stride / 32;
            for (int i = thread(); i < blocks; i += threads()) {
                room.ds[t * blocks + i] = a.acts.ds[(first + t) * blocks + i];
                room.n[t * blocks + i] = a.acts.n[(first + t) * blocks + i];
            }
        }
        return;
    }
    for (int t = 0; t < tokens; t++, x += a.x_stride) {
        int8_t* q = room.q + t * stride;
        float2* ds = room.ds + t * (stride / 32);
        uint32_t* n = room.n + t * (stride / 32);
        if (a.prologue == PLAIN_ROWS) {
            quantise_row([&](int i) { return *quad(x, i); }, a.columns, stride, q, ds, n);
            continue;
        }
        for (int i = thread(); i < a.columns / 4; i += threads()) *const_cast<float4*>(quad(room.row, i)) = *quad(x, i);
        sync_block();
        const float f = norm_factor(sum_of_squares(room.row, a.columns, room.parts), a.columns, a.eps);
        quantise_row(
            [&](int i) {
                const float4 v = *quad(room.row, i), w = *quad(a.norm, i);
                return float4{(v.x * f) * w.x, (v.y * f) * w.y, (v.z * f) * w.z, (v.w * f) * w.w};
            },
            a.columns, stride, q, ds, n);
        sync_block();
    }
}

template <int M, bool WIDE>
DEVICE void few_tokens(const ProductArgs& a) {
    SHARED;
    const int first = a.experts ? 0 : block_y() * M, left = a.experts ? 1 : a.tokens - first, tokens = left < M ? left : M;
    const int warp = thread() / 32, warps = threads() / 32;
    const int stride = a.parts[0].w.units * 256;
    bool ready = false;
    next_may_start();
    for (int group = block_x(); group < a.groups; group += grid_x()) {
        const Product& p = a.parts[part_of(a, group)];
        const int local = group - p.first_group, items = p.w.tiles * 32;
        const Room room(shared, M, stride, items);
        const float* x = a.x + int64_t(first) * a.x_stride;
        int64_t expert = 0;
        if (a.experts) {  // the expert is known only when the kernel before is done
            if (!ready) wait_for_previous();
            const float id = a.experts[block_y()];
            expert = id >= 0.0f && id < float(a.n_experts) ? int64_t(id) : 0;
            x = a.x + int64_t(block_y() / a.rows_of_x) * a.x_stride;
        }
        const auto multiply_group = [&](auto layout) {
            using L = decltype(layout);
            Item<L> mine;
            const uint8_t* base = p.w.tile(local, 0) + expert * a.expert_bytes;
            if (warp < p.w.tiles) mine.load(base + int64_t(warp) * L::tile_bytes);
            if (!ready) {
                if (!a.experts) wait_for_previous();
                fill_activations<M>(a, room, stride, first, tokens, x);
                ready = true;
                sync_block();
            }
            for (int tile = warp; tile < p.w.tiles; tile += warps) {
                if (tile != warp) mine.load(base + int64_t(tile) * L::tile_bytes);
                const int at = tile * 32 + lane(), unit = at / p.w.group;
                float part[M];
                multiply<L, M>(mine, room.q, room.ds, room.n, stride, unit < p.w.units ? unit : p.w.units - 1, part);
#pragma unroll
                for (int t = 0; t < M; t++) room.parts[t * items + at] = part[t];
            }
        };
        if constexpr (WIDE) with_wide_layout(p.w.format, multiply_group);
        else with_narrow_layout(p.w.format, multiply_group);
        sync_block();
        for (int i = thread(); i < tokens * p.w.group; i += threads()) {
            const int t = i / p.w.group;
            const float* parts = room.parts + t * items;
            const int r = i % p.w.group, pair = p.paired ? p.w.group / 2 : 0;
            finish(p, local, r, a.experts ? block_y() : first + t, total_of(p.w, parts, r), total_of(p.w, parts, (r + pair) % p.w.group));
        }
        sync_block();
    }
    if (!ready) wait_for_previous();
}

KERNEL(product_one, ProductArgs, 512) { few_tokens<1, false>(a); }
KERNEL(product_one_wide, ProductArgs, 512) { few_tokens<1, true>(a); }

// ---- floats ---------------------------------------------------------------------------------------------------------
// The same for F32, F16 and BF16: two chains, even and odd columns. x lies in shared memory as it is, or normed.

template <int FORMAT, int M>
DEVICE void multiply_floats(const uint8_t* tile, const float* x, int stride, int unit, float (&part)[M]) {
    constexpr int per = FORMAT == F32 ? 4 : 8, chunks = 256 / per, ahead = 16;
    float even[M], odd[M];
#pragma unroll
    for (int t = 0; t < M; t++) even[t] = odd[t] = 0.0f;
    uint4 next[ahead];
#pragma unroll
    for (int c = 0; c < ahead; c++) next[c] = load_stream(reinterpret_cast<const uint4*>(tile) + c * 32 + lane());
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
    wait_for_previous();
    int64_t expert = 0;
    const float* x = a.x + int64_t(first) * a.x_stride;
    if (a.experts) {
        const float id = a.experts[block_y()];
        expert = id >= 0.0f && id < float(a.n_experts) ? int64_t(id) : 0;
        x = a.x + int64_t(block_y() / a.rows_of_x) * a.x_stride;
    }
    for (int i = thread(); i < M * stride; i += threads()) {
        const int t = i / stride, c = i % stride;
        rows[i] = t < tokens && c < a.columns ? x[int64_t(t) * a.x_stride + c] : 0.0f;
    }
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
            if (p.w.format == F32) multiply_floats<F32, M>(base, rows, stride, unit, part);
            else if (p.w.format == F16) multiply_floats<F16, M>(base, rows, stride, unit, part);
            else multiply_floats<BF16, M>(base, rows, stride, unit, part);
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
