// IQ types: groups of 8 (or 4) weights are entries of a code book, with signs apart. In super-blocks of 256.
#include "iq_blocks.h"

#include <array>
#include <cstring>

#include "iq_grids.h"

namespace assay::kernels {
namespace {

// Books are constants of the program: made when it is compiled.
template <int N, int Count>
constexpr Book<N, Count> expanded(const uint16_t (&codes)[Count], const std::array<int, 8>& values) {
    Book<N, Count> book{};
    constexpr int bits = 16 / N;
    for (int e = 0; e < Count; e++)
        for (int i = 0; i < N; i++) book.entry[e][i] = int8_t(values[codes[e] >> (bits * i) & ((1 << bits) - 1)]);
    return book;
}

template <int Bits>
constexpr Signs<Bits> masks() {
    Signs<Bits> signs{};
    for (unsigned s = 0; s < 1u << Bits; s++) {
        unsigned odd = 0;
        for (unsigned i = 0; i < 8; i++) {
            const unsigned bit = i < Bits ? s >> i & 1 : odd;
            odd ^= bit;
            if (bit) signs.mask[s] |= uint64_t(0xff) << (8 * i);
        }
    }
    return signs;
}

constexpr std::array<int, 8> eights{8, 25, 43};
constexpr Book<8, 256> made2_xxs = expanded<8>(iq2_xxs_codes, eights);
constexpr Book<8, 512> made2_xs = expanded<8>(iq2_xs_codes, eights);
constexpr Book<8, 1024> made2_s = expanded<8>(iq2_s_codes, eights);
constexpr Book<8, 2048> made1_plus = expanded<8>(iq1_codes, {-7, 1, 9}), made1_minus = expanded<8>(iq1_codes, {-9, -1, 7});
constexpr Book<4, 256> made3_xxs = expanded<4>(iq3_xxs_codes, {4, 12, 20, 28, 36, 44, 52, 62});
constexpr Book<4, 512> made3_s = expanded<4>(iq3_s_codes, {1, 3, 5, 7, 9, 11, 13, 15});
constexpr Signs<7> made_even = masks<7>();
constexpr Signs<8> made_plain = masks<8>();

}  // namespace

const Book<8, 256> book2_xxs = made2_xxs;
const Book<8, 512> book2_xs = made2_xs;
const Book<8, 1024> book2_s = made2_s;
const Book<8, 2048> book1[2] = {made1_plus, made1_minus};
const Book<4, 256> book3_xxs = made3_xxs;
const Book<4, 512> book3_s = made3_s;
const Signs<7> even_signs = made_even;
const Signs<8> plain_signs = made_plain;

namespace {

// Eight weights: magnitudes with the signs applied. Two's complement bytewise: (x ^ s) - s, s in {0, -1}; the
// magnitudes are positive and below 128, so adding 1 to an inverted byte never carries out.
void store(const int8_t* magnitudes, uint64_t s, int8_t* q) {
    uint64_t x;
    std::memcpy(&x, magnitudes, 8);
    x = (x ^ s) + (s & 0x0101010101010101u);
    std::memcpy(q, &x, 8);
}

void store44(const int8_t* a, const int8_t* b, uint64_t sign, int8_t* q) {
    int8_t both[8];
    std::memcpy(both, a, 4);
    std::memcpy(both + 4, b, 4);
    store(both, sign, q);
}

uint32_t u32(const uint8_t* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}
uint16_t u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}
float f16(const uint8_t* p) { return f16_to_f32(finite_or_nan(u16(p))); }

void scale(Block32& o, float d0, float d1) {
    o.d[0] = d0;
    o.d[1] = d1;
    o.m[0] = o.m[1] = 0;
}

}  // namespace

// IQ2_XXS: f16 d; per 32: four 8-bit entries, then 4 x 7 sign bits and a 4-bit scale. w = d (0.5 + sc) / 4 * entry
void iq2_xxs(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 66;
    const uint8_t* qs = p + 2 + b % 8 * 8;
    const uint32_t tail = u32(qs + 4);
    const float d = f16(p) * (0.5f + float(tail >> 28)) * 0.25f;
    scale(o, d, d);
    for (int i = 0; i < 4; i++) store(book2_xxs.entry[qs[i]], even_signs.mask[tail >> (7 * i) & 127], o.q + 8 * i);
}

