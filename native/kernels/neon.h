// The vector type of NEON with the dot product extension. Included by isa_neon.cpp and isa_i8mm.cpp, inside an
// anonymous namespace.
//
// A panel is 8 rows in 2 vectors. `sdot` by lane reads a 4-byte group of activations directly from a register that
// holds 16 of them. So a group costs one instruction for 4 rows, without a broadcast.

struct Neon : NoBlock {
    static constexpr int L = 4, PV = 2;
    using F = float32x4_t;
    using I = int32x4_t;
    using Q = int8x16_t;
    using A = int8x16_t;
    using X = float32x4_t;

    template <Kind KIND>
    static constexpr int bits = 8;
    template <Kind KIND>
    static constexpr int offset = 0;
    // Signed codes in the top bits: a nibble becomes 16 q by one shift or mask, five bits 8 q, six bits 4 q.
    template <Kind KIND>
    static constexpr int multiple = KIND == N4S  ? 16
                                    : KIND == N5 ? 8
                                    : KIND == N6 ? 4
                                                 : 1;
    // Packing flips the top bit of the file's offset codes, which makes them two's complement.
    template <Kind KIND>
    static constexpr int flip = KIND == N5   ? 16
                                : KIND == N6 ? 32
                                : KIND == N3 ? 4
                                             : 0;
    // The nibbles of a byte: the low one is row r's code as in the file; the high one is row r + 4's with its top bit
    // flipped (two's complement of the code minus 8). Four columns of eight rows are one vector; see `apart`. Trits: a
    // byte has two such pairs, 16 columns apart; see trit_block.
    template <Kind KIND>
    static constexpr bool paired = KIND == N4S || KIND == N4U || KIND == N2T;
    template <Kind KIND, int H>
    static INLINE void unpack_pairs(const uint8_t* block, int v, Q w[4]) {
        for (int g = 0; g < 4; g++) {
            const uint8x16_t m = vld1q_u8(block + (KIND == N2T ? 16 * g : 64 * H + 16 * g));
            uint8x16_t x;
            if constexpr (KIND == N4S)  // 16 q
                x = v == 0 ? veorq_u8(vshlq_n_u8(m, 4), vdupq_n_u8(0x80)) : vandq_u8(m, vdupq_n_u8(0xf0));
            else if constexpr (KIND == N4U)
                x = v == 0 ? vandq_u8(m, vdupq_n_u8(15)) : veorq_u8(vshrq_n_u8(m, 4), vdupq_n_u8(8));
            else
                x = vsubq_u8(vandq_u8(vshlq_u8(m, vdupq_n_s8(int8_t(-4 * H - 2 * v))), vdupq_n_u8(3)), vdupq_n_u8(1));
            w[g] = vreinterpretq_s8_u8(x);
        }
    }
    // Shifts run on one vector pipe of two, logic and selections on both.
    template <Kind KIND, int H>
    static INLINE void unpack(const uint8_t* half, const uint8_t* head, Q w[4]) {
        const auto s8 = [](uint8x16_t x) { return vreinterpretq_s8_u8(x); };
        const auto bits = [](uint8_t mask, uint8x16_t one, uint8x16_t other) {
            return vbslq_u8(vdupq_n_u8(mask), one, other);
        };
        const auto nibble = vdupq_n_u8(15);
        const auto at = [](const uint8_t* p, int n) { return vld1q_u8(p + 16 * n); };
        if constexpr (KIND == N8) {
            for (int g = 0; g < 4; g++) w[g] = bytes(half + 16 * g);
        } else if constexpr (kind_bits(KIND) == 4) {
            const int8x16_t book = vld1q_s8(kind_book(KIND));
            for (int p = 0; p < 2; p++) {
                const uint8x16_t m = at(half, p);
                w[p] = vqtbl1q_s8(book, vandq_u8(m, nibble)), w[p + 2] = vqtbl1q_s8(book, vshrq_n_u8(m, 4));
            }
        } else if constexpr (KIND == N5) {
            const uint8x16_t top = vdupq_n_u8(0xf8);
            if constexpr (H == 0) {
                for (int g = 0; g < 4; g++) w[g] = s8(vandq_u8(at(head, g), top));
            } else {
                const uint8x16_t b = at(head, 1), d = at(head, 3), e = at(head, 4);
                w[0] = s8(vandq_u8(e, top));
                w[1] = s8(bits(0x18, vshlq_n_u8(b, 3), vshlq_n_u8(at(head, 0), 5)));
                w[2] = s8(bits(0x18, vshlq_n_u8(d, 3), vshlq_n_u8(at(head, 2), 5)));
                w[3] = s8(bits(0x08, vshlq_n_u8(d, 1), bits(0x10, vshlq_n_u8(b, 2), vshlq_n_u8(e, 5))));
            }
        } else if constexpr (KIND == N6) {
            const uint8x16_t top = vdupq_n_u8(0xfc), a = at(half, 0), b = at(half, 1), c = at(half, 2);
            w[0] = s8(vandq_u8(a, top)), w[1] = s8(vandq_u8(b, top)), w[2] = s8(vandq_u8(c, top));
            w[3] = s8(bits(0xc0, vshlq_n_u8(a, 6), bits(0x30, vshlq_n_u8(b, 4), vshlq_n_u8(c, 2))));
        } else if constexpr (kind_bits(KIND) == 3 && KIND != N3) {
            const uint8x16_t m = at(half, 0), h = at(head, 0), four = vdupq_n_u8(4);
            const int8x16_t book = vld1q_s8(kind_book(KIND));
            const auto code = [&](int g, uint8x16_t low) {
                const uint8x16_t third = vtstq_u8(h, vdupq_n_u8(uint8_t(1 << (4 * H + g))));
                return vqtbl1q_s8(book, bits(3, low, vandq_u8(third, four)));
            };
            w[0] = code(0, m), w[1] = code(1, vshrq_n_u8(m, 2));
            w[2] = code(2, vshrq_n_u8(m, 4)), w[3] = code(3, vshrq_n_u8(m, 6));
        } else if constexpr (KIND == N3) {  // an inverted third bit: set means minus 4, all bits above the low two
            const uint8x16_t m = at(half, 0), h = at(head, 0);
            const auto third = [&](int g) { return vtstq_u8(h, vdupq_n_u8(uint8_t(1 << (4 * H + g)))); };
            w[0] = s8(bits(3, m, third(0)));
            w[1] = s8(bits(3, vshrq_n_u8(m, 2), third(1)));
            w[2] = s8(bits(3, vshrq_n_u8(m, 4), third(2)));
            w[3] = s8(bits(3, vshrq_n_u8(m, 6), third(3)));
        } else {  // N2
            const uint8x16_t three = vdupq_n_u8(3), m = at(half, 0);
            w[0] = s8(vandq_u8(m, three));
            w[1] = s8(vandq_u8(vshrq_n_u8(m, 2), three));
            w[2] = s8(vandq_u8(vshrq_n_u8(m, 4), three));
            w[3] = s8(vshrq_n_u8(m, 6));
        }
    }

