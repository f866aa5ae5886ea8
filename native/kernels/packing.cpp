// Packing: rows of the file into the interleaved layouts of layout.h. Compiled once for each instruction set.
//
// Loading a model is mostly this. Eight rows are packed together. The 32 codes of a row's block are computed as one
// vector of 8 words, each of 4 codes. An 8 x 8 transposition turns eight such rows into 8 groups of four columns, the
// form of a panel; then their bits are joined. Types with large code books are looked up first, eight weights at a time,
// for a super-block of every row. A vector loaded right behind the small stores that made it would wait for them.
#include "vectors.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics: _mm512_undefined_*
#endif

#include "iq_blocks.h"

namespace assay::kernels {
namespace {

#include ASSAY_VECTORS
using V = ASSAY_V;
#include "layout.h"
#include "group.h"

static_assert(R % 8 == 0);

typedef uint32_t Words __attribute__((vector_size(32)));
typedef uint64_t Fours __attribute__((vector_size(32)));
typedef uint16_t Indices __attribute__((vector_size(32)));
typedef uint16_t FourHalves __attribute__((vector_size(8)));
typedef uint8_t Bytes8 __attribute__((vector_size(8)));
typedef uint32_t Half __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(16)));
typedef uint8_t Bytes32 __attribute__((vector_size(32)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint8_t Bytes4 __attribute__((vector_size(4)));
typedef uint32_t Lanes __attribute__((vector_size(4 * V::L)));  // a word of each row of a vector
constexpr uint32_t ones = 0x01010101u;                         // one a byte; times a mask of a byte: the mask of each
constexpr uint64_t ones64 = 0x0101010101010101u;

template <class T>
INLINE T get(const void* p) {
    T v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

// ---- transpositions ------------------------------------------------------------------------------------------------

#ifdef __clang__
#define ASSAY_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else  // gcc has __builtin_shufflevector only since 12
#define ASSAY_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype((a) & (a)){__VA_ARGS__})
#endif

// 8 x 8 words: x[r][g] becomes x[g][r].
INLINE void transpose_words(Words (&x)[8]) {
#if defined(__AVX2__)
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = (__m256i)x[i];
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int n = 0; n < 2; n++) {
            a[i + 2 * n] = _mm256_unpacklo_epi64(b[i + n], b[i + n + 2]);
            a[i + 2 * n + 1] = _mm256_unpackhi_epi64(b[i + n], b[i + n + 2]);
        }
    for (int i = 0; i < 4; i++) {
        x[i] = (Words)_mm256_permute2x128_si256(a[i], a[i + 4], 0x20);
        x[i + 4] = (Words)_mm256_permute2x128_si256(a[i], a[i + 4], 0x31);
    }
#else
    Half from[8][2], to[8][2];
    __builtin_memcpy(from, x, sizeof from);
    for (int h = 0; h < 2; h++)      // of the words
        for (int q = 0; q < 2; q++) {  // of the rows
            const Half *a = &from[4 * q][h], *b = a + 2, *c = a + 4, *d = a + 6;
            const Half ab0 = ASSAY_SHUFFLE(*a, *b, 0, 4, 1, 5), ab1 = ASSAY_SHUFFLE(*a, *b, 2, 6, 3, 7);
            const Half cd0 = ASSAY_SHUFFLE(*c, *d, 0, 4, 1, 5), cd1 = ASSAY_SHUFFLE(*c, *d, 2, 6, 3, 7);
            to[4 * h][q] = ASSAY_SHUFFLE(ab0, cd0, 0, 1, 4, 5);
            to[4 * h + 1][q] = ASSAY_SHUFFLE(ab0, cd0, 2, 3, 6, 7);
            to[4 * h + 2][q] = ASSAY_SHUFFLE(ab1, cd1, 0, 1, 4, 5);
            to[4 * h + 3][q] = ASSAY_SHUFFLE(ab1, cd1, 2, 3, 6, 7);
        }
    __builtin_memcpy(x, to, sizeof to);
#endif
}

// 8 x 8 bytes: byte c of x[r] becomes byte r of x[c]. Each step swaps the off-diagonal halves of ever smaller squares.
INLINE void transpose_bytes(uint64_t (&x)[8]) {
    constexpr uint64_t masks[3] = {0x00000000ffffffffu, 0x0000ffff0000ffffu, 0x00ff00ff00ff00ffu};
    unroll<24>([&](auto n) INLINE_LAMBDA {
        constexpr int step = n / 8, i = n % 8, far = 4 >> step;
        if constexpr (!(i & far)) {
            const uint64_t swap = (x[i] >> (8 * far) ^ x[i + far]) & masks[step];
            x[i] ^= swap << (8 * far);
            x[i + far] ^= swap;
        }
    });
}

// ---- codes ---------------------------------------------------------------------------------------------------------

// 16 bytes of nibbles: weights 0..15 are the low ones, 16..31 the high ones.
INLINE Words nibbles(const uint8_t* p) {
#if defined(__AVX2__)
    const Words both = (Words)_mm256_broadcastsi128_si256(get<__m128i>(p));
#else
    const Half half[2] = {get<Half>(p), get<Half>(p)};
    const Words both = get<Words>(half);
#endif
    return both >> Words{0, 0, 0, 0, 4, 4, 4, 4} & 15 * ones;
}

// Bit i of `bits` as bit 4 of byte i: four bits are spread over a word by a multiplication.
INLINE Words fifth_bits(uint32_t bits) {
    const Words four = (Words{} + bits) >> Words{0, 4, 8, 12, 16, 20, 24, 28} & 15;
    return (four * 0x00204081u & ones) << 4;
}

// 8 bytes of four neighbours each, two bits a weight.
INLINE Words neighbours(uint64_t x) {
    Words w{};
    for (int i = 0; i < 8; i++) w[i] = uint32_t(x >> (8 * i) & 255);
    return (w | w << 6 | w << 12 | w << 18) & 3 * ones;
}

// The unsigned codes of block j of a file block at p; blocks.cpp decodes the same one by one. Code books: the index.
// Q8_0: the int8.
template <Type TYPE>
INLINE Words file_codes(const uint8_t* p, int j) {
    const auto at = [&](int offset) INLINE_LAMBDA { return get<Words>(p + offset); };
    if constexpr (TYPE == Type::Q4_0 || TYPE == Type::IQ4_NL) return nibbles(p + 2);
    if constexpr (TYPE == Type::MXFP4) return nibbles(p + 1);
    if constexpr (TYPE == Type::Q4_1) return nibbles(p + 4);
    if constexpr (TYPE == Type::IQ4_XS) return nibbles(p + 8 + 16 * j);
    if constexpr (TYPE == Type::Q8_0) return at(2);
    if constexpr (TYPE == Type::Q8_1) return at(4);
    if constexpr (TYPE == Type::Q5_0) return nibbles(p + 6) | fifth_bits(get<uint32_t>(p + 2));
    if constexpr (TYPE == Type::Q5_1) return nibbles(p + 8) | fifth_bits(get<uint32_t>(p + 4));
    if constexpr (TYPE == Type::Q4_K) return at(16 + j / 2 * 32) >> (4 * (j % 2)) & 15 * ones;
    if constexpr (TYPE == Type::Q5_K)
        return (at(48 + j / 2 * 32) >> (4 * (j % 2)) & 15 * ones) | (at(16) >> j & ones) << 4;
    if constexpr (TYPE == Type::Q6_K)
        return (at(64 * (j / 4) + 32 * (j & 1)) >> (4 * (j % 4 / 2)) & 15 * ones) |
               (at(128 + 32 * (j / 4)) >> (2 * (j % 4)) & 3 * ones) << 4;
    if constexpr (TYPE == Type::Q2_K) return at(16 + 32 * (j / 4)) >> (2 * (j % 4)) & 3 * ones;
    if constexpr (TYPE == Type::TQ2_0) return at(32 * (j / 4)) >> (2 * (j % 4)) & 3 * ones;
    if constexpr (TYPE == Type::NVFP4) {
        const uint8_t* q = p + 4 + 16 * j;
        const auto word = [&](int i) INLINE_LAMBDA { return get<uint32_t>(q + 4 * i); };
        const Words both = {word(0), word(1), word(0), word(1), word(2), word(3), word(2), word(3)};
        return both >> Words{0, 0, 4, 4, 0, 0, 4, 4} & 15 * ones;
    }
    if constexpr (TYPE == Type::Q1_0) return fifth_bits(get<uint32_t>(p + 2 + 4 * j)) >> 3;  // 0 or 2
    if constexpr (TYPE == Type::Q2_0) return neighbours(get<uint64_t>(p + 2 + 8 * j));
    if constexpr (TYPE == Type::Q3_K)
        return (at(32 + 32 * (j / 4)) >> (2 * (j % 4)) & 3 * ones) | (at(0) >> j & ones) << 2;
}

// Types whose groups of weights are entries of a large book, and TQ1_0.
constexpr bool in_book(Type type) {
    return type == Type::IQ2_XXS || type == Type::IQ2_XS || type == Type::IQ2_S || type == Type::IQ3_XXS ||
           type == Type::IQ3_S || type == Type::IQ1_S || type == Type::IQ1_M || type == Type::TQ1_0;
}

INLINE uint64_t eight(const int8_t* entry) { return get<uint64_t>(entry); }
INLINE uint64_t two_fours(const int8_t* a, const int8_t* b) {
    return get<uint32_t>(a) | uint64_t(get<uint32_t>(b)) << 32;
}

// The integers of a super-block at p in order, as blocks.cpp and iq_blocks.cpp decode them; but a negative one is -v - 1
// in place of -v: inverting is cheaper, and both have the same code. TQ1_0: the code. EXACT: the integers themselves.
// Blocks of 32 are `pitch` bytes apart.
template <Type TYPE, bool EXACT = false>
void book_values(const uint8_t* p, uint8_t* values, int pitch = 32) {
    // Each block of four entries: value(block, entry), and the signs of all four as masks.
    const auto signed_fours = [&](auto value, auto mask) INLINE_LAMBDA {  // no entry is 0: no overflow
        for (int j = 0; j < 8; j++) {
            const Fours v = {value(j, 0), value(j, 1), value(j, 2), value(j, 3)}, m = mask(j);
            put(values + pitch * j, EXACT ? (Fours)((Bytes32)(v ^ m) - (Bytes32)m) : v ^ m);
        }
    };
    const auto four_masks = [&](const auto& signs, auto code) INLINE_LAMBDA {
        return [&, code](int j) INLINE_LAMBDA {
            return Fours{signs.mask[code(j, 0)], signs.mask[code(j, 1)], signs.mask[code(j, 2)], signs.mask[code(j, 3)]};
        };
    };
    const auto sevens = [&](int first, int step) INLINE_LAMBDA {  // four codes of seven bits a word
        return [=](int j, int i) INLINE_LAMBDA { return get<uint32_t>(p + first + step * j) >> (7 * i) & 127; };
    };
    const auto bytes = [&](int first) INLINE_LAMBDA { return [=](int j, int i) INLINE_LAMBDA { return p[first + 4 * j + i]; }; };
    // IQ1: entries of 8 trit + 1; where the mask is set, 8 trit - 1. One book of 16 KB stays in the first-level cache.
    // `index` gives those of 16 entries. They go through memory: to extract them from vectors takes longer.
    const auto trit_fours = [&](auto index, auto mask) INLINE_LAMBDA {
        Indices at[2] = {index(0), index(1)};
        asm("" : "+m"(at));
        for (int j = 0; j < 8; j++) {
            const auto value = [&](int i) INLINE_LAMBDA {
                return eight(book1[0].entry[get<uint16_t>(reinterpret_cast<const uint8_t*>(at) + 8 * j + 2 * i)]);
            };
            const Fours v = {value(0), value(1), value(2), value(3)};
            put(values + pitch * j, (Bytes32)v - ((Bytes32)mask(j) & uint8_t(2)));
        }
    };
    if constexpr (TYPE == Type::IQ2_XXS) {
        signed_fours([&](int j, int i) INLINE_LAMBDA { return eight(book2_xxs.entry[p[2 + 8 * j + i]]); },
                     four_masks(even_signs, sevens(6, 8)));
    } else if constexpr (TYPE == Type::IQ2_XS) {
        const auto code = [&](int j, int i) INLINE_LAMBDA { return get<uint16_t>(p + 2 + 8 * j + 2 * i); };
        signed_fours([&](int j, int i) INLINE_LAMBDA { return eight(book2_xs.entry[code(j, i) & 511]); },
                     four_masks(even_signs, [&](int j, int i) INLINE_LAMBDA { return code(j, i) >> 9; }));
    } else if constexpr (TYPE == Type::IQ2_S) {
        signed_fours([&](int j, int i) INLINE_LAMBDA {
            return eight(book2_s.entry[p[2 + 4 * j + i] | unsigned(p[66 + j] >> (2 * i) & 3) << 8]);
        }, four_masks(plain_signs, bytes(34)));
    } else if constexpr (TYPE == Type::IQ3_XXS) {
        signed_fours([&](int j, int i) INLINE_LAMBDA {
            const uint8_t* q = p + 2 + 8 * j;
            return two_fours(book3_xxs.entry[q[2 * i]], book3_xxs.entry[q[2 * i + 1]]);
        }, four_masks(even_signs, sevens(66, 4)));
    } else if constexpr (TYPE == Type::IQ3_S) {
        signed_fours([&](int j, int i) INLINE_LAMBDA {
            const auto entry = [&](int n) INLINE_LAMBDA {
                return book3_s.entry[p[2 + 8 * j + n] | unsigned(p[66 + j] >> n & 1) << 8];
            };
            return two_fours(entry(2 * i), entry(2 * i + 1));
        }, four_masks(plain_signs, bytes(74)));
    } else if constexpr (TYPE == Type::IQ1_S) {
        trit_fours([&](int half) INLINE_LAMBDA {
            const Fours high = __builtin_convertvector(get<FourHalves>(p + 34 + 8 * half), Fours);
            const Fours three = (high & 7) << 8 | (high & 0x38) << 21 | (high & 0x1c0) << 34 | (high & 0xe00) << 47;
            return __builtin_convertvector(get<Bytes16>(p + 2 + 16 * half), Indices) | (Indices)three;
        }, [&](int j) INLINE_LAMBDA { return Fours{} - uint64_t(p[35 + 2 * j] >> 7); });
    } else if constexpr (TYPE == Type::IQ1_M) {
        trit_fours([&](int half) INLINE_LAMBDA {
            const Words high = __builtin_convertvector(get<Bytes8>(p + 32 + 8 * half), Words);
            const Words three = (high & 7) << 8 | (high & 0x70) << 20;
            return __builtin_convertvector(get<Bytes16>(p + 16 * half), Indices) | (Indices)three;
        }, [&](int j) INLINE_LAMBDA {
            const Fours bits = {8, 8 << 4, 8 << 8, 8 << 12};
            return (Fours)(((Fours{} + get<uint16_t>(p + 32 + 2 * j)) & bits) == bits);
        });
    } else {  // TQ1_0: trit n of a byte x is the top one of x * 3^n mod 256
        const auto trits = [&](auto zero, int first, int from, int power) INLINE_LAMBDA {
            using B = decltype(zero);
            const B x = get<B>(p + from) * uint8_t(power);  // x * 3 >> 8, by two comparisons
            put(values + first / 32 * pitch + first % 32, zero - (B)(x > uint8_t(85)) - (B)(x > uint8_t(170)) - uint8_t(EXACT));
        };
        unroll<5>([&](auto n) INLINE_LAMBDA {
            constexpr int power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
            for (int half = 0; half < 32; half += 16) trits(Bytes16{}, 32 * n + half, half, power);
            trits(Bytes16{}, 160 + 16 * n, 32, power);
            if constexpr (n < 4) trits(Bytes4{}, 240 + 4 * n, 48, power);
        });
    }
}

// From the integers of a block to indices of the kind's book, which some of their bits are.
template <Kind KIND>
INLINE Words book_codes(Words values) {
    constexpr int shift = KIND == N4X ? 3 : KIND == N4O ? 1 : KIND == N3P ? 4 : 2, mask = (1 << kind_bits(KIND)) - 1;
    if constexpr (KIND == N2T) return values;
    if constexpr (KIND != N2T)
        static_assert([] {
            for (int n = 0; n <= mask; n++) {
                const int v = kind_book(KIND)[n];
                if (v && (v >> shift & mask) != n) return false;
                if (KIND != N3T && v < 0 && (~-v >> shift & mask) != n) return false;
            }
            return true;
        }());
    return values >> shift & uint32_t(mask) * ones;
}

// Pack the codes of a block into its quants; group g of row r is c[g][r].
template <Kind KIND>
INLINE void put_codes(const uint32_t (&c)[8][R], uint8_t* block) {
    const auto lanes = [&](int g, int v) INLINE_LAMBDA { return get<Lanes>(c[g] + v * L); };
    if constexpr (V::template paired<KIND> && KIND == N2T) {
        const auto pair = [&](int g) INLINE_LAMBDA { return lanes(g, 0) | lanes(g, 1) << 2; };
        for (int g = 0; g < 4; g++) put(block + g * VB, pair(g) | pair(g + 4) << 4);
        return;
    } else if constexpr (V::template paired<KIND>) {
        for (int g = 0; g < 8; g++) put(block + g * VB, lanes(g, 0) | (lanes(g, 1) ^ 8 * ones) << 4);
        return;
    }
    for (int v = 0; v < PV; v++) {
        uint8_t* head = block + v * kind_head_bytes(KIND);
        const auto at = [&](int g) INLINE_LAMBDA { return lanes(g, v); };
        if constexpr (KIND == N5) {
            put(head, at(0) << 3 | (at(5) >> 2 & 7 * ones));
            put(head + VB, at(1) << 3 | (at(5) & 3 * ones) | (at(7) >> 1 & ones) << 2);
            put(head + 2 * VB, at(2) << 3 | (at(6) >> 2 & 7 * ones));
            put(head + 3 * VB, at(3) << 3 | (at(6) & 3 * ones) | (at(7) & ones) << 2);
            put(head + 4 * VB, at(4) << 3 | (at(7) >> 2 & 7 * ones));
            continue;
        }
        if constexpr (kind_bits(KIND) == 3) {
            Lanes third{};
            for (int g = 0; g < 8; g++) third |= (at(g) >> 2 & ones) << g;
            put(head, third);
        }
        for (int h = 0; h < 2; h++) {
            uint8_t* half = block + PV * kind_head_bytes(KIND) + (h * PV + v) * kind_half_bytes(KIND);
            const auto q = [&](int g) INLINE_LAMBDA { return at(4 * h + g); };
            if constexpr (kind_bits(KIND) == 8) {
                for (int g = 0; g < 4; g++) put(half + g * VB, q(g));
            } else if constexpr (KIND == N6) {
                for (int g = 0; g < 3; g++) put(half + g * VB, q(g) << 2 | (q(3) >> (4 - 2 * g) & 3 * ones));
            } else if constexpr (kind_bits(KIND) <= 3) {
                Lanes low{};
                for (int g = 0; g < 4; g++) low |= (q(g) & 3 * ones) << (2 * g);
                put(half, low);
            } else if constexpr (kind_bits(KIND) == 4) {
                for (int g = 0; g < 2; g++) put(half + g * VB, q(g) | q(g + 2) << 4);
            }
        }
    }
}

// ---- scales --------------------------------------------------------------------------------------------------------

// The integer sub-scales and minima of a super-block, a byte each, in order.
struct SubScales {
    uint16_t d, dmin;
    uint64_t sc[2], mn;
};

INLINE uint64_t spread_nibbles(uint32_t x) {  // eight nibbles, the lowest first, to a byte each
    uint64_t y = (x | uint64_t(x) << 16) & 0x0000ffff0000ffffu;
    y = (y | y << 8) & 0x00ff00ff00ff00ffu;
    return (y | y << 4) & 15 * ones64;
}
INLINE uint64_t spread_pairs(uint16_t x) {  // eight pairs of bits, likewise
    uint64_t y = (x | uint64_t(x) << 24) & 0x000000ff000000ffu;
    y = (y | y << 12) & 0x000f000f000f000fu;
    return (y | y << 6) & 3 * ones64;
}
INLINE uint64_t less_32(uint64_t x) { return ((x | 128 * ones64) - 32 * ones64) ^ (128 * ones64); }  // bytes below 64
INLINE uint64_t odd(uint64_t x) { return x << 1 | ones64; }                                         // 2 x + 1

// NVFP4's scale, halved, as an f16: exact, since its smallest step is 2^-10.
INLINE uint16_t ue4m3_as_f16(uint8_t e) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, ue4m3_half(e));
    return bits ? uint16_t((bits >> 13) - (112 << 10)) : uint16_t(0);
}

