// Arm: i8mm, products of 2 x 8 by 8 x 2 bytes, beside NEON.
//
// `smmla` multiplies 8 columns of two tokens by 8 columns of two rows and adds to four sums: twice the products of an
// `sdot`. A panel is expanded to pairs of rows with 8 columns each. 4 tokens meet 8 rows at a time: 32 products for a
// block of 32. Sums start at the bit pattern of a float, as in neon.h.
#include "isa.h"

#if defined(__ARM_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>

#include <utility>

#include "blocks.h"

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace assay::kernels {
namespace {

#include "neon.h"

struct I8mm : Neon {
    static constexpr Order order = PAIRS;
    static constexpr int64_t matrix_from = 8, chunk = 64;
    static const Isa& base() { return *isa_neon(); }
    // Four columns of four rows, and the next four: rows 0 and 1 with 8 columns each, rows 2 and 3.
    static INLINE void store_pairs(uint8_t* low, uint8_t* high, Q first, Q second) {
        const int32x4_t a = vreinterpretq_s32_s8(first), b = vreinterpretq_s32_s8(second);
        vst1q_u8(low, vreinterpretq_u8_s32(vzip1q_s32(a, b)));
        vst1q_u8(high, vreinterpretq_u8_s32(vzip2q_s32(a, b)));
    }

    struct Block {
        static constexpr int tokens = 4;
        int8_t q[4][tokens][8];  // 8 columns of a token, then of its neighbour
        float d[tokens], s[3][tokens];  // scale; scale times the sum of the block, of its halves
        template <class Quantised>
        void set(int t, const int8_t* integers, const Quantised& block) {
            for (int i = 0; i < 4; i++) __builtin_memcpy(q[i][t], integers + 8 * i, 8);
            d[t] = block.d;
            s[0][t] = block.d * float(block.sum[0] + block.sum[1]);
            for (int h = 0; h < 2; h++) s[1 + h][t] = block.d * float(block.sum[h]);
        }
    };
    static_assert(sizeof(Block) == 192);  // dispatch.cpp relies on the size

    struct Session;
    static void dot_loop(int64_t iterations);
    static constexpr double dot_ops = 64.0 * 4 * 8 * 2;
};
using V = I8mm;

#include "expand.h"

struct I8mm::Session {
    // Sums and results of two tokens and two rows: [t, r], [t, r + 1], [t + 1, r], [t + 1, r + 1].
    using Square = F[2][4];

    template <class Tile>
    void product(const uint8_t* tile, int64_t blocks, const Block* acts, int64_t stride, int64_t groups, bool carry,
                 float (*total)[R], Ahead) {
        for (int64_t g = 0; g < groups; g++)
            group<Tile>(tile, blocks, acts + g * stride, carry, total + g * Block::tokens);
    }

private:
    template <class Tile>
    void group(const uint8_t* unit, int64_t blocks, const Block* a, bool carry, float (*total)[R]) {
        static_assert(R == 8);
        for (int64_t b = 0; b < blocks; b += SUM) {
            Square acc;
            unroll<8>([&](auto i) INLINE_LAMBDA { acc[i / 4][i % 4] = set(0.0f); });
            for (int64_t j = b; j < blocks && j < b + SUM; j++, unit += Tile::unit_bytes, a++) add<Tile>(acc, unit, a);
            unroll<8>([&](auto i) INLINE_LAMBDA {  // token i / 2, rows 4 (i % 2) ..
                const auto half = [&](F x) INLINE_LAMBDA { return i / 2 % 2 ? vget_high_f32(x) : vget_low_f32(x); };
                const F x = vcombine_f32(half(acc[i / 4][i % 2 * 2]), half(acc[i / 4][i % 2 * 2 + 1]));
                float* to = total[i / 2] + i % 2 * 4;
                V::store(to, carry || b > 0 ? V::add(V::load(to), x) : x);
            });
        }
    }

    template <class Tile>
    static INLINE void add(Square& acc, const uint8_t* unit, const Block* a) {
        constexpr int M = Tile::multiple;
        const auto pair = [&](int at, int r) INLINE_LAMBDA {  // a pair of rows, twice
            return vreinterpretq_f32_f64(vld1q_dup_f64(reinterpret_cast<const double*>(unit + at + 8 * r)));
        };
        const auto twice = [](const float* p, int t) INLINE_LAMBDA {
            const F x = vld1q_f32(p);
            return t == 0 ? vzip1q_f32(x, x) : vzip2q_f32(x, x);
        };
        const auto sums = [&](I(&s)[2][4], int first, int last) INLINE_LAMBDA {
            unroll<8>([&](auto i) INLINE_LAMBDA { s[i / 4][i % 4] = start<0, M>(nullptr); });
            for (int j = first; j < last; j++) {
                const A x[2] = {vld1q_s8(a->q[j][0]), vld1q_s8(a->q[j][2])};
                unroll<4>([&](auto r) INLINE_LAMBDA {
                    const Q w = bytes(unit + Tile::quants_at + tile_at(2 * r, 2 * j));
                    unroll<2>([&](auto t) INLINE_LAMBDA { s[t][r] = vmmlaq_s32(s[t][r], x[t], w); });
                });
            }
        };
        Square x;
        I s[2][4];
        sums(s, 0, Tile::sub16 ? 2 : 4);
        unroll<4>([&](auto r) INLINE_LAMBDA {
            const F d = pair(Tile::scale_at(0), r), minus = pair(Tile::bias_at, r);
            unroll<2>([&](auto t) INLINE_LAMBDA { x[t][r] = fma(vreinterpretq_f32_s32(s[t][r]), d, minus); });
        });
        if constexpr (Tile::sub16) {
            sums(s, 2, 4);
            unroll<4>([&](auto r) INLINE_LAMBDA {
                const F d = pair(Tile::scale_at(1), r);
                unroll<2>([&](auto t) INLINE_LAMBDA { x[t][r] = fma(to_float<M>(s[t][r]), d, x[t][r]); });
            });
        }
        unroll<2>([&](auto t) INLINE_LAMBDA {
            const F da = twice(a->d, t);
            unroll<4>([&](auto r) INLINE_LAMBDA { acc[t][r] = fma(x[t][r], da, acc[t][r]); });
        });
        if constexpr (Tile::min)
            unroll<(Tile::sub16 ? 2 : 1)>([&](auto h) INLINE_LAMBDA {
                unroll<2>([&](auto t) INLINE_LAMBDA {
                    const F sum = twice(a->s[Tile::sub16 ? 1 + h : 0], t);
                    unroll<4>([&](auto r) INLINE_LAMBDA { acc[t][r] = fma(pair(Tile::min_at(h), r), sum, acc[t][r]); });
                });
            });
    }
};

void I8mm::dot_loop(int64_t iterations) {
#define DOT(n) "smmla v" #n ".4s, v0.16b, v1.16b\n"
#define DOTS \
    DOT(16)  \
    DOT(17)  \
    DOT(18) DOT(19) DOT(20) DOT(21) DOT(22) DOT(23) DOT(24) DOT(25) DOT(26) DOT(27) DOT(28) DOT(29) DOT(30) DOT(31)
    for (int64_t n = 0; n < iterations; n++)
        asm volatile(DOTS DOTS DOTS DOTS ::
                         : "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
                           "v29", "v30", "v31");
#undef DOT
#undef DOTS
}

constexpr const Packer& packer = neon::kPacker;
#include "matrix.h"

}  // namespace

const Isa* isa_i8mm() {
    static const Isa table = matrix_isa("i8mm");
    return &table;
}

}  // namespace assay::kernels

#else
namespace assay::kernels {
const Isa* isa_i8mm() { return nullptr; }
}  // namespace assay::kernels
#endif