    static INLINE F set(float x) { return vdupq_n_f32(x); }
    static INLINE F load(const float* p) { return vld1q_f32(p); }
    static INLINE void store(float* p, F x) { vst1q_f32(p, x); }
    static INLINE F f16(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
    // fcvtl occupies the first vector pipe for two cycles. A shift (second pipe) and a mask also give a finite half,
    // times 2^-112. Converting half of the vectors each way keeps both pipes busy.
    static constexpr bool shifts_halves = true;
    static INLINE F lowered_f16(const uint8_t* p) {
        const int32x4_t x = vshll_n_s16(vreinterpret_s16_u8(vld1_u8(p)), 13);
        return vreinterpretq_f32_s32(vandq_s32(x, vdupq_n_s32(int32_t(0x8fffffff))));
    }
    static INLINE F bf16(const uint8_t* p) {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
    }
    static INLINE F neg(F a) { return vnegq_f32(a); }
    static INLINE F add(F a, F b) { return vaddq_f32(a, b); }
    static INLINE F mul(F a, F b) { return vmulq_f32(a, b); }
    static INLINE F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }

    // d times small integers: a table look-up turns byte b into the float 2^15 + b (bytes 0, b, 0, 0x47). The
    // multiply-add subtracts the rest, by accumulating onto a fresh copy of -(2^15 + bias) * d. Exact: d has 11
    // significant bits, 2^15 + 128 has 9.
    static constexpr int scale_bias = 128;
    struct Factor {
        F d;
        alignas(16) float minus[4];
    };
    template <int BIAS>
    static INLINE Factor factor(F d) {
        Factor f;
        f.d = d;
        vst1q_f32(f.minus, vmulq_f32(d, vdupq_n_f32(-(32768.0f + BIAS))));
        return f;
    }
    template <Field FIELD>
    static INLINE void times(const Factor (&f)[PV], const uint8_t* p, F (&out)[PV]) {
        uint8x16_t b = vld1q_u8(p);  // 8 of them are used; quants follow the scales
        if constexpr (FIELD == LOW4) b = vandq_u8(b, vdupq_n_u8(15));
        if constexpr (FIELD == HIGH4) b = vshrq_n_u8(b, 4);
        alignas(16) static constexpr uint32_t top[4] = {0x47000000, 0x47000000, 0x47000000, 0x47000000};
        alignas(16) static constexpr uint32_t at[2][4] = {{0xffff00ff, 0xffff01ff, 0xffff02ff, 0xffff03ff},
                                                          {0xffff04ff, 0xffff05ff, 0xffff06ff, 0xffff07ff}};
        for (int v = 0; v < PV; v++) {  // bytes whose index is out of range stay as loaded
            I x;
            asm("ldr %q0, %3\ntbx %0.16b, {%1.16b}, %2.16b" : "=&w"(x) : "w"(b), "w"(vld1q_u32(at[v])), "m"(top));
            out[v] = scaled(x, f[v].d, f[v].minus);
        }
    }
    // x * d + (4 floats in memory), x given as bits. Loaded anew, not moved: the vector pipes are the bottleneck.
    static INLINE F scaled(I x, F d, const float* minus) {
        F r;
        asm("ldr %q0, [%3]\nfmla %0.4s, %1.4s, %2.4s"
            : "=&w"(r)
            : "w"(x), "w"(d), "r"(minus), "m"(*reinterpret_cast<const float(*)[4]>(minus)));
        return r;
    }
    struct Halves {  // d * (sum of each half block), the halves of 4 tokens
        F s[2];
        template <class Group>
        explicit INLINE Halves(const Group& a) {
            const F d = vld1q_f32(a.d);
            // Unsigned, because the lanes of absent tokens are uninitialised and may wrap.
            const auto minus = [](I x, I y) {
                return vreinterpretq_s32_u32(vsubq_u32(vreinterpretq_u32_s32(x), vreinterpretq_u32_s32(y)));
            };
            const I neg0 = vld1q_s32(a.neg0), neg = vld1q_s32(a.neg);
            s[0] = vmulq_f32(d, vcvtq_f32_s32(minus(vdupq_n_s32(0), neg0)));
            s[1] = vmulq_f32(d, vcvtq_f32_s32(minus(neg0, neg)));
        }
        INLINE F operator[](int h) const { return s[h]; }
    };