template <Type TYPE>
INLINE void sub_scales(const uint8_t* p, SubScales& s) {
    const auto word = [&](int at) INLINE_LAMBDA { return get<uint32_t>(p + at); };
    const auto join = [](uint32_t low, uint32_t high) INLINE_LAMBDA { return low | uint64_t(high) << 32; };
    const auto each = [&](auto scale) INLINE_LAMBDA {  // a byte for each of eight
        uint64_t x = 0;
        unroll<8>([&](auto i) INLINE_LAMBDA { x |= uint64_t(scale(int(i))) << (8 * i); });
        return x;
    };
    s.d = s.dmin = 0;
    if constexpr (TYPE == Type::Q2_K) {
        s.d = get<uint16_t>(p + 80), s.dmin = get<uint16_t>(p + 82);
        for (int i = 0; i < 2; i++) s.sc[i] = get<uint64_t>(p + 8 * i);
    } else if constexpr (TYPE == Type::Q3_K) {
        s.d = get<uint16_t>(p + 108);
        const uint64_t low = get<uint64_t>(p + 96);
        const uint32_t high = word(104);
        const auto top = [&](int i) INLINE_LAMBDA { return (high >> (2 * i) & 3 * ones) << 4; };
        s.sc[0] = less_32((low & 15 * ones64) | join(top(0), top(1)));
        s.sc[1] = less_32((low >> 4 & 15 * ones64) | join(top(2), top(3)));
    } else if constexpr (TYPE == Type::Q6_K) {
        s.d = get<uint16_t>(p + 208);
        for (int i = 0; i < 2; i++) s.sc[i] = get<uint64_t>(p + 192 + 8 * i);
    } else if constexpr (TYPE == Type::IQ4_XS) {
        s.d = get<uint16_t>(p);
        s.sc[0] = less_32(spread_nibbles(word(4)) | spread_pairs(get<uint16_t>(p + 2)) << 4);
    } else if constexpr (TYPE == Type::IQ2_XXS || TYPE == Type::IQ3_XXS) {
        s.d = get<uint16_t>(p);
        s.sc[0] = odd(each([&](int i) INLINE_LAMBDA { return word(TYPE == Type::IQ2_XXS ? 6 + 8 * i : 66 + 4 * i) >> 28; }));
    } else if constexpr (TYPE == Type::IQ2_XS || TYPE == Type::IQ2_S) {
        s.d = get<uint16_t>(p);
        for (int i = 0; i < 2; i++) s.sc[i] = odd(spread_nibbles(word((TYPE == Type::IQ2_XS ? 66 : 74) + 4 * i)));
    } else if constexpr (TYPE == Type::IQ3_S) {
        s.d = get<uint16_t>(p);
        s.sc[0] = odd(spread_nibbles(word(106)));
    } else if constexpr (TYPE == Type::IQ1_S) {
        s.d = get<uint16_t>(p);
        s.sc[0] = odd(each([&](int i) INLINE_LAMBDA { return p[35 + 2 * i] >> 4 & 7; }));
    } else if constexpr (TYPE == Type::IQ1_M) {
        const uint64_t all = get<uint64_t>(p + 48);
        for (int i = 0; i < 4; i++) s.d = uint16_t(s.d | (all >> (16 * i + 12) & 15) << (4 * i));
        for (int h = 0; h < 2; h++) {  // three bits each, four of them in 16 bits
            const uint64_t x = (all >> (32 * h) & 0xfff) | (all >> (32 * h + 16) & 0xfff) << 32;
            const uint64_t each = 7 * 0x0000000100000001u;
            s.sc[h] = odd((x & each) | (x & each << 3) << 5 | (x & each << 6) << 10 | (x & each << 9) << 15);
        }
    } else if constexpr (TYPE == Type::TQ1_0 || TYPE == Type::TQ2_0) {
        s.d = get<uint16_t>(p + (TYPE == Type::TQ1_0 ? 52 : 64));
    } else if constexpr (TYPE == Type::Q1_0 || TYPE == Type::Q2_0) {
        s.d = get<uint16_t>(p);
    } else {  // Q4_K, Q5_K
        s.d = get<uint16_t>(p), s.dmin = get<uint16_t>(p + 2);
        const uint32_t a = word(4), b = word(8), c = word(12);
        s.sc[0] = join(a & 63 * ones, (c & 15 * ones) | (a >> 6 & 3 * ones) << 4);
        s.mn = join(b & 63 * ones, (c >> 4 & 15 * ones) | (b >> 6 & 3 * ones) << 4);
    }
}

