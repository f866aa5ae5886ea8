// Arm: NEON with the dot product extension (armv8.2-a+dotprod+fp16).
//
// A panel is 8 rows in 2 vectors. `sdot` by lane takes a 4-byte group of activations straight out of the register
// that holds 16 of them, so a group costs one instruction for 4 rows and nothing is broadcast.
#include "isa.h"

#if defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#include <utility>

#include "blocks.h"

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace assay::kernels {
namespace {

struct V {
    static constexpr int L = 4, PV = 2;
    using F = float32x4_t;
    using I = int32x4_t;
    using Q = int8x16_t;
    using A = int8x16_t;
    using X = float32x4_t;

    template <Kind KIND> static constexpr int bits = 8;
    template <Kind KIND> static constexpr int offset = 0;
    // Signed codes in the top bits: a nibble becomes 16 q by one shift or mask, six bits 4 q, three bits 32 q.
    template <Kind KIND> static constexpr int multiple = KIND == N4S ? 16 : KIND == N6 ? 4 : KIND == N3 ? 32 : 1;
    template <Kind KIND> static int code(int q) {   // N5: the fifth bit is stored inverted, see unpack
        return KIND == N4S ? q & 15 : KIND == N6 ? q & 63 : KIND == N3 ? q & 7 : KIND == N5 ? (q + 16) ^ 16 : q & 255;
    }
    template <Kind KIND, int H> static INLINE void unpack(const uint8_t* main, const uint8_t* high, Q w[4]) {
        const auto s8 = [](uint8x16_t x) { return vreinterpretq_s8_u8(x); };
        const uint8x16_t nibble = vdupq_n_u8(15), top = vdupq_n_u8(0xf0);
        uint8x16_t m[2];
        if constexpr (KIND == N8) {
            for (int g = 0; g < 4; g++) w[g] = bytes(main + 16 * g);
            return;
        }
        m[0] = vld1q_u8(main);
        if constexpr (KIND != N2 && KIND != N3) m[1] = vld1q_u8(main + 16);
        if constexpr (KIND == N4S) {
            for (int p = 0; p < 2; p++) w[p] = s8(vshlq_n_u8(m[p], 4)), w[p + 2] = s8(vandq_u8(m[p], top));
        } else if constexpr (KIND == N4U) {
            for (int p = 0; p < 2; p++) w[p] = s8(vandq_u8(m[p], nibble)), w[p + 2] = s8(vshrq_n_u8(m[p], 4));
        } else if constexpr (KIND == N4I || KIND == N4M) {
            const int8x16_t book = vld1q_s8(KIND == N4I ? iq4_values : mxfp4_values);
            for (int p = 0; p < 2; p++) {
                w[p] = vqtbl1q_s8(book, vandq_u8(m[p], nibble));
                w[p + 2] = vqtbl1q_s8(book, vshrq_n_u8(m[p], 4));
            }
        } else if constexpr (KIND == N5) {   // an inverted fifth bit: set means minus 16, the top nibble becomes ones
            const uint8x16_t h = vld1q_u8(high);
            for (int p = 0; p < 2; p++) {
                w[p] = s8(vsliq_n_u8(m[p], vtstq_u8(h, vdupq_n_u8(uint8_t(1 << (4 * H + p)))), 4));
                w[p + 2] = s8(vsliq_n_u8(vshrq_n_u8(m[p], 4), vtstq_u8(h, vdupq_n_u8(uint8_t(1 << (4 * H + p + 2)))), 4));
            }
        } else if constexpr (KIND == N6) {   // two high bits, nibble, two zeros
            const uint8x16_t h = vld1q_u8(main + 32);
            w[0] = s8(vsriq_n_u8(vshlq_n_u8(h, 6), vshlq_n_u8(m[0], 4), 2));
            w[1] = s8(vsriq_n_u8(vshlq_n_u8(h, 4), vshlq_n_u8(m[1], 4), 2));
            w[2] = s8(vsriq_n_u8(vshlq_n_u8(h, 2), vandq_u8(m[0], top), 2));
            w[3] = s8(vsriq_n_u8(h, vandq_u8(m[1], top), 2));
        } else if constexpr (KIND == N3) {   // high bit, two low bits, five zeros
            const uint8x16_t h = vld1q_u8(high), keep = vdupq_n_u8(0xe0);
            const auto join = [&](uint8x16_t sign, uint8x16_t low) { return s8(vandq_u8(vsriq_n_u8(sign, low, 1), keep)); };
            constexpr int s = 7 - 4 * H;
            w[0] = join(vshlq_n_u8(h, s), vshlq_n_u8(m[0], 6));
            w[1] = join(vshlq_n_u8(h, s - 1), vshlq_n_u8(m[0], 4));
            w[2] = join(vshlq_n_u8(h, s - 2), vshlq_n_u8(m[0], 2));
            w[3] = join(vshlq_n_u8(h, s - 3), m[0]);
        } else {   // N2
            const uint8x16_t three = vdupq_n_u8(3);
            w[0] = s8(vandq_u8(m[0], three));
            w[1] = s8(vandq_u8(vshrq_n_u8(m[0], 2), three));
            w[2] = s8(vandq_u8(vshrq_n_u8(m[0], 4), three));
            w[3] = s8(vshrq_n_u8(m[0], 6));
        }
    }

    static INLINE F set(float x) { return vdupq_n_f32(x); }
    static INLINE F load(const float* p) { return vld1q_f32(p); }
    static INLINE void store(float* p, F x) { vst1q_f32(p, x); }
    static INLINE F f16(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
    static INLINE F bf16(const uint8_t* p) {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
    }
    static INLINE uint16x8_t u8(const uint8_t* p) {   // 4 bytes, widened once
        uint32_t word;
        __builtin_memcpy(&word, p, 4);
        return vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)));
    }
    static INLINE F i8(const uint8_t* p) {
        uint32_t word;
        __builtin_memcpy(&word, p, 4);
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word))))));
    }
    static INLINE F low4(const uint8_t* p) {
        return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vandq_u16(u8(p), vdupq_n_u16(15)))));
    }
    static INLINE F high4(const uint8_t* p) { return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vshrq_n_u16(u8(p), 4)))); }
    static INLINE F neg(F a) { return vnegq_f32(a); }
    static INLINE F add(F a, F b) { return vaddq_f32(a, b); }
    static INLINE F mul(F a, F b) { return vmulq_f32(a, b); }
    static INLINE F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }

    static INLINE X lanes(const float* p) { return vld1q_f32(p); }
    template <int N> static INLINE F fma_lane(F acc, F a, X x) { return vfmaq_laneq_f32(acc, a, x, N); }

    static INLINE A acts(const int8_t* p) { return vld1q_s8(p); }
    static INLINE Q bytes(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
    static INLINE void store_bytes(uint8_t* p, Q q) { vst1q_u8(p, vreinterpretq_u8_s8(q)); }

    // Sums start at the bit pattern of 1.5 * 2^23, so that the sum read as a float is 1.5 * 2^23 + sum exactly
    // (|sum| <= 32 * 128 * 127 < 2^22) and one subtraction converts it: scvtf runs on one pipe of two, at half rate.
    static constexpr int32_t magic = 0x4b400000;
    template <int OFFSET> static INLINE I start(const int32_t*) { return vdupq_n_s32(magic); }
    template <int OFFSET, int H> static INLINE I start_half(const int32_t*, const int32_t*) { return vdupq_n_s32(magic); }
    template <int BITS> static INLINE I dot16(I acc, const Q w[4], A a) {
        acc = vdotq_laneq_s32(acc, w[0], a, 0);
        acc = vdotq_laneq_s32(acc, w[1], a, 1);
        acc = vdotq_laneq_s32(acc, w[2], a, 2);
        return vdotq_laneq_s32(acc, w[3], a, 3);
    }
    static INLINE F to_float(I x) { return vsubq_f32(vreinterpretq_f32_s32(x), vdupq_n_f32(12582912.0f)); }

    template <int OFFSET> static INLINE void columns(const uint8_t* p, int centre, F d, F m, float* out, int stride) {
        const int32x4_t x = vreinterpretq_s32_u8(vld1q_u8(p)), c = vdupq_n_s32(centre);
        const auto put = [&](int n, int32x4_t column) {
            vst1q_f32(out + n * stride, vfmaq_f32(m, d, vcvtq_f32_s32(vaddq_s32(column, c))));
        };
        put(0, vshrq_n_s32(vshlq_n_s32(x, 24), 24));
        put(1, vshrq_n_s32(vshlq_n_s32(x, 16), 24));
        put(2, vshrq_n_s32(vshlq_n_s32(x, 8), 24));
        put(3, vshrq_n_s32(x, 24));
    }

    static void dot_peak(const uint8_t* w, const int8_t* a, int64_t iterations) {
        int32x4_t acc[16];
        for (auto& x : acc) x = vdupq_n_s32(0);
        int8x16_t q[4], act = vld1q_s8(a);
        for (int g = 0; g < 4; g++) q[g] = bytes(w + 16 * g);
        for (int64_t n = 0; n < iterations; n++) {
#pragma GCC unroll 4
            for (int g = 0; g < 4; g++)
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++) acc[i] = vdotq_laneq_s32(acc[i], q[g], act, 1);
            asm volatile("" : "+w"(q[0]), "+w"(q[1]), "+w"(q[2]), "+w"(q[3]));
        }
        for (auto& x : acc) asm volatile("" ::"w"(x));
    }
};

#include "layout.h"

#include "panel.h"

}  // namespace

const Isa* isa_neon() {
    static constexpr Isa table = make_isa("neon");
    return &table;
}

}  // namespace assay::kernels

#else
namespace assay::kernels {
const Isa* isa_neon() { return nullptr; }
}  // namespace assay::kernels
#endif
