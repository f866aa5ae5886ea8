// The kernels, written once over a vector type V. Included once per instruction set, inside an anonymous namespace.
//
// One accumulation, `panel`, serves every case: a packed layout with 1..4 tokens (decode), or a panel expanded to a
// tile of bytes that many groups of 4 tokens share (prompts). Both run the same float operations in the same order,
// so the number of tokens cannot change a bit; blocking along k parks the totals in `out` and changes none either.

constexpr int TOKENS = 4;       // tokens a group: their scales lie together
constexpr int64_t BATCH = 256;  // tokens that use an expanded panel before the next one is expanded
constexpr int64_t CHUNK = 64;   // blocks of 32 along k that are expanded at once

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

// Floats: in units of so many columns; in a unit, 4 tokens (or all, if fewer) together, 4 columns of each in turn. What
// a unit of weights meets is one stream. Beside a single token, as if it were a second, may lie the same times 2^112
// (floats.h: Shifted).
constexpr int64_t UNIT = 256;
struct FloatActs {
    int64_t stride, width, tokens;  // columns and tokens with their padding; tokens that lie together
    FloatActs(int64_t m, int64_t k)
        : stride(round_up(k, 16)), width(m == 1 ? 1 + V::shifts_halves : m < TOKENS ? m : TOKENS), tokens(round_up(m, width)) {}
    int64_t columns(int64_t c) const { return stride - c < UNIT ? stride - c : UNIT; }  // of the unit that begins at c
    // Where the unit that begins at c has the tokens of which t is the first.
    int64_t at(int64_t c, int64_t t) const { return c * tokens + t * columns(c); }
};

