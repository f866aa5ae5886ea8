// The vector type of AVX-512, with VNNI or without. Included by isa_avx512vnni.cpp, isa_avx512.cpp and isa_amx.cpp,
// inside an anonymous namespace.
//
// A panel is 32 rows in 2 vectors. Activations are broadcast from memory, once for both vectors; this needs no shuffle
// port. With VNNI, `vpdpbusd` multiplies unsigned by signed bytes: weights are stored with an offset, and a sum starts at
// minus the offset times the sum of the activations. Without, codes and sums are those of avx2.h: `vpmaddubsw`, and pair
// sums that are added in 16 bits as far as they fit.
#include "x86_rows.h"

// A transposition of 16 rows of 8 words. A vector has two rows, `pair_row` and the fourth after it. The columns come in the
// order 0 4 1 5 2 6 3 7.
constexpr int pair_row(int pair) { return pair < 4 ? pair : pair + 4; }
INLINE void columns_of_pairs(const __m512 (&pairs)[8], __m512 (&columns)[8]) {
    __m512d t[8];
    for (int h = 0; h < 8; h += 4) {
        const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(pairs[h], pairs[h + 1])),
                      b = _mm512_castps_pd(_mm512_unpackhi_ps(pairs[h], pairs[h + 1])),
                      c = _mm512_castps_pd(_mm512_unpacklo_ps(pairs[h + 2], pairs[h + 3])),
                      d = _mm512_castps_pd(_mm512_unpackhi_ps(pairs[h + 2], pairs[h + 3]));
        t[h] = _mm512_unpacklo_pd(a, c), t[h + 1] = _mm512_unpackhi_pd(a, c);
        t[h + 2] = _mm512_unpacklo_pd(b, d), t[h + 3] = _mm512_unpackhi_pd(b, d);
    }
    for (int i = 0; i < 4; i++) {
        columns[2 * i] = _mm512_castpd_ps(_mm512_shuffle_f64x2(t[i], t[i + 4], 0x88));
        columns[2 * i + 1] = _mm512_castpd_ps(_mm512_shuffle_f64x2(t[i], t[i + 4], 0xdd));
    }
}

struct Avx512 : ReadsRows<Avx512> {
    static constexpr int L = 16, PV = 2;
    static constexpr int ahead = 4096;
    using F = __m512;
    using I = __m512i;
    using Q = __m512i;
    using A = const int8_t*;
    using X = const float*;

#if defined(__AVX512VNNI__)
    template <Kind KIND>
    static constexpr int bits = 8;
    template <Kind KIND>
    static constexpr int offset = KIND == N4S                 ? 8
                                  : KIND == N5                ? 16
                                  : KIND == N6                ? 32
                                  : KIND == N3                ? 4
                                  : KIND == N2T               ? 1
                                  : KIND == N4U || KIND == N2 ? 0
                                                              : 128;
    template <Kind KIND>
    static constexpr int flip = KIND == N8 ? 128 : 0;
#else
    template <Kind KIND>
    static constexpr int bits = narrow_bits(KIND);
    template <Kind KIND>
    static constexpr int offset = narrow_offset(KIND);
    template <Kind KIND>
    static constexpr int flip = 0;
    template <int BITS>
    static constexpr bool joins = BITS <= 4;
#endif
    template <Kind KIND>
    static constexpr int multiple = 1;
    static constexpr int scale_bias = 0;

    static INLINE Q bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
    static INLINE void store_bytes(uint8_t* p, Q q) { _mm512_storeu_si512(p, q); }
    template <int S>
    static INLINE Q right(Q x, int mask) {
        return _mm512_and_si512(_mm512_srli_epi16(x, S), _mm512_set1_epi8(char(mask)));
    }
    template <int S>
    static INLINE Q left(Q x, int mask) {
        return _mm512_and_si512(_mm512_slli_epi16(x, S), _mm512_set1_epi8(char(mask)));
    }
    static INLINE Q merge(Q a, Q b) { return _mm512_or_si512(a, b); }
    static INLINE Q merge(Q a, Q b, Q c) { return _mm512_ternarylogic_epi32(a, b, c, 0xfe); }

