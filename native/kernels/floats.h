// Float kernels: F32, F16 and BF16 weights, and every type in exact mode. Included once per
// instruction set, inside an anonymous namespace.
//
// Weights lie as [k][R]: column i of a panel is R floats. Per output element, in chunks of 256 columns, two chains
// (even and odd columns) are accumulated in float32, then acc += even + odd. Error grows with 128 + k / 256 roundings.
#pragma once
#include "token_groups.h"

constexpr int64_t EXPAND = 8;  // tokens from which expanding a panel of halves once beats widening them for every group

// A vector of a column, as floats.
struct WF32 {
    static constexpr int size = 4;
    static constexpr bool brain = false;
    static constexpr bool shifts = false;
    static INLINE V::F get(const uint8_t* p) { return V::load(reinterpret_cast<const float*>(p)); }
};
struct WF16 {
    static constexpr int size = 2;
    static constexpr bool brain = false;
    static constexpr bool shifts = false;
    static INLINE V::F get(const uint8_t* p) { return V::f16(p); }
};
struct WBF16 {
    static constexpr int size = 2;
    static constexpr bool brain = true;
    static constexpr bool shifts = false;
    static INLINE V::F get(const uint8_t* p) { return V::bf16(p); }
};
// Every second vector is widened as the weight times 2^-112 and multiplied by the activation times 2^112; the product
// and its rounding are the same. For one token only: with more, widening is a smaller part of the work. An activation
// of 2^16 or more overflows and makes the result infinite; then the panel is computed again with WF16.
struct Shifted : WF16 {
    static constexpr bool shifts = V::shifts_halves;
    template <class U = V>
    static INLINE U::F lowered(const uint8_t* p) {
        return U::lowered_f16(p);
    }
};

// out[t, r] (+)= over at most UNIT columns, for the R rows of a panel and T tokens of one group.
template <class W, int T>
void unit_f32(const uint8_t* weights, int64_t columns, const float* x, int64_t width, bool carry, float* out,
                     int64_t ldo) {
    using Float = V::F;
    Float even[T][PV], odd[T][PV];
    loop<T>([&](auto t) INLINE_LAMBDA {
        loop<PV>([&](auto v) INLINE_LAMBDA { even[t][v] = odd[t][v] = V::set(0.0f); });
    });
    if constexpr (V::ahead > 0 && T == 4)  // rows of `out` lie pages apart
        for (int t = 0; t < T; t++)
            for (int r = 0; r < R; r += 16) __builtin_prefetch(out + t * ldo + r, 1);
    for (int64_t i = 0; i < columns; i += 4) {
        const uint8_t* w = weights + i * R * W::size;
        if constexpr (V::ahead > 0 && T == 1)  // with more tokens, the weights come from the cache
            for (int n = 0; n < 4 * R * W::size; n += 64) __builtin_prefetch(w + V::ahead + n);
        if constexpr (V::has_column && T == 4) __builtin_prefetch(x + i * width + 256);  // measured to be faster
        typename V::X a[T], raised[T];
        loop<T>([&](auto t) INLINE_LAMBDA { a[t] = V::lanes(x + i * width + 4 * t); });
        if constexpr (W::shifts) {
            __builtin_prefetch(w + 512);
            raised[0] = V::lanes(x + i * width + 4);
        }
        unroll<4>([&](auto n) INLINE_LAMBDA {
            if constexpr (V::has_column && T == 4) {
                Float column[PV];
                loop<PV>([&](auto v) INLINE_LAMBDA { column[v] = W::get(w + (n * R + v * L) * W::size); });
                return V::template column<n>(n % 2 == 0 ? even : odd, column, a);
            }
            unroll<PV>([&](auto v) INLINE_LAMBDA {
                const uint8_t* const at = w + (n * R + v * L) * W::size;
                constexpr bool shifted = W::shifts && v % 2 == 1;
                Float column;
                if constexpr (shifted)
                    column = W::lowered(at);
                else
                    column = W::get(at);
                loop<T>([&](auto t) INLINE_LAMBDA {
                    const auto& by = shifted ? raised[t] : a[t];
                    if constexpr (n % 2 == 0)
                        even[t][v] = V::fma_lane(even[t][v], column, by, n);
                    else
                        odd[t][v] = V::fma_lane(odd[t][v], column, by, n);
                });
            });
        });
    }
    loop<T>([&](auto t) INLINE_LAMBDA {
        loop<PV>([&](auto v) INLINE_LAMBDA {
            float* at = out + t * ldo + v * L;
            const Float sum = V::add(even[t][v], odd[t][v]);
            V::store(at, carry ? V::add(V::load(at), sum) : sum);
        });
    });
}