    static INLINE X lanes(const float* p) { return vld1q_f32(p); }
    template <int N>
    static INLINE F fma_lane(F acc, F a, X x) {
        return vfmaq_laneq_f32(acc, a, x, N);
    }
    template <class N>
    static INLINE F fma_lane(F acc, F a, X x, N) {
        return vfmaq_laneq_f32(acc, a, x, N::value);
    }
    // acc[t][v] += w[v] * lane N of x[t]. In assembly: GCC adds moves between accumulators, and each takes an issue
    // slot.
    static constexpr bool has_column = true;
    template <int N>
    static INLINE void column(F (&acc)[4][2], const F (&w)[2], const X (&x)[4]) {
#define ASSAY_FMLA(to, w, x) "fmla %" #to ".4s, %" #w ".4s, %" #x ".s[%c14]\n"
        asm(ASSAY_FMLA(0, 8, 10) ASSAY_FMLA(2, 8, 11) ASSAY_FMLA(4, 8, 12) ASSAY_FMLA(6, 8, 13)
            ASSAY_FMLA(1, 9, 10) ASSAY_FMLA(3, 9, 11) ASSAY_FMLA(5, 9, 12) ASSAY_FMLA(7, 9, 13)
            : "+w"(acc[0][0]), "+w"(acc[0][1]), "+w"(acc[1][0]), "+w"(acc[1][1]), "+w"(acc[2][0]), "+w"(acc[2][1]),
              "+w"(acc[3][0]), "+w"(acc[3][1])
            : "w"(w[0]), "w"(w[1]), "w"(x[0]), "w"(x[1]), "w"(x[2]), "w"(x[3]), "i"(N));
#undef ASSAY_FMLA
    }