// ---- panels --------------------------------------------------------------------------------------------------------

// The rows of a panel in the file. A row from n on is a block of zeros, whose scale is 0.
struct PanelRows {
    const uint8_t* begin[R];
    size_t moves[R];  // all bits, or none: its one block stands for every block

    PanelRows(const uint8_t* src, size_t stride, int64_t n, int64_t first) {
        static constexpr uint8_t zeros[256] = {};
        for (int r = 0; r < R; r++) {
            const bool present = first + r < n;
            begin[r] = present ? src + size_t(first + r) * stride : zeros;
            moves[r] = present ? ~size_t(0) : 0;
        }
    }
    // The blocks that begin `offset` bytes into each row. Plain vector operations: this is done for every block.
    INLINE void at(size_t offset, const uint8_t* (&to)[R]) const {
        for (int r = 0; r < R; r++) to[r] = begin[r] + (offset & moves[r]);
    }
};

// An f16 of each of eight blocks; an infinite one becomes NaN (blocks.h: finite_or_nan).
INLINE Halves eight_halves(const uint8_t* const* at, int offset) {
    const auto half = [&](int i) INLINE_LAMBDA { return get<uint16_t>(at[i] + offset); };
    const Halves x = {half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)};
    const Halves infinite = (Halves)((x & 0x7fff) == 0x7c00);
    return (x & ~infinite) | (infinite & 0x7e00);
}

