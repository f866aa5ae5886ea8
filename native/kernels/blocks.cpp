// Decoders of ggml's block formats, one function a type. The comment above each function has the layout of the block.
#include "blocks.h"

#include <cmath>
#include <cstring>

#include "iq_blocks.h"

namespace assay::kernels {

const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float f16_to_f32(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) return __builtin_bit_cast(float, sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | mantissa << 13);
    const float denormal = float(mantissa) * 0x1p-24f;
    return sign ? -denormal : denormal;
}

float e8m0_half(uint8_t e) {
    return __builtin_bit_cast(float, e > 228 ? 0x7fc00000u : e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23);
}

float ue4m3_half(uint8_t e) {
    const int exponent = e >> 3 & 15, mantissa = e & 7;
    if (e == 0x7f) return 0;
    return exponent == 0 ? float(mantissa) * 0x1p-10f
                         : __builtin_bit_cast(float, uint32_t(exponent + 119) << 23 | uint32_t(mantissa) << 20);
}

namespace {

uint16_t u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}
float f16(const uint8_t* p) { return f16_to_f32(finite_or_nan(u16(p))); }
float sub_scale(float d, int sub) { return std::fma(d, float(sub), 0.0f); }  // exact, and never -0

void scale(Block32& o, float d, float m = 0) {
    o.d[0] = o.d[1] = d;
    o.m[0] = o.m[1] = m;
}

// 16 bytes: low nibbles are weights 0..15, high nibbles 16..31.
template <class F>
void nibbles(const uint8_t* qs, int8_t* q, F value) {
    for (int i = 0; i < 16; i++) {
        q[i] = int8_t(value(i, qs[i] & 15));
        q[i + 16] = int8_t(value(i + 16, qs[i] >> 4));
    }
}

// Q4_0: f16 d, 16 nibbles. w = d (q - 8)
void q4_0(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b * 18;
    scale(o, f16(p));
    nibbles(p + 2, o.q, [](int, int q) { return q - 8; });
}

// Q4_1: f16 d, f16 m, nibbles. w = d q + m
void q4_1(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b * 20;
    scale(o, f16(p), f16(p + 2));
    nibbles(p + 4, o.q, [](int, int q) { return q; });
}

// Q5_0: f16 d, 32 fifth bits, nibbles. w = d (q - 16)
void q5_0(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b * 22;
    scale(o, f16(p));
    const uint32_t high = u16(p + 2) | uint32_t(u16(p + 4)) << 16;
    nibbles(p + 6, o.q, [=](int i, int q) { return int(q | (high >> i & 1) << 4) - 16; });
}

// Q5_1: f16 d, f16 m, 32 fifth bits, nibbles. w = d q + m
void q5_1(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b * 24;
    scale(o, f16(p), f16(p + 2));
    const uint32_t high = u16(p + 4) | uint32_t(u16(p + 6)) << 16;
    nibbles(p + 8, o.q, [=](int i, int q) { return q | (high >> i & 1) << 4; });
}

// Q8_0: f16 d, 32 int8. w = d q
void q8_0(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b * 34;
    scale(o, f16(p));
    std::memcpy(o.q, p + 2, 32);
}

// Q8_1: f16 d, f16 sum (unused), 32 int8
void q8_1(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b * 36;
    scale(o, f16(p));
    std::memcpy(o.q, p + 4, 32);
}

// Q8_K: f32 d, 256 int8, 16 int16 sums (unused)
void q8_k(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 292;
    float d;
    std::memcpy(&d, p, 4);
    scale(o, d);
    std::memcpy(o.q, p + 4 + b % 8 * 32, 32);
}

// IQ4_NL: f16 d, 16 nibbles into a code book. w = d v[q]
void iq4_nl(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b * 18;
    scale(o, f16(p));
    nibbles(p + 2, o.q, [](int, int q) { return iq4_values[q]; });
}

// MXFP4: e8m0 d, 16 nibbles of e2m1
void mxfp4(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b * 17;
    scale(o, e8m0_half(p[0]));
    nibbles(p + 1, o.q, [](int, int q) { return mxfp4_values[q]; });
}

// NVFP4: 4 e4m3 d, one per 16, 32 bytes of e2m1 nibbles: 8 bytes per 16, low nibbles first
void nvfp4(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 2 * 36;
    for (int h = 0; h < 2; h++) {
        const int s = int(b % 2) * 2 + h;
        o.d[h] = ue4m3_half(p[s]);
        o.m[h] = 0;
        for (int i = 0; i < 16; i++) o.q[16 * h + i] = mxfp4_values[p[4 + 8 * s + i % 8] >> (i / 8 * 4) & 15];
    }
}

