// The kernels, written once over a vector type V. Included once per instruction set, inside an anonymous namespace.
//
// One accumulation, `panel`, serves every case: a packed layout with 1..4 tokens (decode), or a panel expanded to a
// tile of bytes that many groups of 4 tokens share (prompts). Both run the same float operations in the same order,
// so the number of tokens cannot change a bit; blocking along k parks the totals in `out` and changes none either.

template <int N, class Function>
INLINE void unroll(Function f) {
    [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        (f(std::integral_constant<int, int(I)>{}), ...);
    }
    (std::make_index_sequence<size_t(N)>{});
}

constexpr int TOKENS = 4;       // tokens a group: their scales lie together
constexpr int64_t BATCH = 256;  // tokens that use an expanded panel before the next one is expanded
constexpr int64_t SUM = 8;      // blocks of 32 along k that make a partial sum
constexpr int64_t CHUNK = 64;   // blocks of 32 along k that are expanded at once
constexpr int AHEAD = 2048;     // bytes that expansion, a burst between long products, fetches ahead of itself

// ---- activations -------------------------------------------------------------------------------------------------

// A block of 32 columns of a group of 4 tokens: three cache lines, read as one stream.
struct Group {
    int8_t q[TOKENS][32];
    float d[TOKENS];       // scale
    float s[TOKENS];       // d * (sum of the block)
    int32_t neg0[TOKENS];  // -(sum of the first half)
    int32_t neg[TOKENS];   // -(sum of the block)
};
static_assert(sizeof(Group) == 192);  // activations: [ceil(m / 4), k / 32] groups; dispatch.cpp knows the size

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

#include "quantise.h"

void quantise_row(const float* x, int64_t k, int lane, Group* group) {
    for (int64_t b = 0; b < k / 32; b++, x += 32, group++) {
        const Quantised block = quantise(x, group->q[lane]);
        group->d[lane] = block.d;
        group->s[lane] = block.d * float(block.sum[0] + block.sum[1]);
        group->neg0[lane] = -block.sum[0];
        group->neg[lane] = -(block.sum[0] + block.sum[1]);
    }
}

constexpr int64_t float_stride(int64_t k) { return round_up(k, 16); }

void prepare_tokens(Acts format, const float* x, int64_t ldx, int64_t /*m*/, int64_t k, int64_t begin, int64_t end,
                    void* dst) {
    if (format == Acts::Q8) {
        Group* groups = static_cast<Group*>(dst);
        for (int64_t t = begin; t < end; t++)
            quantise_row(x + t * ldx, k, int(t % TOKENS), groups + t / TOKENS * (k / 32));
    } else {
        const int64_t stride = float_stride(k);
        for (int64_t t = begin; t < end; t++) {
            float* row = static_cast<float*>(dst) + t * stride;
            __builtin_memcpy(row, x + t * ldx, size_t(k) * 4);
            for (int64_t i = k; i < stride; i++) row[i] = 0;
        }
    }
}

// ---- quantised weights, quantised activations --------------------------------------------------------------------

