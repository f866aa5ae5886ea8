// Matrix products of F32, F16 and BF16 weights for a few tokens: two chains a unit, even and odd columns. x is in
// shared memory, normed if the prologue says so. A thread has an item of 256 columns, a block a group of rows.
// Memory-bound.
#include "product.h"

namespace assay {

DEVICE const float4* quad(const float* x, int i) { return reinterpret_cast<const float4*>(x) + i; }

constexpr int ahead = 16;  // chunks of a lane in flight

DEVICE void load_ahead(const uint8_t* tile, uint4 (&next)[ahead]) {
#pragma unroll
    for (int c = 0; c < ahead; c++) next[c] = load_stream(reinterpret_cast<const uint4*>(tile) + c * 32 + lane());
}

template <int FORMAT, int M>
DEVICE void multiply_rows(const uint8_t* tile, uint4 (&next)[ahead], const float* x, int stride, int unit, float (&part)[M]) {
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
    const int first = block_y() * M, left = a.tokens - first, tokens = left < M ? left : M;
    const int warp = thread() / 32, warps = threads() / 32;
    const int stride = a.parts[0].w.units * 256;
    float* rows = reinterpret_cast<float*>(shared);
    float* parts = rows + M * stride;
    NEEDS_SHARED(few_floats_bytes(M, a.parts[0].w.units, a.parts[0].w.tiles));
    next_may_start();
    uint4 next[ahead];
    if (warp < a.parts[0].w.tiles && block_x() < a.groups) {
        const Product& p = a.parts[part_of(a, block_x())];
        load_ahead(p.w.tile(block_x() - p.first_group, warp), next);
    }
    wait_for_previous();
    const float* x = a.x + int64_t(first) * a.x_stride;
    for (int t = 0; t < M; t++)
        for (int c = thread(); c < stride; c += threads())
            rows[t * stride + c] = t < tokens && c < a.columns ? x[int64_t(t) * a.x_stride + c] : 0.0f;
    sync_block();
    if (a.prologue == NORMED_ROWS)
        for (int t = 0; t < tokens; t++) {
            const float f = norm_factor(rows + t * stride, a.columns, a.eps, parts);
            for (int i = thread(); i < a.columns; i += threads()) rows[t * stride + i] = (rows[t * stride + i] * f) * a.norm[i];
            sync_block();
        }
    for (int group = block_x(); group < a.groups; group += grid_x()) {
        const Product& p = a.parts[part_of(a, group)];
        const int local = group - p.first_group, items = p.w.tiles * 32;
        for (int tile = warp; tile < p.w.tiles; tile += warps) {
            const int at = tile * 32 + lane(), unit = at / p.w.group < p.w.units ? at / p.w.group : p.w.units - 1;
            const uint8_t* base = p.w.tile(local, tile);
            float part[M];
            if (tile != warp || group != block_x()) load_ahead(base, next);
            if (p.w.format == F32) multiply_rows<F32, M>(base, next, rows, stride, unit, part);
            else if (p.w.format == F16) multiply_rows<F16, M>(base, next, rows, stride, unit, part);
            else multiply_rows<BF16, M>(base, next, rows, stride, unit, part);
#pragma unroll
            for (int t = 0; t < M; t++) parts[t * items + at] = part[t];
        }
        sync_block();
        for (int i = thread(); i < tokens * p.w.group; i += threads()) {
            const int t = i / p.w.group;
            const int r = i % p.w.group, half = p.paired ? p.w.group / 2 : 0;
            const float2 total = totals_of(p.w, parts + t * items + r, r < half ? half : 0);
            finish(p, local, r, first + t, total.x, total.y);
        }
        sync_block();
    }
}

KERNEL(product_floats_1, ProductArgs, 512) { few_tokens_floats<1>(a); }
KERNEL(product_floats_2, ProductArgs, 512) { few_tokens_floats<2>(a); }
KERNEL(product_floats_4, ProductArgs, 512) { few_tokens_floats<4>(a); }

}  // namespace assay
