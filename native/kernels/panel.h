// The kernels, written once over a vector type V. Included once per instruction set, inside an anonymous namespace.
//
// One accumulation, `panel`, serves every case: a packed layout with 1..4 tokens (decode), or a panel expanded to a
// tile of bytes that many groups of 4 tokens share (prompts). Both run the same float operations in the same order, so
// the number of tokens cannot change a bit. Blocking along k keeps the totals in `out` and changes no bit either.
#pragma once
#include "token_groups.h"

// ---- quantised weights, quantised activations --------------------------------------------------------------------

// acc += minimum * (scaled sum of the activations), per block or half block.
template <class F, int T>
INLINE void add_minima(V::F (&acc)[T][PV], const typename F::Head& head, const uint8_t* unit, int j,
                       const V::F (&d)[PV], const Group* a) {
    const auto add = [&](auto h, auto sums) INLINE_LAMBDA {
        typename V::F m[PV];
        F::minima(head, unit, j, h, d, m);
        loop<PV>([&](auto v) INLINE_LAMBDA {
            loop<T>([&](auto t) INLINE_LAMBDA { acc[t][v] = V::fma_lane(acc[t][v], m[v], sums, t); });
        });
    };
    if constexpr (F::sub16) {
        const typename V::Halves halves(*a);
        add(std::integral_constant<int, 0>{}, halves[0]);
        add(std::integral_constant<int, 1>{}, halves[1]);
    } else {
        add(std::integral_constant<int, 0>{}, V::lanes(a->s));
    }
}

// Add half h of a block, 16 columns, to every sum.
template <class F, int H, int T, bool JOINED = false>
INLINE void add_half(V::I (&sum)[T][PV], const uint8_t* unit, int j, const Group* a) {
    if constexpr (F::by_rows) return V::template row_dots<H, H + 1>(sum, unit + F::quants_at, a);
    typename V::A x[T];
    typename V::Q w[PV][4];
    loop<T>([&](auto t) INLINE_LAMBDA { x[t] = V::acts(a->q[t] + 16 * H); });
    loop<PV>([&](auto v) INLINE_LAMBDA { F::template quants<H>(unit, j, v, w[v]); });
    if constexpr (JOINED)
        V::template join_dots<H>(sum, w, x);
    else
        V::template dots<F::bits>(sum, w, x);
}

// The exact sums of block j of a unit, for the R rows of a panel and T tokens of one group; one scale per 32.
template <class F, int T>
INLINE void block_sums(V::I (&sum)[T][PV], const uint8_t* unit, int j, const Group* a) {
    if constexpr (V::template has_sums<F, T>) return V::template sums<F, T>(sum, F::block_quants(unit, j), a);
    constexpr bool joined = V::template joins<F::bits>;
    const auto each = [&](auto f) INLINE_LAMBDA {
        loop<T>([&](auto t) INLINE_LAMBDA {
            loop<PV>(
                [&](auto v) INLINE_LAMBDA { f(sum[t][v], V::template start<F::offset, F::multiple>(a->neg + t)); });
        });
    };
    using I = V::I;
    if constexpr (!joined) each([](I& s, I start) INLINE_LAMBDA { s = start; });
    if constexpr (F::by_rows) return V::template row_dots<0, 2>(sum, unit + F::quants_at, a);
    unroll<2>([&](auto h) INLINE_LAMBDA { add_half<F, h, T, joined>(sum, unit, j, a); });
    if constexpr (joined && F::offset != 0) each([](I& s, I start) INLINE_LAMBDA { s = V::plus(s, start); });
}
// acc += the sums, scaled, and the minima.
template <class F, int T>
INLINE void add_sums(V::F (&acc)[T][PV], const V::I (&sum)[T][PV], const typename F::Head& head, const uint8_t* unit,
                     int j, const Group* a) {
    typename V::F d[PV];
    F::scales(head, unit, j, 0, d);
    const auto da = V::lanes(a->d);
    loop<T>([&](auto t) INLINE_LAMBDA {
        typename V::F f[PV];
        if constexpr (V::template has_sums<F, T> && V::template paired<F::kind>)
            V::template apart<F>(sum[t], a->neg[t], f);
        else
            loop<PV>([&](auto v) INLINE_LAMBDA { f[v] = V::template to_float<F::multiple>(sum[t][v]); });
        loop<PV>([&](auto v)
                     INLINE_LAMBDA { acc[t][v] = V::fma_lane(acc[t][v], V::mul(f[v], d[v]), da, t); });
    });
    if constexpr (F::min) add_minima<F, T>(acc, head, unit, j, d, a);
}

