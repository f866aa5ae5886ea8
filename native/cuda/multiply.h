// The inner loop of the products of one token: 256 columns of P rows, `dp4a` and the float chain of docs/arithmetic.md.
#pragma once
#include "product.h"

namespace assay {

// The partial sums of P items of this thread, one of each tile, which have their columns in common: x is read once.
template <class L, int P>
DEVICE void multiply(const uint8_t* const (&tiles)[P], const int8_t* q, const float2* ds, const uint32_t* n, float (&part)[P]) {
    InRegisters<L::chunks> w[P];
    uint32_t super[P];
#pragma unroll
    for (int k = 0; k < P; k++) {
#pragma unroll
        for (int c = 0; c < L::chunks; c++) w[k].chunk[c] = reinterpret_cast<const uint4*>(tiles[k])[c * 32 + lane()];
        super[k] = L::word ? reinterpret_cast<const uint32_t*>(tiles[k] + L::chunks * 512)[lane()] : 0;
        part[k] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int4 x = reinterpret_cast<const int4*>(q)[2 * i], y = reinterpret_cast<const int4*>(q)[2 * i + 1];
        const int of_x[4] = {x.x, x.y, x.z, x.w}, of_y[4] = {y.x, y.y, y.z, y.w};
        const float2 s = ds[i];
        const uint32_t sums = L::offset != 0 || (L::sub16 && L::min) ? n[i] : 0;
#pragma unroll
        for (int k = 0; k < P; k++) {
            const typename L::Values f = L::factors(w[k], super[k], i);
            if constexpr (L::high_in_place) {
                int a = int(kMagicBits) - L::offset * both_sums(sums), b = 0;
#pragma unroll
                for (int g = 0; g < 4; g++) {
                    a = dp4a(w[k](i, g) & 0x0f0f0f0fu, of_x[g], a);
                    b = dp4a(w[k](i, g) & 0xf0f0f0f0u, of_y[g], b);
                }
                part[k] = fma((as_float(uint32_t(a + (b >> 4))) - kMagic) * f.d[0], s.x, part[k]);
                if constexpr (L::min) part[k] = fma(f.m[0], s.y, part[k]);
                continue;
            }
            uint32_t c[8];
#pragma unroll
            for (int g = 0; g < 4; g++) L::words(w[k], i, g, c[g], c[g + 4]);
            // Two chains of integers; where the halves have one scale they meet, and the second starts at nothing.
            int a = int(kMagicBits) - L::offset * low_sum(sums), b = (L::sub16 ? int(kMagicBits) : 0) - L::offset * high_sum(sums);
#pragma unroll
            for (int g = 0; g < 4; g++) {
                a = dp4a(int(c[g]), of_x[g], a);
                b = dp4a(int(c[g + 4]), of_y[g], b);
            }
            if constexpr (L::sub16) {
                const float low = (as_float(uint32_t(a)) - kMagic) * f.d[0];
                part[k] = fma(fma(as_float(uint32_t(b)) - kMagic, f.d[1], low), s.x, part[k]);
                if constexpr (L::min) {
                    part[k] = fma(f.m[0], s.x * float(low_sum(sums)), part[k]);
                    part[k] = fma(f.m[1], s.x * float(high_sum(sums)), part[k]);
                }
            } else {
                part[k] = fma((as_float(uint32_t(a + b)) - kMagic) * f.d[0], s.x, part[k]);
                if constexpr (L::min) part[k] = fma(f.m[0], s.y, part[k]);
            }
        }
    }
}

template <class L>
DEVICE float multiply_one(const uint8_t* tile, const int8_t* q, const float2* ds, const uint32_t* n) {
    const uint8_t* const tiles[1] = {tile};
    float part[1];
    multiply<L, 1>(tiles, q, ds, n, part);
    return part[0];
}

}  // namespace assay
