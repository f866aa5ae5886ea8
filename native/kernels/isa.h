// What the translation units isa_*.cpp share; each makes one table (kernels.h: Isa), dispatch.cpp offers them.
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

// nullptr where the translation unit was compiled for another architecture.
const Isa* isa_portable();
const Isa* isa_neon();
const Isa* isa_avx2();
const Isa* isa_avx512vnni();

}  // namespace assay::kernels

// rowops.cpp, compiled for each instruction set.
#define ASSAY_ROWS(ns)           \
    namespace assay::ns {        \
    extern const RowOps kRowOps; \
    }
ASSAY_ROWS(portable)
ASSAY_ROWS(neon)
ASSAY_ROWS(avx2)
ASSAY_ROWS(avx512vnni)
#undef ASSAY_ROWS
