// A vector of W floats and the dozen operations the row kernels need, for the instruction set this file is
// compiled for. `ASSAY_PORTABLE` asks for plain C++ that any compiler can lower. Every operation means the same bits
// everywhere (docs/reference/arithmetic.md).
#pragma once

#include <cstdint>
#include <cstring>

#if !defined(ASSAY_PORTABLE)
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#endif
#endif

namespace assay::ASSAY_NS {

#if !defined(ASSAY_PORTABLE) && defined(__AVX512F__)
constexpr int W = 16;
#elif !defined(ASSAY_PORTABLE) && defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float V __attribute__((vector_size(W * 4)));
typedef int32_t I __attribute__((vector_size(W * 4)));

inline V load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
inline V set1(float x) { return x - V{}; }
inline V select(I mask, V a, V b) { return mask ? a : b; }
// a > b ? a : b and a < b ? a : b, literally: of a NaN and a number, or of two zeros, the second operand.
inline V vmax(V a, V b) {
#if !defined(ASSAY_PORTABLE) && defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif !defined(ASSAY_PORTABLE) && defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    return a > b ? a : b;  // not NEON's fmax, which prefers NaN and +0
#endif
}
inline V vmin(V a, V b) {
#if !defined(ASSAY_PORTABLE) && defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#elif !defined(ASSAY_PORTABLE) && defined(__AVX2__)
    return _mm256_min_ps(a, b);
#else
    return a < b ? a : b;
#endif
}

// a * b + c, rounded once.
inline V fma(V a, V b, V c) {
#if !defined(ASSAY_PORTABLE) && defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#elif !defined(ASSAY_PORTABLE) && defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif !defined(ASSAY_PORTABLE) && defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    V v;
    for (int i = 0; i < W; ++i) v[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return v;
#endif
}

// Four scalars, and one of them times a vector. If the instruction set multiplies by a lane, no broadcast is needed.
#if !defined(ASSAY_PORTABLE) && defined(__aarch64__)
typedef V Four;
inline Four load4(const float* p) { return load(p); }
template <int LANE>
inline V fma_lane(Four a, V b, V c) {
    return vfmaq_laneq_f32(c, b, a, LANE);
}
#else
typedef const float* Four;
inline Four load4(const float* p) { return p; }
template <int LANE>
inline V fma_lane(Four a, V b, V c) {
    return fma(set1(a[LANE]), b, c);
}
#endif

// The halving tree over N * W sums: s[c] += s[c + h] for h = N W / 2 down to 1.
template <int N>
inline float tree(V (&s)[N]) {
    for (int h = N / 2; h; h /= 2)
        for (int c = 0; c < h; ++c) s[c] = s[c] + s[c + h];
    float lanes[W];
    store(lanes, s[0]);
    for (int h = W / 2; h; h /= 2)
        for (int i = 0; i < h; ++i) lanes[i] += lanes[i + h];
    return lanes[0];
}
inline float most(V v) {
    float m = v[0];
    for (int i = 1; i < W; ++i) m = v[i] > m ? v[i] : m;
    return m;
}
inline bool any(I mask) {
    int32_t all = 0;
    for (int i = 0; i < W; ++i) all |= mask[i];
    return all != 0;
}

// ---- half precision -------------------------------------------------------------------------------------------------
inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16, rest = h & 0x7fffu;
    uint32_t bits;
    if (rest >= 0x7c00u) {
        bits = sign | 0x7f800000u | (rest & 0x3ffu) << 13;
    } else if (rest >= 0x400u) {
        bits = sign | ((rest << 13) + (112u << 23));
    } else {  // subnormal: rest * 2^-24, exact
        float f = float(rest) * 0x1p-24f;
        uint32_t b;
        std::memcpy(&b, &f, 4);
        bits = sign | b;
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

// Round to nearest even. Values out of range become the largest finite half, so that a masked key (weight 0) can never
// turn a sum into NaN.
inline uint16_t float_to_half(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000u);
    const uint32_t a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u);
    if (a >= 0x477fe000u) return uint16_t(sign | 0x7bffu);
    if (a < 0x38800000u) {  // subnormal half: adding 0.5 puts the rounding at bit 0
        float x;
        std::memcpy(&x, &a, 4);
        x += 0.5f;
        uint32_t b;
        std::memcpy(&b, &x, 4);
        return uint16_t(sign | (b - 0x3f000000u));
    }
    const uint32_t rounded = a + 0xfffu + (a >> 13 & 1u);
    const uint32_t h = (rounded >> 13) - (112u << 10);
    return uint16_t(sign | (h > 0x7bffu ? 0x7bffu : h));
}

inline uint16_t float_to_bf16(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40u);
    const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return uint16_t((rounded & 0x7f800000u) == 0x7f800000u ? (bits >> 16 & 0x8000u) | 0x7f7fu : rounded >> 16);
}

