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

enum class Act : int { silu, gelu_tanh, gelu_erf, relu };
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
};

}  // namespace assay