    template <Kind KIND>
    static INLINE Q look_up(Q codes) {
        alignas(16) int8_t shifted[16];
        for (int i = 0; i < 16; i++) shifted[i] = int8_t(kind_book(KIND)[i] + offset<KIND>);
        const Q book = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(shifted)));
        return _mm512_shuffle_epi8(book, codes);
    }
    template <Kind KIND, int H>
    static INLINE void unpack(const uint8_t* half, const uint8_t* head, Q w[4]) {
        const auto at = [](const uint8_t* p, int n) INLINE_LAMBDA { return bytes(p + 4 * L * n); };
        if constexpr (KIND == N8) {
            for (int g = 0; g < 4; g++) w[g] = at(half, g);
        } else if constexpr (KIND == N4S || KIND == N4U) {
            for (int p = 0; p < 2; p++) w[p] = right<0>(at(half, p), 15), w[p + 2] = right<4>(at(half, p), 15);
        } else if constexpr (kind_bits(KIND) == 4) {
            for (int p = 0; p < 2; p++) {
                w[p] = look_up<KIND>(right<0>(at(half, p), 15));
                w[p + 2] = look_up<KIND>(right<4>(at(half, p), 15));
            }
        } else if constexpr (KIND == N5) {
            if constexpr (H == 0) {
                for (int g = 0; g < 4; g++) w[g] = right<3>(at(head, g), 31);
            } else {
                const Q b = at(head, 1), d = at(head, 3), e = at(head, 4);
                w[0] = right<3>(e, 31);
                w[1] = merge(left<2>(at(head, 0), 28), right<0>(b, 3));
                w[2] = merge(left<2>(at(head, 2), 28), right<0>(d, 3));
                w[3] = merge(left<2>(e, 28), right<1>(b, 2), right<2>(d, 1));
            }
        } else if constexpr (KIND == N6) {
            const Q a = at(half, 0), b = at(half, 1), c = at(half, 2);
            w[0] = right<2>(a, 63), w[1] = right<2>(b, 63), w[2] = right<2>(c, 63);
            w[3] = merge(left<4>(a, 48), left<2>(b, 12), right<0>(c, 3));
        } else if constexpr (kind_bits(KIND) == 3) {
            const Q m = at(half, 0), h = at(head, 0);
            w[0] = merge(right<0>(m, 3), H == 0 ? left<2>(h, 4) : right<2>(h, 4));
            w[1] = merge(right<2>(m, 3), H == 0 ? left<1>(h, 4) : right<3>(h, 4));
            w[2] = merge(right<4>(m, 3), H == 0 ? right<0>(h, 4) : right<4>(h, 4));
            w[3] = merge(right<6>(m, 3), H == 0 ? right<1>(h, 4) : right<5>(h, 4));
            if constexpr (KIND != N3)
                for (int g = 0; g < 4; g++) w[g] = look_up<KIND>(w[g]);
        } else {
            const Q m = at(half, 0);
            w[0] = right<0>(m, 3), w[1] = right<2>(m, 3), w[2] = right<4>(m, 3), w[3] = right<6>(m, 3);
        }
    }

    static INLINE F set(float x) { return _mm512_set1_ps(x); }
    static INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
    static INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
    static INLINE __m256i words(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static INLINE F f16(const uint8_t* p) { return _mm512_cvtph_ps(words(p)); }
    static INLINE F bf16(const uint8_t* p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words(p)), 16));
    }
    template <class W>
    static INLINE void column_pairs(const uint8_t* from, int64_t stride, int h, F (&to)[4]) {
        const auto two = [&](int r) INLINE_LAMBDA {  // 8 columns of rows r and r + 4
            const uint8_t *const a = from + (2 * h + r) * stride, *const b = a + 4 * stride;
            if constexpr (W::size == 4) {
                const __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(reinterpret_cast<const float*>(a)));
                return _mm512_castps_pd(_mm512_insertf32x8(low, _mm256_loadu_ps(reinterpret_cast<const float*>(b)), 1));
            } else {
                const auto eight = [](const uint8_t* p) INLINE_LAMBDA {
                    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
                };
                const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(eight(a)), eight(b), 1);
                if constexpr (W::brain)
                    return _mm512_castsi512_pd(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
                else
                    return _mm512_castps_pd(_mm512_cvtph_ps(both));
            }
        };
        const __m512d a = two(0), b = two(1), c = two(8), d = two(9);
        const __m512d ab[2] = {_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b)};
        const __m512d cd[2] = {_mm512_unpacklo_pd(c, d), _mm512_unpackhi_pd(c, d)};
        for (int p = 0; p < 2; p++) {
            to[p] = _mm512_castpd_ps(_mm512_shuffle_f64x2(ab[p], cd[p], 0x88));
            to[p + 2] = _mm512_castpd_ps(_mm512_shuffle_f64x2(ab[p], cd[p], 0xdd));
        }
    }
    // 64 bytes of each of 32 rows. Halves are transposed as words of two neighbouring columns. Those of F16 come from the even
    // rows and from the odd rows: two words are then one of either column, with the rows in order.
    static constexpr int line_bytes = 64;
    template <class W>
    static INLINE void transpose_lines(const uint8_t* from, int64_t stride, float* to) {
        constexpr int R = L * PV;
        constexpr bool f16 = W::size == 2 && !W::brain;
        constexpr int step = f16 ? 2 : 1, apart = f16 ? 1 : L;  // between rows of a vector, and between vectors
        for (int h = 0; h < 2; h++) {                           // 32 bytes of each row
            F words[PV][8];
#pragma GCC unroll 2
            for (int v = 0; v < PV; v++) {
                F pairs[8];
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++) {
                    const uint8_t* const at = from + (v * apart + pair_row(i) * step) * stride + 32 * h;
                    const __m256 a = _mm256_loadu_ps(reinterpret_cast<const float*>(at));
                    const __m256 b = _mm256_loadu_ps(reinterpret_cast<const float*>(at + 4 * step * stride));
                    pairs[i] = _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1);
                }
                columns_of_pairs(pairs, words[v]);
            }
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                const int word = i % 2 * 4 + i / 2;  // of the 8
                if constexpr (W::size == 4) {
                    float* const column = to + (8 * h + word) * R;
                    for (int v = 0; v < PV; v++) store(column + v * L, words[v][i]);
                } else {
                    float* const column = to + 2 * (8 * h + word) * R;
                    const __m512i a = _mm512_castps_si512(words[0][i]), b = _mm512_castps_si512(words[1][i]);
                    if constexpr (W::brain) {
                        const __m512i high = _mm512_set1_epi32(int(0xffff0000));
                        store(column, _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)));
                        store(column + L, _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)));
                        store(column + R, _mm512_castsi512_ps(_mm512_and_si512(a, high)));
                        store(column + R + L, _mm512_castsi512_ps(_mm512_and_si512(b, high)));
                    } else {
                        const auto widen = [](float* at, __m512i halves) INLINE_LAMBDA {
                            store(at, _mm512_cvtph_ps(_mm512_castsi512_si256(halves)));
                            store(at + L, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)));
                        };
                        widen(column, _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16)));
                        widen(column + R, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b));
                    }
                }
            }
        }
    }
    static INLINE F two_columns(const float* x) {
        double both;
        __builtin_memcpy(&both, x, sizeof both);
        return _mm512_castpd_ps(_mm512_set1_pd(both));
    }
    static INLINE F evens(F a, F b) { return _mm512_shuffle_ps(a, b, 0x88); }
    static INLINE F odds(F a, F b) { return _mm512_shuffle_ps(a, b, 0xdd); }
    static INLINE F neg(F a) { return _mm512_xor_ps(a, set(-0.0f)); }
    static INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
    static INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    using Factor = F;
    template <int BIAS>
    static INLINE Factor factor(F d) {
        return d;
    }
    template <Field FIELD>
    static INLINE void times(const Factor (&d)[PV], const uint8_t* p, F (&out)[PV]) {
#pragma GCC unroll 2
        for (int v = 0; v < PV; v++) {
            const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + L * v));
            const __m512i x = FIELD == BYTE   ? _mm512_cvtepi8_epi32(b)
                              : FIELD == LOW4 ? _mm512_and_si512(_mm512_cvtepu8_epi32(b), _mm512_set1_epi32(15))
                                              : _mm512_srli_epi32(_mm512_cvtepu8_epi32(b), 4);
            out[v] = fma(d[v], _mm512_cvtepi32_ps(x), _mm512_setzero_ps());  // never -0
        }
    }

    static INLINE X lanes(const float* p) { return p; }
    static INLINE F fma_lane(F acc, F a, X x, int n) {
        return _mm512_fmadd_ps(a, _mm512_set1_ps(x[n]), acc);
    }

    // A token's value is broadcast once for both vectors: GCC would fold the broadcast into each of the two multiply-adds,
    // and these are slower from memory.
    static constexpr bool has_column = true, eight_tokens = true;
    template <class Float>
    static INLINE F broadcast(const float* x) {
        F a = _mm512_set1_ps(*x);
        asm("" : "+v"(a));
        return a;
    }
    template <int N>
    static INLINE void column(F (&acc)[4][PV], const F (&w)[PV], const X (&x)[4]) {
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++) {
            F a = _mm512_set1_ps(x[t][N]);
            asm("" : "+v"(a));
#pragma GCC unroll 2
            for (int v = 0; v < PV; v++) acc[t][v] = _mm512_fmadd_ps(w[v], a, acc[t][v]);
        }
    }

    static INLINE A acts(const int8_t* p) { return p; }
    template <int OFFSET, int MULTIPLE>
    static INLINE I start(const int32_t* neg) {
        if constexpr (OFFSET == 0)
            return _mm512_setzero_si512();
        else
            return _mm512_slli_epi32(_mm512_set1_epi32(*neg), unsigned(__builtin_ctz(OFFSET)));
    }
    template <int OFFSET, int MULTIPLE, int H>
    static INLINE I start_half(const int32_t* neg0, const int32_t* neg) {
        if constexpr (OFFSET == 0)
            return _mm512_setzero_si512();
        else
            return _mm512_slli_epi32(_mm512_set1_epi32(H == 0 ? *neg0 : *neg - *neg0), unsigned(__builtin_ctz(OFFSET)));
    }
    static INLINE Q group(A a, int g) {
        int32_t word;
        __builtin_memcpy(&word, a + 4 * g, 4);
        return _mm512_set1_epi32(word);
    }
    template <int BEGIN, int END, class Group>
    static INLINE void row_dots(I (&sum)[1][PV], const uint8_t* rows, const Group* a, int64_t stride = 32) {
#pragma GCC unroll 2
        for (int v = 0; v < PV; v++, rows += stride * L) {
            const __m256i low = dots_of_rows<BEGIN, END>(rows, stride, a->q[0]);
            const __m256i high = dots_of_rows<BEGIN, END>(rows + 8 * stride, stride, a->q[0]);
            sum[0][v] = _mm512_add_epi32(sum[0][v], _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
        }
    }
#if defined(__AVX512VNNI__)
    template <int BITS, int T>
    static INLINE void dots(I (&sum)[T][PV], const Q (&w)[PV][4], const A (&a)[T]) {
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++)
#pragma GCC unroll 4
            for (int t = 0; t < T; t++) {
                const Q x = group(a[t], g);
#pragma GCC unroll 2
                for (int v = 0; v < PV; v++) sum[t][v] = _mm512_dpbusd_epi32(sum[t][v], w[v][g], x);
            }
    }
