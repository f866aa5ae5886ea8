#include "row_digest.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace assay {
namespace {

constexpr int64_t kGroup = 8, kHalf = 4;  // words of a group; each of its first half is multiplied by one of the second

uint32_t key(uint32_t i) {
    uint32_t x = i * 0x9E3779B9u + 0x85EBCA6Bu;
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}

// At least n keys. A longer table replaces the last one; a caller keeps the table that it reads.
std::shared_ptr<const std::vector<uint32_t>> keys(int64_t n) {
    static std::mutex mutex;
    static std::shared_ptr<const std::vector<uint32_t>> last;
    const std::lock_guard<std::mutex> lock(mutex);
    if (!last || int64_t(last->size()) < n) {
        auto made = std::make_shared<std::vector<uint32_t>>(size_t(n));
        for (int64_t i = 0; i < n; ++i) (*made)[size_t(i)] = key(uint32_t(i));
        last = std::move(made);
    }
    return last;
}

#ifdef __SSE2__

// GCC does not vectorise the loop below on x86. A product takes the even words of both sides, then the odd ones.
struct Sums {
    __m128i first = _mm_setzero_si128(), second = _mm_setzero_si128();

    static __m128i load(const uint32_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
    static __m128i products(__m128i a, __m128i b) {
        const __m128i odd = _mm_mul_epu32(_mm_srli_epi64(a, 32), _mm_srli_epi64(b, 32));
        return _mm_add_epi64(_mm_mul_epu32(a, b), odd);
    }
    void add(const uint32_t* w, const uint32_t* k) {
        const __m128i low = load(w), high = load(w + kHalf);
        const __m128i k0 = load(k), k1 = load(k + kHalf), k2 = load(k + kGroup);
        first = _mm_add_epi64(first, products(_mm_add_epi32(low, k0), _mm_add_epi32(high, k1)));
        second = _mm_add_epi64(second, products(_mm_add_epi32(low, k1), _mm_add_epi32(high, k2)));
    }
    static uint64_t total(__m128i x) {
        uint64_t parts[2];
        _mm_storeu_si128(reinterpret_cast<__m128i*>(parts), x);
        return parts[0] + parts[1];
    }
    std::array<uint64_t, 2> totals() const { return {total(first), total(second)}; }
};

#else

struct Sums {
    uint64_t first[kHalf] = {}, second[kHalf] = {};

    static uint64_t product(uint32_t a, uint32_t b) { return uint64_t(a) * b; }
    void add(const uint32_t* __restrict w, const uint32_t* __restrict k) {
        for (int j = 0; j < kHalf; ++j) {
            first[j] += product(w[j] + k[j], w[j + kHalf] + k[j + kHalf]);
            second[j] += product(w[j] + k[j + kHalf], w[j + kHalf] + k[j + kGroup]);
        }
    }
    std::array<uint64_t, 2> totals() const {
        return {first[0] + first[1] + first[2] + first[3], second[0] + second[1] + second[2] + second[3]};
    }
};

#endif

}  // namespace

std::array<uint64_t, 2> row_digest(const uint32_t* words, int64_t n) {
    const auto table = keys((n + kGroup - 1) / kGroup * kGroup + kHalf);
    const uint32_t* k = table->data();
    Sums sums;
    int64_t i = 0;
    for (; i + kGroup <= n; i += kGroup) sums.add(words + i, k + i);
    if (i < n) {
        uint32_t tail[kGroup] = {};
        std::copy(words + i, words + n, tail);
        sums.add(tail, k + i);
    }
    return sums.totals();
}

}  // namespace assay