    // ---- rows of the file ----
    // Two vectors of floats from the 8 values of two bytes in a vector, or of four bytes in two.
    template <class W>
    static INLINE void widen(uint16x8_t x, F (&to)[2]) {
        if constexpr (W::brain) {
            const uint16x8_t zero = vdupq_n_u16(0);  // `zip` runs on both vector pipes, a shift on one
            to[0] = vreinterpretq_f32_u16(vzip1q_u16(zero, x)), to[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, x));
        } else {
            const float16x8_t h = vreinterpretq_f16_u16(x);
            to[0] = vcvt_f32_f16(vget_low_f16(h)), to[1] = vcvt_high_f32_f16(h);
        }
    }
    static constexpr bool reads_rows = true;
    // 8 rows x 8 columns, rows `stride` bytes apart, to [8][8] floats.
    template <class W>
    static INLINE void transpose_rows(const uint8_t* from, int64_t stride, float* to) {
        if constexpr (W::size == 4) {
            for (int c = 0; c < 8; c += 4)
                for (int v = 0; v < 2; v++) {
                    uint32x4_t x[4];
                    for (int r = 0; r < 4; r++) x[r] = vld1q_u32((const uint32_t*)(from + (4 * v + r) * stride) + c);
                    const uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(x[0], x[1]));
                    const uint64x2_t b = vreinterpretq_u64_u32(vtrn2q_u32(x[0], x[1]));
                    const uint64x2_t d = vreinterpretq_u64_u32(vtrn1q_u32(x[2], x[3]));
                    const uint64x2_t e = vreinterpretq_u64_u32(vtrn2q_u32(x[2], x[3]));
                    float* const at = to + 8 * c + 4 * v;
                    store(at, vreinterpretq_f32_u64(vzip1q_u64(a, d)));
                    store(at + 8, vreinterpretq_f32_u64(vzip1q_u64(b, e)));
                    store(at + 16, vreinterpretq_f32_u64(vzip2q_u64(a, d)));
                    store(at + 24, vreinterpretq_f32_u64(vzip2q_u64(b, e)));
                }
        } else {
            for (int v = 0; v < 2; v++) {
                uint16x8_t x[4];
                for (int r = 0; r < 4; r++) x[r] = vreinterpretq_u16_u8(vld1q_u8(from + (4 * v + r) * stride));
                const uint32x4_t even[2] = {vreinterpretq_u32_u16(vtrn1q_u16(x[0], x[1])),
                                            vreinterpretq_u32_u16(vtrn1q_u16(x[2], x[3]))};
                const uint32x4_t odd[2] = {vreinterpretq_u32_u16(vtrn2q_u16(x[0], x[1])),
                                           vreinterpretq_u32_u16(vtrn2q_u16(x[2], x[3]))};
                const auto put = [&](int c, uint32x4_t columns) INLINE_LAMBDA {  // c and c + 4
                    F f[2];
                    widen<W>(vreinterpretq_u16_u32(columns), f);
                    store(to + 8 * c + 4 * v, f[0]), store(to + 8 * (c + 4) + 4 * v, f[1]);
                };
                put(0, vtrn1q_u32(even[0], even[1])), put(1, vtrn1q_u32(odd[0], odd[1]));
                put(2, vtrn2q_u32(even[0], even[1])), put(3, vtrn2q_u32(odd[0], odd[1]));
            }
        }
    }
    // One token: 8 rows x 8 columns onto the sums of the even and odd columns of two rows each. A lane is a chain of
    // its own, so pairs of columns stay together: a third of the permutations of a transposition. Halves are widened
    // by `fcvtl` alone: they may be infinite here. x: 4 columns, then the same times 2^112.
    template <class W>
    static INLINE void add_rows(F (&acc)[4], const uint8_t* from, int64_t stride, const float* x) {
        const auto pair = [&](int at, int h) INLINE_LAMBDA {  // two columns, twice
            const float64x2_t both = vreinterpretq_f64_f32(vld1q_f32(x + at));
            return vreinterpretq_f32_f64(h == 0 ? vdupq_laneq_f64(both, 0) : vdupq_laneq_f64(both, 1));
        };
        for (int c = 0; c < 2; c++) {
            const F first = pair(8 * c, 0), second = pair(8 * c, 1);
            for (int p = 0; p < 4; p++) {
                const uint8_t* const at = from + 2 * p * stride + 4 * c * W::size;
                F w[2];
                if constexpr (W::size == 4) {
                    const uint64x2_t a = vreinterpretq_u64_u8(vld1q_u8(at)), b = vreinterpretq_u64_u8(vld1q_u8(at + stride));
                    w[0] = vreinterpretq_f32_u64(vzip1q_u64(a, b)), w[1] = vreinterpretq_f32_u64(vzip2q_u64(a, b));
                } else {
                    const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(at - 4 * c * W::size));
                    const uint32x4_t b = vreinterpretq_u32_u8(vld1q_u8(at - 4 * c * W::size + stride));
                    const uint16x8_t both = vreinterpretq_u16_u32(c == 0 ? vzip1q_u32(a, b) : vzip2q_u32(a, b));
                    widen<W>(both, w);
                }
                acc[p] = vfmaq_f32(vfmaq_f32(acc[p], w[0], first), w[1], second);
            }
        }
    }
    static INLINE void row_sums(const F (&acc)[4], F (&sum)[2]) {  // even plus odd
        sum[0] = vpaddq_f32(acc[0], acc[1]), sum[1] = vpaddq_f32(acc[2], acc[3]);
    }

    static INLINE A acts(const int8_t* p) { return vld1q_s8(p); }
    static INLINE Q bytes(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
    static INLINE void store_bytes(uint8_t* p, Q q) { vst1q_u8(p, vreinterpretq_u8_s8(q)); }

    // Sums start at the bit pattern of 1.5 * 2^23. Read as a float, a sum is then exactly 1.5 * 2^23 + sum, because
    // |sum| <= 32 * 128 * 127 < 2^22. One subtraction converts it; scvtf would run on one pipe of two, at half rate. A
    // smaller exponent also divides by `multiple`; a negative multiple gives minus the constant. The start is loaded
    // and not moved, because the vector pipes are the bottleneck and the load pipes are not.
    template <int MULTIPLE>
    static constexpr int32_t magic = (0x4b400000 - (__builtin_ctz(MULTIPLE) << 23)) | (MULTIPLE < 0 ? INT32_MIN : 0);
    template <int OFFSET, int MULTIPLE>
    static INLINE I start(const int32_t*) {
        alignas(16) static constexpr int32_t pattern[4] = {magic<MULTIPLE>, magic<MULTIPLE>, magic<MULTIPLE>,
                                                           magic<MULTIPLE>};
        I x;
        asm volatile("ldr %q0, %1" : "=w"(x) : "m"(pattern));
        return x;
    }
    template <int OFFSET, int MULTIPLE, int H>
    static INLINE I start_half(const int32_t*, const int32_t*) {
        return start<OFFSET, MULTIPLE>(nullptr);
    }
    // Alternate independent sums: one chain of dot products issues one a cycle, but two pipes can issue two.
    template <int BITS, int T>
    static INLINE void dots(I (&sum)[T][PV], const Q (&w)[PV][4], const A (&a)[T]) {
        const auto group = [&]<int G>(std::integral_constant<int, G>) INLINE_LAMBDA {
            for (int t = 0; t < T; t++)
                for (int v = 0; v < PV; v++) sum[t][v] = vdotq_laneq_s32(sum[t][v], w[v][G], a[t], G);
        };
        group(std::integral_constant<int, 0>{});
        group(std::integral_constant<int, 1>{});
        group(std::integral_constant<int, 2>{});
        group(std::integral_constant<int, 3>{});
    }
    // Halves [BEGIN, END) of a RowTile's block, for one token: a row's products in four lanes, which are then added.
    template <int BEGIN, int END, class Group>
    static INLINE void row_dots(I (&sum)[1][PV], const uint8_t* rows, const Group* a, int64_t stride = 32) {
        for (int v = 0; v < PV; v++) {
            I s[4];
            for (int r = 0; r < 4; r++) {
                s[r] = vdupq_n_s32(0);
                for (int h = BEGIN; h < END; h++)
                    s[r] = vdotq_s32(s[r], bytes(rows + stride * (4 * v + r) + 16 * h), acts(a->q[0] + 16 * h));
            }
            sum[0][v] = vaddq_s32(sum[0][v], vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])));
        }
    }
    template <int MULTIPLE>
    static INLINE F to_float(I x) {
        return vsubq_f32(vreinterpretq_f32_s32(x), vreinterpretq_f32_s32(vdupq_n_s32(magic<MULTIPLE>)));
    }

    // byte_block: 32 columns for 4 tokens and the 8 rows of an expanded panel (or of Q8_0 as it is), the inner loop of
    // every prompt: 64 dot products and 16 to 32 float operations. In assembly because compilers (GCC 12, clang 14)
    // spill here. Loads are just before their use, and the out-of-order core reorders them. A sum becomes s * d by one
    // fused multiply-add onto a fresh copy of `bias` = -(1.5 * 2^23 / multiple) * d, which the tile holds. The value
    // before the final rounding is exact, so the bits are those of float(sum) * d. This needs a d of at most 22
    // significant bits: every type but Q8_K, which takes the float path.
    template <class F, int T>
    static constexpr bool has_block = F::is_tile || (F::kind == N8 && !F::sub16) ? T == 4 : F::kind == N2T;
    template <class F>
    static constexpr bool book4 = F::kind == N4I || F::kind == N4M;
    template <class F, int T>
    static constexpr bool has_sums = !F::is_tile && (F::kind == N4S || F::kind == N4U || (T == 1 && book4<F>));
    static constexpr bool two_in_flight = true;
    // Tokens from which expanding first is faster, as measured; many if blocks need little or no unpacking.
    template <class F>
    static constexpr int expand_from = F::kind == N8 && !F::sub16 ? 32
                                       : !paired<F::kind>         ? 5
                                       : F::super                 ? 8
                                                                  : 12;
    static constexpr bool tile_bias = true;
    template <int MULTIPLE>
    static constexpr float bias = -__builtin_bit_cast(float, magic<MULTIPLE>);

