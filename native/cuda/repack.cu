// Convert a file's blocks to the layouts of formats.h when a model is loaded: a thread a block of 32 columns.
#include "formats.h"

namespace assay {

DEVICE uint16_t u16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }
// an infinite scale counts as NaN
DEVICE uint16_t finite_half(uint16_t h) { return (h & 0x7fff) == 0x7c00 ? 0x7e00 : h; }
DEVICE float e8m0_half(uint8_t e) { return e > 228 ? not_a_number() : as_float(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23); }

// The eight 6-bit scales and minima of Q4_K and Q5_K, packed into 12 bytes.
DEVICE void k4_scales(const uint8_t* s, int j, int& sc, int& mn) {
    sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    mn = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6) << 4;
}

// Code i of block b of a row; unsigned if the layout has an offset.
template <int FORMAT>
DEVICE int code(const uint8_t* row, int b, int i) {
    const int j = b % 8, nibble = i / 16 * 4;
    if constexpr (FORMAT == Q4_0 || FORMAT == IQ4_NL) return row[b * 18 + 2 + i % 16] >> nibble & 15;
    if constexpr (FORMAT == Q4_1) return row[b * 20 + 4 + i % 16] >> nibble & 15;
    if constexpr (FORMAT == MXFP4) return row[b * 17 + 1 + i % 16] >> nibble & 15;
    if constexpr (FORMAT == Q5_0) return (row[b * 22 + 6 + i % 16] >> nibble & 15) | (row[b * 22 + 2 + i / 8] >> i % 8 & 1) << 4;
    if constexpr (FORMAT == Q5_1) return (row[b * 24 + 8 + i % 16] >> nibble & 15) | (row[b * 24 + 4 + i / 8] >> i % 8 & 1) << 4;
    if constexpr (FORMAT == Q8_0) return row[b * 34 + 2 + i];
    if constexpr (FORMAT == Q4_K) return row[b / 8 * 144 + 16 + j / 2 * 32 + i] >> 4 * (j % 2) & 15;
    if constexpr (FORMAT == Q5_K)
        return (row[b / 8 * 176 + 48 + j / 2 * 32 + i] >> 4 * (j % 2) & 15) | (row[b / 8 * 176 + 16 + i] >> j & 1) << 4;
    if constexpr (FORMAT == Q6_K) {
        const uint8_t* p = row + b / 8 * 210;
        return (p[64 * (j / 4) + 32 * (j % 4 & 1) + i] >> 4 * (j % 4 >> 1) & 15) | (p[128 + 32 * (j / 4) + i] >> 2 * (j % 4) & 3) << 4;
    }
    if constexpr (FORMAT == IQ4_XS) return row[b / 8 * 136 + 8 + 16 * j + i % 16] >> nibble & 15;
    return row[b * 32 + i];
}

template <int FORMAT>
DEVICE void put_block(const RepackArgs& a, const uint8_t* row, int64_t r, int b, uint8_t* tile, int at) {
    using L = LayoutOf<FORMAT>;
    const int i = b % 8;
    const auto chunk = [&](int c) { return tile + c * 512 + at * 16; };
    const auto half = [&](int c, uint16_t h) { reinterpret_cast<uint16_t*>(chunk(c))[i] = h; };
    uint32_t fifth = 0, nibbles = 0;
#pragma unroll 1
    for (int k = 0; k < 16; k++) {
        const int x = code<FORMAT>(row, b, k), y = code<FORMAT>(row, b, 16 + k);
        if constexpr (L::kind == N8) {
            chunk(2 * i)[k] = uint8_t(x);
            chunk(2 * i + 1)[k] = uint8_t(y);
        } else if constexpr (L::book != PLAIN) {
            nibbles = (k % 4 ? nibbles : 0u) | uint32_t(x | y << 16) << 4 * (k % 4);
            reinterpret_cast<uint32_t*>(chunk(i))[k / 4] = nibbles;
        } else {
            chunk(i)[k] = uint8_t((x & 15) | (y & 15) << 4);
            fifth |= uint32_t(x >> 4 & 1) << (8 * (k % 4) + k / 4) | uint32_t(y >> 4 & 1) << (8 * (k % 4) + 4 + k / 4);
            if constexpr (L::kind == N6) {
                uint8_t* high = chunk(8 + i / 2) + i % 2 * 8;
                high[k % 4] |= uint8_t((x >> 4) << 2 * (k / 4));
                high[4 + k % 4] |= uint8_t((y >> 4) << 2 * (k / 4));
            }
        }
    }
    if constexpr (L::kind == N5) reinterpret_cast<uint32_t*>(chunk(8 + i / 4))[i % 4] = fifth;
    const auto super = [&](uint16_t d, uint16_t m) {
        if (i == 0) *reinterpret_cast<uint32_t*>(tile + L::chunks * 512 + at * 4) = finite_half(d) | uint32_t(finite_half(m)) << 16;
    };
    constexpr int s = L::codes;
    if constexpr (FORMAT == Q4_0 || FORMAT == IQ4_NL) half(s, finite_half(u16(row + b * 18)));
    if constexpr (FORMAT == Q5_0) half(s, finite_half(u16(row + b * 22)));
    if constexpr (FORMAT == Q8_0) half(s, finite_half(u16(row + b * 34)));
    if constexpr (FORMAT == MXFP4) half(s, uint16_t(bits(e8m0_half(row[b * 17])) >> 16));
    if constexpr (FORMAT == Q4_1) half(s, finite_half(u16(row + b * 20))), half(s + 1, finite_half(u16(row + b * 20 + 2)));
    if constexpr (FORMAT == Q5_1) half(s, finite_half(u16(row + b * 24))), half(s + 1, finite_half(u16(row + b * 24 + 2)));
    if constexpr (FORMAT == Q4_K || FORMAT == Q5_K) {
        const uint8_t* p = row + b / 8 * (FORMAT == Q4_K ? 144 : 176);
        int sc, mn;
        k4_scales(p + 4, i, sc, mn);
        chunk(s)[i] = uint8_t(sc), chunk(s)[8 + i] = uint8_t(mn);
        super(u16(p), u16(p + 2));
    }
    if constexpr (FORMAT == Q6_K) {
        const uint8_t* p = row + b / 8 * 210;
        chunk(s)[2 * i] = p[192 + 2 * i], chunk(s)[2 * i + 1] = p[192 + 2 * i + 1];
        super(u16(p + 208), 0);
    }
    if constexpr (FORMAT == IQ4_XS) {
        const uint8_t* p = row + b / 8 * 136;
        const int sc = (p[4 + i / 2] >> 4 * (i % 2) & 15) | (u16(p + 2) >> 2 * i & 3) << 4;
        chunk(s)[i] = uint8_t(sc - 32);
        super(u16(p), 0);
    }
    if constexpr (L::scales_kind == FLOATS)
        for (int h = 0; h < 2; h++) {
            const int64_t from = r * (a.to.columns / 16) + 2 * b + h;
            reinterpret_cast<float*>(chunk(s + i / 2))[i % 2 * 2 + h] = a.d[from];
            if constexpr (L::min) reinterpret_cast<float*>(chunk(s + 4 + i / 2))[i % 2 * 2 + h] = a.m[from];
        }
}