// The even (ODD = 0) or the odd columns of a part of a unit of floats, for 8 tokens: two groups, `apart` floats from each
// other. All accumulators are in registers, so that a column is read once for 8 tokens. They come from `sums`, unless the part
// is the `first` of its unit, and go back there. Behind the `last` part, both are added to `totals`. Beside the
// products, `next` is prefetched into the second-level cache: a line for each 4 columns, `stride` bytes apart.
template <int ODD>
void eight_tokens(const float* weights, int64_t columns, const float* x, int64_t apart, float (*sums)[2][R], float (*totals)[R],
                  bool first, bool last, bool carry, const uint8_t* next, int64_t stride) {
    using Float = V::F;
    Float sum[2 * TOKENS][PV];
    const auto each = [&](auto f) INLINE_LAMBDA {
        loop<2 * TOKENS>([&](auto t) INLINE_LAMBDA { loop<PV>([&](auto v) INLINE_LAMBDA { f(t, v, sum[t][v]); }); });
    };
    each([&](auto t, auto v, Float& s) INLINE_LAMBDA { s = first ? V::set(0.0f) : V::load(sums[t][ODD] + v * L); });
    for (int64_t i = 0; i < columns; i += 4, x += 4 * TOKENS, next += stride) {
        __builtin_prefetch(next, 0, 2);
        unroll<2>([&](auto pair) INLINE_LAMBDA {
            constexpr int n = 2 * pair + ODD;
            Float w[PV];
            loop<PV>([&](auto v) INLINE_LAMBDA { w[v] = V::load(weights + (i + n) * R + v * L); });
            loop<2 * TOKENS>([&](auto t) INLINE_LAMBDA {
                const Float a = V::template broadcast<Float>(x + t / TOKENS * apart + 4 * (t % TOKENS) + n);
                loop<PV>([&](auto v) INLINE_LAMBDA { sum[t][v] = V::fma(w[v], a, sum[t][v]); });
            });
        });
    }
    if (ODD == 0 || !last) return each([&](auto t, auto v, Float& s) INLINE_LAMBDA { V::store(sums[t][ODD] + v * L, s); });
    each([&](auto t, auto v, Float& s) INLINE_LAMBDA {
        float* const at = totals[t] + v * L;
        const Float both = V::add(V::load(sums[t][0] + v * L), s);
        V::store(at, carry ? V::add(V::load(at), both) : both);
    });
}

// Rows of the file that are read after a unit: the same columns of all its rows, `bytes` of each.
struct NextRows {
    const uint8_t* at = nullptr;
    int64_t stride = 0, bytes = 0;
};

// A unit of floats for `tokens` tokens, a multiple of 8. Some columns at a time stay in the first-level cache. Each of the
// passes over them prefetches one line of each of the next rows.
void unit_of_eights(const float* weights, int64_t columns, const float* x, int64_t apart, int64_t tokens, bool carry, Scratch& room,
                    NextRows next) {
    static_assert(FLOAT_COLUMNS / 4 >= R);
    const int64_t passes = tokens / 4 * ((columns + FLOAT_COLUMNS - 1) / FLOAT_COLUMNS), step = next.bytes / passes;
    for (int64_t i = 0; i < columns; i += FLOAT_COLUMNS) {
        const bool first = i == 0, last = i + FLOAT_COLUMNS >= columns;
        const int64_t some = last ? columns - i : FLOAT_COLUMNS;
        for (int64_t t = 0; t < tokens; t += 2 * TOKENS) {
            const float* const from = x + t / TOKENS * apart + i * TOKENS;
            eight_tokens<0>(weights + i * R, some, from, apart, room.sums + t, room.totals + t, first, last, carry, next.at, next.stride);
            next.at += step;
            eight_tokens<1>(weights + i * R, some, from, apart, room.sums + t, room.totals + t, first, last, carry, next.at, next.stride);
            next.at += step;
        }
    }
}

// All columns of a panel, for T tokens of one group, of which t is the first.
template <class W, int T>
void panel_f32(const uint8_t* weights, int64_t columns, const float* x, const FloatActs& acts, int64_t t, float* out,
               int64_t ldo) {
    for (int64_t c = 0; c < columns; c += UNIT)
        unit_f32<W, T>(weights + c * R * W::size, columns - c < UNIT ? columns - c : UNIT, x + acts.at(c, t),
                       acts.width, c > 0, out, ldo);
}