// acc += minimum * (scaled sum of the activations), per block or half block.
template <class F, int T>
INLINE void add_minima(V::F (&acc)[T][PV], const typename F::Head& head, const uint8_t* unit, int j,
                       const V::F (&d)[PV], const Group* a) {
    const auto add = [&](auto h, auto sums) INLINE_LAMBDA {
        typename V::F m[PV];
        F::minima(head, unit, j, h, d, m);
        unroll<PV>([&](auto v) INLINE_LAMBDA {
            unroll<T>([&](auto t) INLINE_LAMBDA { acc[t][v] = V::template fma_lane<t>(acc[t][v], m[v], sums); });
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

// acc += block j of a unit, for the R rows of a panel and T tokens of one group.
template <class F, int T>
INLINE void add_block(V::F (&acc)[T][PV], const typename F::Head& head, const uint8_t* unit, int j, const Group* a) {
    using I = V::I;
    using Float = V::F;
    Float d[PV];
    if constexpr (V::template has_block<F, T>) {  // the same operations in an instruction set's own words
        V::template block<F, T>(acc, head, unit, j, a);
        if constexpr (F::min) add_minima<F, T>(acc, head, unit, j, d, a);
        return;
    }
    const auto da = V::lanes(a->d);
    const auto half = [&](auto h, I(&sum)[T][PV]) INLINE_LAMBDA {  // add 16 columns to every sum
        typename V::A x[T];
        typename V::Q w[PV][4];
        unroll<T>([&](auto t) INLINE_LAMBDA { x[t] = V::acts(a->q[t] + 16 * h); });
        unroll<PV>([&](auto v) INLINE_LAMBDA { F::template quants<h>(unit, j, v, w[v]); });
        V::template dots<F::bits>(sum, w, x);
    };
    if constexpr (!F::sub16) {
        I sum[T][PV];
        unroll<T>([&](auto t) INLINE_LAMBDA {
            unroll<PV>([&](auto v)
                           INLINE_LAMBDA { sum[t][v] = V::template start<F::offset, F::multiple>(a->neg + t); });
        });
        half(std::integral_constant<int, 0>{}, sum);
        half(std::integral_constant<int, 1>{}, sum);
        F::scales(head, unit, j, 0, d);
        unroll<PV>([&](auto v) INLINE_LAMBDA {
            unroll<T>([&](auto t) INLINE_LAMBDA {
                const Float f = V::template to_float<F::multiple>(sum[t][v]);
                acc[t][v] = V::template fma_lane<t>(acc[t][v], V::mul(f, d[v]), da);
            });
        });
    } else {
        Float part[T][PV];
        unroll<2>([&](auto h) INLINE_LAMBDA {
            I sum[T][PV];
            unroll<T>([&](auto t) INLINE_LAMBDA {
                unroll<PV>([&](auto v) INLINE_LAMBDA {
                    sum[t][v] = V::template start_half<F::offset, F::multiple, h>(a->neg0 + t, a->neg + t);
                });
            });
            half(h, sum);
            F::scales(head, unit, j, h, d);
            unroll<PV>([&](auto v) INLINE_LAMBDA {
                unroll<T>([&](auto t) INLINE_LAMBDA {
                    const Float f = V::template to_float<F::multiple>(sum[t][v]);
                    if constexpr (h == 0)
                        part[t][v] = V::mul(f, d[v]);
                    else
                        acc[t][v] = V::template fma_lane<t>(acc[t][v], V::fma(f, d[v], part[t][v]), da);
                });
            });
        });
    }
    if constexpr (F::min) add_minima<F, T>(acc, head, unit, j, d, a);
}

// out[t, r] (+)= over `blocks` blocks of 32, for the R rows of a panel and T tokens of one group: partial sums of 8
// blocks, 256 columns, each added to the total. A total begins as -0, to which anything added stays what it is.
template <class F, int T>
void panel(const uint8_t* weights, int64_t blocks, const Group* a, bool carry, float* out, int64_t ldo) {
    typename V::F total[T][PV];
    unroll<T>([&](auto t) INLINE_LAMBDA {
        unroll<PV>([&](auto v) INLINE_LAMBDA { total[t][v] = carry ? V::load(out + t * ldo + v * L) : V::set(-0.0f); });
    });
    const uint8_t* unit = weights;
    for (int64_t b = 0; b < blocks; b += SUM) {
        typename V::F acc[T][PV];
        unroll<T>([&](auto t) INLINE_LAMBDA { unroll<PV>([&](auto v) INLINE_LAMBDA { acc[t][v] = V::set(0.0f); }); });
        const int units = int(blocks - b < SUM ? blocks - b : SUM) / F::unit_blocks;
        for (int u = 0; u < units; u++, unit += F::unit_bytes) {
            const typename F::Head head(unit);
            for (int j = 0; j < F::unit_blocks; j++, a++) add_block<F, T>(acc, head, unit, j, a);
        }
        unroll<T>([&](auto t) INLINE_LAMBDA {
            unroll<PV>([&](auto v) INLINE_LAMBDA { total[t][v] = V::add(total[t][v], acc[t][v]); });
        });
    }
    unroll<T>([&](auto t) INLINE_LAMBDA {
        unroll<PV>([&](auto v) INLINE_LAMBDA { V::store(out + t * ldo + v * L, total[t][v]); });
    });
}

// A panel's result goes straight to out when all its rows are wanted, through a small buffer at the edges of a range.
struct Rows {
    int64_t first, begin, end;  // panel's first row; rows wanted
    bool whole() const { return first >= begin && first + R <= end; }
    int from() const { return int(first < begin ? begin - first : 0); }
    int to() const { return int(first + R > end ? end - first : R); }
};

template <class Kernel>
INLINE void at_edge(const Rows& rows, int tokens, bool carry, float* out, int64_t ldo, Kernel kernel) {
    if (rows.whole()) return kernel(out + rows.first, ldo);
    alignas(64) float buffer[TOKENS * R] = {};
    for (int t = 0; carry && t < tokens; t++)
        for (int r = rows.from(); r < rows.to(); r++) buffer[t * R + r] = out[t * ldo + rows.first + r];
    kernel(buffer, int64_t(R));
    for (int t = 0; t < tokens; t++)
        for (int r = rows.from(); r < rows.to(); r++) out[t * ldo + rows.first + r] = buffer[t * R + r];
}

// All tokens on blocks [first, first + blocks) of a panel; acts: [ceil(m / 4), stride] groups.
template <class F>
void panel_tokens(const uint8_t* weights, int64_t first, int64_t blocks, const Group* acts, int64_t stride, int64_t m,
                  float* out, int64_t ldo, const Rows& rows) {
    const bool carry = first > 0;
    for (int64_t t = 0; t < m; t += TOKENS) {
        const int tokens = int(m - t < TOKENS ? m - t : TOKENS);
        const Group* a = acts + t / TOKENS * stride + first;
        at_edge(rows, tokens, carry, out + t * ldo, ldo, [&](float* to, int64_t ld) {
            switch (tokens) {
                case 1: return panel<F, 1>(weights, blocks, a, carry, to, ld);
                case 2: return panel<F, 2>(weights, blocks, a, carry, to, ld);
                case 3: return panel<F, 3>(weights, blocks, a, carry, to, ld);
                default: return panel<F, 4>(weights, blocks, a, carry, to, ld);
            }
        });
    }
}

// Expand blocks of a packed panel to tile units.
template <class F, bool RAW = false>
void expand(const uint8_t* unit, int64_t blocks, uint8_t* tile) {  // chunks are made of whole units
    using T = TileOf<F>;
    for (int64_t b = 0; b < blocks; b += F::unit_blocks, unit += F::unit_bytes) {
        const typename F::Head head(unit);
        for (int i = 0; i < F::unit_bytes; i += 64) __builtin_prefetch(unit + AHEAD + i);
        for (int j = 0; j < F::unit_blocks; j++, tile += T::unit_bytes) {
            for (int h = 0; h < (F::sub16 ? 2 : 1); h++) {
                typename V::F d[PV], m[PV];
                F::scales(head, unit, j, h, d);
                if constexpr (F::min) F::minima(head, unit, j, h, d, m, RAW);
                for (int v = 0; v < PV; v++) {
                    V::store(reinterpret_cast<float*>(tile + T::scale_at(h)) + L * v, d[v]);
                    if constexpr (F::min) V::store(reinterpret_cast<float*>(tile + T::min_at(h)) + L * v, m[v]);
                    if constexpr (V::tile_bias)
                        if (h == 0)
                            V::store(reinterpret_cast<float*>(tile + T::bias_at) + L * v,
                                     V::mul(d[v], V::set(V::template bias<T::multiple>)));
                }
            }
            unroll<2>([&](auto h) INLINE_LAMBDA {
                unroll<PV>([&](auto v) INLINE_LAMBDA {
                    typename V::Q w[4];
                    F::template quants<h>(unit, j, v, w);
                    uint8_t* to = tile + T::quants_at + (h * PV + v) * 4 * VB;
                    for (int g = 0; g < 4; g++) V::store_bytes(to + g * VB, w[g]);
                });
            });
        }
    }
}

// The same from rows as they lie in the file; any quantised type. The integers of Centre types are centred here too.
using AnyTile = Tile<true, true, V::template bits<N8>, V::template offset<N8>, V::template multiple<N8>>;

template <class T>
void expand_rows(const Matrix& w, int centre, int64_t first_row, int64_t first_block, int64_t blocks, uint8_t* tile) {
    const TypeInfo& info = *type_info(w.type);
    const size_t stride = size_t(w.k / info.block_size * info.block_bytes);
    if (first_row + R > w.n) __builtin_memset(tile, 0, size_t(blocks * T::unit_bytes));
    for (int r = 0; r < R && first_row + r < w.n; r++) {
        const uint8_t* row = w.data + size_t(first_row + r) * stride;
        for (int64_t b = 0; b < blocks; b++) {
            uint8_t* unit = tile + b * T::unit_bytes;
            Block32 block;
            info.unpack(row, first_block + b, block);
            for (int h = 0; h < (T::sub16 ? 2 : 1); h++) {
                put(unit + T::scale_at(h) + 4 * r, block.d[h]);
                if constexpr (V::tile_bias)
                    if (h == 0) put(unit + T::bias_at + 4 * r, block.d[0] * V::template bias<T::multiple>);
                if (T::min) put(unit + T::min_at(h) + 4 * r, __builtin_fmaf(float(centre), block.d[h], block.m[h]));
            }
            if (centre != T::offset)
                for (int i = 0; i < 32; i++) block.q[i] = int8_t(block.q[i] - centre + T::offset);
            uint8_t* quants = unit + T::quants_at + r / L * 4 * VB + r % L * 4;
            for (int i = 0; i < 8; i++) __builtin_memcpy(quants + (i / 4 * PV * 4 + i % 4) * VB, block.q + 4 * i, 4);
        }
    }
}

struct Scratch {
    alignas(64) uint8_t tile[CHUNK * AnyTile::unit_bytes];
    alignas(64) float floats[CHUNK * 32 * R];
};
thread_local Scratch scratch;

template <class Function>
void each_panel(int64_t begin, int64_t end, Function f) {
    for (int64_t first = begin / R * R; first < end; first += R) f(Rows{first, begin, end});
}

void gemm_q8(const Matrix& w, const Group* acts, int64_t m, float* out, int64_t ldo, int64_t begin, int64_t end) {
    const int64_t all = w.k / 32;
    uint8_t* const room = scratch.tile;  // found once: a thread's own memory is a call away in a shared library
    // Expand a panel chunk by chunk along k, for so many tokens that their activations stay in the second level cache.
    const auto expanded = [&](auto tile, auto fill) {
        for (int64_t t = 0; t < m; t += BATCH)
            for (int64_t b = 0; b < all; b += CHUNK) {
                const int64_t blocks = all - b < CHUNK ? all - b : CHUNK, tokens = m - t < BATCH ? m - t : BATCH;
                each_panel(begin, end, [&](const Rows& rows) {
                    fill(rows.first, b, blocks);
                    panel_tokens<decltype(tile)>(room, b, blocks, acts + t / TOKENS * all, all, tokens, out + t * ldo,
                                                 ldo, rows);
                });
            }
    };
    const bool known = with_layout(w.type, [&](auto layout) {
        using F = decltype(layout);
        const auto at = [&](int64_t first, int64_t b) {
            return w.data + (first / R * all + b) / F::unit_blocks * F::unit_bytes;
        };
        if (!w.packed) {
            using T = Tile<F::sub16, F::min, AnyTile::bits, AnyTile::offset, 1>;
            expanded(T{}, [&](int64_t first, int64_t b, int64_t blocks) {
                expand_rows<T>(w, F::centre, first, b, blocks, room);
            });
        } else if (m < V::template expand_from<F>) {
            each_panel(begin, end, [&](const Rows& rows) {
                panel_tokens<F>(at(rows.first, 0), 0, all, acts, all, m, out, ldo, rows);
            });
        } else {
            expanded(TileOf<F>{},
                     [&](int64_t first, int64_t b, int64_t blocks) { expand<F>(at(first, b), blocks, room); });
        }
    });
    if (known) return;
    using T = Tile<true, false, AnyTile::bits, AnyTile::offset, 1>;  // every further type: no minima, scales per 16
    expanded(T{}, [&](int64_t first, int64_t b, int64_t blocks) { expand_rows<T>(w, 0, first, b, blocks, room); });
}

#include "floats.h"

// ---- the table ---------------------------------------------------------------------------------------------------

size_t packed_size(Type type, int64_t n, int64_t k) {
    const int64_t panels = (n + R - 1) / R;
    int64_t bytes = panels * R * float_columns(k) * (type == Type::F32 ? 4 : 2);
    with_layout(type, [&](auto layout) {
        using F = decltype(layout);
        bytes = panels * (k / (32 * F::unit_blocks)) * F::unit_bytes;
    });
    return size_t(bytes);
}

void pack_rows(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t begin, int64_t end, uint8_t* dst) {
    const TypeInfo& info = *type_info(type);
    const size_t stride = size_t(k / info.block_size * info.block_bytes);
    for (int64_t first = begin; first < end; first += R) {
        const bool quantised = with_layout(type, [&](auto layout) {
            using F = decltype(layout);
            pack_panel<F>(src, stride, n, k, first, dst + first / R * (k / (32 * F::unit_blocks)) * F::unit_bytes);
        });
        if (!quantised) pack_floats(info, src, n, k, first, dst);
    }
}

void multiply(const Matrix& w, Acts format, const void* acts, int64_t m, float* out, int64_t ldo, int64_t begin,
              int64_t end) {
    if (format == Acts::Q8)
        gemm_q8(w, static_cast<const Group*>(acts), m, out, ldo, begin, end);
    else
        gemm_f32(w, static_cast<const float*>(acts), m, out, ldo, begin, end);
}

// Read-modify-write 64 dot products on 16 accumulators; the result is stored so that none may be left out.
void dot_loop(int64_t iterations) {
    alignas(64) uint8_t bytes[4 * VB];
    alignas(64) int8_t acts[64];
    for (int i = 0; i < 4 * VB; i++) bytes[i] = uint8_t(i & 7);
    for (int i = 0; i < 64; i++) acts[i] = int8_t(i & 3);
    V::dot_peak(bytes, acts, iterations);
}
constexpr double dot_ops = 64.0 * L * 4 * 2;

constexpr Isa make_isa(const char* name, const RowOps* rows) {
    return {name, R, packed_size, pack_rows, decode_any, prepare_tokens, multiply, dot_loop, dot_ops, rows};
}
