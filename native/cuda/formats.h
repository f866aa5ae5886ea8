// Layouts of weights on the GPU, and how a block of 32 weights is decoded.
//
// An item is 256 columns (a "unit") of one row: the work of one thread. Rows are taken in groups of G. The items of a
// group are ordered by unit, then by row, and dealt to tiles of 32, an item a lane. A tile is a list of chunks; a chunk
// has 16 bytes for each lane. So a warp reads 512 bytes at a time, and rows of a unit are adjacent: 8 rows of a chunk
// are one row half of an `mma` fragment.
//
//   kind   chunks of codes
//   N4     8, one a block: byte i has column i in its low nibble, column 16 + i in its high one; with a code book, word
//          w has columns 4 w to 4 w + 3 in its low four nibbles and 16 + 4 w to 16 + 4 w + 3 in its high four
//   N5     as N4, then 2: word b of them has the fifth bits of block b; bit w of byte j is column 4 w + j
//   N6     as N4, then 4, half a chunk a block: word h, bits 2 w of byte j are the high bits of column 16 h + 4 w + j
//   N8     16, two a block
//
//   scales
//   HALVES   a chunk: 8 f16 d; with minima another: 8 f16 m
//   BRAINS   a chunk: 8 bf16 d
//   SUPER    a chunk of sub-scales: 8 int8, then 8 uint8 of minima; or 16 int8; and a word a lane: f16 d, f16 dmin
//   FLOATS   2 chunks (4 with a scale per 16): f32 d; with minima as many again: f32 m
//
// Types with an offset have unsigned codes; the product subtracts the offset from the integer sum.
#pragma once
#include "arithmetic.h"

namespace assay {

enum Kind { N4, N5, N6, N8 };
enum Scales { HALVES, BRAINS, SUPER, FLOATS };
enum Book { PLAIN, IQ4, MX4 };

// Word i of a 16-entry code book: four entries.
DEVICE uint32_t book_word(int book, int i) {
    const uint32_t iq4[4] = {pack4(-127, -104, -83, -65), pack4(-49, -35, -22, -10), pack4(1, 13, 25, 38), pack4(53, 69, 89, 113)};
    const uint32_t mx4[4] = {pack4(0, 1, 2, 3), pack4(4, 6, 8, 12), pack4(0, -1, -2, -3), pack4(-4, -6, -8, -12)};
    return book == IQ4 ? iq4[i] : mx4[i];
}
// Look up eight 4-bit codes in the book: the low four, then the high four. A nibble is a selector of `permute` except
// for its top bit, which chooses between the halves of the book.
template <int BOOK>
DEVICE void look_up(uint32_t codes, uint32_t& low, uint32_t& high) {
    const uint32_t index = codes & 0x77777777u, half = (codes >> 1 & 0x44444444u) | 0x32103210u;
    const auto four = [&](int shift) {
        const uint32_t first = permute_signed(book_word(BOOK, 0), book_word(BOOK, 1), index >> shift);
        return permute_signed(first, permute_signed(book_word(BOOK, 2), book_word(BOOK, 3), index >> shift), half >> shift);
    };
    low = four(0), high = four(16);
}
// The same in MX4, plus kMx4Offset. A selector with its top bit repeats the sign of a byte: 0 in these halves of the
// book. So one half gives 0 where the other gives the entry.
constexpr int kMx4Offset = 12;
DEVICE void look_up_mx4(uint32_t codes, uint32_t& low, uint32_t& high) {
    const uint32_t flipped = codes ^ 0x88888888u;
    const auto four = [&](int shift) {
        return permute_signed(pack4(12, 13, 14, 15), pack4(16, 18, 20, 24), codes >> shift) |
               permute_signed(pack4(12, 11, 10, 9), pack4(8, 6, 4, 0), flipped >> shift);
    };
    low = four(0), high = four(16);
}

// SUB16: a scale per 16 columns. MIN: has minima. OFFSET: subtracted from the codes. With minima, products centre the
// codes by the offset and add 16 d to the minimum instead.
template <Kind KIND, Scales SCALES, bool SUB16, bool MIN, int OFFSET = 0, Book BOOK = PLAIN>
struct Layout {
    static constexpr bool sub16 = SUB16, min = MIN;
    static constexpr int offset = OFFSET;
    static constexpr bool negative = KIND == N8 || BOOK == IQ4;  // `words` are signed bytes
    static constexpr Book book = BOOK;
    static constexpr Kind kind = KIND;
    static constexpr Scales scales_kind = SCALES;
    static constexpr int codes = KIND == N4 ? 8 : KIND == N5 ? 10 : KIND == N6 ? 12 : 16;
    static constexpr int scale_chunks = SCALES == FLOATS ? (SUB16 ? 4 : 2) * (MIN ? 2 : 1) : SCALES == HALVES && MIN ? 2 : 1;
    static constexpr int chunks = codes + scale_chunks;
    static constexpr bool word = SCALES == SUPER;
    static constexpr int tile_bytes = chunks * 512 + (word ? 128 : 0);