#else
    // Products of 4 groups of one token, pairs added in 16 bits.
    template <int BITS>
    static INLINE void pairs(Q (&p)[PV][4], const Q (&w)[PV][4], A a) {
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            const Q x = group(a, g);
#pragma GCC unroll 2
            for (int v = 0; v < PV; v++) {
                const Q q = w[v][g];
                p[v][g] = BITS == 8 ? _mm512_maddubs_epi16(
                                          _mm512_abs_epi8(q),
                                          _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(q), _mm512_setzero_si512(), x))
                                    : _mm512_maddubs_epi16(q, x);
            }
        }
    }
    static INLINE Q four(const Q (&p)[4]) {
        return _mm512_add_epi16(_mm512_add_epi16(p[0], p[1]), _mm512_add_epi16(p[2], p[3]));
    }
    template <int BITS, int T>
    static INLINE void dots(I (&sum)[T][PV], const Q (&w)[PV][4], const A (&a)[T]) {
        const Q ones = _mm512_set1_epi16(1);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            Q p[PV][4];
            pairs<BITS>(p, w, a[t]);
#pragma GCC unroll 2
            for (int v = 0; v < PV; v++) {
                if constexpr (BITS <= 5) {  // 4 * 2 * 31 * 127 < 2^15
                    sum[t][v] = _mm512_add_epi32(sum[t][v], _mm512_madd_epi16(four(p[v]), ones));
                } else if constexpr (BITS == 6) {  // 2 * 2 * 63 * 127 < 2^15
                    const Q x = _mm512_madd_epi16(_mm512_add_epi16(p[v][0], p[v][1]), ones);
                    const Q y = _mm512_madd_epi16(_mm512_add_epi16(p[v][2], p[v][3]), ones);
                    sum[t][v] = _mm512_add_epi32(sum[t][v], _mm512_add_epi32(x, y));
                } else {
#pragma GCC unroll 4
                    for (int g = 0; g < 4; g++)
                        sum[t][v] = _mm512_add_epi32(sum[t][v], _mm512_madd_epi16(p[v][g], ones));
                }
            }
        }
    }
    // Half H of a block whose 8 * 2 * 15 * 127 < 2^15 fit 16 bits.
    template <int H, int T>
    static INLINE void join_dots(I (&sum)[T][PV], const Q (&w)[PV][4], const A (&a)[T]) {
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            Q p[PV][4];
            pairs<4>(p, w, a[t]);
#pragma GCC unroll 2
            for (int v = 0; v < PV; v++)
                sum[t][v] = H == 0 ? four(p[v])
                                   : _mm512_madd_epi16(_mm512_add_epi16(sum[t][v], four(p[v])), _mm512_set1_epi16(1));
        }
    }
    static INLINE I plus(I a, I b) { return _mm512_add_epi32(a, b); }
