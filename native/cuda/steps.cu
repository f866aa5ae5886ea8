// First and last kernels of a step: embedding, RoPE tables, cache reads and writes, rows to take, scale or pool.
#include "arithmetic.h"
#include "cache.h"
#include "formats.h"

namespace assay {

// out[row] = the table's row of that token or position; block_x: row.
KERNEL(embed, StepArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t row = block_x(), token = a.which[row];
    float* out = a.out + row * a.width;
    const Matrix& w = a.table;
    for (int i = thread(); i < a.width; i += threads()) {
        const InMemory at = item(w, token, i / 256);
        const int c = i % 256;
        if (w.format == F32) out[i] = as_float(at(c / 4, c % 4));
        else if (w.format == F16) out[i] = half_to_float(uint16_t(at(c / 8, c / 2 % 4) >> 16 * (c % 2)));
        else if (w.format == BF16) out[i] = brain_to_float(uint16_t(at(c / 8, c / 2 % 4) >> 16 * (c % 2)));
        else
            with_layout(w.format, [&](auto layout) {
                using L = decltype(layout);
                uint32_t low, high;
                L::words(at, c / 32, c % 16 / 4, low, high);
                const int byte = int((c % 32 < 16 ? low : high) >> 8 * (c % 4) & 255);
                const int q = L::offset ? byte - (L::min ? 0 : L::offset) : int(int8_t(byte));
                const typename L::Values v = L::scales(at, L::word ? at.super(L::chunks) : 0, c / 32);
                const int h = c % 32 / 16;
                out[i] = fma(v.d[h], float(q), L::min ? v.m[h] : 0.0f);
            });
    }
}

// [cosines | sines] of each row's position; angles in double.
KERNEL(rope_table, StepArgs, 128) {
    next_may_start();
    wait_for_previous();
    const int half = a.n_rot / 2;
    for (int64_t i = int64_t(block_x()) * threads() + thread(); i < a.n * half; i += int64_t(grid_x()) * threads()) {
        const int64_t row = i / half, j = i % half;
        double c, s;
        turn(double(a.which[row]) * a.frequencies[j], c, s);
        a.out[row * a.n_rot + j] = float(c * double(a.magnitude));
        a.out[row * a.n_rot + half + j] = float(s * double(a.magnitude));
    }
}

// RoPE of the heads of a row from value `offset` on; x: [rows][width], table: [rows][cosines | sines].
KERNEL(rope, RopeArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int dim = a.width / a.heads, half = a.n_rot / 2;
    if (a.neox && a.n_rot == dim && a.offset == 0 && half % 4 == 0) {  // whole heads: four pairs of values at a time
        const int each = half / 4, units = a.width / 8;
        for (int64_t i = int64_t(block_x()) * threads() + thread(); i < a.rows * units; i += int64_t(grid_x()) * threads()) {
            const int64_t row = i / units;
            const int unit = int(i % units), j = unit % each * 4;
            const int64_t at = row * a.width + unit / each * dim + j;
            const float* t = a.table + row * a.n_rot + j;
            const float4 p = *reinterpret_cast<const float4*>(a.x + at), q = *reinterpret_cast<const float4*>(a.x + at + half);
            const float4 c = *reinterpret_cast<const float4*>(t), s = *reinterpret_cast<const float4*>(t + half);
            *reinterpret_cast<float4*>(a.out + at) = {p.x * c.x - q.x * s.x, p.y * c.y - q.y * s.y, p.z * c.z - q.z * s.z, p.w * c.w - q.w * s.w};
            *reinterpret_cast<float4*>(a.out + at + half) = {p.x * s.x + q.x * c.x, p.y * s.y + q.y * c.y, p.z * s.z + q.z * c.z, p.w * s.w + q.w * c.w};
        }
        return;
    }
    for (int64_t i = int64_t(block_x()) * threads() + thread(); i < a.rows * a.width; i += int64_t(grid_x()) * threads()) {
        const int64_t row = i / a.width;
        const int d = int(i % a.width) % dim - a.offset, j = a.neox ? d % half : d / 2;
        const float* x = a.x + i - d;
        const float* t = a.table + row * a.n_rot;
        if (d < 0 || d >= a.n_rot) {
            a.out[i] = x[d];
            continue;
        }
        const float p = a.neox ? x[j] : x[2 * j], q = a.neox ? x[j + half] : x[2 * j + 1], c = t[j], s = t[half + j];
        a.out[i] = (a.neox ? d >= half : d % 2) ? p * s + q * c : p * c - q * s;
    }
}

// out[i] = x[which[i]]; block_x: i.
KERNEL(take_rows, StepArgs, 256) {
    next_may_start();
    wait_for_previous();
    const float* from = a.x + int64_t(a.which[block_x()]) * a.width;
    for (int i = thread(); i < a.width; i += threads()) a.out[int64_t(block_x()) * a.width + i] = from[i];
}

// Store a row's keys or values in the cache. block_x: row of the step; a warp a head, or a thread eight halves.
KERNEL(cache_write, StepArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int row = block_x(), slot = a.rows.slots[row];
    if (slot < 0) return;
    const int page = a.rows.pages[a.rows.tables[row] + slot / kPage];
    const int each = a.pool.dim / 8;
    const bool halves = a.pool.type == KV_F16 && a.pool.dim % 8 == 0 && a.pool.columns == a.pool.dim && a.pool.first == 0;
    for (int i = thread(); halves && i < a.pool.heads * each; i += threads()) {
        const float4* const x = reinterpret_cast<const float4*>(a.x + (int64_t(row) * a.pool.heads * each + i) * 8);
        const float4 p = x[0], q = x[1];
        const float v[8] = {p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w};
        uint32_t h[4];
#pragma unroll
        for (int j = 0; j < 4; j++) h[j] = uint32_t(float_to_half(v[2 * j])) | uint32_t(float_to_half(v[2 * j + 1])) << 16;
        uint16_t* const to = reinterpret_cast<uint16_t*>(head_of(a.cache, a.pool, page, i / each));
        *reinterpret_cast<uint4*>(to + a.pool.index(slot % kPage, i % each * 8)) = {h[0], h[1], h[2], h[3]};
    }
    for (int head = halves ? a.pool.heads : thread() / 32; head < a.pool.heads; head += threads() / 32)
        for (int at = 0; at < (a.pool.dim + 31) / 32 * 32; at += 32) {
            const int d = at + lane();
            const float x = d < a.pool.dim ? a.x[(int64_t(row) * a.pool.heads + head) * a.pool.dim + d] : 0.0f;
            write_value(a.pool, head_of(a.cache, a.pool, page, head), slot % kPage, d, x, true);
        }
    if (thread() == 0)
        *reinterpret_cast<int32_t*>(a.cache.pages + page * a.cache.page_bytes + a.cache.positions_at + 4 * (slot % kPage)) = a.rows.positions[row];
}

// Keys or values of all sequences as the cache holds them; which: [keys][2]: page, slot.
KERNEL(cache_read, StepArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int page = a.which[2 * block_x()], slot = a.which[2 * block_x() + 1];
    for (int i = thread(); i < a.width; i += threads())
        a.out[int64_t(block_x()) * a.width + i] = read_value(a.pool, head_of(a.cache, a.pool, page, i / a.pool.dim), slot, i % a.pool.dim);
}

// The natural logarithm of a positive integer (docs/reference/arithmetic.md).
OUTLINED double logarithm(int64_t x) {
    double m = double(x);
    int e = 0;
    for (; m >= 2.0; e++) m = m * 0.5;
    if (m > 1.4142135623730951) m = m * 0.5, e++;
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 0.0;
    for (int k = 23; k >= 1; k -= 2) p = p * z + 1.0 / k;
    return e * 0.6931471805599453 + 2.0 * s * p;
}

// y = x * (1 + beta * ln(floor((position + offset) / unit) + 1)); block_x: row
KERNEL(pos_scale, PositionArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t row = block_x(), moved = a.which[row] + a.offset, at = moved > 0 ? moved : 0;
    const float factor = float(1.0 + a.beta * logarithm(at / a.unit + 1));
    for (int i = thread(); i < a.width; i += threads()) a.out[row * a.width + i] = a.x[row * a.width + i] * factor;
}

// One row of each sequence: the mean of its tokens, the first or the last. which: chunks (abi.h, ChunkWord); block_x:
// chunk.
KERNEL(pool_rows, StepArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t first = a.which[kChunkWords * block_x() + CHUNK_TOKEN], n = a.which[kChunkWords * block_x() + CHUNK_TOKENS];
    for (int i = thread(); n && i < a.width; i += threads()) {
        const float* x = a.x + first * a.width + i;
        float y = a.kind == LAST_TOKEN ? x[(n - 1) * a.width] : x[0];
        if (a.kind == MEAN) {
            for (int64_t t = 1; t < n; t++) y = y + x[t * a.width];
            y = y / float(n);
        }
        a.out[int64_t(block_x()) * a.width + i] = y;
    }
}

}  // namespace assay
