// Products of one token with rows of the file, with AVX-512. The groups of weights are entries of a code book (IQ1, IQ2, IQ3)
// or trits of one byte (TQ1_0). Rows of Q3_K, Q6_K and TQ2_0 are multiplied here, too. Included by packing.cpp, inside an
// anonymous namespace.
//
// A tile of the rows' integers (packing.cpp: row_tiles) would be written, read again, and fill the first-level cache. Here
// weights go from their book to the dot product in a register. 16 rows are computed together, a super-block at a time. First
// come the indices, signs and scales of all rows. Then come the sums of each row, times its scales: a lane is a block. A
// transposition makes a lane a row, for the chain of float operations, which is that of panel.h in its order.

// The operands of the products with a super-block of 16 rows. Rows come in pairs (avx512.h: pair_row). The blocks of a row are
// in the order in which sums of neighbouring vectors leave them: 0 2 4 6 1 3 5 7.
struct BookRows {
    alignas(64) uint16_t index[16][64];  // of entries, each of 8 weights; IQ3: of 4
    uint64_t signs[16][4];               // IQ2, IQ3: a bit a weight
    uint8_t lower[16][4];                // IQ1: a bit a group: its weights are 8 trit - 1
    const uint8_t* blocks[16];           // TQ1_0 and codes in bits: in the file
    __m512 scales[8][2];                 // of a pair of rows, of the first and the second half of each block
};

constexpr bool in_bits(Type type) { return type == Type::Q3_K || type == Type::Q6_K || type == Type::TQ2_0; }

INLINE __m512i load_512(const void* p) { return _mm512_loadu_si512(p); }
INLINE __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
INLINE __m128i two_eights(const void* a, const void* b) {  // 8 bytes of each
    return _mm_castpd_si128(_mm_loadh_pd(_mm_load_sd(static_cast<const double*>(a)), static_cast<const double*>(b)));
}

// Seven signs in each byte become eight: their number is even.
INLINE __m512i with_eighth(__m512i signs) {
    const __m512i parity = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m512i four = _mm512_and_si512(_mm512_xor_si512(signs, _mm512_srli_epi16(signs, 4)), _mm512_set1_epi8(15));
    return _mm512_or_si512(signs, _mm512_shuffle_epi8(parity, four));
}
// 2 x + 1 of the `bits` bits from bit `at` on, as floats times d: a sub-scale. Never -0.
INLINE __m512 sub_scale(__m512 d, __m512i x, int bits) {
    const __m512i odd = _mm512_ternarylogic_epi32(x, _mm512_set1_epi32((2 << bits) - 2), _mm512_set1_epi32(1), 0xea);
    return _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(odd), _mm512_setzero_ps());
}
// The f16 scales of a pair of rows.
INLINE __m512 of_pair(const float* d, int pair) {
    return _mm512_mask_broadcastss_ps(_mm512_set1_ps(d[pair_row(pair)]), 0xff00, _mm_load_ss(d + pair_row(pair) + 4));
}

