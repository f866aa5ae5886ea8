// Elementwise and row operations on any number of rows: a thread a value, or a thread block a row. Bound by launch
// latency.
//
// Values are float32 matrices [rows][width], as in the cpu engine (docs/reference/arithmetic.md has the formulas).
#include "activations.h"
#include "map.h"
#include "softmax.h"

namespace assay {

KERNEL(map, MapArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t total = a.rows * a.width;
    for (int64_t i = int64_t(block_x()) * threads() + thread(); i < total; i += int64_t(grid_x()) * threads())
        a.out[i] = map_value(a, i / a.width, i % a.width, Plain{});
}

// out = sum of x_k w_k over the choices k of a row, then the residual. block_x: row; block_y: part of the columns.
KERNEL(total_experts, TotalArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t row = block_x();
    const float* x = a.x + row * a.count * a.width;
    const float* w = a.weights + row * a.count;
    for (int j = 4 * (block_y() * threads() + thread()); j < a.width; j += 4 * grid_y() * threads()) {
        float4 sum{};
        for (int k0 = 0; k0 < a.count; k0 += 4) {  // four loads in flight
            float4 v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) v[k] = *reinterpret_cast<const float4*>(x + int64_t(k0 + k < a.count ? k0 + k : k0) * a.width + j);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (k0 + k >= a.count) break;
                const float f = w[k0 + k];
                const float4 y{v[k].x * f, v[k].y * f, v[k].z * f, v[k].w * f};
                sum = k0 + k ? float4{sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w} : y;
            }
        }
        const int64_t at = row * a.width + j;
        if (a.residual) {
            const float4 r = *reinterpret_cast<const float4*>(a.residual + at);
            sum = {sum.x + r.x, sum.y + r.y, sum.z + r.z, sum.w + r.w};
        }
        *reinterpret_cast<float4*>(a.out + at) = sum;
    }
}

// rms_norm of short parts of a row, such as heads, whose length is a multiple of 4. A warp has a part.
KERNEL(part_norm, RowArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int n = a.width / a.parts;
    const int64_t part = int64_t(block_x()) * (threads() / 32) + thread() / 32;
    const float* x = a.x + part * n;
    const float* w = a.w ? a.w + part % a.parts * a.w_step : nullptr;
    const float squares = sum_of_squares(x, n);
    const float f = shuffle(1.0f / square_root(squares / float(n) + a.eps), 0);
    for (int i = 4 * lane(); i < n; i += 128) {
        const float4 v = *reinterpret_cast<const float4*>(x + i);
        float4 y{v.x * f, v.y * f, v.z * f, v.w * f};
        if (w) {
            const float4 u = *reinterpret_cast<const float4*>(w + i);
            y = {y.x * u.x, y.y * u.y, y.z * u.z, y.w * u.w};
        }
        *reinterpret_cast<float4*>(a.out + part * n + i) = y;
    }
}

// y = w x / sqrt(mean x^2 + eps) over each of `parts` parts of a row; block_x: row * parts + part
KERNEL(rms_norm, RowArgs, 256) {
    SHARED;
    next_may_start();
    wait_for_previous();
    const int n = a.width / a.parts;
    NEEDS_SHARED(normed_row_bytes(n));
    const int64_t at = int64_t(block_x()) * n;
    float* row = reinterpret_cast<float*>(shared) + 4;
    for (int i = thread(); i < n; i += threads()) row[i] = a.x[at + i];
    sync_block();
    const float f = norm_factor(row, n, a.eps, row - 4);
    const float* w = a.w + int64_t(block_x() % a.parts) * a.w_step;
    for (int i = thread(); i < n; i += threads()) a.out[at + i] = a.w ? (row[i] * f) * w[i] : row[i] * f;
}

