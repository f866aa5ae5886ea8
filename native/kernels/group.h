// Quantised activations, as products of panel.h and avx512_books.h read them. Included once per instruction set, inside an
// anonymous namespace.
#pragma once

constexpr int TOKENS = 4;  // tokens of a group: their scales are adjacent

// A block of 32 columns of a group of 4 tokens: three cache lines, read as one stream.
struct Group {
    int8_t q[TOKENS][32];
    float d[TOKENS];       // scale
    float s[TOKENS];       // d * (sum of the block)
    int32_t neg0[TOKENS];  // -(sum of the first half)
    int32_t neg[TOKENS];   // -(sum of the block)
};
static_assert(sizeof(Group) == 192);  // activations: [ceil(m / 4), k / 32] groups; dispatch.cpp relies on the size