    // Columns 4 t .. 4 t + 3 and 16 + 4 t .. of block i, a byte each. `chunk(c, w)` is word w of chunk c.
    template <class Chunk>
    static DEVICE void words(const Chunk& chunk, int i, int t, uint32_t& low, uint32_t& high) {
        if constexpr (KIND == N8) {
            low = chunk(2 * i, t);
            high = chunk(2 * i + 1, t);
            return;
        }
        const uint32_t v = chunk(i, t);
        if constexpr (BOOK == MX4) return look_up_mx4(v, low, high);
        if constexpr (BOOK != PLAIN) return look_up<BOOK>(v, low, high);
        low = v & 0x0f0f0f0fu;
        high = v >> 4 & 0x0f0f0f0fu;
        if constexpr (KIND == N5) {
            const uint32_t fifth = chunk(8 + i / 4, i % 4);
            low |= fifth << (4 - t) & 0x10101010u;
            high |= fifth >> t & 0x10101010u;
        }
        if constexpr (KIND == N6) {
            const uint32_t x = chunk(8 + i / 2, i % 2 * 2), y = chunk(8 + i / 2, i % 2 * 2 + 1);
            low |= x >> 2 * t << 4 & 0x30303030u;
            high |= y >> 2 * t << 4 & 0x30303030u;
        }
    }

    // The same as signed bytes, minus the offset.
    template <class Chunk>
    static DEVICE void signed_words(const Chunk& chunk, int i, int t, uint32_t& low, uint32_t& high) {
        if constexpr (BOOK == MX4) return look_up<BOOK>(chunk(i, t), low, high);
        words(chunk, i, t, low, high);
        // codes are small, so bytes do not carry into each other
        const auto minus = [](uint32_t x) { return (x + (0x80u - uint32_t(OFFSET)) * 0x01010101u) ^ 0x80808080u; };
        if constexpr (OFFSET != 0) low = minus(low), high = minus(high);
    }

    // The same for N6, as four times the signed codes: flipping the sign bit of each byte then subtracts the offset.
    template <class Chunk>
    static DEVICE void words_by_four(const Chunk& chunk, int i, int t, uint32_t& low, uint32_t& high) {
        const uint32_t v = chunk(i, t), x = chunk(8 + i / 2, i % 2 * 2), y = chunk(8 + i / 2, i % 2 * 2 + 1);
        low = masked_or(v << 2, 0x3c3c3c3cu, (x << (6 - 2 * t) & 0xc0c0c0c0u) ^ 0x80808080u);
        high = masked_or(v >> 2, 0x3c3c3c3cu, (y << (6 - 2 * t) & 0xc0c0c0c0u) ^ 0x80808080u);
    }

    // Whether high nibbles can be multiplied without a shift: the sum is 16 times that of the codes, and has no other
    // terms.
    static constexpr bool high_in_place = KIND == N4 && BOOK == PLAIN && !SUB16;