// The scales of a unit, rows r .. r + 7 of the panel; `at` has their file blocks.
template <class F>
INLINE void pack_scales(const uint8_t* const* at, int r, uint8_t* unit) {
    uint16_t d[8], dmin[8] = {};
    if constexpr (F::type == Type::NVFP4) {
        for (int s = 0; s < 2 * F::unit_blocks; s++) {
            for (int i = 0; i < 8; i++) d[i] = ue4m3_as_f16(at[i][s]);
            __builtin_memcpy(unit + 2 * R * s + 2 * r, d, sizeof d);
        }
        return;
    }
    if constexpr (F::super) {
        uint64_t sc[2][8], mn[8];
        for (int i = 0; i < 8; i++) {
            SubScales s{};
            sub_scales<F::type>(at[i], s);
            d[i] = s.d, dmin[i] = s.dmin;
            sc[0][i] = s.sc[0], sc[1][i] = s.sc[1], mn[i] = s.mn;
        }
        const auto rows = [&](uint64_t(&x)[8], int first, uint64_t bias) INLINE_LAMBDA {
            transpose_bytes(x);
            for (int i = 0; i < 8; i++) put(unit + first + i * R + r, x[i] ^ bias * ones64);
        };
        static_assert(V::scale_bias == 0 || V::scale_bias == 128);  // so that adding it is inverting a bit
        for (int i = 0; i < F::subs / 8; i++)
            rows(sc[i], F::sc_at + 8 * i * R, uint64_t(F::packed_min ? 0 : V::scale_bias));
        if constexpr (F::min && !F::packed_min) rows(mn, F::mn_at, uint64_t(V::scale_bias));
        for (int i = 0; i < 8; i++) d[i] = finite_or_nan(d[i]), dmin[i] = finite_or_nan(dmin[i]);
    } else if constexpr (F::type == Type::MXFP4) {
        for (int i = 0; i < 8; i++) d[i] = uint16_t(__builtin_bit_cast(uint32_t, e8m0_half(at[i][0])) >> 16);
    } else {
        put(unit + F::d_at + 2 * r, eight_halves(at, 0));
        if constexpr (F::min) put(unit + F::dmin_at + 2 * r, eight_halves(at, 2));
        return;
    }
    __builtin_memcpy(unit + F::d_at + 2 * r, d, sizeof d);
    if constexpr (F::min) __builtin_memcpy(unit + F::dmin_at + 2 * r, dmin, sizeof dmin);
}

