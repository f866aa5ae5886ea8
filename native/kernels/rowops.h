// Row kernels, all operations but matrix products: norms, activations, RoPE, cache pages, attention.
//
// One table of functions per instruction set (rowops.cpp is compiled once for each), chosen together with the matrix
// kernels (kernels.h: Isa). docs/reference/arithmetic.md defines the bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace assay {

constexpr int kPage = 32;          // positions per page
constexpr int kBlock = 8 * kPage;  // keys of one softmax block; blocks begin at multiples of this

enum class Act : int { silu, gelu_tanh, gelu_erf, relu, relu_sqr, tanh };
enum class KvType : int { f32, f16, bf16, q8_0 };

// One head of one page. Keys are transposed, [dim][32 positions]. Values are [32][stride], with the stride rounded up
// to 16. q8_0 appends an f16 scale per 32 values of a position's head.
struct PageShape {
    KvType type;
    bool keys;
    int heads, dim;

    int stride() const { return keys ? dim : (dim + 15) / 16 * 16; }
    size_t element() const { return type == KvType::f32 ? 4 : type == KvType::q8_0 ? 1 : 2; }
    size_t values_bytes() const { return size_t(kPage) * stride() * element(); }
    size_t head_bytes() const {
        return (values_bytes() + (type == KvType::q8_0 ? size_t(2) * kPage * (dim / 32) : 0) + 63) / 64 * 64;
    }
    size_t page_bytes() const { return head_bytes() * heads; }
};

// Query rows that read the same key/value head, against one block of keys.
//   s[r, j] = scale * cap(q[r] . k[j]) + bias[r, j] where row r sees key j, else -inf
//                                                                            (cap(x) = cap tanh(x / cap), or x)
//   m[r] = max_j s[r, j];  l[r] = sum_j exp(s[r, j] - m[r]);  acc[r, d] = sum_j exp(s[r, j] - m[r]) v[j, d]
// Masked keys add exactly nothing, whatever they hold.
struct AttnBlock {
    PageShape k_shape, v_shape;
    int v_first;  // -1; or values are columns of the keys from this one on, and v are pages of keys
    float scale, cap;         // cap 0: none
    int rows, keys;  // keys of this block that exist and that some row may see
    int behind;  // leading pages of the block without a visible key: they are not read
    const float* const* q;    // [rows] -> [dim]
    const uint8_t* const* k;  // [pages of the block] -> this head of the page
    const uint8_t* const* v;
    const int* from;  // [rows] row r sees keys [from, to) of the block ...
    const int* to;
    const uint8_t* const* hidden;  // ... or, if given, those with hidden[r][j] == 0
    const float* const* bias;      // null, or [rows] -> [keys rounded up to pages]
    float* m;                      // [rows]
    float* l;                      // [rows]
    float* acc;                    // [rows][v stride]
    float* const* kq;  // null, or [rows] -> raw scores q . k of the keys, for a trace
    float* scratch;                // attn_scratch(rows, ...) floats
};

inline size_t attn_scratch(int rows, const PageShape& k, const PageShape& v) {
    // Floats of scratch: scores; a page of keys or values; and, if values are columns of the keys, their transpose.
    return size_t(rows) * kBlock + size_t(kPage) * (k.dim > v.stride() ? k.dim : v.stride()) +
           size_t(kPage) * v.stride();
}

// xielu: a x^2 + beta x above 0, else (e^min(x, eps) - 1 - x) b + beta x.
struct Xielu {
    float above, below, beta, eps;  // a, b, beta, eps
};

constexpr int kMaxTaps = 16;

// Some channels of a convolution, for the tokens of one sequence.
struct ConvBlock {
    int tokens, channels, taps;
    const float* x;  // [tokens], x_step floats apart
    size_t x_step;
    const float* w;  // [taps], w_step floats apart: the kernel's transpose
    size_t w_step;
    const float* from;  // the window [channels][taps - 1] before, oldest first; null: zeros
    float* to;          // and after; may be `from`
    float* y;
    size_t y_step;
};

