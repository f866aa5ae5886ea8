// The inner loop of products for one token: 256 columns of a row, with the arithmetic of docs/reference/arithmetic.md.
//
// It is a loop over pieces of an item and not fully unrolled: a kernel runs for a few microseconds, and instructions
// that are fetched for the first time miss the instruction cache (docs/lab/gpu-measured.md). Weights and x are in shared memory.
#pragma once
#include "product.h"

namespace assay {

// Four blocks of an item of layout L in registers. The layout's functions see them as blocks 0 to 3.
template <class L>
struct Half {
    static constexpr int per = L::kind == N8 ? 8 : 4;  // chunks of codes
    static constexpr int fifths = L::kind == N5 ? 1 : L::kind == N6 ? 2 : 0;
    static constexpr int floats = L::scales_kind == FLOATS ? 2 : 0;
    uint4 code[per], more[fifths + 1], d[floats + 1], m[floats + 1];
    uint32_t scale[2], least[2];

    // `at`: the item's first chunk; `rest`: base of chunks from the eighth on; `scales`, `minima`: the chunks of scales
    // that are not floats.
    DEVICE Half(const uint4* at, const uint4* rest, int half, const uint4& scales, const uint4& minima) {
#pragma unroll
        for (int c = 0; c < per; c++) code[c] = (L::kind == N8 && half ? rest : at)[(half * per + c) * 32];
#pragma unroll
        for (int c = 0; c < fifths; c++) more[c] = rest[(8 + half * fifths + c) * 32];
#pragma unroll
        for (int c = 0; c < floats; c++) {
            d[c] = rest[(L::codes + half * 2 + c) * 32];
            if (L::min) m[c] = rest[(L::codes + 4 + half * 2 + c) * 32];
        }
        if constexpr (L::scales_kind == SUPER && !L::sub16) {
            scale[0] = half ? scales.y : scales.x, least[0] = half ? scales.w : scales.z;
        } else {
            scale[0] = half ? scales.z : scales.x, scale[1] = half ? scales.w : scales.y;
            least[0] = half ? minima.z : minima.x, least[1] = half ? minima.w : minima.y;
        }
    }
    static DEVICE uint32_t word(const uint4& v, int w) { return w == 0 ? v.x : w == 1 ? v.y : w == 2 ? v.z : v.w; }
    DEVICE uint32_t operator()(int c, int w) const {
        if (c < per) return word(code[c], w);
        if (c < L::codes) return word(more[c - 8], w);
        if constexpr (L::scales_kind == FLOATS) return c < L::codes + 4 ? word(d[c - L::codes], w) : word(m[c - L::codes - 4], w);
        if constexpr (L::scales_kind == SUPER && !L::sub16) return w < 2 ? scale[0] : least[0];
        return c == L::codes ? scale[w] : least[w];
    }
};

// Terms that a block of an item adds to the partial sum, one after the other.
template <class L>
struct Terms {
    static constexpr int count = !L::min ? 1 : L::sub16 ? 3 : 2;
    float a[count], b[count];
    DEVICE float onto(float part) const {
#pragma unroll
        for (int k = 0; k < count; k++) part = fma(a[k], b[k], part);
        return part;
    }
};

// Block i of an item: its columns of x, their scale d, d * sum, and the sums of their halves.
template <class L>
DEVICE Terms<L> block_terms(const Half<L>& w, uint32_t super, int i, const int4& a, const int4& b, float d, float dn, uint32_t sum) {
    constexpr int low_of = -L::offset & 255, high_of = low_of << 8;  // bytes that subtract the offset from the sums
    const int low[4] = {a.x, a.y, a.z, a.w}, high[4] = {b.x, b.y, b.z, b.w};
    const typename L::Values f = L::factors(w, super, i);
    constexpr int start = int(kMagicBits);
    int s = start, t = 0;  // sums of the two halves of the block
    Terms<L> terms;
    if constexpr (L::high_in_place) {
        if constexpr (L::offset != 0) s = dp2a(sum, low_of | high_of, s);
#pragma unroll
        for (int g = 0; g < 4; g++) {
            s = dp4a(w(i, g) & 0x0f0f0f0fu, low[g], s);
            t = dp4a(w(i, g) & 0xf0f0f0f0u, high[g], t);
        }
        terms.a[0] = (as_float(uint32_t(s + (t >> 4))) - kMagic) * f.d[0];
    } else {
        if constexpr (L::sub16) t = start;
        if constexpr (L::offset != 0 && !L::sub16) s = dp2a(sum, low_of | high_of, s);
        else if constexpr (L::offset != 0 && !L::min) s = dp2a(sum, low_of, s), t = dp2a(sum, high_of, t);
#pragma unroll
        for (int g = 0; g < 4; g++) {
            uint32_t c, e;
            L::words(w, i, g, c, e);
            s = dp4a(int(c), low[g], s);
            t = dp4a(int(e), high[g], t);
        }
        if constexpr (L::sub16) terms.a[0] = fma(as_float(uint32_t(t)) - kMagic, f.d[1], (as_float(uint32_t(s)) - kMagic) * f.d[0]);
        else terms.a[0] = (as_float(uint32_t(s + t)) - kMagic) * f.d[0];
    }
    terms.b[0] = d;
    if constexpr (L::min && L::sub16) {
        terms.a[1] = f.m[0], terms.b[1] = d * float(low_sum(sum));
        terms.a[2] = f.m[1], terms.b[2] = d * float(high_sum(sum));
    } else if constexpr (L::min) {
        terms.a[1] = f.m[0], terms.b[1] = dn;
    }
    return terms;
}

// Scales of an item: chunks, and a word.
template <class L>
struct Scaled {
    uint4 scales = {}, minima = {};
    uint32_t super = 0;
    DEVICE Scaled(const uint8_t* tile, int item) {
        const uint4* const at = reinterpret_cast<const uint4*>(tile) + item;
        if constexpr (L::scales_kind != FLOATS) scales = at[L::codes * 32];
        if constexpr (L::scales_kind == HALVES && L::min) minima = at[(L::codes + 1) * 32];
        if constexpr (L::word) super = reinterpret_cast<const uint32_t*>(tile + L::chunks * 512)[item];
    }
};

// x of 128 columns, by blocks.
template <class L>
struct Columns {
    const int4* x;
    const float4* of;
    uint4 sums = {};
    DEVICE Columns(const int8_t* q, const float2* ds, const uint32_t* n, int half) {
        x = reinterpret_cast<const int4*>(q + half * 128);
        of = reinterpret_cast<const float4*>(ds + half * 4);
        if constexpr (L::offset != 0 || (L::sub16 && L::min)) sums = reinterpret_cast<const uint4*>(n)[half];
    }
    DEVICE Terms<L> block(const Half<L>& w, uint32_t super, int i) const {
        const int4 a = x[2 * i], b = x[2 * i + 1];
        const float4 two = of[i / 2];
        return block_terms<L>(w, super, i, a, b, i % 2 ? two.z : two.x, i % 2 ? two.w : two.y, Half<L>::word(sums, i));
    }
};

// Partial sums of the lane's items of one tile, or of two tiles of the same columns, for which x is read once. `rest`:
// base of a tile's chunks from the eighth on, minus the offset of these.
template <class L, int N>
DEVICE void multiply(const uint8_t* const (&tiles)[N], const uint8_t* rest, const int8_t* q, const float2* ds, const uint32_t* n,
                     float (&parts)[N]) {
    const uint8_t* const rests[2] = {N > 1 ? tiles[0] : rest, tiles[N - 1]};
    const Scaled<L> first(rests[0], lane()), last(N > 1 ? tiles[N - 1] : rest, lane());
#pragma unroll
    for (int k = 0; k < N; k++) parts[k] = 0.0f;
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const Columns<L> columns(q, ds, n, half);
        const auto chunks = [](const uint8_t* at) { return reinterpret_cast<const uint4*>(at) + lane(); };
        const Half<L> w(chunks(tiles[0]), chunks(rests[0]), half, first.scales, first.minima);
        const Half<L> w2(chunks(tiles[N - 1]), chunks(rests[1]), half, last.scales, last.minima);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            parts[0] = columns.block(w, first.super, i).onto(parts[0]);
            if constexpr (N > 1) parts[1] = columns.block(w2, last.super, i).onto(parts[1]);
        }
    }
}
template <class L>
DEVICE float multiply(const uint8_t* tile, const uint8_t* rest, const int8_t* q, const float2* ds, const uint32_t* n) {
    float part[1];
    multiply<L, 1>({tile}, rest, q, ds, n, part);
    return part[0];
}