// Pack one panel: rows [first, first + R) of src.
template <class F>
void pack_panel(const uint8_t* src, size_t stride, size_t block_bytes, int64_t n, int64_t k, int64_t first,
                uint8_t* dst) {
    const int64_t per_block = F::type == Type::Q1_0 ? 2 : 1;  // units of a file block
    const PanelRows rows(src, stride, n, first);
    alignas(64) uint8_t values[in_book(F::type) ? R : 1][256];
    for (int64_t u = 0; u < k / (32 * F::unit_blocks); u++) {
        uint8_t* unit = dst + u * F::unit_bytes;
        const uint8_t* at[R];
        rows.at(size_t(u / per_block) * block_bytes, at);
        for (int r = 0; r < R; r += 8) pack_scales<F>(at + r, r, unit);
        if constexpr (in_book(F::type))
            for (int r = 0; r < R; r++) book_values<F::type>(at[r], values[r]);
        for (int j = 0; j < F::unit_blocks; j++) {
            uint32_t all[8][R];
            for (int r = 0; r < R; r += 8) {
                Words x[8];
                for (int i = 0; i < 8; i++) {
                    if constexpr (in_book(F::type))
                        x[i] = book_codes<F::kind>(get<Words>(values[r + i] + 32 * j));
                    else
                        x[i] = file_codes<F::type>(at[r + i], j + int(u % per_block) * F::unit_blocks);
                    x[i] ^= uint32_t(V::template flip<F::kind>) * ones;
                }
                transpose_words(x);
                for (int g = 0; g < 8; g++) put(reinterpret_cast<uint8_t*>(all[g] + r), x[g]);
            }
            put_codes<F::kind>(all, unit + F::quants_at + j * kind_block_bytes(F::kind));
        }
    }
}

