// x86: AMX, tiles of 16 rows of 64 bytes, beside AVX-512 VNNI.
//
// A tile product adds, for 16 tokens and 16 rows, the products of up to 64 columns. Scales belong to 32 columns or to
// 16, so that many are multiplied at a time: half or a quarter of the unit's peak. What bounds the loop is what
// surrounds it: two tiles are loaded and one is stored for each product, and 3 vector operations convert, scale and add
// 16 sums. A block of a panel's vector, as it is expanded, is a tile as it lies.
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
    static constexpr int64_t matrix_from = 8, chunk = 16;
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
    static_assert(sizeof(Block) == 4 * 192);  // dispatch.cpp knows the size

    class Session;
    static void dot_loop(int64_t iterations);
    static constexpr double dot_ops = 64.0 * 16 * 16 * 64 * 2;
};
using V = Amx;

#include "expand.h"

// Tiles 0 and 1 take sums, 2 and 3 activations (a row a token), 4 and 5 weights (a row four columns of 16 rows).
class Amx::Session {
public:
    ~Session() { asm volatile("tilerelease"); }

    void configure(int tokens, int columns) {
        if (tokens == tokens_ && columns == columns_) return;
        tokens_ = tokens, columns_ = columns;
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int i = 0; i < 6; i++) {
            shape.row_bytes[i] = uint16_t(i / 2 == 1 ? columns : 64);
            shape.rows[i] = uint8_t(i / 2 == 2 ? columns / 4 : tokens);
        }
        asm volatile("ldtilecfg %0" ::"m"(shape));
    }

    // A tile that was stored cannot be loaded before it has reached the cache, long after its product began: sums are
    // added a few blocks behind.
    template <class Tile, int T>
    void product(const uint8_t* tile, int64_t blocks, const Block* a, bool carry, float (*total)[R]) {
        configure(T, Tile::sub16 ? 16 : 32);
        Sums<Tile, T> sums[RING];
        const int n = int(blocks);
        for (int v = 0; v < PV; v++) {
            const auto multiply = [&](int b) INLINE_LAMBDA {
                const uint8_t* w = tile + b * Tile::unit_bytes + Tile::quants_at + tile_at(L * v, 0);
                if constexpr (Tile::sub16) {
                    tile_product<0>(a[b].q[0], w, sums[b % RING].s[0]);
                    tile_product<1>(a[b].q[0] + 16, w + tile_at(0, 4), sums[b % RING].s[1]);
                } else if (b % 2 == 0) {
                    tile_product<0>(a[b].q[0], w, sums[b % RING].s[0]);
                } else {
                    tile_product<1>(a[b].q[0], w, sums[b % RING].s[0]);
                }
            };
            __m512 acc[T];
            for (int b = 0; b < n && b < BEHIND; b++) multiply(b);
            for (int first = 0; first < n; first += SUM) {
                unroll<T>([&](auto t) INLINE_LAMBDA { acc[t] = _mm512_setzero_ps(); });
                for (int b = first; b < n && b < first + SUM; b++) {
                    if (b + BEHIND < n) multiply(b + BEHIND);
                    add<Tile, T>(acc, sums[b % RING], tile + b * Tile::unit_bytes + 4 * L * v, a[b]);
                }
                unroll<T>([&](auto t) INLINE_LAMBDA {
                    float* to = total[t] + v * L;
                    V::store(to, carry || first > 0 ? V::add(V::load(to), acc[t]) : acc[t]);
                });
            }
        }
    }

private:
    static constexpr int BEHIND = 2, RING = 4;  // blocks
    template <class Tile, int T>
    struct Sums {
        alignas(64) int32_t s[Tile::sub16 ? 2 : 1][T][L];
    };

    template <class Tile, int T>
    static INLINE void add(__m512 (&acc)[T], const Sums<Tile, T>& sums, const uint8_t* scales, const Block& a) {
        constexpr int last = Tile::sub16 ? 1 : 0;
        const auto row = [&](int at) INLINE_LAMBDA { return V::load(reinterpret_cast<const float*>(scales + at)); };
        const __m512 d0 = row(Tile::scale_at(0)), d1 = row(Tile::scale_at(last));
        unroll<T>([&](auto t) INLINE_LAMBDA {
            const auto sum = [&](int h) INLINE_LAMBDA { return to_float<1>(_mm512_load_si512(sums.s[h][t])); };
            __m512 x = mul(sum(0), d0);
            if constexpr (Tile::sub16) x = fma(sum(last), d1, x);
            acc[t] = fma(x, set(a.d[t]), acc[t]);
        });
        if constexpr (Tile::min)
            unroll<last + 1>([&](auto h) INLINE_LAMBDA {
                const __m512 m = row(Tile::min_at(h));
                unroll<T>([&](auto t) INLINE_LAMBDA { acc[t] = fma(m, set(a.s[Tile::sub16 ? 1 + h : 0][t]), acc[t]); });
            });
    }

    // sums[t][r] = over one K: activations, 32 bytes apart, times weights, 64 bytes apart
    template <int SLOT>
    static INLINE void tile_product(const int8_t* a, const uint8_t* w, int32_t (*sums)[L]) {
        if constexpr (SLOT == 0)
            asm volatile(
                "tileloadd (%0,%3,1), %%tmm2\ntileloadd (%1,%4,1), %%tmm4\ntilezero %%tmm0\n"
                "tdpbssd %%tmm4, %%tmm2, %%tmm0\ntilestored %%tmm0, (%2,%4,1)" ::"r"(a),
                "r"(w), "r"(sums), "r"(32l), "r"(64l)
                : "memory");
        else
            asm volatile(
                "tileloadd (%0,%3,1), %%tmm3\ntileloadd (%1,%4,1), %%tmm5\ntilezero %%tmm1\n"
                "tdpbssd %%tmm5, %%tmm3, %%tmm1\ntilestored %%tmm1, (%2,%4,1)" ::"r"(a),
                "r"(w), "r"(sums), "r"(32l), "r"(64l)
                : "memory");
    }

    int tokens_ = 0, columns_ = 0;
};

// Four tiles of sums in turn.
void Amx::dot_loop(int64_t iterations) {
    Session session;
    session.configure(16, 64);
    asm volatile("tilezero %%tmm2\ntilezero %%tmm4" ::);
#define DOT(n) "tdpbssd %%tmm4, %%tmm2, %%tmm" #n "\n"
#define DOTS DOT(0) DOT(1) DOT(3) DOT(5) DOT(0) DOT(1) DOT(3) DOT(5)
    for (int64_t n = 0; n < iterations; n++) asm volatile(DOTS DOTS DOTS DOTS DOTS DOTS DOTS DOTS ::);
#undef DOT
#undef DOTS
}

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