// clang-format off
#define DOT4(g)                                                                                \
    "ldr %q[w], [%[from], #16*" #g "]\n"                                                       \
    "sdot %[s0].4s, %[w].16b, %[a0].4b[" #g "]\nsdot %[s1].4s, %[w].16b, %[a1].4b[" #g "]\n"   \
    "sdot %[s2].4s, %[w].16b, %[a2].4b[" #g "]\nsdot %[s3].4s, %[w].16b, %[a3].4b[" #g "]\n"
#define DOT8(g)                                                                                \
    DOT4(g) "ldr %q[x], [%[from], #64+16*" #g "]\n"                                            \
    "sdot %[r0].4s, %[x].16b, %[a0].4b[" #g "]\nsdot %[r1].4s, %[x].16b, %[a1].4b[" #g "]\n"   \
    "sdot %[r2].4s, %[x].16b, %[a2].4b[" #g "]\nsdot %[r3].4s, %[x].16b, %[a3].4b[" #g "]\n"
#define ACTS "ldr %q[a0], [%[q]]\nldr %q[a1], [%[q], #32]\nldr %q[a2], [%[q], #64]\nldr %q[a3], [%[q], #96]\n"
    // clang-format on
    using Sums = I[4];
    static INLINE void restart(Sums& s, const int32_t* start) {
        asm("ldr %q0, [%4]\nldr %q1, [%4]\nldr %q2, [%4]\nldr %q3, [%4]"
            : "=w"(s[0]), "=w"(s[1]), "=w"(s[2]), "=w"(s[3])
            : "r"(start), "m"(*reinterpret_cast<const int32_t(*)[4]>(start)));
    }
    // Half a block: 4 tokens x 4 rows, or x 8 rows in s and r.
    static INLINE void half(Sums& s, const uint8_t* from, const int8_t* q) {
        Q w;
        A a0, a1, a2, a3;
        asm(ACTS DOT4(0) DOT4(1) DOT4(2) DOT4(3)
            : [s0] "+&w"(s[0]), [s1] "+&w"(s[1]), [s2] "+&w"(s[2]), [s3] "+&w"(s[3]), [w] "=&w"(w), [a0] "=&w"(a0),
              [a1] "=&w"(a1), [a2] "=&w"(a2), [a3] "=&w"(a3)
            : [from] "r"(from), [q] "r"(q)
            : "memory");
    }
    static INLINE void half(Sums& s, Sums& r, const uint8_t* from, const int8_t* q) {
        Q w, x;
        A a0, a1, a2, a3;
        asm(ACTS DOT8(0) DOT8(1) DOT8(2) DOT8(3)
            : [s0] "+&w"(s[0]), [s1] "+&w"(s[1]), [s2] "+&w"(s[2]), [s3] "+&w"(s[3]), [r0] "+&w"(r[0]),
              [r1] "+&w"(r[1]), [r2] "+&w"(r[2]), [r3] "+&w"(r[3]), [w] "=&w"(w), [x] "=&w"(x), [a0] "=&w"(a0),
              [a1] "=&w"(a1), [a2] "=&w"(a2), [a3] "=&w"(a3)
            : [from] "r"(from), [q] "r"(q)
            : "memory");
    }