// Partial sums of the lane's item for two rows of x, `units` units apart: codes are unpacked once.
template <class L>
DEVICE void multiply_two(const uint8_t* tile, const uint8_t* rest, const int8_t* q, const float2* ds, const uint32_t* n, int units, float (&parts)[2]) {
    const Scaled<L> of(rest, lane());
    const uint4 *const at = reinterpret_cast<const uint4*>(tile) + lane(), *const more = reinterpret_cast<const uint4*>(rest) + lane();
    parts[0] = parts[1] = 0.0f;
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const Columns<L> first(q, ds, n, half), second(q + units * 256, ds + units * 8, n + units * 8, half);
        const Half<L> w(at, more, half, of.scales, of.minima);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            parts[0] = first.block(w, of.super, i).onto(parts[0]);
            parts[1] = second.block(w, of.super, i).onto(parts[1]);
        }
    }
}

// Partial sum of an item by two lanes, l and l + 16. Lane l computes the first 128 columns; lane l + 16 gets the sum.
template <class L>
DEVICE float multiply_by_two(const uint8_t* tile, int item, const int8_t* q, const float2* ds, const uint32_t* n) {
    const int half = lane() / 16;
    const Scaled<L> of(tile, item);
    const Columns<L> columns(q, ds, n, half);
    const uint4* const at = reinterpret_cast<const uint4*>(tile) + item;
    const Half<L> w(at, at, half, of.scales, of.minima);
    Terms<L> terms[4];
#pragma unroll
    for (int i = 0; i < 4; i++) terms[i] = columns.block(w, of.super, i);
    float part = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) part = terms[i].onto(part);
    part = shuffle(part, lane() % 16);
