// Everything that is not a product or attention: a thread a value or a block of threads a row, any number of rows.
//
// Values are matrices of float32 rows, [rows][width], as on the cpu engine (docs/arithmetic.md has the formulas).
#include "activations.h"
#include "cache.h"
#include "formats.h"

namespace assay {

enum MapOp {
    ADD, GLU, BIAS, SCALE, SOFTCAP, CLAMP_MIN, DIV, GATHER, EXPERT_SCALE, EXPERT_SUM, SLICE, ROW_SUM, CLAMP, ACT, GLU_SPLIT,
    GLU_OAI, EXPERT_INPUT, EXPERT_BIAS
};

struct MapArgs {
    const float *x, *y, *z;  // z: a table of weights, where y says which of them
    float* out;
    int64_t rows;
    int32_t width, x_width, y_width, op;  // width: of out
    int32_t integer, z_rows;              // the activation; the first column of a slice
    float number, second;                 // a bound, a factor; the upper bound, a limit
};

DEVICE float clamped(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }
DEVICE float glu_oai(float gate, float up, float alpha, float limit) {
    const float g = gate > limit ? limit : gate, v = clamped(up, -limit, limit);
    return (g / (1.0f + exponential(-(alpha * g)))) * (v + 1.0f);
}


KERNEL(map, MapArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t total = a.rows * a.width;
    for (int64_t i = int64_t(block_x()) * threads() + thread(); i < total; i += int64_t(grid_x()) * threads()) {
        const int64_t row = i / a.width, j = i % a.width;
        const float *x = a.x + row * a.x_width, *y = a.y + row * a.y_width;
        float v = 0.0f;
        switch (a.op) {
            case ADD: v = x[j] + y[j]; break;
            case GLU: v = gate(a.integer, x[j]) * y[j]; break;
            case BIAS: v = x[j] + a.y[j % a.y_width]; break;
            case SCALE: v = x[j] * a.number; break;
            case SOFTCAP: v = softcap(x[j], a.number); break;
            case CLAMP_MIN: v = x[j] < a.number ? a.number : x[j]; break;
            case DIV: v = x[j] / y[0]; break;
            case GATHER: {
                const float id = y[j];
                const int64_t at = id >= 0.0f ? int64_t(id) : 0;
                v = x[at < a.x_width ? at : a.x_width - 1];
                break;
            }
            case EXPERT_SCALE: v = x[j] * y[j / (a.width / a.y_width)]; break;
            case EXPERT_SUM:
                v = x[j];
                for (int k = 1; k < a.x_width / a.width; k++) v = v + x[k * a.width + j];
                break;
            case SLICE: v = x[a.integer + j]; break;
            case CLAMP: v = clamped(x[j], a.number, a.second); break;
            case ACT: v = gate(a.integer, x[j]); break;
            case GLU_SPLIT: v = gate(a.integer, x[j]) * x[a.width + j]; break;
            case GLU_OAI: v = glu_oai(x[j], y[j], a.number, a.second); break;
            case EXPERT_INPUT: v = x[j % a.x_width] * y[j / a.x_width]; break;
            case EXPERT_BIAS: {
                const int64_t each = a.width / a.y_width;
                const float id = y[j / each];
                const int64_t expert = id >= 0.0f && id < float(a.z_rows) ? int64_t(id) : 0;
                v = x[j] + a.z[expert * each + j % each];
                break;
            }
            case ROW_SUM:
                for (int k = 0; k < a.x_width; k++) v = v + x[k];
                break;
        }
        a.out[i] = v;
    }
}

struct RowArgs {  // a block of threads a row
    const float* x;
    const float *w, *b;  // weights and bias of a norm, or null
    float* out;
    Acts acts;
    int32_t width, parts;
    float eps;
    int32_t w_step;  // from one part's weights to the next one's
};

// y = w x / sqrt(mean x^2 + eps) over each of `parts` parts of a row; block_x: row * parts + part
KERNEL(rms_norm, RowArgs, 256) {
    SHARED;
    next_may_start();
    wait_for_previous();
    const int n = a.width / a.parts;
    const int64_t at = int64_t(block_x()) * n;
    float* row = reinterpret_cast<float*>(shared) + 4;
    for (int i = thread(); i < n; i += threads()) row[i] = a.x[at + i];
    sync_block();
    const float f = norm_factor(row, n, a.eps, row - 4);
    const float* w = a.w + int64_t(block_x() % a.parts) * a.w_step;
    for (int i = thread(); i < n; i += threads()) a.out[at + i] = a.w ? (row[i] * f) * w[i] : row[i] * f;
}

// The same of x - mean, and a bias; sum64 of docs/arithmetic.md by the first warp
KERNEL(layer_norm, RowArgs, 256) {
    SHARED;
    next_may_start();
    wait_for_previous();
    const int n = a.width / a.parts;
    const int64_t at = int64_t(block_x()) * n;
    float* row = reinterpret_cast<float*>(shared) + 4;
    for (int i = thread(); i < n; i += threads()) row[i] = a.x[at + i];
    sync_block();
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
    const float f = norm_factor(row, n, a.eps, row - 4);
    const int64_t from = int64_t(block_x() % a.parts) * a.w_step;
    for (int i = thread(); i < n; i += threads()) {
        const float y = (row[i] * f) * a.w[from + i];
        a.out[at + i] = a.b ? y + a.b[from + i] : y;
    }
}

// The row, normed if there are weights, as quantised activations.
KERNEL(quantise_rows, RowArgs, 256) {
    SHARED;
    next_may_start();
    const int64_t row = block_x(), blocks = a.acts.stride / 32;
    float *row_room = reinterpret_cast<float*>(shared) + 4, *norm = row_room + a.width;
    if (a.w) copy_row(norm, a.w, a.width);
    wait_for_previous();
    copies_done<0>();
    quantise_row(a.x + row * a.width, a.w ? norm : nullptr, a.eps, a.width, a.acts.stride, row_room, a.acts.q + row * a.acts.stride,
                 a.acts.ds + row * blocks, a.acts.n + row * blocks);
}

// softmax of a row: the largest, exp(x - m), 32 chains; a warp a row
DEVICE void softmax_row(const float* x, float* y, int64_t n) {
    float m = minus_infinity();
    for (int64_t i = lane(); i < n; i += 32) m = m < x[i] ? x[i] : m;
    for (int h = 16; h; h /= 2) {
        const float other = shuffle_xor(m, h);
        m = m < other ? other : m;
    }
    float s = 0.0f;
    for (int64_t i = lane(); i < n; i += 32) {
        y[i] = exponential(x[i] - m);
        s = s + y[i];
    }
    for (int h = 16; h; h /= 2) s = s + shuffle_down(s, h);
    s = shuffle(s, 0);
    for (int64_t i = lane(); i < n; i += 32) y[i] = y[i] / s;
}

KERNEL(softmax, RowArgs, 32) {
    next_may_start();
    wait_for_previous();
    softmax_row(a.x + int64_t(block_x()) * a.width, a.out + int64_t(block_x()) * a.width, a.width);
}

// Places by rank: how many come before. Largest first, equal ones by index, NaN last.
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

// ---- what a step begins with ----------------------------------------------------------------------------------------

struct StepArgs {
    Rows rows;
    Cache cache;
    Pool pool;
    Matrix table;
    const float* x;
    float* out;
    const double* frequencies;
    const int32_t* which;  // rows to take
    int64_t n;
    int32_t width, n_rot, heads, neox;
    float magnitude;
    int32_t by_key;        // positions are those of keys
};

// out[row] = the table's row of that token
KERNEL(embed, StepArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t row = block_x(), token = a.rows.tokens[row];
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

// [cosines | sines] of each row's position; angles in double
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

// heads of a row turned; x: [rows][width], the table in `frequencies`' place as floats
struct RopeArgs {
    const float *x, *table;
    float* out;
    int64_t rows;
    int32_t width, heads, n_rot, neox;
};
KERNEL(rope, RopeArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int dim = a.width / a.heads, half = a.n_rot / 2;
    for (int64_t i = int64_t(block_x()) * threads() + thread(); i < a.rows * a.width; i += int64_t(grid_x()) * threads()) {
        const int64_t row = i / a.width;
        const int d = int(i % a.width) % dim, j = a.neox ? d % half : d / 2;
        const float* x = a.x + i - d;
        const float* t = a.table + row * a.n_rot;
        if (d >= a.n_rot) {
            a.out[i] = x[d];
            continue;
        }
        const float p = a.neox ? x[j] : x[2 * j], q = a.neox ? x[j + half] : x[2 * j + 1], c = t[j], s = t[half + j];
        a.out[i] = (a.neox ? d >= half : d % 2) ? p * s + q * c : p * c - q * s;
    }
}

// rows [which[i]] of x
KERNEL(take_rows, StepArgs, 256) {
    next_may_start();
    wait_for_previous();
    const float* from = a.x + int64_t(a.which[block_x()]) * a.width;
    for (int i = thread(); i < a.width; i += threads()) a.out[int64_t(block_x()) * a.width + i] = from[i];
}

// block_x: row of the step; a warp a head
KERNEL(cache_write, StepArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int row = block_x(), slot = a.rows.slots[row];
    if (slot < 0) return;
    const int page = a.rows.pages[a.rows.tables[row] + slot / kPage];
    for (int head = thread() / 32; head < a.pool.heads; head += threads() / 32)
        for (int at = 0; at < (a.pool.dim + 31) / 32 * 32; at += 32) {
            const int d = at + lane();
            const float x = d < a.pool.dim ? a.x[(int64_t(row) * a.pool.heads + head) * a.pool.dim + d] : 0.0f;
            write_value(a.pool, head_of(a.cache, a.pool, page, head), slot % kPage, d, x, true);
        }
    if (thread() == 0)
        *reinterpret_cast<int32_t*>(a.cache.pages + page * a.cache.page_bytes + a.cache.positions_at + 4 * (slot % kPage)) = a.rows.positions[row];
}

// The keys of all sequences, as the cache holds them; which: [keys][2]: page, slot
KERNEL(cache_read, StepArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int page = a.which[2 * block_x()], slot = a.which[2 * block_x() + 1];
    for (int i = thread(); i < a.width; i += threads())
        a.out[int64_t(block_x()) * a.width + i] = read_value(a.pool, head_of(a.cache, a.pool, page, i / a.pool.dim), slot, i % a.pool.dim);
}

// ---- scores, one operation at a time --------------------------------------------------------------------------------
// For graphs that the fused pass does not fit. Values of scores lie [head][token][key], chunk after chunk.

struct ScoreArgs {
    const float *x, *y;
    float* out;
    const int32_t* chunks;  // [chunks][6]: first token, tokens, first key, keys, offset of scores (2 words)
    const int32_t *positions, *key_positions;
    int32_t heads, kv_heads, dim, window;
    float scale, cap;
    int32_t op, padding;
};
enum ScoreOp { KQ, SOFTMAX, KQV, CAPPED, WEIGHTS };

// block_x: token of the chunk; block_y: head; block_z: chunk. WEIGHTS: y holds (m, l) of [token][head]
KERNEL(scores, ScoreArgs, 32) {
    next_may_start();
    wait_for_previous();
    const int32_t* c = a.chunks + block_z() * 6;
    const int t = block_x(), head = block_y();
    if (t >= c[1]) return;
    const int64_t n = c[3], base = (int64_t(uint32_t(c[4])) | int64_t(c[5]) << 32) * a.heads + (int64_t(head) * c[1] + t) * n;
    const int64_t token = c[0] + t, kv = a.kv_heads ? head / (a.heads / a.kv_heads) : 0;
    const auto unseen = [&](int64_t s) {
        const int64_t distance = int64_t(a.positions[token]) - a.key_positions[c[2] + s];
        return distance < 0 || (a.window && distance >= a.window);
    };
    if (a.op == KQ) {
        for (int64_t s = lane(); s < n; s += 32) {
            float y = 0.0f;
            for (int d = 0; d < a.dim; d++)
                y = fma(a.x[(token * a.heads + head) * a.dim + d], a.y[((c[2] + s) * a.kv_heads + kv) * a.dim + d], y);
            a.out[base + s] = y;
        }
    } else if (a.op == CAPPED) {
        for (int64_t s = lane(); s < n; s += 32) a.out[base + s] = softcap(a.x[base + s], a.cap);
    } else if (a.op == SOFTMAX) {
        for (int64_t s = lane(); s < n; s += 32) a.out[base + s] = unseen(s) ? minus_infinity() : a.x[base + s] * a.scale;
        sync_warp();
        softmax_row(a.out + base, a.out + base, n);
    } else if (a.op == WEIGHTS) {
        const float m = a.y[2 * (token * a.heads + head)], l = a.y[2 * (token * a.heads + head) + 1];
        for (int64_t s = lane(); s < n; s += 32) {
            float x = a.x[base + s];
            if (a.cap != 0.0f) x = softcap(x, a.cap);
            a.out[base + s] = unseen(s) ? 0.0f : exponential(x * a.scale - m) / l;
        }
    } else {
        for (int d = lane(); d < a.dim; d += 32) {
            float y = 0.0f;
            for (int64_t s = 0; s < n; s++) y = fma(a.x[base + s], a.y[((c[2] + s) * a.kv_heads + kv) * a.dim + d], y);
            a.out[(token * a.heads + head) * a.dim + d] = y;
        }
    }
}

}  // namespace assay