#undef ACTS
#undef DOT8
#undef DOT4
    // Half a block of nibbles for T tokens and 8 rows, the inner loop of decoding 4-bit types. A byte m = 16 hi + lo is
    // multiplied once whole and once without lo: `sum` accumulates 16 H + L, `high` 16 H. One `and` for 8 x 4 weights,
    // no shift.
// clang-format off
#define TOKEN(t, g)                                           \
    "sdot %[s" #t "].4s, %[m].16b, %[a" #t "].4b[" #g "]\n"   \
    "sdot %[h" #t "].4s, %[n].16b, %[a" #t "].4b[" #g "]\n"
#define COLUMNS(g, TOKENS) "ldr %q[m], [%[p], #16*" #g "]\nand %[n].16b, %[m].16b, %[mask].16b\n" TOKENS(g)
#define HALF(TOKENS) COLUMNS(0, TOKENS) COLUMNS(1, TOKENS) COLUMNS(2, TOKENS) COLUMNS(3, TOKENS)
#define TOKENS1(g) TOKEN(0, g)
#define TOKENS2(g) TOKENS1(g) TOKEN(1, g)
#define TOKENS3(g) TOKENS2(g) TOKEN(2, g)
#define TOKENS4(g) TOKENS3(g) TOKEN(3, g)
#define SUMS(t) [s##t] "+&w"(sum[t]), [h##t] "+&w"(high[t]), [a##t] "=&w"(a[t])
#define REST [m] "=&w"(m), [n] "=&w"(n) : [p] "r"(p), [q] "r"(q), [mask] "w"(mask) : "memory"
#define LOAD(t) "ldr %q[a" #t "], [%[q], #32*" #t "]\n"
    // clang-format on
    template <int T>
    static INLINE void nibbles(I (&sum)[T], I (&high)[T], const uint8_t* p, const int8_t* q) {
        A a[T];
        Q m, n;
        const uint8x16_t mask = vdupq_n_u8(0xf0);
        if constexpr (T == 1) {
            asm(LOAD(0) HALF(TOKENS1) : SUMS(0), REST);
        } else if constexpr (T == 2) {
            asm(LOAD(0) LOAD(1) HALF(TOKENS2) : SUMS(0), SUMS(1), REST);
        } else if constexpr (T == 3) {
            asm(LOAD(0) LOAD(1) LOAD(2) HALF(TOKENS3) : SUMS(0), SUMS(1), SUMS(2), REST);
        } else {
            asm(LOAD(0) LOAD(1) LOAD(2) LOAD(3) HALF(TOKENS4) : SUMS(0), SUMS(1), SUMS(2), SUMS(3), REST);
        }
    }
#undef LOAD
#undef REST
#undef SUMS
#undef TOKENS4
#undef TOKENS3
#undef TOKENS2
#undef TOKENS1
#undef HALF
#undef COLUMNS
#undef TOKEN
    static INLINE I broadcast(int32_t x) {  // otherwise compilers do this arithmetic in the vector pipes
        I v;
        asm("dup %0.4s, %w1" : "=w"(v) : "r"(x));
        return v;
    }
// clang-format off
#define LOOK(n, at)                                                                              \
    "ldr %q[m" #n "], [%[p], #" #at "]\nand %[n" #n "].16b, %[m" #n "].16b, %[low].16b\n"        \
    "ushr %[m" #n "].16b, %[m" #n "].16b, #4\ntbl %[n" #n "].16b, {%[book].16b}, %[n" #n "].16b\n" \
    "tbl %[m" #n "].16b, {%[book].16b}, %[m" #n "].16b\n"
#define MEET(w, g) "sdot %[s].4s, %[" #w "0].16b, %[a].4b[" #g "]\nsdot %[r].4s, %[" #w "1].16b, %[a].4b[" #g "]\n"
    // clang-format on
    // Half a block of nibbles that are indices of a book, for one token and 8 rows.
    static INLINE void places(I& s, I& r, const uint8_t* p, const int8_t* q, int8x16_t book) {
        A a;
        Q m0, m1, n0, n1;
        asm("ldr %q[a], [%[q]]\n" LOOK(0, 0) LOOK(1, 32) MEET(n, 0) MEET(m, 2)  //
            LOOK(0, 16) LOOK(1, 48) MEET(n, 1) MEET(m, 3)
            : [s] "+&w"(s), [r] "+&w"(r), [a] "=&w"(a), [m0] "=&w"(m0), [m1] "=&w"(m1), [n0] "=&w"(n0), [n1] "=&w"(n1)
            : [p] "r"(p), [q] "r"(q), [low] "w"(vdupq_n_u8(15)), [book] "w"(book)
            : "memory");
    }
