// The functions of docs/reference/arithmetic.md for one thread, bit for bit: exp, tanh, erf, activations, cos and sin, 16-bit
// floats, quantisation.
#pragma once
#include "abi.h"

namespace assay {

constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: an integer added to it appears in the low bits
constexpr uint32_t kMagicBits = 0x4b400000u;  // an integer sum that starts here is, read as a float, kMagic + sum

DEVICE float minus_infinity() { return as_float(0xff800000u); }
// An unsigned integer that orders like x.
DEVICE uint32_t ordered(float x) { return bits(x) ^ (bits(x) >> 31 ? 0xffffffffu : 0x80000000u); }
DEVICE float from_ordered(uint32_t u) { return as_float(u ^ (u >> 31 ? 0x80000000u : 0xffffffffu)); }
DEVICE float not_a_number() { return as_float(0x7fc00000u); }

DEVICE float exponential(float x) {
    const float lo = -87.33f, hi = 88.3f;
    float c = lo > x ? lo : x;
    c = hi < c ? hi : c;
    const float z = fma(c, 0x1.715476p+0f, 0x1.8p23f), n = z - 0x1.8p23f;
    float r = fma(n, -0x1.62e400p-1f, c);
    r = fma(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.6850e4p-10f;
    p = fma(p, r, 0x1.123bccp-7f);
    p = fma(p, r, 0x1.555b98p-5f);
    p = fma(p, r, 0x1.55548ep-3f);
    p = fma(p, r, 0x1.fffff8p-2f);
    p = fma(p, r, 1.0f);
    p = fma(p, r, 1.0f);
    const float y = as_float(bits(p) + (bits(z) << 23));
    return x >= lo ? y : 0.0f > x ? 0.0f : x;
}

DEVICE float signed_like(float y, float x) { return as_float((bits(y) & 0x7fffffffu) | (bits(x) & 0x80000000u)); }

OUTLINED float tangent(float x) {  // tanh
    const float a = as_float(bits(x) & 0x7fffffffu), s = x * x;
    if (a < 0.625f) {
        float p = -0x1.75e1a8p-8f;
        p = fma(p, s, 0x1.522692p-6f);
        p = fma(p, s, -0x1.b83c58p-5f);
        p = fma(p, s, 0x1.110726p-3f);
        p = fma(p, s, -0x1.555532p-2f);
        return fma(x * s, p, x);
    }
    return signed_like(1.0f - 2.0f / (exponential(a + a) + 1.0f), x);
}

OUTLINED float error_function(float x) {
    const float a = as_float(bits(x) & 0x7fffffffu), s = x * x, t = 4.0f < a ? 4.0f : a;
    if (a < 1.0f) {
        float p = 0x1.496a1ep-14f;
        p = fma(p, s, -0x1.a3f6f8p-11f);
        p = fma(p, s, 0x1.5405b0p-8f);
        p = fma(p, s, -0x1.b7f90cp-6f);
        p = fma(p, s, 0x1.ce2cf8p-4f);
        p = fma(p, s, -0x1.81273ep-2f);
        p = fma(p, s, 0x1.06eba8p-3f);
        return fma(x, p, x);
    }
    float p = -0x1.86de0cp-13f;
    p = fma(p, t, 0x1.825b48p-9f);
    p = fma(p, t, -0x1.65cb9ep-6f);
    p = fma(p, t, 0x1.a65356p-4f);
    p = fma(p, t, 0x1.46bae8p-1f);
    p = fma(p, t, 0x1.2088ecp+0f);
    p = fma(p, t, 0x1.661a16p-12f);
    return signed_like(1.0f - exponential(-p), x);
}

OUTLINED float gate(int act, float x) {
    if (act == SILU) return x / (1.0f + exponential(-x));
    if (act == GELU_TANH) {
        const float u = 1.5957691216057308f * fma((0.044715f * x) * x, x, x);
        return x / (1.0f + exponential(-u));
    }
    if (act == GELU_ERF) return (0.5f * x) * (1.0f + error_function(x * 0.70710678118654752f));
    if (act == TANH) return tangent(x);
    const float r = x < 0.0f ? 0.0f : x;
    return act == RELU_SQR ? r * r : r;
}

OUTLINED float softplus(float x) {
    const float e = exponential(-as_float(bits(x) & 0x7fffffffu)), s = e / (e + 2.0f), z = s * s, t = s + s;
    float p = 1.0f / 17.0f;
    p = fma(p, z, 1.0f / 15.0f);
    p = fma(p, z, 1.0f / 13.0f);
    p = fma(p, z, 1.0f / 11.0f);
    p = fma(p, z, 1.0f / 9.0f);
    p = fma(p, z, 1.0f / 7.0f);
    p = fma(p, z, 1.0f / 5.0f);
    p = fma(p, z, 1.0f / 3.0f);
    const float l = fma(t * z, p, t);
    return x > 0.0f ? x + l : l;
}

OUTLINED float xielu(float x, const float* f) {  // f: a, b, beta, eps
    const float line = f[2] * x;
    if (x > 0.0f) return fma(f[0] * x, x, line);
    const float c = x < f[3] ? x : f[3];
    float m;
    if (c > -0.5f) {
        float p = 1.0f / 362880.0f;
        p = fma(p, c, 1.0f / 40320.0f);
        p = fma(p, c, 1.0f / 5040.0f);
        p = fma(p, c, 1.0f / 720.0f);
        p = fma(p, c, 1.0f / 120.0f);
        p = fma(p, c, 1.0f / 24.0f);
        p = fma(p, c, 1.0f / 6.0f);
        p = fma(p, c, 0.5f);
        m = fma(c * c, p, c);
    } else {
        m = exponential(c) - 1.0f;
    }
    return fma(m - x, f[1], line);
}

OUTLINED float softcap(float x, float cap) { return cap * tangent(x / cap); }

// Cosine and sine of x, in double.
OUTLINED void turn(double x, double& cosine, double& sine) {
    const double magic = 0x1.8p52, shifted = x * 0x1.45f306dc9c883p-1 + magic, k = shifted - magic;
    double r = fma(k, -0x1.921fb54442d18p+0, x);
    r = fma(k, -0x1.1a62633145c07p-54, r);
    r = fma(k, 0x1.f1976b7ed8fbcp-110, r);
    const double s = r * r;
    double p = -0x1.ab066192d3e8fp-41;
    p = fma(p, s, 0x1.612161267019ep-33);
    p = fma(p, s, -0x1.ae6453ecab5c4p-26);
    p = fma(p, s, 0x1.71de3a544a6cep-19);
    p = fma(p, s, -0x1.a01a01a019880p-13);
    p = fma(p, s, 0x1.1111111111110p-7);
    p = fma(p, s, -0x1.5555555555555p-3);
    const double S = fma(r * s, p, r);
    double c = 0x1.ab68d5c08a457p-45;
    c = fma(c, s, -0x1.93949f74df9adp-37);
    c = fma(c, s, 0x1.1eed8ddaa5390p-29);
    c = fma(c, s, -0x1.27e4fb7708fb2p-22);
    c = fma(c, s, 0x1.a01a01a019cb8p-16);
    c = fma(c, s, -0x1.6c16c16c16c16p-10);
    c = fma(c, s, 0x1.5555555555555p-5);
    const double h = 0.5 * s, w = 1.0 - h;
    const double C = w + (((1.0 - w) - h) + (s * s) * c);
    const int j = int(int64_t(k)) & 3;
    sine = j == 0 ? S : j == 1 ? C : j == 2 ? -S : -C;
    cosine = j == 0 ? C : j == 1 ? -S : j == 2 ? -C : S;
}

// ---- halves --------------------------------------------------------------------------------------------------------
DEVICE uint16_t float_to_half(float f) {  // saturates to the largest finite value; a NaN stays a NaN
    const float most = 65504.0f;
    const float low = -most > f ? -most : f, x = most < low ? most : low;
    return half_nearest(x);
}
DEVICE uint16_t float_to_brain(float f) {
    const uint32_t b = bits(f);
    if ((b & 0x7fffffffu) > 0x7f800000u) return uint16_t(b >> 16 | 0x40u);
    const uint32_t rounded = b + 0x7fffu + (b >> 16 & 1u);
    return uint16_t((rounded & 0x7f800000u) == 0x7f800000u ? (b >> 16 & 0x8000u) | 0x7f7fu : rounded >> 16);
}
DEVICE float brain_to_float(uint16_t h) { return as_float(uint32_t(h) << 16); }

// ---- activations ---------------------------------------------------------------------------------------------------
struct Scale {
    float d, inverse;
};
OUTLINED Scale rare_scale(uint32_t top) {
    const float amax = as_float(top);
    if (top >= 0x7f800000u) return {not_a_number(), 0.0f};
    if (amax < 0x1p-120f) return {0.0f, 0.0f};
    return {amax / 127.0f, 127.0f / amax};
}
DEVICE Scale block_scale(uint32_t top) {  // top: bits of the largest |x| of a block of 32
    const float amax = as_float(top);
    Scale s = {divide_near(amax, 127.0f), divide_near(127.0f, amax)};
    if (top - 0x21800000u >= 0x3c000000u) s = rare_scale(top);  // not between 2^-60 and 2^60
    return s;
}
DEVICE int quantise(float x, const Scale& s) { return s.inverse == 0.0f ? 0 : int(bits(x * s.inverse + kMagic) - kMagicBits); }
DEVICE uint32_t pack4(int a, int b, int c, int d) {
    return uint32_t(a & 255) | uint32_t(b & 255) << 8 | uint32_t(c & 255) << 16 | uint32_t(d & 255) << 24;
}

// Index of column c of a row among the halves that gemm_tensor.cu multiplies: [columns / 64][room][64]. A tile of rows
// is then contiguous and laid out as `multiply_rows` needs it. The 8-half pieces of a row are swizzled by row % 8.
DEVICE int64_t half_at(int64_t row, int c, int room) {
    const int piece = (c >> 3 & 6) | (c & 1);
    return ((int64_t(c >> 6) * room + row) << 6) + ((piece ^ int(row & 7)) << 3) + (c >> 1 & 7);
}
// The same for gemm_halves.cu, with columns in order.
DEVICE int64_t float_at(int64_t row, int c, int room) {
    return ((int64_t(c >> 6) * room + row) << 6) + (((c >> 3 & 7) ^ int(row & 7)) << 3) + (c & 7);
}
// Store a value for products on tensor cores. `halved`: below bit kHalvedShift the rows that `out` has memory for, from
// it on a HalvedAs.
DEVICE void store_halved(void* out, int halved, int64_t row, int c, float y) {
    const int of = halved >> kHalvedShift, room = halved & ((1 << kHalvedShift) - 1);
    static_cast<uint16_t*>(out)[of ? float_at(row, c, room) : half_at(row, c, room)] = of == ORDERED_BF16 ? float_to_brain(y) : float_to_half(y);
}

}  // namespace assay