#endif
    template <int MULTIPLE>
    static INLINE F to_float(I x) {
        return _mm512_cvtepi32_ps(x);
    }

    static INLINE void columns(const uint8_t* p, int centre, F d, F m, float* out, int stride) {
        const __m512i x = bytes(p), c = _mm512_set1_epi32(centre);
        const auto put = [&](int n, __m512i column) INLINE_LAMBDA {
#if defined(__AVX512VNNI__)  // offset codes have up to 8 bits
            const __m512i q = _mm512_srli_epi32(column, 24);
#else  // sign extension: offset codes are below 64
            const __m512i q = _mm512_srai_epi32(column, 24);
#endif
            store(out + n * stride, fma(d, _mm512_cvtepi32_ps(_mm512_add_epi32(q, c)), m));
        };
        put(0, _mm512_slli_epi32(x, 24));
        put(1, _mm512_slli_epi32(x, 16));
        put(2, _mm512_slli_epi32(x, 8));
        put(3, x);
    }

    static void dot_peak(const uint8_t* w, const int8_t* a, int64_t iterations) {
        const __m512i q = bytes(w), act = _mm512_loadu_si512(a);
#if defined(__AVX512VNNI__)
#define DOT(n) "vpdpbusd %1, %0, %%zmm" #n "\n"
#else  // the cheapest sequence of this instruction set: multiply, add in 16 bits
#define DOT(n) "vpmaddubsw %1, %0, %%zmm15\nvpaddw %%zmm15, %%zmm" #n ", %%zmm" #n "\n"
#endif
#define DOTS \
    DOT(16)  \
    DOT(17)  \
    DOT(18) DOT(19) DOT(20) DOT(21) DOT(22) DOT(23) DOT(24) DOT(25) DOT(26) DOT(27) DOT(28) DOT(29) DOT(30) DOT(31)
        for (int64_t n = 0; n < iterations; n++)
            asm volatile(DOTS DOTS DOTS DOTS ::"x"(q), "x"(act)
                         : "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25",
                           "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
#undef DOT
#undef DOTS
    }
};