// The element types of the cache, so that one template serves all.
struct Half {
    uint16_t bits;
};
struct Brain {
    uint16_t bits;
};

inline V load(const Half* p) {
#if !defined(ASSAY_PORTABLE) && defined(__aarch64__)
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
#elif !defined(ASSAY_PORTABLE) && defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif !defined(ASSAY_PORTABLE) && defined(__AVX2__)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    V v;
    for (int i = 0; i < W; ++i) v[i] = half_to_float(p[i].bits);
    return v;
#endif
}
inline V load(const Brain* p) {
    I bits;
    for (int i = 0; i < W; ++i) bits[i] = int32_t(uint32_t(p[i].bits) << 16);
    V v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
}
// Sixteen small integers times scales of at most 11 significant bits: exact. `minus` is -32896 times the scales.
inline void widen(const int8_t* p, const V (&d)[16 / W], [[maybe_unused]] const float* minus, float* out) {
#if !defined(ASSAY_PORTABLE) && defined(__aarch64__)
    // A table look-up turns a byte b + 128 into the float 2^15 + b + 128 (bytes 0, b + 128, 0, 0x47). A multiply-add
    // subtracts the rest. Its accumulator is loaded anew and not moved, because the vector pipes are the bottleneck.
    alignas(16) static constexpr uint32_t top[4] = {0x47000000, 0x47000000, 0x47000000, 0x47000000};
    const uint8x16_t b = veorq_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)), vdupq_n_u8(0x80));
    for (int i = 0; i < 4; ++i) {
        const uint32_t at = 0xffff00ffu + uint32_t(4 * i) * 0x100u;
        const uint32x4_t index = {at, at + 0x100u, at + 0x200u, at + 0x300u};
        V x, y;
        asm("ldr %q0, %3\n\ttbx %0.16b, {%1.16b}, %2.16b" : "=&w"(x) : "w"(b), "w"(index), "m"(top));
        asm("ldr %q0, %3\n\tfmla %0.4s, %1.4s, %2.4s"
            : "=&w"(y)
            : "w"(x), "w"(d[i]), "m"(*reinterpret_cast<const float(*)[4]>(minus + 4 * i)));
        store(out + 4 * i, y);
    }
#elif !defined(ASSAY_PORTABLE) && defined(__AVX512F__)
    store(out, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))) * d[0]);
#elif !defined(ASSAY_PORTABLE) && defined(__AVX2__)
    for (int i = 0; i < 2; ++i)
        store(out + 8 * i, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
                               _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i)))) * d[i]);
#else
    for (int i = 0; i < 16; ++i) out[i] = float(p[i]) * d[i / W][i % W];
#endif
}
inline void store(Half* p, float f) { p->bits = float_to_half(f); }
inline void store(Half* p, V v) {
#if !defined(ASSAY_PORTABLE) && (defined(__aarch64__) || defined(__AVX2__))
    const V most = set1(65504.0f), x = vmin(most, vmax(-most, v));  // in this operand order a NaN stays NaN
#if defined(__aarch64__)
    vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(x)));
#elif defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#endif
#else
    for (int i = 0; i < W; ++i) store(p + i, v[i]);
#endif
}
inline void store(Brain* p, float f) { p->bits = float_to_bf16(f); }
inline void store(float* p, float f) { *p = f; }
inline float value(float f) { return f; }
inline float value(Half h) { return half_to_float(h.bits); }
inline float value(Brain b) {
    const uint32_t bits = uint32_t(b.bits) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

}  // namespace assay::ASSAY_NS