// [k][R] floats from a tile of bytes. `centre` (in multiples) is added back, because the minima are raw. T is a tile of
// bytes without an offset: one copy serves all offsets.
template <class T>
void tile_floats(const uint8_t* tile, int64_t blocks, int centre, float* floats) {
    for (int64_t b = 0; b < blocks; b++, tile += T::unit_bytes, floats += 32 * R)
        for (int h = 0; h < 2; h++) {
            const typename T::Head head(tile);
            typename V::F d[PV], m[PV];
            T::scales(head, tile, 0, T::sub16 ? h : 0, d);
            if constexpr (T::min) T::minima(head, tile, 0, T::sub16 ? h : 0, d, m);
            for (int v = 0; v < PV; v++) {
                d[v] = V::mul(d[v], V::set(1.0f / T::multiple));
                if constexpr (!T::min) m[v] = V::set(0.0f);
                for (int g = 0; g < 4; g++)
                    V::columns(tile + T::quants_at + tile_at(L * v, 4 * h + g), centre, d[v], m[v],
                                                   floats + (h * 16 + g * 4) * R + v * L, R);
            }
        }
}

// [columns][R] floats from rows of the file.
void rows_floats(const Matrix& w, int64_t first_row, int64_t first, int64_t columns, float* floats) {
    const TypeInfo& info = *type_info(w.type);
    const size_t stride = size_t(w.k / info.block_size * info.block_bytes);
    for (int64_t i = 0; i < round_up(columns, 4) * R; i++) floats[i] = 0;
    for (int r = 0; r < R && first_row + r < w.n; r++) {
        const uint8_t* row = w.data + size_t(first_row + r) * stride;
        float values[32];
        for (int64_t c = 0; c < columns; c += 32) {
            const int count = int(columns - c < 32 ? columns - c : 32);
            if (info.unpack) {
                Block32 block;
                info.unpack(row, (first + c) / 32, block);
                for (int i = 0; i < 32; i++)
                    values[i] = __builtin_fmaf(block.d[i / 16], float(block.q[i]), block.m[i / 16]);
            } else {
                decode_float(w.type, row, first + c, first + c + count, values);
            }
            for (int i = 0; i < count; i++) floats[(c + i) * R + r] = values[i];
        }
    }
}

// Call f with the loader of a type of floats.
template <class Function>
void with_floats(Type type, Function f) {
    if (type == Type::F32) return f(WF32{});
    if (type == Type::BF16) return f(WBF16{});
    f(WF16{});
}

// Prefetch the next panel's rows while 8 columns of these are read: step i fetches as many bytes as it reads.
template <int SIZE>
INLINE void fetch_rows(const uint8_t* from, int64_t stride, int64_t i) {
    constexpr int lines = R * SIZE / 8;
    for (int n = 0; n < lines; n++) {
        const int64_t line = i / 8 * lines + n;
        __builtin_prefetch(from + (R + line % R) * stride + line / R * 64);
    }
}

// Rows of floats that are read in place, 8 columns at a time.
inline bool squares(const Matrix& w, int64_t first_row) { return V::reads_rows && is_float(w.type) && first_row + R <= w.n; }

// Panel columns [first, first + columns) as floats, from packed or mapped weights. For halves and mapped floats it
// prefetches the same columns of the next panel.
void panel_floats(const Matrix& w, int64_t first_row, int64_t first, int64_t columns, Scratch& room) {
    float* const floats = room.floats;
    if (!w.packed) {
        int64_t done = 0;
        if (squares(w, first_row))
            with_floats(w.type, [&](auto loader) {
                using W = decltype(loader);
                const int64_t stride = w.k * W::size;
                const uint8_t* const from = w.data + first_row * stride + first * W::size;
                if constexpr (V::line_bytes > 0)
                    for (constexpr int line = V::line_bytes / W::size; done + line <= columns; done += line)
                        V::template transpose_lines<W>(from + done * W::size, stride, floats + done * R);
                for (; done + 8 <= columns; done += 8) {
                    fetch_rows<W::size>(from, stride, done);
                    V::template transpose_rows<W>(from + done * W::size, stride, floats + done * R);
                }
            });
        if (done < columns) rows_floats(w, first_row, first + done, columns - done, floats + done * R);
        return;
    }
    const bool quantised = with_layout(w.type, [&](auto layout) {
        using F = typename Packed<decltype(layout)>::Same;
        const uint8_t* panel = w.data + first_row / R * (w.k / (32 * F::unit_blocks)) * F::unit_bytes;
        expand<F, F::min && F::centre != 0>(panel + first / 32 / F::unit_blocks * F::unit_bytes, columns / 32, room.tile);
        using T = TileOf<F>;
        using Bytes = Tile<T::sub16, T::min, 8, 0, T::multiple>;
        tile_floats<Bytes>(room.tile, columns / 32, F::centre * F::multiple - T::offset, floats);
    });
    if (quantised) return;
    const auto copy = [&](auto loader) {
        using W = decltype(loader);
        const int64_t all = float_columns(w.k);
        const uint8_t* at = w.data + (first_row * all + first * R) * W::size;
        for (int64_t i = 0; i < float_columns(columns) * R; i += 2 * L) {
            __builtin_prefetch(at + (all * R + i) * W::size);
            V::store(floats + i, W::get(at + i * W::size));
            if constexpr (W::shifts)
                V::store(floats + i + L, V::mul(W::lowered(at + (i + L) * W::size), V::set(0x1p112f)));
            else
                V::store(floats + i + L, W::get(at + (i + L) * W::size));
        }
    };
    if (w.type == Type::F16) return copy(Shifted{});
    with_floats(w.type, copy);
}

