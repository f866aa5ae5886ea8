// The vector type of AVX2 with FMA and F16C. Included by isa_avx2.cpp and packing.cpp, inside an anonymous namespace.
//
// A panel is 8 rows in one vector. `vpmaddubsw` adds pairs of unsigned * signed products in 16 bits and saturates.
// Codes of up to 6 bits are stored with an offset, and their pair sums are added in 16 bits as far as they fit. For
// full int8 weights the absolute value is used, with the sign moved to the activations (|w| <= 128, |a| <= 127: 2 * 128
// * 127 fits).
#include "x86_rows.h"

struct Avx2 : ReadsRows<Avx2> {
    static constexpr int L = 8, PV = 1;
    using F = __m256;
    using I = __m256i;
    using Q = __m256i;
    using A = const int8_t*;
    using X = const float*;

    template <Kind KIND>
    static constexpr int bits = narrow_bits(KIND);
    template <Kind KIND>
    static constexpr int offset = narrow_offset(KIND);
    template <int BITS>
    static constexpr bool joins = BITS <= 4;
    template <Kind KIND>
    static constexpr int multiple = 1;
    static constexpr int scale_bias = 0;
    template <Kind KIND>
    static constexpr int flip = 0;

    static INLINE Q bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static INLINE void store_bytes(uint8_t* p, Q q) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), q); }
    template <int S>
    static INLINE Q right(Q x, int mask) {
        return _mm256_and_si256(_mm256_srli_epi16(x, S), _mm256_set1_epi8(char(mask)));
    }
    template <int S>
    static INLINE Q left(Q x, int mask) {
        return _mm256_and_si256(_mm256_slli_epi16(x, S), _mm256_set1_epi8(char(mask)));
    }
    static INLINE Q merge(Q a, Q b) { return _mm256_or_si256(a, b); }

    template <Kind KIND>
    static INLINE Q look_up(Q codes) {
        alignas(16) int8_t shifted[16];
        for (int i = 0; i < 16; i++) shifted[i] = int8_t(kind_book(KIND)[i] + offset<KIND>);
        return _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(shifted))), codes);
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
                w[3] = merge(left<2>(e, 28), merge(right<1>(b, 2), right<2>(d, 1)));
            }
        } else if constexpr (KIND == N6) {
            const Q a = at(half, 0), b = at(half, 1), c = at(half, 2);
            w[0] = right<2>(a, 63), w[1] = right<2>(b, 63), w[2] = right<2>(c, 63);
            w[3] = merge(left<4>(a, 48), merge(left<2>(b, 12), right<0>(c, 3)));
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

    static INLINE F set(float x) { return _mm256_set1_ps(x); }
    static INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
    static INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
    static INLINE __m128i words(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
    static INLINE __m128i eight(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
    static INLINE F f16(const uint8_t* p) { return _mm256_cvtph_ps(words(p)); }
    static INLINE F bf16(const uint8_t* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words(p)), 16));
    }
    template <class W>
    static INLINE void column_pairs(const uint8_t* from, int64_t stride, int h, F (&to)[4]) {
        const auto row = [&](int r) INLINE_LAMBDA { return _mm256_castps_pd(W::get(from + (2 * h + r) * stride)); };
        const __m256d a = row(0), b = row(1), c = row(4), d = row(5);
        const __m256d ab[2] = {_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b)};
        const __m256d cd[2] = {_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d)};
        for (int p = 0; p < 2; p++) {
            to[p] = _mm256_castpd_ps(_mm256_permute2f128_pd(ab[p], cd[p], 0x20));
            to[p + 2] = _mm256_castpd_ps(_mm256_permute2f128_pd(ab[p], cd[p], 0x31));
        }
    }
    static INLINE F two_columns(const float* x) {
        double both;
        __builtin_memcpy(&both, x, sizeof both);
        return _mm256_castpd_ps(_mm256_set1_pd(both));
    }
    static INLINE F evens(F a, F b) { return _mm256_shuffle_ps(a, b, 0x88); }
    static INLINE F odds(F a, F b) { return _mm256_shuffle_ps(a, b, 0xdd); }
    static INLINE F neg(F a) { return _mm256_xor_ps(a, set(-0.0f)); }
    static INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
    static INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    using Factor = F;
    template <int BIAS>
    static INLINE Factor factor(F d) {
        return d;
    }
    template <Field FIELD>
    static INLINE void times(const Factor (&d)[PV], const uint8_t* p, F (&out)[PV]) {
        const __m256i b = FIELD == BYTE   ? _mm256_cvtepi8_epi32(eight(p))
                          : FIELD == LOW4 ? _mm256_and_si256(_mm256_cvtepu8_epi32(eight(p)), _mm256_set1_epi32(15))
                                          : _mm256_srli_epi32(_mm256_cvtepu8_epi32(eight(p)), 4);
        out[0] = fma(d[0], _mm256_cvtepi32_ps(b), _mm256_setzero_ps());  // never -0
    }

    static INLINE X lanes(const float* p) { return p; }
    static INLINE F fma_lane(F acc, F a, X x, int n) {
        return _mm256_fmadd_ps(a, _mm256_broadcast_ss(x + n), acc);
    }

    static INLINE A acts(const int8_t* p) { return p; }
    template <int OFFSET, int MULTIPLE>
    static INLINE I start(const int32_t* neg) {
        if constexpr (OFFSET == 0)
            return _mm256_setzero_si256();
        else
            return _mm256_slli_epi32(_mm256_set1_epi32(*neg), __builtin_ctz(OFFSET));
    }
    template <int OFFSET, int MULTIPLE, int H>
    static INLINE I start_half(const int32_t* neg0, const int32_t* neg) {
        if constexpr (OFFSET == 0)
            return _mm256_setzero_si256();
        else
            return _mm256_slli_epi32(_mm256_set1_epi32(H == 0 ? *neg0 : *neg - *neg0), __builtin_ctz(OFFSET));
    }
    static INLINE __m256i group(A a, int g) {
        int32_t word;
        __builtin_memcpy(&word, a + 4 * g, 4);
        return _mm256_set1_epi32(word);
    }
    // Products of 4 groups of one token, pairs added in 16 bits.
    template <int BITS>
    static INLINE void pairs(Q (&p)[4], const Q (&w)[4], A a) {
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            const __m256i x = group(a, g), q = w[g];
            p[g] = BITS == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
                             : _mm256_maddubs_epi16(q, x);
        }
    }
    static INLINE Q four(const Q (&p)[4]) {
        return _mm256_add_epi16(_mm256_add_epi16(p[0], p[1]), _mm256_add_epi16(p[2], p[3]));
    }
    template <int BEGIN, int END, class Group>
    static INLINE void row_dots(I (&sum)[1][PV], const uint8_t* rows, const Group* a, int64_t stride = 32) {
        sum[0][0] = _mm256_add_epi32(sum[0][0], dots_of_rows<BEGIN, END>(rows, stride, a->q[0]));
    }
    // Half H of a block whose 8 * 2 * 15 * 127 < 2^15 fit 16 bits.
    template <int H, int T>
    static INLINE void join_dots(I (&sum)[T][PV], const Q (&w)[PV][4], const A (&a)[T]) {
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            Q p[4];
            pairs<4>(p, w[0], a[t]);
            sum[t][0] = H == 0 ? four(p) : _mm256_madd_epi16(_mm256_add_epi16(sum[t][0], four(p)), _mm256_set1_epi16(1));
        }
    }
    static INLINE I plus(I a, I b) { return _mm256_add_epi32(a, b); }
    template <int BITS, int T>
    static INLINE void dots(I (&sum)[T][PV], const Q (&w)[PV][4], const A (&a)[T]) {
        const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            Q p[4];
            pairs<BITS>(p, w[0], a[t]);
            if constexpr (BITS <= 5) {  // 4 * 2 * 31 * 127 < 2^15
                sum[t][0] = _mm256_add_epi32(sum[t][0], _mm256_madd_epi16(four(p), ones));
            } else if constexpr (BITS == 6) {  // 2 * 2 * 63 * 127 < 2^15
                const __m256i x = _mm256_madd_epi16(_mm256_add_epi16(p[0], p[1]), ones);
                const __m256i y = _mm256_madd_epi16(_mm256_add_epi16(p[2], p[3]), ones);
                sum[t][0] = _mm256_add_epi32(sum[t][0], _mm256_add_epi32(x, y));
            } else {
#pragma GCC unroll 4
                for (int g = 0; g < 4; g++) sum[t][0] = _mm256_add_epi32(sum[t][0], _mm256_madd_epi16(p[g], ones));
            }
        }
    }
    template <int MULTIPLE>
    static INLINE F to_float(I x) {
        return _mm256_cvtepi32_ps(x);
    }

    static INLINE void columns(const uint8_t* p, int centre, F d, F m, float* out, int stride) {
        const __m256i x = bytes(p), c = _mm256_set1_epi32(centre);
        const auto put = [&](int n, __m256i column) INLINE_LAMBDA {  // sign extension: offset codes are below 64
            store(out + n * stride, fma(d, _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_srai_epi32(column, 24), c)), m));
        };
        put(0, _mm256_slli_epi32(x, 24));
        put(1, _mm256_slli_epi32(x, 16));
        put(2, _mm256_slli_epi32(x, 8));
        put(3, x);
    }

    // The measured ceiling is that of the cheapest sequence of this instruction set: multiply, add in 16 bits.
    static void dot_peak(const uint8_t* w, const int8_t* a, int64_t iterations) {
        const __m256i q = bytes(w), act = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
#define DOT(n) "vpmaddubsw %1, %0, %%ymm15\nvpaddw %%ymm15, %%ymm" #n ", %%ymm" #n "\n"
#define DOTS DOT(4) DOT(5) DOT(6) DOT(7) DOT(8) DOT(9) DOT(10) DOT(11)
        for (int64_t n = 0; n < iterations; n++)
            asm volatile(DOTS DOTS DOTS DOTS DOTS DOTS DOTS DOTS ::"x"(q), "x"(act)
                         : "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm15");
#undef DOT
#undef DOTS
    }
};