// Q1_0: f16 d, 128 bits. w = d, or -d where the bit is not set
void q1_0(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 4 * 18;
    scale(o, f16(p));
    for (int i = 0; i < 32; i++) o.q[i] = int8_t((p[2 + 4 * (b % 4) + i / 8] >> i % 8 & 1) * 2 - 1);
}

// Q2_0: f16 d, 16 bytes of four neighbours each. w = d (q - 1)
void q2_0(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 2 * 18;
    scale(o, f16(p));
    for (int i = 0; i < 32; i++) o.q[i] = int8_t((p[2 + 8 * (b % 2) + i / 4] >> (2 * (i % 4)) & 3) - 1);
}

// Q2_K: 16 (scale | min << 4), 64 bytes of 2-bit, f16 d, f16 dmin. w = d sc q - dmin mn, sc and mn per 16
void q2_k(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 84;
    const int j = int(b % 8);
    const float d = f16(p + 80), dmin = f16(p + 82);
    for (int h = 0; h < 2; h++) {
        const uint8_t sc = p[2 * j + h];
        o.d[h] = sub_scale(d, sc & 15);
        o.m[h] = sub_scale(-dmin, sc >> 4);
    }
    for (int i = 0; i < 32; i++) o.q[i] = p[16 + 32 * (j / 4) + i] >> (2 * (j % 4)) & 3;
}

// Q3_K: 32 bytes of third bits, 64 bytes of 2-bit, 12 bytes of sixteen 6-bit scales, f16 d. w = d (sc - 32) (q - 4)
void q3_k(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 110;
    const int j = int(b % 8);
    const float d = f16(p + 108);
    for (int h = 0; h < 2; h++) {
        const int s = 2 * j + h;
        const int low = s < 8 ? p[96 + s] & 15 : p[96 + s - 8] >> 4;
        const int high = p[96 + 8 + s % 4] >> (2 * (s / 4)) & 3;
        o.d[h] = sub_scale(d, (low | high << 4) - 32);
        o.m[h] = 0;
    }
    for (int i = 0; i < 32; i++)
        o.q[i] = int8_t((p[32 + 32 * (j / 4) + i] >> (2 * (j % 4)) & 3) - (p[i] >> j & 1 ? 0 : 4));
}

