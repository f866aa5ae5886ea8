// Shared by the translation units isa_*.cpp. Each makes one table (kernels.h: Isa), and dispatch.cpp offers them.
#pragma once
#include "blocks.h"

namespace assay::kernels {

// Storage of the integer codes of a layout (layout.h), by bits. Four bits: signed, unsigned, or indices of a code book
// of IQ4, MXFP4, IQ3_XXS or IQ3_S. Three bits: plain, or of the books of IQ2 or IQ1. Two bits: plain, or ternary.
enum Kind { N4S, N4U, N4I, N4M, N4X, N4O, N5, N6, N8, N3, N3P, N3T, N2, N2T };

constexpr int kind_bits(Kind k) {
    return k == N8 ? 8 : k == N6 ? 6 : k == N5 ? 5 : k == N2 || k == N2T ? 2 : k == N3 || k == N3P || k == N3T ? 3 : 4;
}
constexpr bool has_book(Kind k) { return k == N4I || k == N4M || k == N4X || k == N4O || k == N3P || k == N3T; }
// The book of each kind: code to integer.
constexpr const int8_t* kind_book(Kind k) {
    return k == N4I   ? iq4_values
           : k == N4M ? mxfp4_values
           : k == N4X ? iq3_xxs_values
           : k == N4O ? iq3_s_values
           : k == N3P ? iq2_values
                      : iq1_values;
}

// For instruction sets whose pairs of products are 16 bits wide: bits of a code as it is multiplied, 8 if it is signed,
// and the offset that makes it unsigned.
constexpr int narrow_bits(Kind k) {
    return k == N4O || k == N3T ? 5 : has_book(k) ? 8 : kind_bits(k) < 4 ? 4 : kind_bits(k);
}
constexpr int narrow_offset(Kind k) {
    return k == N4S                          ? 8
           : k == N5 || k == N4O || k == N3T ? 16
           : k == N6                         ? 32
           : k == N3                         ? 4
           : k == N2T                        ? 1
                                             : 0;
}

// Position of a sub-scale in its byte.
enum Field { BYTE, LOW4, HIGH4 };

// Order of the bytes of an expanded panel (layout.h). HALVES: half blocks outermost. VECTORS: vectors of rows
// outermost, so a block of a vector is one tile of a matrix unit. PAIRS: pairs of rows with 8 columns each.
enum Order { HALVES, VECTORS, PAIRS };

// Default members of a vector type that uses the generic blocks and half sums of panel.h; neon.h overrides some.
struct NoBlock {
    template <class F, int T>
    static constexpr bool has_block = false;
    template <class F, int T>
    static constexpr bool has_sums = false;  // has its own code for the exact sums of a block
    template <class F, int T, class... Arguments>
    static void sums(Arguments&&...) {}
    template <class F, class... Arguments>
    static void apart(Arguments&&...) {}  // split `paired` sums into floats
    // the pair sums of a whole block of such codes fit 16 bits: `join_dots` adds half 0, then half 1, and widens
    template <int BITS>
    static constexpr bool joins = false;
    template <int H, class... Arguments>
    static void join_dots(Arguments&&...) {}
    template <class I>
    static I plus(I a, I) {
        return a;
    }
    // one token: integer sums of two blocks before the floats of the first
    static constexpr bool two_in_flight = false;
    static constexpr Order order = HALVES;
    static constexpr bool shifts_halves = false;  // has a second way to widen halves, `lowered_f16`
    static constexpr bool has_column = false;  // has its own code for a column of floats times 4 tokens
    template <int N, class... Arguments>
    static void column(Arguments&&...) {}
    // has registers for the sums of 8 tokens over the even or the odd columns of a panel of floats: `broadcast` gives a
    // token's value
    static constexpr bool eight_tokens = false;
    template <class F>
    static F broadcast(const float*) {
        return F{};
    }
    // Reads rows of the file in place: `transpose_rows` and `add_rows` take 8 columns of a panel of floats, `row_dots`
    // a RowTile. `transpose_lines` takes `line_bytes` of each row, `add_lines` `stream_bytes` of L rows, if these are not
    // 0: a whole cache line is read once.
    static constexpr bool reads_rows = false;
    static constexpr int line_bytes = 0, stream_bytes = 0;
    template <class W, class... Arguments>
    static void transpose_lines(Arguments&&...) {}
    template <int BEGIN, int END, class... Arguments>
    static void row_dots(Arguments&&...) {}
    template <class W, class... Arguments>
    static void transpose_rows(Arguments&&...) {}
    template <class W, class... Arguments>
    static void add_rows(Arguments&&...) {}
    template <class W, class... Arguments>
    static void add_lines(Arguments&&...) {}
    template <class... Arguments>
    static void row_sums(Arguments&&...) {}
    template <class Q>
    static void store_pairs(uint8_t*, uint8_t*, Q, Q) {}  // for order PAIRS
    template <class Q>
    static Q minus(Q x, int) {  // subtract the offset, if tiles are signed and codes are not
        return x;
    }
    template <class F>
    static constexpr int expand_from = 8;  // tokens from which expanding a panel first is faster
    template <Kind KIND>
    static constexpr bool paired = false;  // a byte has codes of two rows (layout.h)
    template <Kind KIND, int H>
    static void unpack_pairs(const uint8_t*, int, void*) {}
    static constexpr int ahead = 0;  // bytes that decoding prefetches, beyond the hardware prefetcher
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

// packing.cpp of an instruction set: the members of an Isa with these names.
struct Packer {
    size_t (*packed_bytes)(Type type, int64_t n, int64_t k);
    void (*pack)(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t begin, int64_t end, uint8_t* dst);
    // Blocks [block, block + blocks), at most kRowBlocks, of the panel that begins with row `first`, as RowTiles of
    // layout.h. For types that are read in place.
    void (*row_tiles)(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t first, int64_t block, int64_t blocks,
                      uint8_t* dst);
    // One token, `acts`, on the panel that begins with row `first`, read where it lies in the file; false, and nothing is
    // written, for a type without such a product.
    bool (*row_product)(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t first, const void* acts, float* out);
};
constexpr int64_t kRowBlocks = 32;

// nullptr if the translation unit was compiled for another architecture.
const Isa* isa_portable();
const Isa* isa_neon();
const Isa* isa_avx2();
const Isa* isa_avx512();
const Isa* isa_avx512vnni();
// The two above, with products for many tokens on a matrix unit.
const Isa* isa_i8mm();
const Isa* isa_amx();

}  // namespace assay::kernels

// rowops.cpp and packing.cpp, compiled for each instruction set.
#define ASSAY_ROWS(ns)                    \
    namespace assay::ns {                 \
    extern const RowOps kRowOps;          \
    extern const kernels::Packer kPacker; \
    }
ASSAY_ROWS(portable)
ASSAY_ROWS(neon)
ASSAY_ROWS(avx2)
ASSAY_ROWS(avx512)
ASSAY_ROWS(avx512vnni)
#undef ASSAY_ROWS