// IQ2_XS: f16 d; 32 x (9-bit entry, 7 signs); eight bytes of two 4-bit scales, one per 16
void iq2_xs(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 74;
    const int j = int(b % 8);
    const float d = f16(p);
    const uint8_t sc = p[66 + j];
    scale(o, d * (0.5f + float(sc & 15)) * 0.25f, d * (0.5f + float(sc >> 4)) * 0.25f);
    for (int i = 0; i < 4; i++) {
        const unsigned code = u16(p + 2 + 2 * (4 * j + i));
        store(book2_xs.entry[code & 511], even_signs.mask[code >> 9], o.q + 8 * i);
    }
}

// IQ2_S: f16 d; 32 low bytes of entries; 32 bytes of signs; 8 bytes of high entry bits; 8 bytes of scales
void iq2_s(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 82;
    const int j = int(b % 8);
    const float d = f16(p);
    const uint8_t sc = p[74 + j];
    scale(o, d * (0.5f + float(sc & 15)) * 0.25f, d * (0.5f + float(sc >> 4)) * 0.25f);
    for (int i = 0; i < 4; i++) {
        const unsigned code = p[2 + 4 * j + i] | unsigned(p[66 + j] >> (2 * i) & 3) << 8;
        store(book2_s.entry[code], plain_signs.mask[p[34 + 4 * j + i]], o.q + 8 * i);
    }
}

// IQ3_XXS: f16 d; 64 entries of four; per 32: 4 x 7 sign bits and a 4-bit scale. w = d (0.5 + sc) / 2 * entry
void iq3_xxs(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 98;
    const int j = int(b % 8);
    const uint32_t tail = u32(p + 66 + 4 * j);
    const float d = f16(p) * (0.5f + float(tail >> 28)) * 0.5f;
    scale(o, d, d);
    const uint8_t* qs = p + 2 + 8 * j;
    for (int i = 0; i < 4; i++)
        store44(book3_xxs.entry[qs[2 * i]], book3_xxs.entry[qs[2 * i + 1]],
                even_signs.mask[tail >> (7 * i) & 127], o.q + 8 * i);
}

// IQ3_S: f16 d; 64 low bytes of entries; 8 bytes of ninth bits; 32 bytes of signs; 4 bytes of two scales per 32
void iq3_s(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 110;
    const int j = int(b % 8);
    const float d = f16(p) * float(1 + 2 * (p[106 + j / 2] >> (4 * (j % 2)) & 15));
    scale(o, d, d);
    const uint8_t* qs = p + 2 + 8 * j;
    const unsigned high = p[66 + j];
    const auto entry = [&](int i) { return book3_s.entry[qs[i] | (high >> i & 1) << 8]; };
    for (int i = 0; i < 4; i++) store44(entry(2 * i), entry(2 * i + 1), plain_signs.mask[p[74 + 4 * j + i]], o.q + 8 * i);
}

// IQ1_S: f16 d; 32 low bytes of entries; per 32 a u16: 4 x 3 high entry bits, 3-bit scale, sign of the shift.
// w = d (2 sc + 1) (trit +- 1/8), here as d (2 sc + 1) / 8 * (8 trit +- 1)
void iq1_s(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 50;
    const int j = int(b % 8);
    const unsigned high = u16(p + 34 + 2 * j);
    const float d = f16(p) * float(2 * (high >> 12 & 7) + 1) * 0.125f;
    scale(o, d, d);
    const auto& book = book1[high >> 15];
    for (int i = 0; i < 4; i++)
        std::memcpy(o.q + 8 * i, book.entry[p[2 + 4 * j + i] | (high >> (3 * i) & 7) << 8], 8);
}

// IQ1_M: 32 low bytes of entries; 16 bytes of (3 high entry bits, sign of the shift) per 8; four u16 of 3-bit scales
// per 16 in their low 12 bits and a quarter of the f16 d in their high 4
void iq1_m(const uint8_t* row, int64_t b, Block32& o) {
    const uint8_t* p = row + b / 8 * 56;
    const int j = int(b % 8);
    unsigned bits = 0;
    for (int i = 0; i < 4; i++) bits |= unsigned(u16(p + 48 + 2 * i) >> 12) << (4 * i);
    const float d = f16_to_f32(finite_or_nan(uint16_t(bits)));
    const unsigned sc = u16(p + 48 + 2 * (j / 2)) >> (6 * (j % 2));
    scale(o, d * float(2 * (sc & 7) + 1) * 0.125f, d * float(2 * (sc >> 3 & 7) + 1) * 0.125f);
    for (int i = 0; i < 4; i++) {
        const unsigned high = p[32 + 2 * j + i / 2] >> (4 * (i % 2));
        const auto& book = book1[high >> 3 & 1];
        std::memcpy(o.q + 8 * i, book.entry[p[4 * j + i] | (high & 7) << 8], 8);
    }
}

}  // namespace assay::kernels