// Subtract the mean of a row in shared memory; the first warp computes sum64 of docs/reference/arithmetic.md.
DEVICE void centre(float* row, int n) {
    if (thread() < 32) {
        float s = 0.0f, t = 0.0f;
        for (int i = lane(); i < n; i += 64) {
            s = s + row[i];
            if (i + 32 < n) t = t + row[i + 32];
        }
        s = s + t;
        for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
        if (thread() == 0) row[-2] = s / float(n);
    }
    sync_block();
    const float mean = row[-2];
    for (int i = thread(); i < n; i += threads()) row[i] = row[i] - mean;
    sync_block();
}

// The same of x - mean, with a bias.
KERNEL(layer_norm, RowArgs, 256) {
    SHARED;
    next_may_start();
    wait_for_previous();
    const int n = a.width / a.parts;
    NEEDS_SHARED(normed_row_bytes(n));
    const int64_t at = int64_t(block_x()) * n;
    float* row = reinterpret_cast<float*>(shared) + 4;
    for (int i = thread(); i < n; i += threads()) row[i] = a.x[at + i];
    sync_block();
    centre(row, n);
    const float f = norm_factor(row, n, a.eps, row - 4);
    const int64_t from = int64_t(block_x() % a.parts) * a.w_step;
    for (int i = thread(); i < n; i += threads()) {
        const float y = (row[i] * f) * a.w[from + i];
        a.out[at + i] = a.b ? y + a.b[from + i] : y;
    }
}

// Quantise a row, after an RMS norm if there are weights, padded with zeros to the stride. block_x: row, modulo `parts`
// rows, because the result may have copies. A thread has 8 values at a time. Without a norm, block_y is a part of the
// columns. With one, the row is held in shared memory.
KERNEL(quantise_rows, RowArgs, 1024) {
    SHARED;
    const int64_t row = block_x(), at = a.acts.step ? row : row * (a.acts.stride / 32);
    const int step = a.acts.step ? a.acts.step : 1;
    const float* x = a.x + row % a.parts * a.width;
    float* const copy = reinterpret_cast<float*>(shared) + 4;
    const int first = block_y() * threads() + thread();
    NEEDS_SHARED(a.w ? normed_row_bytes(a.width) : 0);
    float v[8], w[8], f = 0.0f;
    next_may_start();
    if (a.w && 8 * first < a.width) load_eight(a.w + 8 * first, w);
    touch(a);
    wait_for_previous();
    if (8 * first < a.width) load_eight(x + 8 * first, v);
    if (a.w) {
#pragma unroll 1
        for (int i = first; 8 * i < a.width; i += threads()) {
            if (i != first) load_eight(x + 8 * i, v);
            reinterpret_cast<float4*>(copy)[2 * i] = {v[0], v[1], v[2], v[3]};
            reinterpret_cast<float4*>(copy)[2 * i + 1] = {v[4], v[5], v[6], v[7]};
        }
        sync_block();
        f = norm_factor(copy, a.width, a.eps, copy - 4);
    }
#pragma unroll 1
    // whole warps: the stride is a multiple of 256
    for (int i = first; i < a.acts.stride / 8; i += grid_y() * threads()) {
        const bool there = 8 * i < a.width;
        if (there && (a.w || i != first)) load_eight((a.w ? copy : x) + 8 * i, v);
        if (there && a.w && i != first) load_eight(a.w + 8 * i, w);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = !there ? 0.0f : a.w ? (v[j] * f) * w[j] : v[j];
        quantise_eight(v, i, a.acts.q + row * a.acts.stride, a.acts.ds + at, a.acts.n + at, step);
    }
}

