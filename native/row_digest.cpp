#include "row_digest.h"

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

uint64_t product(uint32_t a, uint32_t b) { return uint64_t(a) * b; }

struct Sums {
    uint64_t first[kHalf] = {}, second[kHalf] = {};

    void add(const uint32_t* __restrict w, const uint32_t* __restrict k) {
        for (int j = 0; j < kHalf; ++j) {
            first[j] += product(w[j] + k[j], w[j + kHalf] + k[j + kHalf]);
            second[j] += product(w[j] + k[j + kHalf], w[j + kHalf] + k[j + kGroup]);
        }
    }
};

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
    std::array<uint64_t, 2> found{};
    for (int j = 0; j < kHalf; ++j) {
        found[0] += sums.first[j];
        found[1] += sums.second[j];
    }
    return found;
}

}  // namespace assay
