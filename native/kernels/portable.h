// The vector type of plain C++: it defines what those of the other instruction sets must compute. Included by
// isa_portable.cpp and packing.cpp, inside an anonymous namespace.

// A vector: L rows; of floats (F), int32 (I), or 4 bytes a row (Q). Activations of half a block (A), 4 floats (X).
struct Portable : NoBlock {
    static constexpr int L = 8, PV = 1;
    struct F {
        float v[L];
    };
    struct I {
        int32_t v[L];
    };
    struct Q {
        int8_t v[4 * L];
    };
    using A = const int8_t*;
    using X = const float*;

    // Codes: unpacking gives multiple * q + offset, in `bits` bits. Packing stores the file's unsigned code with the
    // bits `flip` inverted.
    template <Kind KIND>
    static constexpr int bits = 8;
    template <Kind KIND>
    static constexpr int offset = 0;
    template <Kind KIND>
    static constexpr int multiple = 1;
    static constexpr int scale_bias = 0;
    template <Kind KIND>
    static constexpr int flip = 0;
    template <Kind KIND, int H>
    static INLINE void unpack(const uint8_t* main, const uint8_t* high, Q w[4]) {
        constexpr int VB = 4 * L;
        for (int g = 0; g < 4; g++)
            for (int i = 0; i < VB; i++) {
                const auto low = [&](int vector, int bits) { return high[vector * VB + i] & ((1 << bits) - 1); };
                int c;
                if constexpr (KIND == N8)
                    c = int8_t(main[g * VB + i]);
                else if constexpr (kind_bits(KIND) <= 3)
                    c = main[i] >> (2 * g) & 3;
                else if constexpr (KIND == N6)
                    c = g < 3 ? main[g * VB + i] >> 2
                              : (main[i] & 3) << 4 | (main[VB + i] & 3) << 2 | (main[2 * VB + i] & 3);
                else if constexpr (KIND == N5)
                    c = 4 * H + g < 5    ? high[(4 * H + g) * VB + i] >> 3
                        : 4 * H + g == 5 ? low(0, 3) << 2 | low(1, 2)
                        : 4 * H + g == 6 ? low(2, 3) << 2 | low(3, 2)
                                         : low(4, 3) << 2 | low(1, 3) >> 2 << 1 | low(3, 3) >> 2;
                else
                    c = main[g % 2 * VB + i] >> (g / 2 * 4) & 15;
                if constexpr (kind_bits(KIND) == 3) c += (high[i] >> (4 * H + g) & 1) << 2;
                if constexpr (has_book(KIND)) c = kind_book(KIND)[c];
                c -= KIND == N4S ? 8 : KIND == N5 ? 16 : KIND == N6 ? 32 : KIND == N3 ? 4 : KIND == N2T ? 1 : 0;
                w[g].v[i] = int8_t(c);
            }
    }

    template <class Function>
    static INLINE F each(Function f) {
        F r;
        for (int i = 0; i < L; i++) r.v[i] = f(i);
        return r;
    }
    static uint16_t u16(const uint8_t* p, int i) {
        uint16_t h;
        __builtin_memcpy(&h, p + 2 * i, 2);
        return h;
    }
    static INLINE F set(float x) {
        return each([=](int) { return x; });
    }
    static INLINE F load(const float* p) {
        return each([=](int i) { return p[i]; });
    }
    static INLINE void store(float* p, F x) {
        for (int i = 0; i < L; i++) p[i] = x.v[i];
    }
    static INLINE F f16(const uint8_t* p) {
        return each([=](int i) { return f16_to_f32(u16(p, i)); });
    }
    static INLINE F bf16(const uint8_t* p) {
        return each([=](int i) { return bf16_to_f32(u16(p, i)); });
    }
    static INLINE F neg(F a) {
        return each([=](int i) { return -a.v[i]; });
    }
    static INLINE F add(F a, F b) {
        return each([=](int i) { return a.v[i] + b.v[i]; });
    }
    static INLINE F mul(F a, F b) {
        return each([=](int i) { return a.v[i] * b.v[i]; });
    }
    static INLINE F fma(F a, F b, F c) {
        return each([=](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
    }

    // d times a sub-scale of R rows, exact and never -0. The sub-scale is a byte, or its low or high nibble.
    using Factor = F;
    template <int BIAS>
    static INLINE Factor factor(F d) {
        return d;
    }
    template <Field FIELD>
    static INLINE void times(const Factor (&d)[PV], const uint8_t* p, F (&out)[PV]) {
        for (int v = 0; v < PV; v++)
            out[v] = each([&](int i) {
                const uint8_t b = p[L * v + i];
                return std::fma(d[v].v[i], float(FIELD == LOW4 ? b & 15 : FIELD == HIGH4 ? b >> 4 : int8_t(b)), 0.0f);
            });
    }

    static INLINE X lanes(const float* p) { return p; }
    static INLINE F fma_lane(F acc, F a, X x, int n) {
        return fma(a, set(x[n]), acc);
    }

    static INLINE A acts(const int8_t* p) { return p; }
    static INLINE Q bytes(const uint8_t* p) {
        Q q;
        __builtin_memcpy(q.v, p, sizeof q.v);
        return q;
    }
    static INLINE void store_bytes(uint8_t* p, Q q) { __builtin_memcpy(p, q.v, sizeof q.v); }

    // The integer sum of a block starts here, at minus the offset times the activations' sum. It takes 16 columns at a
    // time, and divided by `multiple` becomes a float exactly.
    template <int OFFSET, int MULTIPLE>
    static INLINE I start(const int32_t*) {
        return I{};
    }
    template <int OFFSET, int MULTIPLE, int H>
    static INLINE I start_half(const int32_t*, const int32_t*) {
        return I{};
    }
    template <int BITS, int T>
    static INLINE void dots(I (&sum)[T][PV], const Q (&w)[PV][4], const A (&a)[T]) {
        for (int t = 0; t < T; t++)
            for (int r = 0; r < L; r++)
                for (int g = 0; g < 4; g++)
                    for (int j = 0; j < 4; j++) sum[t][0].v[r] += w[0][g].v[4 * r + j] * a[t][4 * g + j];
    }
    template <int MULTIPLE>
    static INLINE F to_float(I x) {
        return each([=](int i) { return float(x.v[i]); });
    }

    // Four columns of L floats from one vector of bytes: out[c * stride + r] = d[r] * (byte - offset + centre) + m[r]
    static INLINE void columns(const uint8_t* p, int centre, F d, F m, float* out, int stride) {
        const Q q = bytes(p);
        for (int c = 0; c < 4; c++)
            store(out + c * stride, fma(d, each([&](int i) { return float(q.v[4 * i + c] + centre); }), m));
    }

    static void dot_peak(const uint8_t* w, const int8_t* a, int64_t iterations) {
        volatile int32_t sink = 0;
        I acc[4][PV] = {};
        for (int64_t n = 0; n < iterations; n++)
            for (int i = 0; i < 4; i++) {
                Q q[1][4];
                for (int g = 0; g < 4; g++) q[0][g] = bytes(w + g * 4 * L);
                dots<8>(acc, q, {a + (n & 3), a + 4, a + 8, a + 12});
            }
        for (const auto& x : acc) sink = sink + x[0].v[0];
    }
};