// The integers of a block's codes: what the products of a panel multiply, but for their factors.
template <class F>
INLINE Words signed_codes(Words codes) {
    constexpr int offset = F::kind == N4S ? 8 : F::kind == N5 ? 16 : F::kind == N6 ? 32 : F::kind == N3 ? 4 : F::kind == N2T;
    return (Words)((Bytes32)codes - uint8_t(offset));
}

// Blocks of a panel as RowTiles. All scales come first: a vector loaded right behind the small stores that made it
// would wait for them.
template <class F>
void row_tiles(const uint8_t* src, size_t stride, size_t block_bytes, int64_t n, int64_t first, int64_t block,
               int64_t blocks, uint8_t* dst) {
    using T = RowTile<F::sub16, F::min>;
    constexpr int64_t per_block = F::type == Type::Q1_0 ? 2 : 1;  // units of a file block
    constexpr int head_bytes = int(round_up(F::quants_at, 16)) + 16;  // scales are read in vectors
    alignas(64) uint8_t heads[kRowBlocks / F::unit_blocks][head_bytes];
    const PanelRows rows(src, stride, n, first);
    const uint8_t* at[R];
    const auto unit = [&](int64_t u) INLINE_LAMBDA { return (u + block / F::unit_blocks) / per_block * block_bytes; };
    for (int64_t u = 0; u < blocks / F::unit_blocks; u++) {
        rows.at(unit(u), at);
        for (int r = 0; r < R; r += 8) pack_scales<F>(at + r, r, heads[u]);
    }
    for (int64_t u = 0; u < blocks / F::unit_blocks; u++, dst += F::unit_blocks * T::unit_bytes) {
        const typename F::Head head(heads[u]);
        rows.at(unit(u), at);
        if constexpr (in_book(F::type))
            for (int r = 0; r < R; r++)
                book_values<F::type, true>(at[r], dst + T::quants_at + 32 * r, T::unit_bytes);
        for (int j = 0; j < F::unit_blocks; j++) {
            uint8_t* const tile = dst + j * T::unit_bytes;
            for (int h = 0; h < (F::sub16 ? 2 : 1); h++) {
                typename V::F d[PV], m[PV];
                F::scales(head, heads[u], j, h, d);
                if constexpr (F::min) F::minima(head, heads[u], j, h, d, m);
                for (int v = 0; v < PV; v++) {
                    V::store(reinterpret_cast<float*>(tile + T::scale_at(h)) + L * v, d[v]);
                    if constexpr (F::min) V::store(reinterpret_cast<float*>(tile + T::min_at(h)) + L * v, m[v]);
                }
            }
            if constexpr (!in_book(F::type))
                for (int r = 0; r < R; r++)
                    put(tile + T::quants_at + 32 * r,
                        signed_codes<F>(file_codes<F::type>(
                            at[r], j + int((u + block / F::unit_blocks) % per_block) * F::unit_blocks)));
        }
    }
}

