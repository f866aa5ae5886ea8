// Rows of a file that x86 reads in place, for avx2.h and avx512.h. Included inside an anonymous namespace.
//
// A lane of a sum of floats is a chain of its own: the even or the odd columns of a row. A vector of pairs has columns
// 2p and 2p + 1 of L / 2 rows, in each 128 bits of two rows. Adding pairs takes two thirds of the permutations of a
// transposition. `V::column_pairs<W>(from, stride, h, to)` makes the four vectors of pairs of 8 columns: of each four of L
// rows, the first two (h = 0) or the last two. `V::evens` and `V::odds` join two of them to a column of L rows.

// For 8 rows of 32 bytes, `stride` bytes apart, the dot products of bytes [16 * BEGIN, 16 * END) with those of q.
template <int BEGIN, int END>
INLINE __m256i dots_of_rows(const uint8_t* rows, int64_t stride, const int8_t* q) {
    const auto half = [](const void* p) INLINE_LAMBDA { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
    __m256i sum[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        sum[r] = _mm256_setzero_si256();
#pragma GCC unroll 2
        for (int h = BEGIN; h < END; h++) {
            const uint8_t* const at = rows + r * stride + 16 * h;
            const __m256i w = _mm256_inserti128_si256(_mm256_castsi128_si256(half(at)), half(at + 4 * stride), 1);
            const __m256i x = _mm256_broadcastsi128_si256(half(q + 16 * h));
            const __m256i size = _mm256_abs_epi8(w), turned = _mm256_sign_epi8(x, w);
#if defined(__AVX512VNNI__)
            sum[r] = _mm256_dpbusd_epi32(sum[r], size, turned);
#else
            sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(_mm256_maddubs_epi16(size, turned), _mm256_set1_epi16(1)));
#endif
        }
    }
    return _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[1]), _mm256_hadd_epi32(sum[2], sum[3]));
}

template <class V>
struct ReadsRows : NoBlock {
    static constexpr bool reads_rows = true;
    // The rows of a panel x 8 columns, rows `stride` bytes apart, to [8][rows] floats.
    template <class W>
    static INLINE void transpose_rows(const uint8_t* from, int64_t stride, float* to) {
        for (int v = 0; v < V::PV; v++, from += V::L * stride, to += V::L) {
            typename V::F first[4], last[4];
            V::template column_pairs<W>(from, stride, 0, first);
            V::template column_pairs<W>(from, stride, 1, last);
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) {
                V::store(to + 2 * p * V::L * V::PV, V::evens(first[p], last[p]));
                V::store(to + (2 * p + 1) * V::L * V::PV, V::odds(first[p], last[p]));
            }
        }
    }
    // One token: 8 columns onto the sums of the even and odd columns.
    template <class W, class F, int N>
    static INLINE void add_rows(F (&acc)[N], const uint8_t* from, int64_t stride, const float* x) {
        static_assert(N == 2 * V::PV);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            F w[4];
            V::template column_pairs<W>(from + n / 2 * V::L * stride, stride, n % 2, w);
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) acc[n] = V::fma(w[p], V::two_columns(x + 2 * p), acc[n]);
        }
    }
    // One token: a cache line of each of L rows onto their sums.
    static constexpr int stream_bytes = 64;
    template <class W, class F>
    static INLINE void add_lines(F (&acc)[2], const uint8_t* from, int64_t stride, const float* x, int64_t width) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
#pragma GCC unroll 4
            for (int i = 0; i < stream_bytes / W::size; i += 8) {
                F w[4];
                V::template column_pairs<W>(from + i * W::size, stride, h, w);
#pragma GCC unroll 4
                for (int p = 0; p < 4; p++) acc[h] = V::fma(w[p], V::two_columns(x + i * width + 2 * p), acc[h]);
            }
    }
    template <class F, int N, int M>
    static INLINE void row_sums(const F (&acc)[N], F (&sum)[M]) {
        for (int v = 0; v < M; v++)
            sum[v] = V::add(V::evens(acc[2 * v], acc[2 * v + 1]), V::odds(acc[2 * v], acc[2 * v + 1]));
    }
};