// acc += block j of a unit.
template <class F, int T>
INLINE void add_block(V::F (&acc)[T][PV], const typename F::Head& head, const uint8_t* unit, int j, const Group* a) {
    using I = V::I;
    using Float = V::F;
    if constexpr (V::template has_block<F, T>) {  // the same operations, written for the instruction set
        V::template block<F, T>(acc, head, unit, j, a);
        Float none[PV];
        if constexpr (F::min) add_minima<F, T>(acc, head, unit, j, none, a);
    } else if constexpr (!F::sub16) {
        I sum[T][PV];
        block_sums<F, T>(sum, unit, j, a);
        add_sums<F, T>(acc, sum, head, unit, j, a);
    } else {
        const auto da = V::lanes(a->d);
        Float d[PV], part[T][PV];
        unroll<2>([&](auto h) INLINE_LAMBDA {
            I sum[T][PV];
            loop<T>([&](auto t) INLINE_LAMBDA {
                loop<PV>([&](auto v) INLINE_LAMBDA {
                    sum[t][v] = V::template start_half<F::offset, F::multiple, h>(a->neg0 + t, a->neg + t);
                });
            });
            add_half<F, h>(sum, unit, j, a);
            F::scales(head, unit, j, h, d);
            loop<PV>([&](auto v) INLINE_LAMBDA {
                loop<T>([&](auto t) INLINE_LAMBDA {
                    const Float f = V::template to_float<F::multiple>(sum[t][v]);
                    if constexpr (h == 0)
                        part[t][v] = V::mul(f, d[v]);
                    else
                        acc[t][v] = V::fma_lane(acc[t][v], V::fma(f, d[v], part[t][v]), da, t);
                });
            });
        });
        if constexpr (F::min) add_minima<F, T>(acc, head, unit, j, d, a);
    }
}

// out[t, r] (+)= over `blocks` blocks of 32, for the R rows of a panel and T tokens of one group. Partial sums of 8
// blocks, 256 columns, are added to the total. A total starts at -0, so that adding the first partial sum gives exactly
// that sum.
template <class F, int T>
void panel(const uint8_t* weights, int64_t blocks, const Group* a, bool carry, float* out, int64_t ldo) {
    typename V::F total[T][PV];
    loop<T>([&](auto t) INLINE_LAMBDA {
        loop<PV>([&](auto v) INLINE_LAMBDA { total[t][v] = carry ? V::load(out + t * ldo + v * L) : V::set(-0.0f); });
    });
    const uint8_t* unit = weights;
    for (int64_t b = 0; b < blocks; b += SUM) {
        typename V::F acc[T][PV];
        loop<T>([&](auto t) INLINE_LAMBDA { loop<PV>([&](auto v) INLINE_LAMBDA { acc[t][v] = V::set(0.0f); }); });
        const int units = int(blocks - b < SUM ? blocks - b : SUM) / F::unit_blocks;
        int u = 0;
        if constexpr (V::two_in_flight && T == 1 && !F::sub16 && !V::template has_block<F, T>) {
            // Compute the integer sums of two blocks before the float chain of the first, so that the two chains
            // overlap.
            constexpr int step = F::unit_blocks == 1 ? 2 : 1;
            for (; u + step <= units; u += step, unit += step * F::unit_bytes) {
                const typename F::Head head(unit);
                for (int j = 0; j < F::unit_blocks * step; j += 2, a += 2) {
                    const uint8_t* const next = F::unit_blocks == 1 ? unit + F::unit_bytes : unit;
                    const int k = F::unit_blocks == 1 ? 0 : j + 1;
                    typename V::I one[T][PV], two[T][PV];
                    block_sums<F, T>(one, unit, j, a);
                    block_sums<F, T>(two, next, k, a + 1);
                    add_sums<F, T>(acc, one, head, unit, j, a);
                    add_sums<F, T>(acc, two, head, next, k, a + 1);
                }
            }
        }
        for (; u < units; u++, unit += F::unit_bytes) {
            const typename F::Head head(unit);
            for (int j = 0; j < F::unit_blocks; j++, a++) {
                constexpr int each = F::unit_bytes / F::unit_blocks;
                if constexpr (V::ahead > 0 && !F::is_tile)
                    for (int i = 0; i < each; i += 64) __builtin_prefetch(unit + V::ahead + j * each + i);
                add_block<F, T>(acc, head, unit, j, a);
            }
        }
        loop<T>([&](auto t) INLINE_LAMBDA {
            loop<PV>([&](auto v) INLINE_LAMBDA { total[t][v] = V::add(total[t][v], acc[t][v]); });
        });
    }
    loop<T>([&](auto t) INLINE_LAMBDA {
        loop<PV>([&](auto v) INLINE_LAMBDA { V::store(out + t * ldo + v * L, total[t][v]); });
    });
}

