// x86: AMX, tiles of 16 rows of 64 bytes, beside AVX-512 VNNI.
//
// A tile product adds the products of up to 64 columns for 16 tokens and 16 rows. Scales belong to 32 or 16 columns, so
// a product covers only that many: half or a quarter of the unit's peak. The loop is bound by the float chain around
// it: beside tile instructions one port is left for multiplications, two of them for 16 sums
// (docs/explanation/kernels.md has the budget). A block of a vector in an expanded panel has the layout of a tile.
#include "isa.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics: _mm512_undefined_*
#endif
#include <immintrin.h>

#include <utility>

#include "blocks.h"

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace assay::kernels {
namespace {

#include "avx512.h"

struct Amx : Avx512 {
    static constexpr Order order = VECTORS;
    static constexpr int64_t matrix_from = 8, chunk = 8;
    static const Isa& base() { return *isa_avx512vnni(); }
    static INLINE Q minus(Q x, int offset) { return _mm512_sub_epi8(x, _mm512_set1_epi8(char(offset))); }

    struct Block {
        static constexpr int tokens = 16;
        int8_t q[tokens][32];
        float d[tokens], s[3][tokens];  // scale; scale times the sum of the block, of its halves
        template <class Quantised>
        void set(int t, const int8_t* integers, const Quantised& block) {
            __builtin_memcpy(q[t], integers, 32);
            d[t] = block.d;
            s[0][t] = block.d * float(block.sum[0] + block.sum[1]);
            for (int h = 0; h < 2; h++) s[1 + h][t] = block.d * float(block.sum[h]);
        }
    };
    static_assert(sizeof(Block) == 4 * 192);  // dispatch.cpp relies on the size

    class Session;
    static void dot_loop(int64_t iterations);
    static constexpr double dot_ops = 64.0 * 16 * 16 * 64 * 2;
};
using V = Amx;

#include "expand.h"

// Tile products run ahead of the float sums that use them. A tile is stored when its register is needed again, four
// products later, and loaded long after the store has reached the cache. So nothing stalls for the 52 cycles of a
// product.
//
// Adding the bit pattern of 1.5 * 2^23 to an integer sum makes it a float. A conversion would use the only port that
// the unit leaves to multiplications; additions have another.
constexpr float MAGIC = 0x1.8p23f;

class Amx::Session {
public:
    ~Session() { asm volatile("tilerelease"); }

    // Tiles 0 to 3 hold sums, 4 and 5 activations (a row a token), 6 and 7 weights (a row is four columns of 16 rows).
    void configure(int columns) {
        if (columns == columns_) return;
        columns_ = columns;
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int i = 0; i < 8; i++) {
            shape.row_bytes[i] = uint16_t(i / 2 == 2 ? columns : 64);
            shape.rows[i] = uint8_t(i / 2 == 3 ? columns / 4 : 16);
        }
        asm volatile("ldtilecfg %0" ::"m"(shape));
    }

    // Activations of consecutive groups are `stride` blocks apart.
    template <class Tile>
    void product(const uint8_t* tile, int64_t blocks, const Block* a, int64_t stride, int64_t groups, bool carry,
                 float (*total)[R], Ahead next) {
        configure(Tile::sub16 ? 16 : 32);
        constexpr int STEP = QUAD / halves<Tile>;  // blocks
        alignas(64) Sums ring[2][QUAD];
        Products<Tile> ahead{a, tile, blocks, stride, groups};
        for (int i = 0; i < 2; i++, ahead.advance())
            unroll<QUAD>([&](auto p) INLINE_LAMBDA { ahead.template multiply<p>(ring[i ^ 1]); });
        int now = 0;
        const int64_t quads = groups * PV * ((blocks + STEP - 1) / STEP);
        const int64_t lines = (next.bytes / 64 + quads - 1) / quads;  // cache lines to prefetch beside four products
        for (int64_t g = 0; g < groups; g++, a += stride, total += T)
            for (int v = 0; v < PV; v++)
                for (int64_t first = 0; first < blocks; first += SUM) {
                    const int64_t last = blocks - first < SUM ? blocks : first + SUM;
                    __m512 acc[T];
                    unroll<T>([&](auto t) INLINE_LAMBDA { acc[t] = _mm512_setzero_ps(); });
                    for (int64_t b = first; b < last; b += STEP, now ^= 1, ahead.advance()) {
                        for (int64_t i = 0; i < lines; i++, next.at += 64) __builtin_prefetch(next.at, 0, 2);
                        unroll<QUAD>([&](auto p) INLINE_LAMBDA {
                            ahead.template multiply<p>(ring[now ^ 1]);
                            constexpr int j = p / halves<Tile>;
                            if (p % halves<Tile> == halves<Tile> - 1 && b + j < last) {
                                if constexpr (!(Tile::sub16 && Tile::min)) fetch(a + stride + b + j, v);
                                add<Tile>(acc, ring[now] + j * halves<Tile>,
                                          tile + (b + j) * Tile::unit_bytes + 4 * L * v, a[b + j]);
                            }
                        });
                    }
                    unroll<T>([&](auto t) INLINE_LAMBDA {
                        float* to = total[t] + v * L;
                        V::store(to, carry || first > 0 ? V::add(V::load(to), acc[t]) : acc[t]);
                    });
                }
    }

private:
    static constexpr int T = Block::tokens, QUAD = 4;  // products, a register for sums each
    template <class Tile>
    static constexpr int halves = Tile::sub16 ? 2 : 1;
    using Sums = int32_t[T][L];

    // Four products at a time, over blocks, then vectors of rows, then groups of tokens. An incomplete last quad, and
    // the drain after it, only store.
    template <class Tile>
    struct Products {
        const Block* a;
        const uint8_t* tile;
        int64_t blocks, stride, groups, left = blocks;
        int v = 0;
        const Block* x = a;
        const uint8_t* w = tile;

        template <int P>
        INLINE void multiply(Sums* before) const {
            constexpr int j = P / halves<Tile>, h = P % halves<Tile>;
            step<P, 4 + P % 2, 6 + P % 2, j * sizeof(Block) + 16 * h,
                 j * Tile::unit_bytes + Tile::quants_at + tile_at(0, 4 * h)>(x, w, j < left, before);
        }
        INLINE void advance() {
            constexpr int blocks_a_quad = QUAD / halves<Tile>;
            x += blocks_a_quad, w += blocks_a_quad * Tile::unit_bytes, left -= blocks_a_quad;
            if (left <= 0) next_vector();
        }
        void next_vector() {
            if (++v == PV) v = 0, a += stride, groups--;
            x = a, w = tile + tile_at(L * v, 0), left = groups > 0 ? blocks : 0;
        }
    };

    // Prefetch the next group's activations from L2: part of a block beside each vector of rows.
    static INLINE void fetch(const Block* block, int v) {
        constexpr int part = 64 * (sizeof(Block) / 64 - 2) / PV;  // all but sums of halves
        const char* at = reinterpret_cast<const char*>(block) + part * v;
        for (int i = 0; i < part; i += 64) __builtin_prefetch(at + i);
    }

    // before[C] = what tile C holds; C = activations at `a + AT_A`, 32 bytes apart, times weights, 64 bytes apart
    template <int C, int A, int B, int AT_A, int AT_W>
    static INLINE void step(const Block* a, const uint8_t* w, bool more, Sums* before) {
        if (more)
            asm volatile(
                "tileloadd %c8(%0,%3,1), %%tmm%c6\ntileloadd %c9(%1,%4,1), %%tmm%c7\n"
                "tilestored %%tmm%c5, %c10(%2,%4,1)\n"
                "tilezero %%tmm%c5\ntdpbssd %%tmm%c7, %%tmm%c6, %%tmm%c5" ::"r"(a),
                "r"(w), "r"(before), "r"(32l), "r"(64l), "i"(C), "i"(A), "i"(B), "i"(AT_A), "i"(AT_W),
                "i"(C * sizeof(Sums))
                : "memory");
        else
            asm volatile("tilestored %%tmm%c2, %c3(%0,%1,1)" ::"r"(before), "r"(64l), "i"(C), "i"(C * sizeof(Sums))
                         : "memory");
    }

    // The sum plus MAGIC, by an integer addition, which has its own port.
    static INLINE __m512 as_float(const int32_t* sums) {
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_load_si512(sums), _mm512_castps_si512(set(MAGIC))));
    }

    template <class Tile>
    static INLINE void add(__m512 (&acc)[T], const Sums* sums, const uint8_t* scales, const Block& a) {
        constexpr int last = Tile::sub16 ? 1 : 0;
        const auto row = [&](int at) INLINE_LAMBDA { return V::load(reinterpret_cast<const float*>(scales + at)); };
        const __m512 d0 = row(Tile::scale_at(0)), d1 = row(Tile::scale_at(last));
        const __m512 none = mul(d0, set(-MAGIC));  // exact: scales have 20 bits at most
        unroll<T>([&](auto t) INLINE_LAMBDA {
            __m512 x = fma(as_float(sums[0][t]), d0, none);
            if constexpr (Tile::sub16) x = fma(_mm512_sub_ps(as_float(sums[1][t]), set(MAGIC)), d1, x);
            acc[t] = fma(x, set(a.d[t]), acc[t]);
        });
        if constexpr (Tile::min)
            unroll<last + 1>([&](auto h) INLINE_LAMBDA {
                const __m512 m = row(Tile::min_at(h));
                unroll<T>([&](auto t) INLINE_LAMBDA { acc[t] = fma(m, set(a.s[Tile::sub16 ? 1 + h : 0][t]), acc[t]); });
            });
    }

    int columns_ = 0;
};

// Four tiles of sums in turn.
void Amx::dot_loop(int64_t iterations) {
    Session session;
    session.configure(64);
    asm volatile("tilezero %%tmm4\ntilezero %%tmm6" ::);
#define DOT(n) "tdpbssd %%tmm6, %%tmm4, %%tmm" #n "\n"
#define DOTS DOT(0) DOT(1) DOT(2) DOT(3) DOT(0) DOT(1) DOT(2) DOT(3)
    for (int64_t n = 0; n < iterations; n++) asm volatile(DOTS DOTS DOTS DOTS DOTS DOTS DOTS DOTS ::);
#undef DOT
#undef DOTS
}

constexpr const Packer& packer = avx512vnni::kPacker;
#include "matrix.h"

}  // namespace

const Isa* isa_amx() {
    static const Isa table = matrix_isa("amx");
    return &table;
}

}  // namespace assay::kernels

#else
namespace assay::kernels {
const Isa* isa_amx() { return nullptr; }
}  // namespace assay::kernels
#endif