#undef MEET
#undef LOOK
    // The sums of a block: of two vectors of rows, or 16 H + L and 16 H of `paired` ones. Weights are prefetched 512
    // bytes ahead if that is faster, one line at a time: many prefetches at once are slower than none.
    template <class F, int T, class Group>
    static INLINE void sums(I (&sum)[T][2], const uint8_t* p, const Group* a) {
        const auto fetch = [&](int at) INLINE_LAMBDA {
            if constexpr (T == 1 && !F::super) asm volatile("prfm pldl1keep, [%0]" : : "r"(p + at));
        };
        fetch(512);
        if constexpr (book4<F>) {
            const int8x16_t book = vld1q_s8(kind_book(F::kind));
            sum[0][0] = start<0, 1>(nullptr), sum[0][1] = start<0, 1>(nullptr);
            places(sum[0][0], sum[0][1], p, a->q[0], book);
            fetch(576);
            places(sum[0][0], sum[0][1], p + 64, a->q[0] + 16, book);
            fetch(640);
        } else {
            I both[T], high[T];
            for (int t = 0; t < T; t++) {
                both[t] = F::kind == N4S ? broadcast(magic<1> + 8 * a->neg[t]) : start<0, 1>(nullptr);
                high[t] = start<0, 1>(nullptr);
            }
            nibbles<T>(both, high, p, a->q[0]);
            fetch(576);
            nibbles<T>(both, high, p + 64, a->q[0] + 16);
            fetch(640);
            for (int t = 0; t < T; t++) sum[t][0] = both[t], sum[t][1] = high[t];
        }
    }
    // Signed codes are lo minus 8: `sum` starts at -8 times the activations' sum. Unsigned codes are hi plus 8: `rest`,
    // which subtracts the constant, adds 8 times that sum. Every step is exact, so the bits are those of float(s) * d.
    template <class F>
    static INLINE void apart(const I (&sum)[2], int32_t neg, Neon::F (&f)[2]) {
        const I rest = F::kind == N4S ? start<0, -16>(nullptr) : broadcast(magic<-16> + 128 * neg);
        const Neon::F upper = vreinterpretq_f32_s32(sum[1]);
        f[0] = vsubq_f32(vreinterpretq_f32_s32(sum[0]), upper);
        f[1] = fma(upper, set(1.0f / 16), vreinterpretq_f32_s32(rest));
    }
// clang-format off
#define TRITS(g)                                                                              \
    "ldr %q[m], [%[p], #16*" #g "]\n"                                                         \
    "and %[f].16b, %[m].16b, %[both].16b\nand %[n].16b, %[m].16b, %[upper].16b\n"             \
    "sdot %[s].4s, %[f].16b, %[a].4b[" #g "]\nsdot %[h].4s, %[n].16b, %[a].4b[" #g "]\n"      \
    "ushr %[m].16b, %[m].16b, #4\nand %[n].16b, %[m].16b, %[upper].16b\n"                     \
    "sdot %[s].4s, %[m].16b, %[b].4b[" #g "]\nsdot %[h].4s, %[n].16b, %[b].4b[" #g "]\n"
    // clang-format on
    static INLINE void trits(I& sum, I& high, const uint8_t* p, const int8_t* q) {
        A a, b;
        Q m, n, f;
        asm("ldr %q[a], [%[q]]\nldr %q[b], [%[q], #16]\n" TRITS(0) TRITS(1) TRITS(2) TRITS(3)
            : [s] "+&w"(sum), [h] "+&w"(high), [a] "=&w"(a), [b] "=&w"(b), [m] "=&w"(m), [n] "=&w"(n), [f] "=&w"(f)
            : [p] "r"(p), [q] "r"(q), [both] "w"(vdupq_n_u8(15)), [upper] "w"(vdupq_n_u8(12))
            : "memory");
    }
