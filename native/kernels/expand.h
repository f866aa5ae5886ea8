// Expands panels to tiles of bytes, which many tokens share. Included once per instruction set, after its vector type
// V.

#include "layout.h"

template <int N, class Function>
INLINE void unroll(Function f) {
    [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        (f(std::integral_constant<int, int(I)>{}), ...);
    }
    (std::make_index_sequence<size_t(N)>{});
}

constexpr int64_t SUM = 8;   // blocks of 32 along k that make a partial sum
constexpr int AHEAD = 2048;  // bytes that expansion prefetches: it is a burst between long products

struct Ahead {  // packed weights that are expanded next, to prefetch
    const uint8_t* at = nullptr;
    int64_t bytes = 0;
};

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// A panel's result goes directly to `out` if all its rows are wanted, and through a small buffer at the edges of a
// range.
struct Rows {
    int64_t first, begin, end;  // panel's first row; rows wanted
    bool whole() const { return first >= begin && first + R <= end; }
    int from() const { return int(first < begin ? begin - first : 0); }
    int to() const { return int(first + R > end ? end - first : R); }
};

template <class Function>
void each_panel(int64_t begin, int64_t end, Function f) {
    for (int64_t first = begin / R * R; first < end; first += R) f(Rows{first, begin, end});
}

// `kernel` writes T tokens, of which `tokens` are wanted.
template <int T, class Kernel>
INLINE void at_edge(const Rows& rows, int tokens, bool carry, float* out, int64_t ldo, Kernel kernel) {
    if (rows.whole() && tokens == T) return kernel(out + rows.first, ldo);
    alignas(64) float buffer[T * R] = {};
    for (int t = 0; carry && t < tokens; t++)
        for (int r = rows.from(); r < rows.to(); r++) buffer[t * R + r] = out[t * ldo + rows.first + r];
    kernel(buffer, int64_t(R));
    for (int t = 0; t < tokens; t++)
        for (int r = rows.from(); r < rows.to(); r++) out[t * ldo + rows.first + r] = buffer[t * R + r];
}

// Expand blocks of a packed panel to tile units.
template <class F, bool RAW = false>
void expand(const uint8_t* unit, int64_t blocks, uint8_t* tile) {  // chunks are made of whole units
    using T = TileOf<F>;
    for (int64_t b = 0; b < blocks; b += F::unit_blocks, unit += F::unit_bytes) {
        const typename F::Head head(unit);
        if constexpr (V::order != VECTORS)  // fetched beside the products there
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
                    if constexpr (F::offset != T::offset)
                        for (int g = 0; g < 4; g++) w[g] = V::minus(w[g], F::offset - T::offset);
                    store_tile(tile + T::quants_at, h, v, w);
                });
            });
        }
    }
}

// The same from rows of the file, for any quantised type. Codes of Centre types are centred here, too.
template <bool SUB16, bool MIN>
using RowsTile = Tile<SUB16, MIN, V::template bits<N8>, tile_offset<N8>, V::template multiple<N8>>;
using AnyTile = RowsTile<true, true>;

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
            for (int i = 0; i < 8; i++) __builtin_memcpy(unit + T::quants_at + tile_at(r, i), block.q + 4 * i, 4);
        }
    }
}

// Expand w, packed or not, `chunk` blocks of a panel at a time. Calls product(tile type, first block, blocks, rows,
// next weights to prefetch) for each.
template <class Product>
void expand_panels(const Matrix& w, int64_t begin, int64_t end, int64_t chunk, uint8_t* room, Product product) {
    const int64_t all = w.k / 32;
    const auto each = [&](auto tile, auto fill) {
        for (int64_t b = 0; b < all; b += chunk) {
            const int64_t blocks = all - b < chunk ? all - b : chunk;
            each_panel(begin, end, [&](const Rows& rows) {
                const Ahead next = fill(rows.first, b, blocks);
                product(tile, b, blocks, rows, next);
            });
        }
    };
    with_layout(w.type, [&](auto layout) {
        using F = decltype(layout);
        using T = RowsTile<F::sub16, F::min>;
        if (w.packed)
            each(TileOf<F>{}, [&](int64_t first, int64_t b, int64_t blocks) {
                const uint8_t* from = w.data + (first / R * all + b) / F::unit_blocks * F::unit_bytes;
                const int64_t bytes = blocks / F::unit_blocks * F::unit_bytes;
                expand<F>(from, blocks, room);
                return Ahead{from + bytes, bytes};
            });
        else
            each(T{}, [&](int64_t first, int64_t b, int64_t blocks) {
                expand_rows<T>(w, F::centre, first, b, blocks, room);
                return Ahead{};
            });
    });
}