// The parts of BookRows by type; `at` has the super-blocks of 16 rows, d their f16 scales.
template <Type TYPE>
INLINE void book_rows(const uint8_t* const* at, const float* d, BookRows& rows) {
    const auto put_signs = [&](int row, __m256i signs) INLINE_LAMBDA {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows.signs[row]), signs);
    };
    const auto words = [](const uint8_t* p) INLINE_LAMBDA { return _mm512_cvtepu8_epi16(load_256(p)); };
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const auto put_words = [&](int row, int half, __m512i index) INLINE_LAMBDA {
        put(reinterpret_cast<uint8_t*>(rows.index[row] + 32 * half), index);
    };
    const auto put_tails = [&](int pair, __m512i tail) INLINE_LAMBDA {  // words of four times seven signs, and a scale
        __m512i sevens = _mm512_and_si512(tail, _mm512_set1_epi32(127));
        const auto join = [&](int n) INLINE_LAMBDA {  // 0xf8: a | (b & c)
            sevens = _mm512_ternarylogic_epi32(sevens, _mm512_slli_epi32(tail, unsigned(n)), _mm512_set1_epi32(127 << (8 * n)), 0xf8);
        };
        join(1), join(2), join(3);
        const __m512i signs = with_eighth(sevens);
        put_signs(pair_row(pair), _mm512_castsi512_si256(signs));
        put_signs(pair_row(pair) + 4, _mm512_extracti64x4_epi64(signs, 1));
        const __m512i scale = _mm512_srli_epi32(_mm512_permutexvar_epi32(order, tail), 27);
        rows.scales[pair][0] = rows.scales[pair][1] = sub_scale(of_pair(d, pair), scale, 4);
    };
    if constexpr (TYPE == Type::TQ1_0 || TYPE == Type::TQ2_0) {
        for (int r = 0; r < 16; r++) rows.blocks[r] = at[r];
        for (int pair = 0; pair < 8; pair++) rows.scales[pair][0] = of_pair(d, pair);
    } else if constexpr (TYPE == Type::Q3_K || TYPE == Type::Q6_K) {
        const __m128i sorted = _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
        const auto subs = [&](int row) INLINE_LAMBDA {  // of the first halves, and of the second
            SubScales s{};
            sub_scales<TYPE>(at[row], s);
            return _mm_shuffle_epi8(_mm_set_epi64x(int64_t(s.sc[1]), int64_t(s.sc[0])), sorted);
        };
        for (int r = 0; r < 16; r++) rows.blocks[r] = at[r];
        for (int pair = 0; pair < 8; pair++) {
            const __m128i a = subs(pair_row(pair)), b = subs(pair_row(pair) + 4);
            const auto scale = [&](__m128i x) INLINE_LAMBDA {
                return _mm512_fmadd_ps(of_pair(d, pair), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)), _mm512_setzero_ps());
            };
            rows.scales[pair][0] = scale(_mm_unpacklo_epi64(a, b));
            rows.scales[pair][1] = scale(_mm_unpackhi_epi64(a, b));
        }
    } else if constexpr (TYPE == Type::IQ2_XXS) {
        const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        for (int pair = 0; pair < 8; pair++) {
            const int a = pair_row(pair), b = a + 4;
            const __m512i one = load_512(at[a] + 2), two = load_512(at[b] + 2);
            const __m512i codes = _mm512_permutex2var_epi32(one, even, two);
            put_words(a, 0, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(codes)));
            put_words(b, 0, _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(codes, 1)));
            put_tails(pair, _mm512_permutex2var_epi32(one, odd, two));
        }
    } else if constexpr (TYPE == Type::IQ3_XXS) {
        for (int r = 0; r < 16; r++)
            for (int h = 0; h < 2; h++) put_words(r, h, words(at[r] + 2 + 32 * h));
        for (int pair = 0; pair < 8; pair++) {
            const __m512i a = _mm512_castsi256_si512(load_256(at[pair_row(pair)] + 66));
            put_tails(pair, _mm512_inserti64x4(a, load_256(at[pair_row(pair) + 4] + 66), 1));
        }
    } else if constexpr (TYPE == Type::IQ3_S) {
        for (int r = 0; r < 16; r++) {
            for (int h = 0; h < 2; h++) {
                const __m512i ninth = _mm512_maskz_set1_epi16(get<uint32_t>(at[r] + 66 + 4 * h), 256);
                put_words(r, h, _mm512_or_si512(words(at[r] + 2 + 32 * h), ninth));
            }
            put_signs(r, load_256(at[r] + 74));
        }
        const __m128i twice = _mm_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7);
        const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4);
        for (int pair = 0; pair < 8; pair++) {
            const int64_t both = int64_t(get<uint32_t>(at[pair_row(pair)] + 106) |
                                         uint64_t(get<uint32_t>(at[pair_row(pair) + 4] + 106)) << 32);
            const __m512i x = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(_mm_cvtsi64_si128(both), twice));
            const __m512i scale = _mm512_slli_epi32(_mm512_srlv_epi32(x, shifts), 1);
            rows.scales[pair][0] = rows.scales[pair][1] = sub_scale(of_pair(d, pair), scale, 4);
        }
    } else if constexpr (TYPE == Type::IQ2_XS || TYPE == Type::IQ2_S) {
        const __m128i sorted = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        const __m256i fours = _mm256_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,  //
                                               4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7);
        for (int r = 0; r < 16; r++) {
            const uint8_t* const p = at[r];
            __m512i index;
            if constexpr (TYPE == Type::IQ2_XS) {
                const __m512i codes = load_512(p + 2);
                index = _mm512_and_si512(codes, _mm512_set1_epi16(511));
                const __m256i sevens = _mm512_cvtepi16_epi8(_mm512_srli_epi16(codes, 9));
                put_signs(r, _mm512_castsi512_si256(with_eighth(_mm512_castsi256_si512(sevens))));
            } else {
                const __m256i high = _mm256_shuffle_epi8(_mm256_set1_epi64x(get<int64_t>(p + 66)), fours);
                const __m512i third = _mm512_sllv_epi16(_mm512_cvtepu8_epi16(high), _mm512_set1_epi64(0x0002000400060008));
                index = _mm512_ternarylogic_epi32(words(p + 2), third, _mm512_set1_epi16(0x300), 0xf8);
                put_signs(r, load_256(p + 34));
            }
            put_words(r, 0, index);
        }
        for (int pair = 0; pair < 8; pair++) {
            constexpr int scales_at = TYPE == Type::IQ2_XS ? 66 : 74;
            const uint8_t* const p = at[pair_row(pair)] + scales_at;
            const __m128i both = two_eights(p, at[pair_row(pair) + 4] + scales_at);
            const __m512i x = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(both, sorted));
            const __m512 block = of_pair(d, pair);
            rows.scales[pair][0] = sub_scale(block, _mm512_slli_epi32(x, 1), 4);
            rows.scales[pair][1] = sub_scale(block, _mm512_srli_epi32(x, 3), 4);
        }
    } else if constexpr (TYPE == Type::IQ1_S) {
        const __m512i fours = _mm512_setr_epi64(0, 0x0001000100010001, 0x0002000200020002, 0x0003000300030003,
                                                0x0004000400040004, 0x0005000500050005, 0x0006000600060006,
                                                0x0007000700070007);
        for (int r = 0; r < 16; r++) {
            const uint8_t* const p = at[r];
            const __m512i high = _mm512_permutexvar_epi16(fours, _mm512_castsi128_si512(load_128(p + 34)));
            const __m512i three = _mm512_srlv_epi16(high, _mm512_set1_epi64(0x0009000600030000));
            const __m512i index = _mm512_or_si512(words(p + 2), _mm512_slli_epi16(_mm512_and_si512(three, _mm512_set1_epi16(7)), 8));
            put_words(r, 0, index);
            put(rows.lower[r], uint32_t(_mm512_movepi16_mask(high)));
        }
        for (int pair = 0; pair < 8; pair++) {
            const uint8_t *const a = at[pair_row(pair)] + 34, *const b = at[pair_row(pair) + 4] + 34;
            const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(a)), load_128(b), 1);
            const __m512i x = _mm512_permutexvar_epi32(order, _mm512_cvtepu16_epi32(both));
            rows.scales[pair][0] = rows.scales[pair][1] = sub_scale(of_pair(d, pair), _mm512_srli_epi32(x, 11), 3);
        }
    } else if constexpr (TYPE == Type::IQ1_M) {
        for (int r = 0; r < 16; r++) {
            const uint8_t* const p = at[r];
            const __m512i high = _mm512_cvtepu8_epi32(load_128(p + 32));  // of two groups: two words
            const __m512i first = _mm512_and_si512(_mm512_slli_epi32(high, 8), _mm512_set1_epi32(0x700));
            const __m512i three = _mm512_ternarylogic_epi32(first, _mm512_slli_epi32(high, 20), _mm512_set1_epi32(0x7000000), 0xf8);
            put_words(r, 0, _mm512_or_si512(words(p), three));
            const __m512i tops = _mm512_or_si512(_mm512_slli_epi16(high, 12), _mm512_slli_epi32(high, 24));
            put(rows.lower[r], uint32_t(_mm512_movepi16_mask(tops)));
        }
        const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 6, 6, 6, 6, 0, 0, 0, 0, 6, 6, 6, 6);
        for (int pair = 0; pair < 8; pair++) {
            const __m128i both = two_eights(at[pair_row(pair)] + 48, at[pair_row(pair) + 4] + 48);
            const __m256i fours = _mm256_permute4x64_epi64(_mm256_castsi128_si256(both), 0x50);  // each twice
            const __m512i x = _mm512_srlv_epi32(_mm512_cvtepu16_epi32(fours), shifts);
            const __m512 block = of_pair(d, pair);
            rows.scales[pair][0] = sub_scale(block, _mm512_slli_epi32(x, 1), 3);
            rows.scales[pair][1] = sub_scale(block, _mm512_srli_epi32(x, 2), 3);
        }
    }
}

