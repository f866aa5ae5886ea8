// Decoders of the IQ1, IQ2 and IQ3 types (Unpack functions of blocks.h).
#pragma once
#include "blocks.h"

namespace assay::kernels {

// A code book: entries of N integers, without their signs; IQ1's have them.
template <int N, int Count>
struct Book {
    int8_t entry[Count][N];
};
extern const Book<8, 256> book2_xxs;
extern const Book<8, 512> book2_xs;
extern const Book<8, 1024> book2_s;
extern const Book<8, 2048> book1[2];  // 8 trit + 1, 8 trit - 1
extern const Book<4, 256> book3_xxs;
extern const Book<4, 512> book3_s;

// Masks of 8 bytes, 0xff where the sign bit is set. Seven stored signs imply the eighth: their number is even.
template <int Bits>
struct Signs {
    uint64_t mask[1 << Bits];
};
extern const Signs<7> even_signs;
extern const Signs<8> plain_signs;

void iq2_xxs(const uint8_t* row, int64_t b, Block32& o);
void iq2_xs(const uint8_t* row, int64_t b, Block32& o);
void iq2_s(const uint8_t* row, int64_t b, Block32& o);
void iq3_xxs(const uint8_t* row, int64_t b, Block32& o);
void iq3_s(const uint8_t* row, int64_t b, Block32& o);
void iq1_s(const uint8_t* row, int64_t b, Block32& o);
void iq1_m(const uint8_t* row, int64_t b, Block32& o);

}  // namespace assay::kernels