// Parts of the product of one type of weights: `panel` for 1..4 tokens on a packed panel and on one expanded to a
// tile, and the expansion. A table of functions, because the loops around them are the same for all types and would be
// compiled for each of them otherwise.
using PanelProduct = void (*)(const uint8_t* weights, int64_t blocks, const Group* a, bool carry, float* out,
                              int64_t ldo);
struct Kernel {
    PanelProduct packed[TOKENS], tile[TOKENS];
    void (*expand)(const uint8_t* unit, int64_t blocks, uint8_t* tile);
    int unit_blocks, unit_bytes;
    int expand_from;  // tokens from which a panel is expanded first
    PanelProduct rows;  // one token, RowTiles
    int row_bytes;      // of a RowTile
};
template <class F>
constexpr PanelProduct rows_product() {
    if constexpr (V::reads_rows) return panel<F, 1>;
    return nullptr;
}
template <class F, class T = TileOf<F>>
constexpr Kernel kernel_of = {
    {panel<F, 1>, panel<F, 2>, panel<F, 3>, panel<F, 4>},
    {panel<T, 1>, panel<T, 2>, panel<T, 3>, panel<T, 4>},
    expand<F>,
    F::unit_blocks,
    F::unit_bytes,
    V::template expand_from<F>,
    rows_product<RowTile<F::sub16, F::min>>(),
    RowTile<F::sub16, F::min>::unit_bytes,
};

// All tokens on blocks [first, first + blocks) of a panel; acts: [ceil(m / 4), stride] groups.
void panel_tokens(const PanelProduct (&products)[TOKENS], const uint8_t* weights, int64_t first, int64_t blocks,
                  const Group* acts, int64_t stride, int64_t m, float* out, int64_t ldo, const Rows& rows) {
    const bool carry = first > 0;
    for (int64_t t = 0; t < m; t += TOKENS) {
        const int tokens = int(m - t < TOKENS ? m - t : TOKENS);
        const Group* a = acts + t / TOKENS * stride + first;
        at_edge<TOKENS>(rows, tokens, carry, out + t * ldo, ldo, [&](float* to, int64_t ld) INLINE_LAMBDA {
            products[tokens - 1](weights, blocks, a, carry, to, ld);
        });
    }
}

