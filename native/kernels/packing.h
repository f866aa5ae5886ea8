// Packing: rows of the file into the interleaved layouts of layout.h. Included after expand.h, inside the same
// namespace.

uint32_t get32(const uint8_t* p) {
    uint32_t v;
    __builtin_memcpy(&v, p, 4);
    return v;
}

// The unsigned codes of block j of a file block at p, four to a word in order; blocks.cpp decodes the same one by one.
// Code books: the index. Q8_0: the int8.
template <Type TYPE>
void file_codes(const uint8_t* p, int j, uint32_t c[8]) {
    constexpr uint32_t bytes = 0x01010101u;
    for (int i = 0; i < 8; i++) {
        const int low = i % 4, shift = i / 4 * 4;  // types of 32: weights 0..15 in low nibbles, 16..31 in high
        if constexpr (TYPE == Type::Q4_0 || TYPE == Type::IQ4_NL) c[i] = get32(p + 2 + 4 * low) >> shift & 15 * bytes;
        if constexpr (TYPE == Type::MXFP4) c[i] = get32(p + 1 + 4 * low) >> shift & 15 * bytes;
        if constexpr (TYPE == Type::Q4_1) c[i] = get32(p + 4 + 4 * low) >> shift & 15 * bytes;
        if constexpr (TYPE == Type::IQ4_XS) c[i] = get32(p + 8 + 16 * j + 4 * low) >> shift & 15 * bytes;
        if constexpr (TYPE == Type::Q8_0) c[i] = get32(p + 2 + 4 * i);
        if constexpr (TYPE == Type::Q8_1) c[i] = get32(p + 4 + 4 * i);
        if constexpr (TYPE == Type::Q5_0 || TYPE == Type::Q5_1) {
            const uint8_t* at = p + (TYPE == Type::Q5_0 ? 2 : 4);
            const uint32_t four = get32(at) >> (4 * i) & 15;  // fifth bits, spread to one a byte by a multiplication
            c[i] = (get32(at + 4 + 4 * low) >> shift & 15 * bytes) | (four * 0x00204081u & bytes) << 4;
        }
        if constexpr (TYPE == Type::Q4_K) c[i] = get32(p + 16 + j / 2 * 32 + 4 * i) >> (4 * (j % 2)) & 15 * bytes;
        if constexpr (TYPE == Type::Q5_K)
            c[i] = (get32(p + 48 + j / 2 * 32 + 4 * i) >> (4 * (j % 2)) & 15 * bytes) |
                   (get32(p + 16 + 4 * i) >> j & bytes) << 4;
        if constexpr (TYPE == Type::Q6_K)
            c[i] = (get32(p + 64 * (j / 4) + 32 * (j & 1) + 4 * i) >> (4 * (j % 4 / 2)) & 15 * bytes) |
                   (get32(p + 128 + 32 * (j / 4) + 4 * i) >> (2 * (j % 4)) & 3 * bytes) << 4;
        if constexpr (TYPE == Type::Q2_K) c[i] = get32(p + 16 + 32 * (j / 4) + 4 * i) >> (2 * (j % 4)) & 3 * bytes;
        if constexpr (TYPE == Type::Q3_K)
            c[i] = (get32(p + 32 + 32 * (j / 4) + 4 * i) >> (2 * (j % 4)) & 3 * bytes) | (get32(p + 4 * i) >> j & bytes)
                                                                                             << 2;
    }
}

// The codes of a decoded block: indices of the kind's book, or the trit plus one.
template <Kind KIND>
void book_codes(const int8_t* q, uint32_t c[8]) {
    constexpr int shift = KIND == N4X ? 3 : KIND == N4O ? 1 : KIND == N3P ? 4 : 2, mask = (1 << kind_bits(KIND)) - 1;
    if constexpr (KIND != N2T)
        static_assert([] {
            for (int n = 0; n <= mask; n++)
                if (kind_book(KIND)[n] && (kind_book(KIND)[n] >> shift & mask) != n) return false;
            return true;
        }());
    uint8_t codes[32];
    for (int i = 0; i < 32; i++) codes[i] = uint8_t(KIND == N2T ? q[i] + 1 : q[i] >> shift & mask);
    __builtin_memcpy(c, codes, 32);
}

