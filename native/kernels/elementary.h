// exp, tanh and erf of floats, cos and sin of doubles: the formulas of docs/reference/arithmetic.md, constant by
// constant. C libraries differ between systems; these give the same bits everywhere. Included by rowops.cpp after
// simd.h.
#pragma once

#include "simd.h"

namespace assay::ASSAY_NS {

typedef uint32_t U __attribute__((vector_size(W * 4)));

inline U bits(V x) {
    U u;
    std::memcpy(&u, &x, sizeof u);
    return u;
}
inline V from_bits(U u) {
    V x;
    std::memcpy(&x, &u, sizeof x);
    return x;
}
inline V absolute(V x) { return from_bits(bits(x) & 0x7fffffffu); }
inline V with_sign(V size, V of) { return from_bits((bits(of) & 0x80000000u) | bits(size)); }

template <class... Coefficients>
inline V horner(V x, float first, Coefficients... rest) {
    V p = set1(first);
    ((p = fma(p, x, set1(rest))), ...);
    return p;
}

// e^x to 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial of degree 6 for e^r, n added to the exponent.
// 0 if the result would be subnormal (x < -87.33). Above 88.3 the result stays at e^88.3, so that it is never infinite.
inline V exp(V x) {
    const V lo = set1(-87.33f), magic = set1(0x1.8p23f);
    const V c = vmin(set1(88.3f), vmax(lo, x));  // in this order a NaN stays one
    const V z = fma(c, set1(0x1.715476p+0f), magic), n = z - magic;
    const V r = fma(n, set1(-0x1.7f7d1cp-20f), fma(n, set1(-0x1.62e400p-1f), c));
    const V p = horner(r, 0x1.6850e4p-10f, 0x1.123bccp-7f, 0x1.555b98p-5f, 0x1.55548ep-3f, 0x1.fffff8p-2f, 1.0f, 1.0f);
    return select(x >= lo, from_bits(bits(p) + (bits(z) << 23)), vmax(V{}, x));
}

// exp for x <= 0 or NaN: the same bits in fewer operations.
#if !defined(ASSAY_PORTABLE) && defined(__aarch64__)
// a * b + c. The constant is loaded anew and not moved, because the vector pipes are the bottleneck.
inline V fma_to(V a, V b, const float (&c)[W]) {
    V r;
    asm("ldr %q0, %3\n\tfmla %0.4s, %1.4s, %2.4s" : "=&w"(r) : "w"(a), "w"(b), "m"(c));
    return r;
}
inline V exp_down(V x) {
#define FOUR(name, value) alignas(16) static constexpr float name[W] = {value, value, value, value}
    FOUR(magic, 0x1.8p23f);
    FOUR(c1, 0x1.123bccp-7f);
    FOUR(c2, 0x1.555b98p-5f);
    FOUR(c3, 0x1.55548ep-3f);
    FOUR(c4, 0x1.fffff8p-2f);
    FOUR(one, 1.0f);
#undef FOUR
    const V lo = set1(-87.33f), c = vmaxq_f32(lo, x), z = fma_to(c, set1(0x1.715476p+0f), magic), n = z - load(magic);
    const V r = fma(n, set1(-0x1.7f7d1cp-20f), fma(n, set1(-0x1.62e400p-1f), c));
    V p = fma_to(set1(0x1.6850e4p-10f), r, c1);
    p = fma_to(fma_to(fma_to(fma_to(fma_to(p, r, c2), r, c3), r, c4), r, one), r, one);
    return select(x >= lo, from_bits(bits(p) + (bits(z) << 23)), vmaxq_f32(x, V{}));
}
#else
inline V exp_down(V x) { return exp(x); }
#endif

// To 2 ulp. Small: x + x^3 P(x^2); large: from exp(2 |x|).
inline V tanh(V x) {
    const V a = absolute(x), s = x * x, one = set1(1.0f);
    const V p = horner(s, -0x1.75e1a8p-8f, 0x1.522692p-6f, -0x1.b83c58p-5f, 0x1.110726p-3f, -0x1.555532p-2f);
    const V large = one - set1(2.0f) / (exp(a + a) + one);
    return select(a < set1(0.625f), fma(x * s, p, x), with_sign(large, x));
}

// To 2 ulp. Small: x + x P(x^2); large: 1 - exp(-Q(|x|)).
inline V erf(V x) {
    const V a = absolute(x), s = x * x, t = vmin(set1(4.0f), a);
    const V p = horner(s, 0x1.496a1ep-14f, -0x1.a3f6f8p-11f, 0x1.5405b0p-8f, -0x1.b7f90cp-6f, 0x1.ce2cf8p-4f,
                       -0x1.81273ep-2f, 0x1.06eba8p-3f);
    const V q = horner(t, -0x1.86de0cp-13f, 0x1.825b48p-9f, -0x1.65cb9ep-6f, 0x1.a65356p-4f, 0x1.46bae8p-1f,
                       0x1.2088ecp+0f, 0x1.661a16p-12f);
    return select(a < set1(1.0f), fma(x, p, x), with_sign(set1(1.0f) - exp(-q), x));
}

// cos and sin to 1 ulp for |x| < 2^31: subtract the nearest multiple of pi/2 in three parts, then evaluate two
// polynomials. Plain doubles: compilers vectorise the loop around it.
inline void cos_sin(double x, double& cos, double& sin) {
    const auto horner = [](double s, auto first, auto... rest) {
        double p = first;
        ((p = __builtin_fma(p, s, rest)), ...);
        return p;
    };
    const auto flip = [](double v, uint64_t sign) {
        return __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, v) ^ (sign & 2) << 62);
    };
    const double z = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, k = z - 0x1.8p52;
    const uint64_t j = __builtin_bit_cast(uint64_t, z);  // its low bits are those of the integer k
    double r = __builtin_fma(k, -0x1.921fb54442d18p+0, x);
    r = __builtin_fma(k, -0x1.1a62633145c07p-54, r);
    r = __builtin_fma(k, 0x1.f1976b7ed8fbcp-110, r);
    const double s = r * r;
    const double S = __builtin_fma(
        r * s,
        horner(s, -0x1.ab066192d3e8fp-41, 0x1.612161267019ep-33, -0x1.ae6453ecab5c4p-26, 0x1.71de3a544a6cep-19,
               -0x1.a01a01a019880p-13, 0x1.1111111111110p-7, -0x1.5555555555555p-3),
        r);
    const double h = 0.5 * s, w = 1 - h;
    const double C =
        w + (((1 - w) - h) + (s * s) * horner(s, 0x1.ab68d5c08a457p-45, -0x1.93949f74df9adp-37, 0x1.1eed8ddaa5390p-29,
                                              -0x1.27e4fb7708fb2p-22, 0x1.a01a01a019cb8p-16, -0x1.6c16c16c16c16p-10,
                                              0x1.5555555555555p-5));
    const bool odd = j & 1;
    sin = flip(odd ? C : S, j);      // negative for k = 2, 3 modulo 4
    cos = flip(odd ? S : C, j + 1);  // for 1, 2
}

}  // namespace assay::ASSAY_NS