// The f16 scale of each of 16 super-blocks, times the type's eighths.
template <class F>
INLINE void block_scales(const uint8_t* const* at, float* d) {
    constexpr int d_at = F::type == Type::Q3_K    ? 108
                         : F::type == Type::Q6_K  ? 208
                         : F::type == Type::TQ1_0 ? 52
                         : F::type == Type::TQ2_0 ? 64
                                                  : 0;
    alignas(32) uint16_t halves[16];
    for (int r = 0; r < 16; r += 8) {
        if constexpr (F::type == Type::IQ1_M) {
            for (int i = 0; i < 8; i++) {
                const uint64_t all = get<uint64_t>(at[r + i] + 48);
                halves[r + i] = finite_or_nan(uint16_t((all >> 12 & 15) | (all >> 24 & 0xf0) | (all >> 36 & 0xf00) |
                                                       (all >> 48 & 0xf000)));
            }
        } else {
            put(reinterpret_cast<uint8_t*>(halves + r), eight_halves(at + r, d_at));
        }
    }
    V::store(d, V::mul(V::f16(reinterpret_cast<const uint8_t*>(halves)), V::set(float(F::eighths) / 8)));
}

INLINE __m512i dots(__m512i w, __m512i x) {  // of unsigned and signed bytes, below 64 and 128 in size
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, x);
#else
    return _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1));