// Pack the codes of a block into its quants; group g of row r is c[g][r].
template <Kind KIND>
void put_codes(const uint32_t (&c)[8][R], uint8_t* block) {
    constexpr uint32_t bytes = 0x01010101u;
    const auto put = [](uint8_t* vector, auto word) {  // word(l): of row l of the vector
        uint32_t words[L];
        for (int l = 0; l < L; l++) words[l] = word(l);
        __builtin_memcpy(vector, words, VB);
    };
    if constexpr (V::template paired<KIND> && KIND == N2T) {
        const auto pair = [&](int g, int l) { return c[g][l] | c[g][L + l] << 2; };
        for (int g = 0; g < 4; g++) put(block + g * VB, [&](int l) { return pair(g, l) | pair(g + 4, l) << 4; });
        return;
    } else if constexpr (V::template paired<KIND>) {
        for (int g = 0; g < 8; g++)
            put(block + g * VB, [&](int l) { return c[g][l] | (c[g][L + l] ^ 8 * bytes) << 4; });
        return;
    }
    for (int v = 0; v < PV; v++) {
        uint8_t* head = block + v * kind_head_bytes(KIND);
        const auto at = [&](int g, int l) { return c[g][v * L + l]; };
        if constexpr (KIND == N5) {
            put(head, [&](int l) { return at(0, l) << 3 | (at(5, l) >> 2 & 7 * bytes); });
            put(head + VB, [&](int l) { return at(1, l) << 3 | (at(5, l) & 3 * bytes) | (at(7, l) >> 1 & bytes) << 2; });
            put(head + 2 * VB, [&](int l) { return at(2, l) << 3 | (at(6, l) >> 2 & 7 * bytes); });
            put(head + 3 * VB, [&](int l) { return at(3, l) << 3 | (at(6, l) & 3 * bytes) | (at(7, l) & bytes) << 2; });
            put(head + 4 * VB, [&](int l) { return at(4, l) << 3 | (at(7, l) >> 2 & 7 * bytes); });
            continue;
        }
        if constexpr (kind_bits(KIND) == 3)
            put(head, [&](int l) {
                uint32_t third = 0;
                for (int g = 0; g < 8; g++) third |= (at(g, l) >> 2 & bytes) << g;
                return third;
            });
        for (int h = 0; h < 2; h++) {
            uint8_t* half = block + PV * kind_head_bytes(KIND) + (h * PV + v) * kind_half_bytes(KIND);
            const auto q = [&](int g, int l) { return at(4 * h + g, l); };
            if constexpr (kind_bits(KIND) == 8) {
                for (int g = 0; g < 4; g++) put(half + g * VB, [&](int l) { return q(g, l); });
            } else if constexpr (KIND == N6) {
                for (int g = 0; g < 3; g++)
                    put(half + g * VB, [&](int l) { return q(g, l) << 2 | (q(3, l) >> (4 - 2 * g) & 3 * bytes); });
            } else if constexpr (kind_bits(KIND) <= 3) {
                put(half, [&](int l) {
                    uint32_t low = 0;
                    for (int g = 0; g < 4; g++) low |= (q(g, l) & 3 * bytes) << (2 * g);
                    return low;
                });
            } else {
                for (int g = 0; g < 2; g++) put(half + g * VB, [&](int l) { return q(g, l) | q(g + 2, l) << 4; });
            }
        }
    }
}

uint16_t get16(const uint8_t* p) {
    uint16_t v;
    __builtin_memcpy(&v, p, 2);
    return v;
}