// Round a row to the 16-bit floats that products on tensor cores read, with zeros up to the stride. A norm (if there are
// weights) or an activation comes first. block_x: row. A thread has 8 columns at a time.
KERNEL(halve_rows, HalveArgs, 512) {
    SHARED;
    float* const row = reinterpret_cast<float*>(shared) + 4;
    const float* x = a.x + int64_t(block_x()) * a.width;
    NEEDS_SHARED(halved_row_bytes(a.width));
    const bool even = a.width % 8 == 0;  // otherwise rows are not aligned for loads of eight floats
    const auto load = [&](const float* from, int i, float (&v)[8]) {
        if (even && 8 * i < a.width) return load_eight(from + 8 * i, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = 8 * i + j < a.width ? from[8 * i + j] : 0.0f;
    };
    float v[8], w[8], f = 0.0f;
    next_may_start();
    touch(a);
    if (a.norm) load(a.norm, thread(), w);
    wait_for_previous();
    load(x, thread(), v);
    if (a.norm) {
        for (int i = thread(); 8 * i < a.width; i += threads()) {
            if (i != thread()) load(x, i, v);
#pragma unroll
            for (int j = 0; j < 8; j += 4) reinterpret_cast<float4*>(row)[2 * i + j / 4] = {v[j], v[j + 1], v[j + 2], v[j + 3]};
        }
        sync_block();
        if (a.centred) centre(row, a.width);
        f = norm_factor(row, a.width, a.eps, row - 4);
    }
    for (int i = thread(); i < a.stride / 8; i += threads()) {
        float b[8];
        if (a.norm || i != thread()) load(a.norm ? row : x, i, v);
        if (a.norm && i != thread()) load(a.norm, i, w);
        if (a.bias) load(a.bias, i, b);
        uint32_t h[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float y = a.norm ? (v[j] * f) * w[j] : a.act >= 0 ? gate(a.act, v[j]) : v[j];
            if (a.bias) y = y + b[j];
            h[j] = 8 * i + j >= a.width ? 0 : a.kind == ORDERED_BF16 ? float_to_brain(y) : float_to_half(y);
        }
        if (a.kind)
            *reinterpret_cast<uint4*>(a.out + float_at(block_x(), 8 * i, a.room)) = {h[0] | h[1] << 16, h[2] | h[3] << 16, h[4] | h[5] << 16, h[6] | h[7] << 16};
        else
#pragma unroll
            for (int j = 0; j < 2; j++)
                *reinterpret_cast<uint2*>(a.out + half_at(block_x(), 8 * i + j, a.room)) = {h[j] | h[2 + j] << 16, h[4 + j] | h[6 + j] << 16};
    }
}

// y = x in the w_step groups whose two best values have the largest sums, ties to the lower group; -inf elsewhere.
// `parts`: groups of a row.
KERNEL(group_mask, RowArgs, 256) {
    next_may_start();
    wait_for_previous();
    const float* x = a.x + int64_t(block_x()) * a.width;
    const int each = a.width / a.parts;
    const auto score = [&](int g) {
        float best = minus_infinity(), next = minus_infinity();
        for (int j = g * each; j < (g + 1) * each; j++) {
            if (x[j] > best) next = best, best = x[j];
            else if (x[j] > next) next = x[j];
        }
        return next + best;
    };
    for (int i = thread(); i < a.width; i += threads()) {
        const int mine = i / each;
        const float own = score(mine);
        int before = 0;
        for (int g = 0; g < a.parts; g++) {
            const float other = score(g);
            before += other > own || (!(own > other) && g < mine);
        }
        a.out[int64_t(block_x()) * a.width + i] = before < a.w_step ? x[i] : minus_infinity();
    }
}

KERNEL(softmax, RowArgs, 32) {
    next_may_start();
    wait_for_previous();
    softmax_row(a.x + int64_t(block_x()) * a.width, a.out + int64_t(block_x()) * a.width, a.width);
}

// Indices by rank, which is the number of values that come before: largest first, ties by index, NaN last.
KERNEL(argsort, RowArgs, 256) {
    next_may_start();
    wait_for_previous();
    const float* x = a.x + int64_t(block_x()) * a.width;
    for (int i = thread(); i < a.width; i += threads()) {
        const bool odd = x[i] != x[i];
        int before = 0;
        for (int j = 0; j < a.width; j++) {
            const bool other = x[j] != x[j];
            before += odd ? !other || j < i : !other && (x[j] > x[i] || (x[j] == x[i] && j < i));
        }
        a.out[int64_t(block_x()) * a.width + before] = float(i);
    }
}

}  // namespace assay