// One token, a panel of the file's rows, a vector of rows at a time from their first column to their last one: the hardware
// prefetcher follows L rows, not the R of a panel, and a line is not evicted between two reads of its halves.
template <class W>
void streams_f32(const Matrix& w, int64_t first_row, const float* x, const FloatActs& acts, float* out) {
    constexpr int line = V::stream_bytes / W::size;
    const int64_t stride = w.k * W::size;
    for (int v = 0; v < PV; v++) {
        const uint8_t* const from = w.data + (first_row + v * L) * stride;
        for (int64_t c = 0; c < w.k; c += UNIT) {
            const int64_t columns = w.k - c < UNIT ? w.k - c : UNIT;
            const float* const a = x + acts.at(c, 0);
            typename V::F acc[2] = {V::set(0.0f), V::set(0.0f)}, sum[1];
            for (int64_t i = 0; i < columns; i += line)
                V::template add_lines<W>(acc, from + (c + i) * W::size, stride, a + i * acts.width, acts.width);
            V::row_sums(acc, sum);
            V::store(out + v * L, c > 0 ? V::add(V::load(out + v * L), sum[0]) : sum[0]);
        }
    }
}

// One token, a panel of the file's rows: squares in place, the rest as floats.
template <class W>
void rows_f32(const Matrix& w, int64_t first_row, const float* x, const FloatActs& acts, Scratch& room, float* out) {
    const int64_t stride = w.k * W::size;
    if constexpr (V::stream_bytes > 0)
        if (squares(w, first_row) && w.k % (V::stream_bytes / W::size) == 0) return streams_f32<W>(w, first_row, x, acts, out);
    for (int64_t c = 0; c < w.k; c += UNIT) {
        const int64_t columns = w.k - c < UNIT ? w.k - c : UNIT;
        if (!squares(w, first_row) || columns % 8) {
            panel_floats(w, first_row, c, columns, room);
            unit_f32<WF32, 1>(reinterpret_cast<const uint8_t*>(room.floats), float_columns(columns), x + acts.at(c, 0),
                              acts.width, c > 0, out, R);
            continue;
        }
        const uint8_t* const from = w.data + first_row * stride + c * W::size;
        typename V::F acc[2 * PV], sum[PV];
        for (auto& a : acc) a = V::set(0.0f);
        for (int64_t i = 0; i < columns; i += 8) {
            fetch_rows<W::size>(from, stride, i);
            V::template add_rows<W>(acc, from + i * W::size, stride, x + acts.at(c, 0) + i * acts.width);
        }
        V::row_sums(acc, sum);
        for (int v = 0; v < PV; v++) V::store(out + v * L, c > 0 ? V::add(V::load(out + v * L), sum[v]) : sum[v]);
    }
}