#pragma unroll
    for (int i = 0; i < 4; i++) part = terms[i].onto(part);
    return part;
}

// Continue the two chains, even and odd columns, over 8 chunks of an item of floats.
template <int FORMAT>
DEVICE void multiply_floats(const uint8_t* piece, const float* x, float& even, float& odd) {
    constexpr int per = FORMAT == F32 ? 4 : 8;
    const uint4* at = reinterpret_cast<const uint4*>(piece) + lane();
#pragma unroll 4
    for (int c = 0; c < 8; c++) {
        const uint4 v = at[c * 32];
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < per; j += 4) {
            const float4 y = *reinterpret_cast<const float4*>(x + c * per + j);
            float w[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint16_t h = uint16_t(words[(j + k) / 2 % 4] >> 16 * (k % 2));
                w[k] = FORMAT == F32 ? as_float(words[k]) : FORMAT == F16 ? half_to_float(h) : brain_to_float(h);
            }
            even = fma(w[0], y.x, even);
            odd = fma(w[1], y.y, odd);
            even = fma(w[2], y.z, even);
            odd = fma(w[3], y.w, odd);
        }
    }
}

// Float tiles are fetched in pieces of 8 chunks.
template <int FORMAT, int CHUNKS>
struct Floats {
    static constexpr int number = FORMAT, tile_bytes = CHUNKS * 512, pieces = CHUNKS / 8;
    static constexpr bool floats = true;
};
template <int FORMAT>
struct Codes : LayoutOf<FORMAT> {
    static constexpr int pieces = 1;
    static constexpr bool floats = false;
};

using F32s = Floats<F32, format_size(F32).chunks>;
using F16s = Floats<F16, format_size(F16).chunks>;
using BF16s = Floats<BF16, format_size(BF16).chunks>;

}  // namespace assay