// The eight 6-bit scales and minima of Q4_K and Q5_K in 12 bytes.
void k4_scales(const uint8_t* s, int j, int& sc, int& mn) {
    if (j < 4) {
        sc = s[j] & 63;
        mn = s[j + 4] & 63;
    } else {
        sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        mn = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

void k4_scale(const uint8_t* p, int j, Block32& o) {
    int sc, mn;
    k4_scales(p + 4, j, sc, mn);
    scale(o, sub_scale(f16(p), sc), sub_scale(-f16(p + 2), mn));
}

// Q4_K: f16 d, f16 dmin, 12 bytes of scales, 128 bytes of nibbles (two blocks of 32 share 32 bytes)
void q4_k(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 144;
    const int j = int(b % 8);
    k4_scale(p, j, o);
    for (int i = 0; i < 32; i++) o.q[i] = p[16 + j / 2 * 32 + i] >> (4 * (j % 2)) & 15;
}

// Q5_K: as Q4_K with 32 bytes of fifth bits before the nibbles
void q5_k(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 176;
    const int j = int(b % 8);
    k4_scale(p, j, o);
    for (int i = 0; i < 32; i++)
        o.q[i] = int8_t((p[48 + j / 2 * 32 + i] >> (4 * (j % 2)) & 15) | (p[16 + i] >> j & 1) << 4);
}

// Q6_K: 128 bytes of low nibbles, 64 bytes of high 2-bit, 16 int8 scales, f16 d. w = d sc (q - 32)
void q6_k(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 210;
    const int j = int(b % 8), n = j / 4, r = j % 4;
    const float d = f16(p + 208);
    for (int h = 0; h < 2; h++) {
        o.d[h] = sub_scale(d, int8_t(p[192 + 2 * j + h]));
        o.m[h] = 0;
    }
    for (int i = 0; i < 32; i++) {
        const int low = p[64 * n + 32 * (r & 1) + i] >> (4 * (r >> 1)) & 15;
        const int high = p[128 + 32 * n + i] >> (2 * r) & 3;
        o.q[i] = int8_t((low | high << 4) - 32);
    }
}

// IQ4_XS: f16 d, u16 high scale bits, 4 bytes of low scale nibbles, 128 bytes of nibbles. w = d (sc - 32) v[q]
void iq4_xs(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 136;
    const int j = int(b % 8);
    const int sc = (p[4 + j / 2] >> (4 * (j % 2)) & 15) | (u16(p + 2) >> (2 * j) & 3) << 4;
    scale(o, sub_scale(f16(p), sc - 32));
    nibbles(p + 8 + 16 * j, o.q, [](int, int q) { return iq4_values[q]; });
}

// TQ2_0: 64 bytes of 2-bit, f16 d. w = d (q - 1)
void tq2_0(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 66;
    const int j = int(b % 8);
    scale(o, f16(p + 64));
    for (int i = 0; i < 32; i++) o.q[i] = int8_t((p[32 * (j / 4) + i] >> (2 * (j % 4)) & 3) - 1);
}

// TQ1_0: 48 bytes of five trits, 4 bytes of four trits, f16 d. Trit n of a byte x is the top one of x * 3^n mod 256.
void tq1_0(const uint8_t* row, int64_t b, Block32& o) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const uint8_t* p = row + b / 8 * 54;
    scale(o, f16(p + 52));
    for (int i = 0; i < 32; i++) {
        const int e = int(b % 8) * 32 + i;  // weight within the 256
        const int n = e < 160 ? e / 32 : e < 240 ? (e - 160) / 16 : (e - 240) / 4;
        const int byte = e < 160 ? e % 32 : e < 240 ? 32 + (e - 160) % 16 : 48 + (e - 240) % 4;
        o.q[i] = int8_t((uint8_t(p[byte] * power[n]) * 3 >> 8) - 1);
    }
}

const TypeInfo types[] = {
    {Type::F32, "F32", 1, 4, nullptr},
    {Type::F16, "F16", 1, 2, nullptr},
    {Type::BF16, "BF16", 1, 2, nullptr},
    {Type::Q4_0, "Q4_0", 32, 18, q4_0},
    {Type::Q4_1, "Q4_1", 32, 20, q4_1},
    {Type::Q5_0, "Q5_0", 32, 22, q5_0},
    {Type::Q5_1, "Q5_1", 32, 24, q5_1},
    {Type::Q8_0, "Q8_0", 32, 34, q8_0},
    {Type::Q8_1, "Q8_1", 32, 36, q8_1},
    {Type::Q2_K, "Q2_K", 256, 84, q2_k},
    {Type::Q3_K, "Q3_K", 256, 110, q3_k},
    {Type::Q4_K, "Q4_K", 256, 144, q4_k},
    {Type::Q5_K, "Q5_K", 256, 176, q5_k},
    {Type::Q6_K, "Q6_K", 256, 210, q6_k},
    {Type::Q8_K, "Q8_K", 256, 292, q8_k},
    {Type::IQ4_NL, "IQ4_NL", 32, 18, iq4_nl},
    {Type::IQ4_XS, "IQ4_XS", 256, 136, iq4_xs},
    {Type::MXFP4, "MXFP4", 32, 17, mxfp4},
    {Type::NVFP4, "NVFP4", 64, 36, nvfp4},
    {Type::Q1_0, "Q1_0", 128, 18, q1_0},
    {Type::Q2_0, "Q2_0", 64, 18, q2_0},
    {Type::TQ1_0, "TQ1_0", 256, 54, tq1_0},
    {Type::TQ2_0, "TQ2_0", 256, 66, tq2_0},
    {Type::IQ2_XXS, "IQ2_XXS", 256, 66, iq2_xxs},
    {Type::IQ2_XS, "IQ2_XS", 256, 74, iq2_xs},
    {Type::IQ2_S, "IQ2_S", 256, 82, iq2_s},
    {Type::IQ3_XXS, "IQ3_XXS", 256, 98, iq3_xxs},
    {Type::IQ3_S, "IQ3_S", 256, 110, iq3_s},
    {Type::IQ1_S, "IQ1_S", 256, 50, iq1_s},
    {Type::IQ1_M, "IQ1_M", 256, 56, iq1_m},
};

}  // namespace

const TypeInfo* type_info(Type type) {
    for (const TypeInfo& t : types)
        if (t.type == type) return &t;
    return nullptr;
}

void decode_float(Type type, const uint8_t* row, int64_t begin, int64_t end, float* out) {
    if (type == Type::F32) {
        std::memcpy(out, row + begin * 4, size_t(end - begin) * 4);
    } else if (type == Type::F16) {
        for (int64_t i = begin; i < end; i++) out[i - begin] = f16_to_f32(u16(row + 2 * i));
    } else {
        for (int64_t i = begin; i < end; i++) out[i - begin] = bf16_to_f32(u16(row + 2 * i));
    }
}

void decode(Type type, const uint8_t* row, int64_t k, float* out) {
    const TypeInfo& info = *type_info(type);
    if (!info.unpack) return decode_float(type, row, 0, k, out);
    Block32 block;
    for (int64_t b = 0; b < k / 32; b++) {
        info.unpack(row, b, block);
        for (int i = 0; i < 32; i++) out[32 * b + i] = std::fma(block.d[i / 16], float(block.q[i]), block.m[i / 16]);
    }
}

}  // namespace assay::kernels