#endif
}

// Weights [64 i, 64 i + 64) of a super-block of TQ1_0, plus 1. Trit n of a byte x is the top one of x * 3^n mod 256.
INLINE __m512i ternary_codes(const uint8_t* p, int i) {
    const auto two = [](__m256i a, __m256i b) INLINE_LAMBDA { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); };
    const auto powers = [](int64_t a, int64_t b, int64_t c, int64_t d) INLINE_LAMBDA {  // of 16 bytes each
        constexpr int64_t each = 0x0001000100010001;
        return _mm512_setr_epi64(a * each, a * each, b * each, b * each, c * each, c * each, d * each, d * each);
    };
    const __m256i first = load_256(p), middle = _mm256_broadcastsi128_si256(load_128(p + 32));
    __m512i x, power;
    if (i == 0) x = two(first, first), power = powers(1, 1, 3, 3);
    if (i == 1) x = two(first, first), power = powers(9, 9, 27, 27);
    if (i == 2) x = two(first, middle), power = powers(81, 81, 1, 3);
    if (i == 3) {
        const __m256i last = _mm256_inserti128_si256(middle, _mm_set1_epi32(get<int>(p + 48)), 1);
        constexpr int64_t each = 0x0001000100010001;
        x = two(middle, last);
        power = _mm512_setr_epi64(9 * each, 9 * each, 27 * each, 27 * each, 81 * each, 81 * each,
                                  0x0003000300010001, 0x001b001b00090009);
    }
    const __m512i low = _mm512_mullo_epi16(x, power), high = _mm512_mullo_epi16(_mm512_andnot_si512(_mm512_set1_epi16(255), x), power);
    const __m512i top = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, low, high), one = _mm512_set1_epi8(1);
    const __m512i some = _mm512_maskz_mov_epi8(_mm512_cmpgt_epu8_mask(top, _mm512_set1_epi8(85)), one);
    return _mm512_mask_add_epi8(some, _mm512_cmpgt_epu8_mask(top, _mm512_set1_epi8(char(170))), some, one);
}

