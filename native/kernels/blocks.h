// Block formats: the meaning of the bytes of a ggml row. Portable; all layouts and kernels derive from this definition.
//
// Within 32 consecutive weights every quantised type is w[i] = d[i / 16] * q[i] + m[i / 16]. q is an int8; d and m are
// float32, exactly representable as an f16 times a small integer. One function a type returns this for a block of 32; a
// super-block of 256 has eight blocks.
#pragma once
#include "kernels.h"

namespace assay::kernels {

struct Block32 {
    int8_t q[32];
    float d[2];  // scale of each half
    float m[2];  // minimum of each half (0 for types without)
};

using Unpack = void (*)(const uint8_t* row, int64_t block32, Block32& out);

struct TypeInfo {
    Type type;
    const char* name;
    int block_size;  // weights per block of the file
    int block_bytes;
    Unpack unpack;  // nullptr: F32, F16, BF16
};

const TypeInfo* type_info(Type type);  // nullptr if unknown

float f16_to_f32(uint16_t h);
inline float bf16_to_f32(uint16_t h) { return __builtin_bit_cast(float, uint32_t(h) << 16); }
// A block's f16 scale or minimum. An infinite one counts as NaN, so that the result does not depend on the order of
// operations.
inline uint16_t finite_or_nan(uint16_t h) { return (h & 0x7fff) == 0x7c00 ? 0x7e00 : h; }
float e8m0_half(uint8_t e);  // 2^(e-128): MXFP4's scale for its doubled table; NaN from 2^101 on
// An unsigned e4m3, halved: NVFP4's scale for the same table; 0x7f, their NaN, is 0 as in ggml, and bit 7 is ignored.
float ue4m3_half(uint8_t e);

// Code books of types with up to 16 different integers.
extern const int8_t iq4_values[16];
extern const int8_t mxfp4_values[16];  // doubled, so that they are integers
// In these books some bits of a value are its index: v >> 3, v >> 1 (four of them), v >> 4, v >> 2 (three).
inline constexpr int8_t iq3_xxs_values[16] = {4, 12, 20, 28, 36, 44, 52, 62, -62, -52, -44, -36, -28, -20, -12, -4};
inline constexpr int8_t iq3_s_values[16] = {1, 3, 5, 7, 9, 11, 13, 15, -15, -13, -11, -9, -7, -5, -3, -1};
inline constexpr int8_t iq2_values[16] = {8, 25, 43, 0, 0, -43, -25, -8};
inline constexpr int8_t iq1_values[16] = {1, 7, 9, 0, 0, -9, -7, -1};

void decode(Type type, const uint8_t* row, int64_t k, float* out);  // a row of the file as float32

// A row's F32, F16 or BF16 weights [begin, end) as float32.
void decode_float(Type type, const uint8_t* row, int64_t begin, int64_t end, float* out);

}  // namespace assay::kernels
