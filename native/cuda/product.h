// Arguments of the product kernels (abi.h), and the epilogue of a sum: bias, residual, or the gate of a pair.
#pragma once
#include "activations.h"
#include "formats.h"

namespace assay {

// Epilogue of the sum y of row r of a group, token t; `up` is the sum of the paired row. The constructor looks up
// arguments by part, which is slow, so it runs before the kernel waits for its predecessor. `ask` loads the residual
// afterwards.
struct Tail {
    float *out = nullptr, *gate_out = nullptr, *up_out = nullptr;
    const float* residual_at = nullptr;
    float bias = 0.0f, residual = 0.0f;
    int act = 0;
    bool wanted = false, paired = false, biased = false;
    DEVICE Tail() {}
    DEVICE Tail(const Product& p, int group, int r, int t) {
        const int half = p.paired ? p.w.group / 2 : p.w.group, row = group * half + r;
        const int64_t at = int64_t(t) * p.out_stride + row;
        wanted = r < half && row < p.w.rows, paired = p.paired, biased = p.bias, act = p.act;
        if (!wanted) return;
        out = p.out + at;
        if (p.gate_out) gate_out = p.gate_out + at;
        if (p.up_out) up_out = p.up_out + at;
        if (p.residual) residual_at = p.residual + at;
        if (biased) bias = p.bias[row];
    }
    DEVICE void ask() {
        if (residual_at) residual = *residual_at;
    }
    DEVICE void finish(float y, float up) const {
        if (!wanted) return;
        if (paired) {
            if (gate_out) *gate_out = y;
            if (up_out) *up_out = up;
            y = gate(act, y) * up;
        }
        if (biased) y = y + bias;
        if (residual_at) y = y + residual;
        store_fresh(out, y);
    }
};

OUTLINED void finish(const Product& p, int64_t group, int r, int t, float y, float up) {
    Tail tail(p, int(group), r, t);
    tail.ask();
    tail.finish(y, up);
}

// Partial sums of a group are [unit][row]: the totals of row r and of row r + pair.
DEVICE float2 totals_of(const Matrix& w, const float* parts, int pair) {
    float2 total = {parts[0], parts[pair]};
#pragma unroll 8
    for (int u = 1; u < w.units; u++) {
        parts += w.group;
        total = {total.x + parts[0], total.y + parts[pair]};
    }
    return total;
}

// Matrix of a pair (token, choice) as the graph chose it; without a list, pair p takes matrix p % n.
DEVICE int matrix_of(const float* experts, int pair, int n) {
    if (!experts) return pair % n;
    const float id = experts[pair];
    return id >= 0.0f && id < float(n) ? int(id) : 0;
}

// Several matrices: the pair of this thread block, with its row of x, its matrix and its row of the result.
struct Pair {
    int row = 0, row_of_x = 0, matrix = 0;
    const float* x;
    DEVICE Pair(const ProductArgs& a) : x(a.x) {  // reads `experts`: construct after the kernel that chose them
        if (!a.n_experts) return;
        row = block_z() * grid_y() + block_y();
        row_of_x = row / a.rows_of_x;
        x = a.x + int64_t(row_of_x) * a.x_stride;
        matrix = matrix_of(a.experts, row, a.n_experts);
    }
};
DEVICE bool no_pair(const ProductArgs& a) { return a.n_experts && block_z() * grid_y() + block_y() >= a.tokens; }

DEVICE int part_of(const ProductArgs& a, int group) {
    int p = 0;
#pragma unroll 1
    while (p + 1 < a.n_parts && group >= a.parts[p + 1].first_group) p++;
    return p;
}

}  // namespace assay