// The codes of the same weights of Q3_K (plus 4), Q6_K (plus 32) and TQ2_0 (plus 1). High bits are rotated to their place.
template <Type TYPE>
INLINE __m512i bit_codes(const uint8_t* p, int i) {
    const auto both = [](const uint8_t* at, int a, int b) INLINE_LAMBDA {  // rotated right by a, and by b
        const __m512i by = _mm512_inserti64x4(_mm512_set1_epi32(a), _mm256_set1_epi32(b), 1);
        return _mm512_rorv_epi32(_mm512_broadcast_i64x4(load_256(at)), by);
    };
    const auto with = [](__m512i low, __m512i high, char mask) INLINE_LAMBDA {
        return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(mask), 0xf8);
    };
    const int h = i / 2, s = 4 * (i % 2);
    if constexpr (TYPE == Type::Q6_K) {
        const __m512i low = _mm512_and_si512(_mm512_srli_epi16(load_512(p + 64 * h), unsigned(s)), _mm512_set1_epi8(15));
        return with(low, both(p + 128 + 32 * h, s + 28, s + 30), 48);
    }
    const __m512i low = _mm512_and_si512(both(p + (TYPE == Type::Q3_K ? 32 : 0) + 32 * h, s, s + 2), _mm512_set1_epi8(3));
    return TYPE == Type::Q3_K ? with(low, both(p, 2 * i + 30, 2 * i + 31), 4) : low;
}

// Row r's sums: the 128-bit lanes have halves 0 and 1 of blocks 0 2 4 6, then of 1 3 5 7.
template <Type TYPE>
INLINE __m512i book_sums(const BookRows& rows, int r, const __m512i (&x)[4]) {
    constexpr bool trits = TYPE == Type::IQ1_S || TYPE == Type::IQ1_M;
    __m512i s[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const auto quarters = [&](auto quarter) INLINE_LAMBDA {
            const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(quarter(0)), quarter(1), 1);
            const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(quarter(2)), quarter(3), 1);
            return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        };
        const auto eights = [&](const auto& book) INLINE_LAMBDA {
            const uint16_t* const index = rows.index[r] + 8 * i;
            return quarters([&](int n) INLINE_LAMBDA { return two_eights(book.entry[index[2 * n]], book.entry[index[2 * n + 1]]); });
        };
        const auto fours = [&](const auto& book) INLINE_LAMBDA {
            const uint16_t* const index = rows.index[r] + 16 * i;
            return quarters([&](int n) INLINE_LAMBDA {
                const auto entry = [&](int e) INLINE_LAMBDA { return get<int>(book.entry[index[4 * n + e]]); };
                return _mm_setr_epi32(entry(0), entry(1), entry(2), entry(3));
            });
        };
        __m512i w;
        if constexpr (TYPE == Type::TQ1_0) w = ternary_codes(rows.blocks[r], i);
        if constexpr (in_bits(TYPE)) w = bit_codes<TYPE>(rows.blocks[r], i);
        if constexpr (trits) w = eights(book1[0]);
        if constexpr (TYPE == Type::IQ2_XXS) w = eights(book2_xxs);
        if constexpr (TYPE == Type::IQ2_XS) w = eights(book2_xs);
        if constexpr (TYPE == Type::IQ2_S) w = eights(book2_s);
        if constexpr (TYPE == Type::IQ3_XXS) w = fours(book3_xxs);
        if constexpr (TYPE == Type::IQ3_S) w = fours(book3_s);
        if constexpr (trits) {  // 8 trit + 1 or - 1, plus 9
            const __m512i add = _mm512_mask_blend_epi64(rows.lower[r][i], _mm512_set1_epi8(9), _mm512_set1_epi8(7));
            s[i] = dots(_mm512_add_epi8(w, add), x[i]);
        } else if constexpr (TYPE == Type::TQ1_0 || in_bits(TYPE)) {
            s[i] = dots(w, x[i]);
        } else {
            s[i] = dots(w, _mm512_mask_sub_epi8(x[i], rows.signs[r][i], _mm512_setzero_si512(), x[i]));
        }
    }
    const auto join = [](__m512i a, __m512i b) INLINE_LAMBDA {
        return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    };
    const __m512i a = join(s[0], s[1]), b = join(s[2], s[3]);
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