void gemm_f32(const Matrix& w, const float* x, int64_t m, float* out, int64_t ldo, int64_t begin, int64_t end) {
    Scratch& room = scratch;
    const int64_t all = float_columns(w.k);
    const FloatActs acts(m, w.k);
    const auto each_group = [&](int64_t first, auto f) INLINE_LAMBDA {
        for (int64_t t = first; t < m; t += TOKENS) by_tokens(int(m - t < TOKENS ? m - t : TOKENS), [&](auto T) { f(T, t); });
    };
    const auto direct = [&](auto loader) {
        using W = decltype(loader);
        each_panel(begin, end, [&](const Rows& rows) {
            const uint8_t* const panel = w.data + rows.first * all * W::size;
            each_group(0, [&](auto T, int64_t t) {
                at_edge<T>(rows, T, false, out + t * ldo, ldo,
                           [&](float* to, int64_t ld) { panel_f32<W, T>(panel, all, x, acts, t, to, ld); });
            });
        });
    };
    if (V::reads_rows && !w.packed && m == 1 && is_float(w.type))
        return with_floats(w.type, [&](auto loader) {
            using W = decltype(loader);
            each_panel(begin, end, [&](const Rows& rows) {
                at_edge<1>(rows, 1, false, out, ldo, [&](float* to, int64_t) {
                    rows_f32<W>(w, rows.first, x, acts, room, to);
                });
            });
        });
    if (w.packed && m < EXPAND && w.type == Type::F32) return direct(WF32{});
    if (V::shifts_halves && w.packed && m == 1 && w.type == Type::F16)
        return each_panel(begin, end, [&](const Rows& rows) {
            const uint8_t* const panel = w.data + rows.first * all * WF16::size;
            at_edge<1>(rows, 1, false, out, ldo, [&](float* to, int64_t ld) {
                panel_f32<Shifted, 1>(panel, all, x, acts, 0, to, ld);
                bool finite = true;
                for (int r = 0; r < R; r++) finite &= __builtin_isfinite(to[r]);
                if (!finite) panel_f32<WF16, 1>(panel, all, x, acts, 0, to, ld);
            });
        });
    if (w.packed && m < EXPAND && w.type == Type::F16) return direct(WF16{});
    if (w.packed && m < EXPAND && w.type == Type::BF16) return direct(WBF16{});
    const auto unit = [&](const Rows& rows, int64_t c) {
        if (w.packed && w.type == Type::F32) return reinterpret_cast<const float*>(w.data) + rows.first * all + c * R;
        panel_floats(w, rows.first, c, w.k - c < UNIT ? w.k - c : UNIT, room);
        return static_cast<const float*>(room.floats);
    };
    const auto next_rows = [&](int64_t first_row, int64_t c) -> NextRows {
        if (w.packed || !is_float(w.type)) return {};
        const int64_t size = type_info(w.type)->block_bytes, stride = w.k * size;
        const uint8_t* const row = w.data + (c < all ? first_row : first_row + R) * stride;
        return {row + (c < all ? c : 0) * size, stride, UNIT * size};
    };
    int64_t t = 0;
    // Panel by panel, so that rows of the file are read in their order, and a panel's totals stay in the first-level cache:
    // rows of `out` may share few of its sets.
    if constexpr (V::eight_tokens)
        for (int64_t some; t + 8 <= m; t += some) {
            some = m - t < FLOAT_TOKENS ? (m - t) / 8 * 8 : FLOAT_TOKENS;
            each_panel(begin, end, [&](const Rows& rows) {
                for (int64_t c = 0; c < all; c += UNIT)
                    unit_of_eights(unit(rows, c), all - c < UNIT ? all - c : UNIT, x + acts.at(c, t), TOKENS * acts.columns(c), some,
                                   c > 0, room, next_rows(rows.first, c + UNIT));
                for (int64_t i = 0; i < some; i++)
                    __builtin_memcpy(out + (t + i) * ldo + rows.first + rows.from(), room.totals[i] + rows.from(),
                                     size_t(rows.to() - rows.from()) * sizeof(float));
            });
        }
    if (t == m) return;
    // A unit of a panel stays in L1 while all tokens use it, and the tokens stay in L2 for all panels.
    for (int64_t c = 0; c < all; c += UNIT) {
        const int64_t columns = all - c < UNIT ? all - c : UNIT;
        each_panel(begin, end, [&](const Rows& rows) {
            const float* const weights = unit(rows, c);
            each_group(t, [&](auto T, int64_t at) {
                at_edge<T>(rows, T, c > 0, out + at * ldo, ldo, [&](float* to, int64_t ld) {
                    unit_f32<WF32, T>(reinterpret_cast<const uint8_t*>(weights), columns, x + acts.at(c, at), acts.width, c > 0, to,
                                      ld);
                });
            });
        });
    }
}

// One row as float32.
void decode_any(const Matrix& w, int64_t row, float* out) {
    if (!w.packed) return decode(w.type, w.data + size_t(row) * row_bytes(w.type, w.k), w.k, out);
    Scratch& room = scratch;
    for (int64_t c = 0; c < w.k; c += UNIT) {
        const int64_t columns = w.k - c < UNIT ? w.k - c : UNIT;
        panel_floats(w, row / R * R, c, columns, room);
        for (int64_t i = 0; i < columns; i++) out[c + i] = room.floats[i * R + row % R];
    }
}