    struct Values {
        float d[2], m[2];
    };
    // d times an unsigned byte: exact, because 2^23 d is exact.
    static DEVICE float times_byte(float d, uint32_t word, int j) {
        return fma(d, as_float(permute(word, 0x4b000000u, 0x7540u | uint32_t(j))), d * -8388608.0f);
    }
    static DEVICE float signed_float(uint32_t word, int j) {
        return as_float(permute(word ^ 0x80808080u, 0x4b000000u, 0x7540u | uint32_t(j))) - 8388736.0f;
    }
    // Scales and minima of the halves of block i, as the file has them. `super` is the lane's word of a SUPER layout.
    // `by` is a power of two that scales are multiplied by (SUB16 only).
    template <class Chunk>
    static DEVICE Values scales(const Chunk& chunk, uint32_t super, int i, float by = 1.0f) {
        Values v;
        if constexpr (SCALES == HALVES) {
            v.d[0] = v.d[1] = half_to_float(uint16_t(chunk(codes, i / 2) >> 16 * (i % 2)));
            if constexpr (MIN) v.m[0] = v.m[1] = half_to_float(uint16_t(chunk(codes + 1, i / 2) >> 16 * (i % 2)));
        } else if constexpr (SCALES == BRAINS) {
            v.d[0] = v.d[1] = brain_to_float(uint16_t(chunk(codes, i / 2) >> 16 * (i % 2)));
        } else if constexpr (SCALES == SUPER) {
            float d = half_to_float(uint16_t(super));
            if constexpr (SUB16) {
                d = d * by;
                v.d[0] = fma(d, signed_float(chunk(codes, i / 2), i % 2 * 2), 0.0f);
                v.d[1] = fma(d, signed_float(chunk(codes, i / 2), i % 2 * 2 + 1), 0.0f);
            } else {
                const uint32_t word = chunk(codes, i / 4);  // 6 bits and unsigned if there are minima
                v.d[0] = v.d[1] = MIN ? times_byte(d, word, i % 4) : fma(d, signed_float(word, i % 4), 0.0f);
            }
            if constexpr (MIN)
                v.m[0] = v.m[1] = times_byte(-half_to_float(uint16_t(super >> 16)), chunk(codes, 2 + i / 4), i % 4);
        } else {
            constexpr int per = SUB16 ? 2 : 1, more = SUB16 ? 4 : 2;
            for (int h = 0; h < 2; h++) {
                const int at = per * i + (SUB16 ? h : 0);
                v.d[h] = as_float(chunk(codes + at / 4, at % 4));
                if constexpr (MIN) v.m[h] = as_float(chunk(codes + more + at / 4, at % 4));
            }
        }
        return v;
    }
    // Scales and minima as products use them.
    template <class Chunk>
    static DEVICE Values factors(const Chunk& chunk, uint32_t super, int i, float by = 1.0f) {
        Values v = scales(chunk, super, i, by);
        if constexpr (MIN && OFFSET != 0)
            for (int h = 0; h < 2; h++) v.m[h] = fma(float(OFFSET), v.d[h], v.m[h]);
        return v;
    }
};

// The layout of each WeightFormat (abi.h).

template <int FORMAT> struct LayoutOf;
template <> struct LayoutOf<Q4_0> : Layout<N4, HALVES, false, false, 8> { static constexpr int number = Q4_0; };
template <> struct LayoutOf<Q4_1> : Layout<N4, HALVES, false, true> { static constexpr int number = Q4_1; };
template <> struct LayoutOf<Q5_0> : Layout<N5, HALVES, false, false, 16> { static constexpr int number = Q5_0; };
template <> struct LayoutOf<Q5_1> : Layout<N5, HALVES, false, true, 16> { static constexpr int number = Q5_1; };
template <> struct LayoutOf<Q8_0> : Layout<N8, HALVES, false, false> { static constexpr int number = Q8_0; };
template <> struct LayoutOf<Q4_K> : Layout<N4, SUPER, false, true> { static constexpr int number = Q4_K; };
template <> struct LayoutOf<Q5_K> : Layout<N5, SUPER, false, true, 16> { static constexpr int number = Q5_K; };
template <> struct LayoutOf<Q6_K> : Layout<N6, SUPER, true, false, 32> { static constexpr int number = Q6_K; };
template <> struct LayoutOf<IQ4_NL> : Layout<N4, HALVES, false, false, 0, IQ4> { static constexpr int number = IQ4_NL; };
template <> struct LayoutOf<IQ4_XS> : Layout<N4, SUPER, false, false, 0, IQ4> { static constexpr int number = IQ4_XS; };
template <> struct LayoutOf<MXFP4> : Layout<N4, BRAINS, false, false, kMx4Offset, MX4> { static constexpr int number = MXFP4; };
// any other type, expanded
template <> struct LayoutOf<WIDE16> : Layout<N8, FLOATS, true, false> { static constexpr int number = WIDE16; };
template <> struct LayoutOf<WIDE16_MIN> : Layout<N8, FLOATS, true, true> { static constexpr int number = WIDE16_MIN; };

// The compiler in Python places matrices by the sizes of abi.h.
template <int FORMAT>
constexpr bool same_size() {
    using L = LayoutOf<FORMAT>;
    constexpr FormatSize size = format_size(FORMAT);
    return L::chunks == size.chunks && L::scale_chunks == size.scale_chunks && L::word == size.word && (L::sub16 && L::min) == size.half_sums;
}
static_assert(same_size<Q4_0>() && same_size<Q4_1>() && same_size<Q5_0>() && same_size<Q5_1>() && same_size<Q8_0>());
static_assert(same_size<Q4_K>() && same_size<Q5_K>() && same_size<Q6_K>() && same_size<IQ4_NL>() && same_size<IQ4_XS>());
static_assert(same_size<MXFP4>() && same_size<WIDE16>() && same_size<WIDE16_MIN>());

// Call f with the layout of a quantised format.
template <class F>
DEVICE void with_layout(int format, F&& f) {
    switch (format) {
        case Q4_0: return f(LayoutOf<Q4_0>{});
        case Q4_1: return f(LayoutOf<Q4_1>{});
        case Q5_0: return f(LayoutOf<Q5_0>{});
        case Q5_1: return f(LayoutOf<Q5_1>{});
        case Q8_0: return f(LayoutOf<Q8_0>{});
        case Q4_K: return f(LayoutOf<Q4_K>{});
        case Q5_K: return f(LayoutOf<Q5_K>{});
        case Q6_K: return f(LayoutOf<Q6_K>{});
        case IQ4_NL: return f(LayoutOf<IQ4_NL>{});
        case IQ4_XS: return f(LayoutOf<IQ4_XS>{});
        case MXFP4: return f(LayoutOf<MXFP4>{});
        case WIDE16: return f(LayoutOf<WIDE16>{});
        case WIDE16_MIN: return f(LayoutOf<WIDE16_MIN>{});
    }
}

// Float matrices have the same tiles: chunk c of an item has 8 halves or 4 floats of its columns.
DEVICE const uint8_t* Matrix::tile(int64_t group_index, int t) const { return data + group_index * group_bytes + int64_t(t) * tile_bytes; }

// An item in memory: word w of chunk c, and the lane's word behind the chunks.
struct InMemory {
    const uint8_t* tile;
    int lane;
    DEVICE uint32_t operator()(int c, int w) const { return *reinterpret_cast<const uint32_t*>(tile + c * 512 + lane * 16 + w * 4); }
    DEVICE uint32_t super(int chunks) const { return *reinterpret_cast<const uint32_t*>(tile + chunks * 512 + lane * 4); }
};
DEVICE InMemory item(const Matrix& w, int64_t row, int unit) {
    const int at = unit * w.group + int(row % w.group);
    return {w.tile(row / w.group, at / 32), at % 32};
}

}  // namespace assay