// One token on the R rows of a panel.
template <class F>
void book_product(const uint8_t* src, size_t stride, size_t block_bytes, int64_t n, int64_t k, int64_t first, const Group* acts,
                  float* out) {
    static_assert(V::L == 16 && F::super && !F::min);
    constexpr int offset = F::type == Type::IQ1_S || F::type == Type::IQ1_M ? 9
                           : F::type == Type::Q3_K                                ? 4
                           : F::type == Type::Q6_K                                ? 32
                           : F::type == Type::TQ1_0 || F::type == Type::TQ2_0;
    for (int v = 0; v < PV; v++) {
        const uint8_t* at[16];
        for (int r = 0; r < 16; r++) {
            const int64_t row = first + v * L + r;
            at[r] = src + size_t(row < n ? row : n - 1) * stride;
        }
        __m512 total = _mm512_set1_ps(-0.0f);
        const Group* a = acts;
        for (int64_t b = 0; b < k / 256; b++, a += 8) {
            BookRows rows;
            alignas(64) float d[16];
            for (int r = 0; r < 16; r++)  // of the next 16 rows
                for (size_t i = 0; i < block_bytes; i += 64) __builtin_prefetch(at[r] + 16 * stride + i);
            block_scales<F>(at, d);
            book_rows<F::type>(at, d, rows);
            __m512i x[4];
            for (int i = 0; i < 4; i++)
                x[i] = _mm512_inserti64x4(_mm512_castsi256_si512(load_256(a[2 * i].q[0])), load_256(a[2 * i + 1].q[0]), 1);
            __m512i start[2];
            if constexpr (offset != 0) {
                const auto each = [&](auto f) INLINE_LAMBDA {
                    const __m256i eight = _mm256_setr_epi32(f(0), f(2), f(4), f(6), f(1), f(3), f(5), f(7));
                    return _mm512_mullo_epi32(_mm512_broadcast_i64x4(eight), _mm512_set1_epi32(offset));
                };
                start[0] = each([&](int i) INLINE_LAMBDA { return a[i].neg0[0]; });
                start[1] = each([&](int i) INLINE_LAMBDA { return a[i].neg[0] - a[i].neg0[0]; });
            }
            __m512 pairs[8], columns[8];
            for (int pair = 0; pair < 8; pair++) {
                const __m512i one = book_sums<F::type>(rows, pair_row(pair), x);
                const __m512i two = book_sums<F::type>(rows, pair_row(pair) + 4, x);
                __m512i low = _mm512_shuffle_i64x2(one, two, 0x88), high = _mm512_shuffle_i64x2(one, two, 0xdd);
                if constexpr (offset != 0) low = _mm512_add_epi32(low, start[0]), high = _mm512_add_epi32(high, start[1]);
                if constexpr (!F::sub16) {
                    pairs[pair] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(low, high)), rows.scales[pair][0]);
                    continue;
                }
                const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(low), rows.scales[pair][0]);
                pairs[pair] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), rows.scales[pair][1], part);
            }
            columns_of_pairs(pairs, columns);
            __m512 sum = _mm512_setzero_ps();
            for (int i = 0; i < 8; i++) sum = _mm512_fmadd_ps(columns[i], _mm512_set1_ps(a[i].d[0]), sum);
            total = _mm512_add_ps(total, sum);
            for (int r = 0; r < 16; r++) at[r] += block_bytes;
        }
        V::store(out + v * L, total);
    }
}