KERNEL(repack, RepackArgs, 256) {
    const int format = a.to.format, per = format == F32 || format == F16 || format == BF16 ? 256 : 32;
    const int64_t blocks = (a.to.columns + per - 1) / per, total = a.rows * blocks;
    for (int64_t n = int64_t(block_x()) * threads() + thread(); n < total; n += int64_t(grid_x()) * threads()) {
        const int64_t r = n / blocks, expert = (a.first_row + r) / a.to.rows, whole = a.first_row + r - expert * a.to.rows;
        const int b = int(n % blocks), unit = b * per / 256;
        const uint8_t* row = a.raw + r * a.row_bytes;
        const int at = unit * a.to.group + a.part * a.half + int(whole % a.half);
        uint8_t* tile = const_cast<uint8_t*>(a.to.tile(whole / a.half, at / 32)) + expert * a.expert_bytes;
        switch (format) {
            case F32:
                for (int i = 0; i < 256 && unit * 256 + i < a.to.columns; i++)
                    reinterpret_cast<uint32_t*>(tile + i / 4 * 512 + at % 32 * 16)[i % 4] = reinterpret_cast<const uint32_t*>(row)[unit * 256 + i];
                break;
            case F16:
            case BF16:
                for (int i = 0; i < 256 && unit * 256 + i < a.to.columns; i++)
                    reinterpret_cast<uint16_t*>(tile + i / 8 * 512 + at % 32 * 16)[i % 8] = reinterpret_cast<const uint16_t*>(row)[unit * 256 + i];
                break;
            case Q4_0: put_block<Q4_0>(a, row, r, b, tile, at % 32); break;
            case Q4_1: put_block<Q4_1>(a, row, r, b, tile, at % 32); break;
            case Q5_0: put_block<Q5_0>(a, row, r, b, tile, at % 32); break;
            case Q5_1: put_block<Q5_1>(a, row, r, b, tile, at % 32); break;
            case Q8_0: put_block<Q8_0>(a, row, r, b, tile, at % 32); break;
            case Q4_K: put_block<Q4_K>(a, row, r, b, tile, at % 32); break;
            case Q5_K: put_block<Q5_K>(a, row, r, b, tile, at % 32); break;
            case Q6_K: put_block<Q6_K>(a, row, r, b, tile, at % 32); break;
            case IQ4_NL: put_block<IQ4_NL>(a, row, r, b, tile, at % 32); break;
            case IQ4_XS: put_block<IQ4_XS>(a, row, r, b, tile, at % 32); break;
            case MXFP4: put_block<MXFP4>(a, row, r, b, tile, at % 32); break;
            case WIDE16: put_block<WIDE16>(a, row, r, b, tile, at % 32); break;
            case WIDE16_MIN: put_block<WIDE16_MIN>(a, row, r, b, tile, at % 32); break;
        }
    }
}

}  // namespace assay
