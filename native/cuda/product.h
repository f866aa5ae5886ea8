// What every product kernel is told, and what follows a sum: bias, residual, or the gate of a pair.
#pragma once
#include "activations.h"
#include "ahead.h"
#include "formats.h"

namespace assay {

struct Product {  // one matrix of a launch, and what follows it
    Matrix w;
    float* out;             // [tokens][out_stride]
    const float* bias;      // or null
    const float* residual;  // or null: [tokens][out_stride]
    float* gate_out;        // of a pair of matrices: gate and up as they are, if somebody keeps them
    float* up_out;
    int32_t out_stride, first_group;
    int32_t paired, act;    // paired: each group has group / 2 rows of the gate, then as many of up; out = act(gate) up
};

enum Prologue { GIVEN, PLAIN_ROWS, NORMED_ROWS };

struct ProductArgs {
    Product parts[4];
    Acts acts;            // GIVEN: quantised already
    const float* x;       // else rows of floats ...
    const float* norm;    // ... and the weights of their norm
    const float* experts; // null, or the expert of each pair (token, choice): one row of x a pair, or a token
    int64_t expert_bytes;
    int32_t n_parts, groups, tokens, columns, x_stride, prologue;
    float eps;
    int32_t rows_of_x, n_experts;    // with experts: how many pairs share a row of x
    int32_t slots, team, together;   // of product_one: tiles a warp has room for, warps a group, groups that a block takes at once
    int32_t shift, padding;          // the group is 1 << shift rows
    int32_t stages;                  // of product_many: 1, or as many as it has
    Ahead ahead;
};

// What follows the sum y of row r of a group, token t; `up`: the sum of the row that is paired with it. What it reads is
// asked for by `begin`.
struct Tail {
    const Product* p = nullptr;
    int64_t at = 0;
    bool wanted = false;
    float bias = 0.0f, residual = 0.0f;
    DEVICE void begin(const Product& product, int group, int r, int t) {
        p = &product;
        const int half = p->paired ? p->w.group / 2 : p->w.group, row = group * half + r;
        at = int64_t(t) * p->out_stride + row;
        wanted = r < half && row < p->w.rows;
        if (wanted && p->bias) bias = p->bias[row];
        if (wanted && p->residual) residual = p->residual[at];
    }
    DEVICE void finish(float y, float up) const {
        if (!wanted) return;
        if (p->paired) {
            if (p->gate_out) p->gate_out[at] = y;
            if (p->up_out) p->up_out[at] = up;
            y = gate(p->act, y) * up;
        }
        if (p->bias) y = y + bias;
        if (p->residual) y = y + residual;
        p->out[at] = y;
    }
};

OUTLINED void finish(const Product& p, int64_t group, int r, int t, float y, float up) {
    Tail tail;
    tail.begin(p, int(group), r, t);
    tail.finish(y, up);
}

// Partial sums of a group lie [unit][row].
DEVICE float total_of(const Matrix& w, const float* parts, int r) {
    parts += r;
    float total = *parts;
#pragma unroll 8
    for (int u = 1; u < w.units; u++) total = total + *(parts += w.group);
    return total;
}

DEVICE int part_of(const ProductArgs& a, int group) {
    int p = 0;
    while (p + 1 < a.n_parts && group >= a.parts[p + 1].first_group) p++;
    return p;
}

}  // namespace assay