// An operand of a scan: a row for each token, `step` floats apart.
struct TokenRows {
    float* data = nullptr;
    size_t step = 0;
    float* at(int token) const { return data + token * step; }
};

// Some rows of a state, for the tokens of one sequence. The operands are those of the graph's operation, in its order;
// an operand of a head begins at that head.
struct ScanBlock {
    int tokens, width;     // width: key channels, the length of a row
    int first, rows;       // ssm_scan: first row of all heads; rows of this block
    int head_rows = 1;     // ssm_scan: rows of a head
    bool per_channel = false;  // a decay for each channel of a row
    float scale = 1;
    TokenRows in[6], out;
    const float* weight = nullptr;  // A or u
    const float* from;              // rows before, null: zeros
    float* to;                      // and after; may be `from`
    float* scratch;                 // scan_scratch floats
};

inline size_t scan_scratch(int rows, int width) { return size_t(rows + 8) * ((width + 63) / 64 * 64) + 16 * width; }

struct RowOps {
    void (*rms_norm)(const float* x, const float* w, float* y, size_t n, float eps);  // w / sqrt(mean x^2 + eps) * x
    // (x - mean x) / sqrt(var x + eps) * w + b; b may be null
    void (*layer_norm)(const float* x, const float* w, const float* b, float* y, size_t n, float eps);
    void (*add)(const float* a, const float* b, float* y, size_t n);
    void (*scale)(const float* x, float factor, float* y, size_t n);
    void (*glu)(Act act, const float* gate, const float* up, float* y, size_t n);  // act(gate) * up
    void (*softcap)(const float* x, float cap, float* y, size_t n);                // cap tanh(x / cap)
    void (*softmax)(const float* x, float* y, size_t n);
    void (*exps)(const float* x, float shift, float* y, size_t n);  // exp(x - shift)
    float (*chain)(const float* a, const float* b, size_t n);       // a . b, one chain
    void (*axpy)(float a, const float* x, float* y, size_t n);      // y += a x
    // y += a[k] x[k], k ascending; the rows of x are `step` floats apart
    void (*axpys)(const float* a, const float* x, size_t step, int count, float* y, size_t n);
    // RoPE: pairs (a, b) of each head's first n_rot values become (a cos - b sin, a sin + b cos); x may be y.
    void (*rope)(const float* x, const float* cos, const float* sin, float* y, int heads, int dim, int n_rot,
                 bool neox);
    // cos and sin of position * frequency, each times the magnitude; angles in float64.
    void (*rope_table)(const double* frequencies, int n, int32_t position, float magnitude, float* cos, float* sin);
    // All heads of one position, [heads][dim], to its slot of a page, and from it.
    void (*page_write)(const PageShape& shape, uint8_t* page, int slot, const float* x);
    void (*page_read)(const PageShape& shape, const uint8_t* page, int slot, float* x);
    void (*attend)(const AttnBlock& block);
    // (m, l, acc) := merge of (m, l, acc) and (m2, l2, acc2); blocks are merged in ascending order.
    void (*attn_merge)(float* m, float* l, float* acc, float m2, float l2, const float* acc2, size_t n);
    float (*dot)(const float* a, const float* b, size_t n);  // 64 chains and their tree
    void (*l2_norm)(const float* x, float* y, size_t n, float eps, bool floor);
    void (*softplus)(const float* x, float* y, size_t n);
    void (*xielu)(const float* x, const Xielu& f, float* y, size_t n);
    void (*sparse_gate)(const float* x, float factor, float* y, size_t n);  // relu(x - mean - factor std)
    void (*lerp)(const float* x, const float* z, const float* t, float* y, size_t n);  // x + (z - x) t
    void (*causal_conv)(const ConvBlock& block);
    void (*delta_rule)(const ScanBlock& block);
    void (*ssm_scan)(const ScanBlock& block);
    void (*wkv6)(const ScanBlock& block);
    void (*wkv7)(const ScanBlock& block);
};

}  // namespace assay