// One token on the rows of a Q8_0 file, whose bytes are the integers already: the operations of `panel`, without a tile.
// The scales of some blocks come first, row by row: this also brings the blocks into the cache.
void panel_of_file(const uint8_t* rows, int64_t stride, int64_t all, const Group* a, float* out) {
    constexpr int bytes = 34, most = 64;  // of a block; blocks whose scales are held
    static_assert(most % SUM == 0);
    alignas(64) uint16_t scales[most][R];
    typename V::F total[PV];
    loop<PV>([&](auto v) INLINE_LAMBDA { total[v] = V::set(-0.0f); });
    for (int64_t b = 0; b < all; b += most) {
        const int64_t blocks = all - b < most ? all - b : most;
        for (int r = 0; r < R; r++)
            for (int64_t i = 0; i < blocks; i++) __builtin_memcpy(&scales[i][r], rows + r * stride + (b + i) * bytes, 2);
        for (int64_t i = 0; i < blocks; i++)
            for (int r = 0; r < R; r++) scales[i][r] = finite_or_nan(scales[i][r]);
        for (int64_t i = 0; i < blocks;) {
            typename V::F acc[PV];
            loop<PV>([&](auto v) INLINE_LAMBDA { acc[v] = V::set(0.0f); });
            for (const int64_t end = blocks - i < SUM ? blocks : i + SUM; i < end; i++, a++) {
                typename V::I sum[1][PV];
                loop<PV>([&](auto v) INLINE_LAMBDA { sum[0][v] = V::template start<0, 1>(a->neg); });
                V::template row_dots<0, 2>(sum, rows + (b + i) * bytes + 2, a, stride);
                const auto da = V::lanes(a->d);
                loop<PV>([&](auto v) INLINE_LAMBDA {
                    const typename V::F d = V::f16(reinterpret_cast<const uint8_t*>(scales[i] + v * L));
                    acc[v] = V::fma_lane(acc[v], V::mul(V::template to_float<1>(sum[0][v]), d), da, 0);
                });
            }
            loop<PV>([&](auto v) INLINE_LAMBDA { total[v] = V::add(total[v], acc[v]); });
        }
    }
    loop<PV>([&](auto v) INLINE_LAMBDA { V::store(out + v * L, total[v]); });
}

void gemm_q8(const Matrix& w, const Group* acts, int64_t m, float* out, int64_t ldo, int64_t begin, int64_t end) {
    const Kernel* kernel = nullptr;
    with_layout(w.type, [&](auto layout) { kernel = &kernel_of<typename Packed<decltype(layout)>::Same>; });
    const int64_t all = w.k / 32;
    if (!w.packed)  // one token
        return each_panel(begin, end, [&](const Rows& rows) {
            uint8_t* const room = scratch.tile;
            at_edge<1>(rows, 1, false, out, ldo, [&](float* to, int64_t ld) {
                if constexpr (V::reads_rows)
                    if (w.type == Type::Q8_0 && rows.first + R <= w.n) {
                        const int64_t stride = int64_t(row_bytes(w.type, w.k));
                        return panel_of_file(w.data + rows.first * stride, stride, all, acts, to);
                    }
                if (packer.row_product(w.type, w.data, w.n, w.k, rows.first, acts, to)) return;
                for (int64_t b = 0; b < all; b += kRowBlocks) {
                    const int64_t blocks = all - b < kRowBlocks ? all - b : kRowBlocks;
                    packer.row_tiles(w.type, w.data, w.n, w.k, rows.first, b, blocks, room);
                    kernel->rows(room, blocks, acts + b, b > 0, to, ld);
                }
            });
        });
    const auto unit = [&](int64_t first, int64_t b) {
        return w.data + (first / R * all + b) / kernel->unit_blocks * kernel->unit_bytes;
    };
    if (m < kernel->expand_from)
        return each_panel(begin, end, [&](const Rows& rows) {
            panel_tokens(kernel->packed, unit(rows.first, 0), 0, all, acts, all, m, out, ldo, rows);
        });
    uint8_t* const room = scratch.tile;  // looked up once: thread-local access is a function call in a shared library
    for (int64_t t = 0; t < m; t += BATCH)  // as many tokens as keep their activations in L2
        for (int64_t b = 0; b < all; b += CHUNK) {
            const int64_t blocks = all - b < CHUNK ? all - b : CHUNK;
            each_panel(begin, end, [&](const Rows& rows) {
                kernel->expand(unit(rows.first, b), blocks, room);
                panel_tokens(kernel->tile, room, b, blocks, acts + t / TOKENS * all, all, m - t < BATCH ? m - t : BATCH,
                             out + t * ldo, ldo, rows);
            });
        }
}