void prepare_tokens(Acts format, const float* x, int64_t ldx, int64_t m, int64_t k, int64_t begin, int64_t end,
                    void* dst) {
    if (format == Acts::Q8) {
        Group* groups = static_cast<Group*>(dst);
        for (int64_t t = begin; t < end; t++)
            quantise_row(x + t * ldx, k, int(t % TOKENS), groups + t / TOKENS * (k / 32));
    } else {
        const FloatActs acts(m, k);
        for (int64_t t = begin; t < end; t++)
            for (int64_t c = 0; c < acts.stride; c += UNIT) {
                float* to = static_cast<float*>(dst) + acts.at(c, t / acts.width * acts.width) + t % acts.width * 4;
                const float* from = x + t * ldx;
                for (int64_t i = c; i < c + acts.columns(c); i += 4, to += 4 * acts.width)
                    for (int64_t j = 0; j < 4; j++) {
                        to[j] = i + j < k ? from[i + j] : 0;
                        if (V::shifts_halves && m == 1) to[4 + j] = to[j] * 0x1p112f;
                    }
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

// Half h of a block, 16 columns, to every sum.
template <class F, int H, int T>
INLINE void add_half(V::I (&sum)[T][PV], const uint8_t* unit, int j, const Group* a) {
    typename V::A x[T];
    typename V::Q w[PV][4];
    unroll<T>([&](auto t) INLINE_LAMBDA { x[t] = V::acts(a->q[t] + 16 * H); });
    unroll<PV>([&](auto v) INLINE_LAMBDA { F::template quants<H>(unit, j, v, w[v]); });
    V::template dots<F::bits>(sum, w, x);
}

// The exact sums of block j of a unit, for the R rows of a panel and T tokens of one group; one scale per 32.
template <class F, int T>
INLINE void block_sums(V::I (&sum)[T][PV], const uint8_t* unit, int j, const Group* a) {
    if constexpr (V::template has_sums<F, T>) return V::template sums<F, T>(sum, F::block_quants(unit, j), a);
    unroll<T>([&](auto t) INLINE_LAMBDA {
        unroll<PV>([&](auto v) INLINE_LAMBDA { sum[t][v] = V::template start<F::offset, F::multiple>(a->neg + t); });
    });
    unroll<2>([&](auto h) INLINE_LAMBDA { add_half<F, h>(sum, unit, j, a); });
}
// acc += these sums, scaled, and the minima.
template <class F, int T>
INLINE void add_sums(V::F (&acc)[T][PV], const V::I (&sum)[T][PV], const typename F::Head& head, const uint8_t* unit,
                     int j, const Group* a) {
    typename V::F d[PV];
    F::scales(head, unit, j, 0, d);
    const auto da = V::lanes(a->d);
    unroll<T>([&](auto t) INLINE_LAMBDA {
        typename V::F f[PV];
        if constexpr (V::template has_sums<F, T> && V::template paired<F::kind>)
            V::template apart<F>(sum[t], a->neg[t], f);
        else
            unroll<PV>([&](auto v) INLINE_LAMBDA { f[v] = V::template to_float<F::multiple>(sum[t][v]); });
        unroll<PV>([&](auto v)
                       INLINE_LAMBDA { acc[t][v] = V::template fma_lane<t>(acc[t][v], V::mul(f[v], d[v]), da); });
    });
    if constexpr (F::min) add_minima<F, T>(acc, head, unit, j, d, a);
}

// acc += block j of a unit.
template <class F, int T>
INLINE void add_block(V::F (&acc)[T][PV], const typename F::Head& head, const uint8_t* unit, int j, const Group* a) {
    using I = V::I;
    using Float = V::F;
    if constexpr (V::template has_block<F, T>) {  // the same operations in an instruction set's own words
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
            unroll<T>([&](auto t) INLINE_LAMBDA {
                unroll<PV>([&](auto v) INLINE_LAMBDA {
                    sum[t][v] = V::template start_half<F::offset, F::multiple, h>(a->neg0 + t, a->neg + t);
                });
            });
            add_half<F, h>(sum, unit, j, a);
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
        if constexpr (F::min) add_minima<F, T>(acc, head, unit, j, d, a);
    }
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
        int u = 0;
        if constexpr (V::two_in_flight && T == 1 && !F::sub16 && !V::template has_block<F, T>) {
            // The sums of two blocks, then what is done with them: the one's long chain runs beside the other's.
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
        unroll<T>([&](auto t) INLINE_LAMBDA {
            unroll<PV>([&](auto v) INLINE_LAMBDA { total[t][v] = V::add(total[t][v], acc[t][v]); });
        });
    }
    unroll<T>([&](auto t) INLINE_LAMBDA {
        unroll<PV>([&](auto v) INLINE_LAMBDA { V::store(out + t * ldo + v * L, total[t][v]); });
    });
}

// f with 1..4 as a constant.
template <class Function>
INLINE void by_tokens(int tokens, Function f) {
    switch (tokens) {
        case 1: return f(std::integral_constant<int, 1>{});
        case 2: return f(std::integral_constant<int, 2>{});
        case 3: return f(std::integral_constant<int, 3>{});
        default: return f(std::integral_constant<int, 4>{});
    }
}

// All tokens on blocks [first, first + blocks) of a panel; acts: [ceil(m / 4), stride] groups.
template <class F>
void panel_tokens(const uint8_t* weights, int64_t first, int64_t blocks, const Group* acts, int64_t stride, int64_t m,
                  float* out, int64_t ldo, const Rows& rows) {
    const bool carry = first > 0;
    for (int64_t t = 0; t < m; t += TOKENS) {
        const int tokens = int(m - t < TOKENS ? m - t : TOKENS);
        const Group* a = acts + t / TOKENS * stride + first;
        by_tokens(tokens, [&](auto T) {
            at_edge<T>(rows, tokens, carry, out + t * ldo, ldo,
                       [&](float* to, int64_t ld) { panel<F, T>(weights, blocks, a, carry, to, ld); });
        });
    }
}

struct Scratch {
    alignas(64) uint8_t tile[CHUNK * AnyTile::unit_bytes];
    alignas(64) float floats[UNIT * R];
};
thread_local Scratch scratch;

void gemm_q8(const Matrix& w, const Group* acts, int64_t m, float* out, int64_t ldo, int64_t begin, int64_t end) {
    const int64_t all = w.k / 32;
    bool direct = false;
    if (w.packed)
        with_layout(w.type, [&](auto layout) {
            using F = decltype(layout);
            direct = m < V::template expand_from<F>;
            if (!direct) return;
            each_panel(begin, end, [&](const Rows& rows) {
                const uint8_t* panel = w.data + rows.first / R * (all / F::unit_blocks) * F::unit_bytes;
                panel_tokens<F>(panel, 0, all, acts, all, m, out, ldo, rows);
            });
        });
    if (direct) return;
    uint8_t* const room = scratch.tile;     // found once: a thread's own memory is a call away in a shared library
    for (int64_t t = 0; t < m; t += BATCH)  // so many tokens that their activations stay in the second level cache
        expand_panels(w, begin, end, CHUNK, room, [&](auto tile, int64_t b, int64_t blocks, const Rows& rows, Ahead) {
            panel_tokens<decltype(tile)>(room, b, blocks, acts + t / TOKENS * all, all, m - t < BATCH ? m - t : BATCH,
                                         out + t * ldo, ldo, rows);
        });
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
