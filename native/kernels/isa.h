// What an instruction set provides; one table per translation unit isa_*.cpp, chosen at run time by dispatch.cpp.
#pragma once
#include "kernels.h"

namespace assay::kernels {

// How the integers of a layout are stored (layout.h). Nibbles: signed, unsigned, IQ4 code book, MXFP4 code book.
enum Kind { N4S, N4U, N4I, N4M, N5, N6, N8, N3, N2 };

// How a sub-scale lies in its byte.
enum Field { BYTE, LOW4, HIGH4 };

// Base of a vector type that leaves inner blocks and half sums to panel.h (isa_neon.cpp has its own).
struct NoBlock {
    template <class F, int T>
    static constexpr bool has_block = false;
    template <class F>
    static constexpr int expand_from = 8;  // tokens from which expanding a panel first is faster
    template <Kind KIND>
    static constexpr bool paired = false;  // the nibbles of a byte belong to two rows (layout.h)
    template <Kind KIND>
    static void unpack_pairs(const uint8_t*, int, void*) {}
    static constexpr bool tile_bias = false;
    template <int MULTIPLE>
    static constexpr float bias = 0;
    template <class F, int T, class... Arguments>
    static void block(Arguments&&...) {}
    // d * (sum of each half block), the halves of 4 tokens
    struct Halves {
        float s[2][4];
        template <class Group>
        explicit Halves(const Group& a) {
            for (int t = 0; t < 4; t++) {
                s[0][t] = a.d[t] * float(-a.neg0[t]);
                s[1][t] = a.d[t] * float(a.neg0[t] - a.neg[t]);
            }
        }
        const float* operator[](int h) const { return s[h]; }
    };
};

struct Isa {
    const char* name;
    int panel_rows;
    size_t (*packed_bytes)(Type type, int64_t n, int64_t k);
    void (*pack)(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t begin, int64_t end, uint8_t* dst);
    void (*decode_packed)(const Matrix& w, int64_t row, float* out);
    void (*prepare)(Acts format, const float* x, int64_t ldx, int64_t m, int64_t k, int64_t begin, int64_t end,
                    void* dst);
    void (*gemm)(const Matrix& w, Acts format, const void* acts, int64_t m, float* out, int64_t ldo, int64_t begin,
                 int64_t end);
    void (*dot_loop)(int64_t iterations);  // 64 independent-enough vector dot products per iteration
    double dot_ops;                        // integer operations per iteration (2 per multiply-add)
};

// nullptr where the translation unit was compiled for another architecture.
const Isa* isa_portable();
const Isa* isa_neon();
const Isa* isa_avx2();
const Isa* isa_avx512vnni();

}  // namespace assay::kernels