#undef TRITS
    // Trits: a code is the trit plus one, a pair is m = 4 hi + lo. `sum` accumulates 4 H + L minus the activations'
    // sum; `high` accumulates 4 H, and the constant is subtracted with it.
    template <class F, int T, class Group>
    static INLINE void trit_block(Neon::F (&acc)[T][2], const typename F::Head& head, const uint8_t* unit, int j,
                                  const Group* a) {
        I sum[T], high[T];
        for (int t = 0; t < T; t++) sum[t] = broadcast(magic<1> + a->neg[t]), high[t] = start<0, 1>(nullptr);
        const uint8_t* p = F::block_quants(unit, j);
        __builtin_prefetch(p + 512);
        for (int t = 0; t < T; t++) trits(sum[t], high[t], p, a->q[t]);
        Neon::F d[2];
        F::scales(head, unit, j, 0, d);
        const X da = lanes(a->d);
        for (int t = 0; t < T; t++) {
            const Neon::F upper = vreinterpretq_f32_s32(high[t]), low = vsubq_f32(vreinterpretq_f32_s32(sum[t]), upper);
            const Neon::F up = fma(upper, set(0.25f), vreinterpretq_f32_s32(broadcast(magic<-4> - 4 * a->neg[t])));
            acc[t][0] = vfmaq_n_f32(acc[t][0], mul(low, d[0]), da[t]);
            acc[t][1] = vfmaq_n_f32(acc[t][1], mul(up, d[1]), da[t]);
        }
    }
    template <class F, int T, class Group>
    static INLINE void block(Neon::F (&acc)[T][2], const typename F::Head& head, const uint8_t* unit, int j,
                             const Group* a) {
        if constexpr (F::kind == N8)
            byte_block<F>(acc, head, unit, a);
        else
            trit_block<F>(acc, head, unit, j, a);
    }
    template <class Tile, class Group>
    static INLINE void byte_block(F (&acc)[4][2], const typename Tile::Head& head, const uint8_t* unit,
                                  const Group* group) {
        constexpr int M = Tile::multiple;
        alignas(16) static constexpr int32_t pattern[4] = {magic<M>, magic<M>, magic<M>, magic<M>};
        const uint8_t* w = unit + Tile::quants_at;
        const int8_t* q = group->q[0];
        const auto at = [&](int offset, int v)
                            INLINE_LAMBDA { return reinterpret_cast<const float*>(unit + offset) + 4 * v; };
        alignas(16) float side[2][2][4];  // Q8_0 as it is: the scales and biases that a tile would hold
        if constexpr (!Tile::is_tile) {
            F d[2];
            Tile::scales(head, unit, 0, 0, d);
            for (int v = 0; v < 2; v++) store(side[0][v], d[v]), store(side[1][v], mul(d[v], set(bias<M>)));
        }
        const X da = lanes(group->d);
        const auto add = [&](int v, const F(&x)[4]) INLINE_LAMBDA {
            acc[0][v] = fma_lane<0>(acc[0][v], x[0], da), acc[1][v] = fma_lane<1>(acc[1][v], x[1], da);
            acc[2][v] = fma_lane<2>(acc[2][v], x[2], da), acc[3][v] = fma_lane<3>(acc[3][v], x[3], da);
        };
        const auto first = [&](int v, const Sums& s, F(&x)[4]) INLINE_LAMBDA {
            const float *scale = side[0][v], *minus = side[1][v];
            if constexpr (Tile::is_tile) scale = at(Tile::scale_at(0), v), minus = at(Tile::bias_at, v);
            const F d = load(scale);
            for (int t = 0; t < 4; t++) x[t] = scaled(s[t], d, minus);
        };
        F x[4];
        if constexpr (Tile::sub16) {  // one vector of rows after the other: registers do not suffice for both
            for (int v = 0; v < 2; v++) {
                Sums s;
                restart(s, pattern);
                half(s, w + 64 * v, q);
                first(v, s, x);
                restart(s, pattern);
                half(s, w + 128 + 64 * v, q + 16);
                const F d = load(at(Tile::scale_at(1), v));
                for (int t = 0; t < 4; t++) x[t] = fma(to_float<M>(s[t]), d, x[t]);
                add(v, x);
            }
        } else {
            Sums s, r;
            restart(s, pattern);
            restart(r, pattern);
            half(s, r, w, q);
            half(s, r, w + 128, q + 16);
            first(0, s, x);
            add(0, x);
            first(1, r, x);
            add(1, x);
        }
    }

    static INLINE void columns(const uint8_t* p, int centre, F d, F m, float* out, int stride) {
        const int32x4_t x = vreinterpretq_s32_u8(vld1q_u8(p)), c = vdupq_n_s32(centre);
        const auto put = [&](int n, int32x4_t column) {
            vst1q_f32(out + n * stride, vfmaq_f32(m, d, vcvtq_f32_s32(vaddq_s32(column, c))));
        };
        put(0, vshrq_n_s32(vshlq_n_s32(x, 24), 24));
        put(1, vshrq_n_s32(vshlq_n_s32(x, 16), 24));
        put(2, vshrq_n_s32(vshlq_n_s32(x, 8), 24));
        put(3, vshrq_n_s32(x, 24));
    }

    // Sixteen independent accumulators, written out: in a loop the compiler stores them every round.
    static void dot_peak(const uint8_t* w, const int8_t* a, int64_t iterations) {
        const Q q = bytes(w), act = vld1q_s8(a);
#define DOT(n) "sdot v" #n ".4s, %0.16b, %1.4b[1]\n"
#define DOTS \
    DOT(16)  \
    DOT(17)  \
    DOT(18) DOT(19) DOT(20) DOT(21) DOT(22) DOT(23) DOT(24) DOT(25) DOT(26) DOT(27) DOT(28) DOT(29) DOT(30) DOT(31)
        for (int64_t n = 0; n < iterations; n++)
            asm volatile(DOTS DOTS DOTS DOTS ::"w"(q), "w"(act)
                         : "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
                           "v29", "v30", "v31");
#undef DOT
#undef DOTS
    }
};