#if defined(__AVX512BW__)
#include "avx512_books.h"
#endif

// One token, without tiles; false if this type has no such product here.
bool row_product_of([[maybe_unused]] Type type, [[maybe_unused]] const uint8_t* src, [[maybe_unused]] int64_t n,
                    [[maybe_unused]] int64_t k, [[maybe_unused]] int64_t first, [[maybe_unused]] const void* acts,
                    [[maybe_unused]] float* out) {
#if defined(__AVX512BW__)
    const TypeInfo& info = *type_info(type);
    const size_t stride = size_t(k / info.block_size * info.block_bytes);
    const auto product = [&](auto layout) {
        using F = decltype(layout);
        book_product<F>(src, stride, size_t(info.block_bytes), n, k, first, static_cast<const Group*>(acts), out);
        return true;
    };
    switch (type) {
        case Type::IQ2_XXS: return product(IQ2_XXS{});
        case Type::IQ2_XS: return product(IQ2_XS{});
        case Type::IQ2_S: return product(IQ2_S{});
        case Type::IQ3_XXS: return product(IQ3_XXS{});
        case Type::IQ3_S: return product(IQ3_S{});
        case Type::TQ1_0: return product(TQ1_0{});
        case Type::TQ2_0: return product(TQ2_0{});
        case Type::Q3_K: return product(Q3_K{});
        case Type::Q6_K: return product(Q6_K{});
        case Type::IQ1_S: return product(IQ1_S{});
        case Type::IQ1_M: return product(IQ1_M{});
        default: return false;
    }
#else
    return false;
#endif
}