// The integer sub-scales (and minima) of a super-block, as the file has them.
struct SubScales {
    uint16_t d, dmin;
    int8_t sc[16];
    uint8_t mn[16];
};
template <Type TYPE>
void sub_scales(const uint8_t* p, SubScales& s) {
    s.d = s.dmin = 0;
    if constexpr (TYPE == Type::Q2_K) {
        s.d = get16(p + 80), s.dmin = get16(p + 82);
        for (int i = 0; i < 16; i++) s.sc[i] = int8_t(p[i]);
    } else if constexpr (TYPE == Type::Q3_K) {
        s.d = get16(p + 108);
        for (int i = 0; i < 16; i++) {
            const int low = i < 8 ? p[96 + i] & 15 : p[96 + i - 8] >> 4, high = p[104 + i % 4] >> (2 * (i / 4)) & 3;
            s.sc[i] = int8_t((low | high << 4) - 32);
        }
    } else if constexpr (TYPE == Type::Q6_K) {
        s.d = get16(p + 208);
        for (int i = 0; i < 16; i++) s.sc[i] = int8_t(p[192 + i]);
    } else if constexpr (TYPE == Type::IQ4_XS) {
        s.d = get16(p);
        for (int i = 0; i < 8; i++)
            s.sc[i] = int8_t(((p[4 + i / 2] >> (4 * (i % 2)) & 15) | (get16(p + 2) >> (2 * i) & 3) << 4) - 32);
    } else if constexpr (TYPE == Type::IQ2_XXS || TYPE == Type::IQ3_XXS) {
        s.d = get16(p);
        for (int i = 0; i < 8; i++)
            s.sc[i] = int8_t(2 * (get32(TYPE == Type::IQ2_XXS ? p + 6 + 8 * i : p + 66 + 4 * i) >> 28) + 1);
    } else if constexpr (TYPE == Type::IQ2_XS || TYPE == Type::IQ2_S) {
        s.d = get16(p);
        const uint8_t* q = p + (TYPE == Type::IQ2_XS ? 66 : 74);
        for (int i = 0; i < 16; i++) s.sc[i] = int8_t(2 * (q[i / 2] >> (4 * (i % 2)) & 15) + 1);
    } else if constexpr (TYPE == Type::IQ3_S) {
        s.d = get16(p);
        for (int i = 0; i < 8; i++) s.sc[i] = int8_t(2 * (p[106 + i / 2] >> (4 * (i % 2)) & 15) + 1);
    } else if constexpr (TYPE == Type::IQ1_S) {
        s.d = get16(p);
        for (int i = 0; i < 8; i++) s.sc[i] = int8_t(2 * (get16(p + 34 + 2 * i) >> 12 & 7) + 1);
    } else if constexpr (TYPE == Type::IQ1_M) {
        for (int i = 0; i < 4; i++) s.d = uint16_t(s.d | get16(p + 48 + 2 * i) >> 12 << (4 * i));
        for (int i = 0; i < 16; i++) s.sc[i] = int8_t(2 * (get16(p + 48 + 2 * (i / 4)) >> (3 * (i % 4)) & 7) + 1);
    } else if constexpr (TYPE == Type::TQ1_0 || TYPE == Type::TQ2_0) {
        s.d = get16(p + (TYPE == Type::TQ1_0 ? 52 : 64));
    } else {  // Q4_K, Q5_K
        s.d = get16(p), s.dmin = get16(p + 2);
        const uint8_t* q = p + 4;
        for (int i = 0; i < 8; i++) {
            s.sc[i] = int8_t(i < 4 ? q[i] & 63 : (q[i + 4] & 15) | (q[i - 4] >> 6) << 4);
            s.mn[i] = uint8_t(i < 4 ? q[i + 4] & 63 : (q[i + 4] >> 4) | (q[i] >> 6) << 4);
        }
    }
}

// Pack one panel: rows [first, first + R) of src, rows from n on as zeros.
template <class F>
void pack_panel(const uint8_t* src, size_t stride, int64_t n, int64_t k, int64_t first, uint8_t* dst) {
    const TypeInfo& info = *type_info(F::type);
    constexpr bool decoded = F::kind == N4X || F::kind == N4O || F::kind == N3P || F::kind == N3T || F::kind == N2T;
    for (int64_t u = 0; u < k / (32 * F::unit_blocks); u++) {
        uint8_t* unit = dst + u * F::unit_bytes;
        __builtin_memset(unit, 0, size_t(F::quants_at));
        for (int r = 0; r < R && first + r < n; r++) {
            const uint8_t* head = src + size_t(first + r) * stride + u * info.block_bytes;
            if constexpr (F::super) {
                SubScales s;
                sub_scales<F::type>(head, s);
                put(unit + F::d_at + 2 * r, finite_or_nan(s.d));
                if (F::min) put(unit + F::dmin_at + 2 * r, finite_or_nan(s.dmin));
                for (int i = 0; i < F::subs; i++) {
                    unit[F::sc_at + i * R + r] = uint8_t(s.sc[i] + (F::packed_min ? 0 : V::scale_bias));
                    if (F::min && !F::packed_min) unit[F::mn_at + i * R + r] = uint8_t(s.mn[i] + V::scale_bias);
                }
            } else if constexpr (F::type == Type::MXFP4) {
                put(unit + F::d_at + 2 * r, uint16_t(__builtin_bit_cast(uint32_t, e8m0_half(head[0])) >> 16));
            } else {
                put(unit + F::d_at + 2 * r, finite_or_nan(get16(head)));
                if (F::min) put(unit + F::dmin_at + 2 * r, finite_or_nan(get16(head + 2)));
            }
        }
        for (int j = 0; j < F::unit_blocks; j++) {
            uint32_t all[8][R] = {};
            for (int r = 0; r < R && first + r < n; r++) {
                const uint8_t* row = src + size_t(first + r) * stride;
                uint32_t codes[8];
                if constexpr (decoded) {
                    Block32 block;
                    info.unpack(row, u * F::unit_blocks + j, block);
                    book_codes<F::kind>(block.q, codes);
                } else {
                    file_codes<F::type>(row + u * info.block_bytes, j, codes);
                }
                for (int g = 0; g < 8; g++) all[g][r] = codes[g] ^ uint32_t(V::template flip<F::kind>) * 0x01010101u;
            }
            put_codes<F::kind>(all, unit + F::quants_at + j * kind_block_bytes(F::kind));
        }
    }
}
