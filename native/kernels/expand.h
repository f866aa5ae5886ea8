// Expands panels to tiles of bytes, which many tokens share. Included once per instruction set, after its vector type
// V.

#include "layout.h"

constexpr int64_t SUM = 8;   // blocks of 32 along k that make a partial sum
constexpr int AHEAD = 2048;  // bytes that expansion prefetches: it is a burst between long products

struct Ahead {  // packed weights that are expanded next, to prefetch
    const uint8_t* at = nullptr;
    int64_t bytes = 0;
};

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

// `kernel` writes `tokens` tokens, at most T.
template <int T, class Product>
INLINE void at_edge(const Rows& rows, int tokens, bool carry, float* out, int64_t ldo, Product kernel) {
    if (rows.whole()) return kernel(out + rows.first, ldo);
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

// The largest tile: scratch memory has room for a chunk of it.
using AnyTile = Tile<true, true, 8, 0, 1>;

// Expand a packed w, `chunk` blocks of a panel at a time. Calls product(tile type, first block, blocks, rows, next weights
// to prefetch) for each.
template <class Product>
void expand_panels(const Matrix& w, int64_t begin, int64_t end, int64_t chunk, uint8_t* room, Product product) {
    const int64_t all = w.k / 32;
    with_layout(w.type, [&](auto layout) {
        using F = typename Packed<decltype(layout)>::Same;
        for (int64_t b = 0; b < all; b += chunk) {
            const int64_t blocks = all - b < chunk ? all - b : chunk;
            each_panel(begin, end, [&](const Rows& rows) {
                const uint8_t* from = w.data + (rows.first / R * all + b) / F::unit_blocks * F::unit_bytes;
                const int64_t bytes = blocks / F::unit_blocks * F::unit_bytes;
                expand<F>(from, blocks, room);
                product(TileOf<F>{}, b, blocks, rows, Ahead{from + bytes, bytes});
            });
        }
    });
}

// ---- rows of the file ----------------------------------------------------------------------------------------------

// A thread's memory for one packed panel.
struct PanelRoom {
    uint8_t* memory = nullptr;
    size_t bytes = 0;
    uint8_t* take(size_t wanted) {
        if (bytes < wanted) {
            ::operator delete(std::exchange(memory, nullptr));
            bytes = 0;
            memory = static_cast<uint8_t*>(::operator new(wanted + 64));
            bytes = wanted;
        }
        return memory + (64 - reinterpret_cast<uintptr_t>(memory) % 64);
    }
    ~PanelRoom() { ::operator delete(memory); }
};
thread_local PanelRoom panel_room;

// Whether rows [begin, end) of the file have a packed form: not Q8_K, nor halves that are not finite.
inline bool packs(const Matrix& w, int64_t begin, int64_t end) {
    if (w.type != Type::F16) return packable(w.type);
    return finite_halves(w.data + 2 * begin * w.k, size_t((end < w.n ? end : w.n) - begin) * size_t(w.k));
}

// Call product(w, begin, end) with packed weights: with all of them, or with each panel of rows of the file, which is
// packed first. A panel is small enough to stay in the cache, so this costs the packing alone: the first step after
// loading need not wait until a packed copy of every matrix exists. Rows that have no packed form are handed
// over as they are.
template <class Product>
INLINE void with_packed(const Packer& packer, const Matrix& w, int64_t begin, int64_t end, Product product) {
    if (w.packed) return product(w, begin, end);
    const size_t bytes = packer.packed_bytes(w.type, R, w.k);
    uint8_t* const room = panel_room.take(bytes);
    each_panel(begin, end, [&](const Rows& rows) {
        const int64_t from = rows.first + rows.from(), to = rows.first + rows.to();
        if (!packs(w, rows.first, rows.first + R)) return product(w, from, to);
        Matrix panel = w;
        panel.packed = true;
        panel.data = room - size_t(rows.first / R) * bytes;
        packer.pack(w.type, w.data, w.n, w.k, rows.first, rows.first + R < w.n ? rows.first + R : w.n,
                    const_cast<uint8_t*>(panel.data));
        product(panel, from, to);
    });
}