// ---- floats ---------------------------------------------------------------------------------------------------------

// Transpose 8 rows x 8 columns of two bytes: rows are `stride` bytes apart, the resulting columns `step` bytes.
INLINE void transpose_halves(const uint8_t* from, int64_t stride, uint8_t* to, int64_t step) {
    Halves x[8], y[8];
    for (int r = 0; r < 8; r++) __builtin_memcpy(&x[r], from + r * stride, 16);
    const auto zip = [](const Halves(&a)[8], Halves(&b)[8]) INLINE_LAMBDA {  // three times: rows to columns
        for (int i = 0; i < 4; i++) {
            b[2 * i] = ASSAY_SHUFFLE(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            b[2 * i + 1] = ASSAY_SHUFFLE(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
    };
    zip(x, y);
    zip(y, x);
    zip(x, y);
    for (int c = 0; c < 8; c++) __builtin_memcpy(to + c * step, &y[c], 16);
}

// The same with four bytes.
INLINE void transpose_floats(const uint8_t* from, int64_t stride, uint8_t* to, int64_t step) {
    Words x[8];
    for (int r = 0; r < 8; r++) x[r] = get<Words>(from + r * stride);
    transpose_words(x);
    for (int c = 0; c < 8; c++) __builtin_memcpy(to + c * step, &x[c], sizeof x[c]);
}

// One panel: column i of rows [first, first + R), zeros beyond n and k. Whole panels are transposed in squares; what
// does not fill one is copied value by value.
template <int size>
void pack_floats(const uint8_t* src, int64_t n, int64_t k, int64_t first, uint8_t* dst) {
    constexpr auto transpose = size == 2 ? transpose_halves : transpose_floats;
    const int64_t columns = float_columns(k), stride = k * size;
    uint8_t* panel = dst + first * columns * size;
    const int64_t done = n - first >= R ? k / 8 * 8 : 0;
    for (int64_t i = 0; i < done; i += 8)
        for (int r = 0; r < R; r += 8)
            transpose(src + (first + r) * stride + i * size, stride, panel + (i * R + r) * size, size * R);
    __builtin_memset(panel + done * R * size, 0, size_t((columns - done) * R * size));
    for (int r = 0; r < R && first + r < n; r++)
        for (int64_t i = done; i < k; i++)
            __builtin_memcpy(panel + (i * R + r) * size, src + (first + r) * stride + i * size, size);
}

size_t packed_size(Type type, int64_t n, int64_t k) {
    const int64_t panels = (n + R - 1) / R;
    int64_t bytes = panels * R * float_columns(k) * (type == Type::F32 ? 4 : 2);
    with_layout(type, [&](auto layout) {
        using F = decltype(layout);
        bytes = panels * (k / (32 * F::unit_blocks)) * F::unit_bytes;
    });
    return size_t(bytes);
}

void pack_rows(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t begin, int64_t end, uint8_t* dst) {
    const TypeInfo& info = *type_info(type);
    const size_t stride = size_t(k / info.block_size * info.block_bytes);
    const bool quantised = with_layout(type, [&](auto layout) {
        using F = decltype(layout);
        for (int64_t first = begin; first < end; first += R)
            pack_panel<F>(src, stride, size_t(info.block_bytes), n, k, first,
                          dst + first / R * (k / (32 * F::unit_blocks)) * F::unit_bytes);
    });
    if (quantised) return;
    const auto pack = info.block_bytes == 4 ? pack_floats<4> : pack_floats<2>;
    for (int64_t first = begin; first < end; first += R) pack(src, n, k, first, dst);
}

void row_tiles_of(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t first, int64_t block, int64_t blocks,
                  uint8_t* dst) {
    const TypeInfo& info = *type_info(type);
    const size_t stride = size_t(k / info.block_size * info.block_bytes);
    with_layout(type, [&](auto layout) {
        using F = decltype(layout);
        if constexpr (V::reads_rows && rows_are_faster(F::type))
            row_tiles<F>(src, stride, size_t(info.block_bytes), n, first, block, blocks, dst);
    });
}

}  // namespace
}  // namespace assay::kernels

namespace assay::ASSAY_NS {
extern const kernels::Packer kPacker;
const kernels::Packer kPacker = {kernels::packed_size, kernels::pack_rows, kernels::row_tiles_of,
                                  kernels::row_product_of};
}  // namespace assay::ASSAY_NS
