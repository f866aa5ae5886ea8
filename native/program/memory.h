// Large zeroed memory directly from the system, and out-of-memory errors that name the purpose.
#pragma once

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "system.h"

namespace assay {

// Out of memory; the message names the purpose and the size.
struct OutOfMemory : std::bad_alloc {
    explicit OutOfMemory(std::string text) : text_(std::move(text)) {}
    const char* what() const noexcept override { return text_.c_str(); }

private:
    std::string text_;
};

// The machine's NUMA nodes as a bit mask; 0 or one bit if there is nothing to choose.
inline uint64_t memory_nodes() {
    static const uint64_t nodes = [] {
        uint64_t mask = 0;
        std::FILE* file = std::fopen("/sys/devices/system/node/has_memory", "r");  // "0-1,4"
        if (!file) return mask;
        for (int first, last; std::fscanf(file, "%d", &first) == 1;) {
            int next = std::fgetc(file);
            last = first;
            if (next == '-') next = std::fscanf(file, "%d", &last) == 1 ? std::fgetc(file) : EOF;
            for (int i = std::max(first, 0); i <= last && i < 64; ++i) mask |= uint64_t(1) << i;
            if (next != ',') break;
        }
        std::fclose(file);
        return mask;
    }();
    return nodes;
}

constexpr size_t kReadAhead = size_t(64) << 20;  // bytes of a mapped file to read ahead

// Zeroed memory, aligned to a huge page if it is larger than one. Every step reads all weights, and with pages of 4 KB
// TLB misses cost decoding a tenth. Untouched pages cost nothing.
class Pages {
public:
    Pages() = default;
    Pages(size_t bytes, const std::string& purpose) : bytes_(bytes) {
        if (bytes == 0) return;
        // Reject a size that exceeds the machine's memory: some systems grant any address range, and fail only when it
        // is filled.
        const size_t page = machine::page_size(), whole = (bytes + page - 1) / page * page;
        const size_t spare = machine::kTrims && bytes > kHuge ? kHuge : 0;
        void* p = bytes <= machine::memory() ? machine::take(whole + spare) : nullptr;
        if (!p)
            throw OutOfMemory(purpose + ": the system has no room for " + std::to_string(bytes) + " bytes");
        data_ = static_cast<uint8_t*>(p);
        if (!spare) return;
        const size_t skip = -reinterpret_cast<uintptr_t>(p) % kHuge;
        if (skip) machine::give_back(data_, skip);
        data_ += skip;
        if (spare - skip) machine::give_back(data_ + whole, spare - skip);
#if defined(MADV_HUGEPAGE)
        madvise(data_, whole, MADV_HUGEPAGE);
#endif
#if defined(SYS_mbind)
        // Any idle thread takes the next rows of a matrix, so no thread owns them. Interleave the pages over all NUMA
        // nodes, so that every core reads with the bandwidth of all.
        const uint64_t nodes = memory_nodes();
        if (nodes & (nodes - 1)) syscall(SYS_mbind, data_, whole, 3 /* MPOL_INTERLEAVE */, &nodes, 65, 0);
#endif
    }
    Pages(Pages&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
    Pages& operator=(Pages&& o) noexcept {
        std::swap(data_, o.data_);
        std::swap(bytes_, o.bytes_);
        return *this;
    }
    ~Pages() {
        if (data_) machine::give_back(data_, bytes_);
    }
    uint8_t* data() const { return data_; }
    size_t size() const { return bytes_; }

    static constexpr size_t kHuge = size_t(2) << 20;

private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
};

// Pages shared by several pieces: each piece keeps the memory alive that it is in.
class Arena {
public:
    std::shared_ptr<uint8_t> take(size_t bytes, const std::string& purpose) {
        if (!pages_ || used_ + bytes > pages_->size()) {
            try {
                pages_ = std::make_shared<Pages>(std::max(bytes, kLeast), purpose);
            } catch (const OutOfMemory&) {  // perhaps only the part beyond this piece did not fit
                pages_ = std::make_shared<Pages>(bytes, purpose);
            }
            used_ = 0;
        }
        uint8_t* piece = pages_->data() + used_;
        used_ += (bytes + 63) / 64 * 64;
        return {pages_, piece};
    }

private:
    static constexpr size_t kLeast = size_t(64) << 20;
    std::shared_ptr<Pages> pages_;
    size_t used_ = 0;
};

// Whether most of a mapped file range is in the page cache, judged by a few of its pages.
inline bool resident_mapped(const void* data, size_t bytes) {
    const uintptr_t page = machine::page_size(), begin = reinterpret_cast<uintptr_t>(data) / page;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + bytes - 1) / page;
    constexpr uintptr_t samples = 8;
    uintptr_t found = 0;
    for (uintptr_t i = 0; i < samples; ++i)
        found += machine::resident(reinterpret_cast<void*>((begin + (last - begin) * i / samples) * page));
    return 2 * found > samples;
}

// Tell the system that a mapped file range, and the part behind it, will be read now: it is read from disk while the
// range before is packed.
inline void expect_mapped(const void* data, size_t bytes) {
    const uintptr_t page = machine::page_size(), begin = reinterpret_cast<uintptr_t>(data) / page * page;
    machine::expect(reinterpret_cast<void*>(begin), bytes + kReadAhead);
}

// The next part of a mapped file range that can be entered into the page table at once; shortens the range by it.
inline void map_some(const uint8_t*& data, size_t& bytes) {
    constexpr size_t most = 8 << 20;
    const uintptr_t page = machine::page_size(), begin = reinterpret_cast<uintptr_t>(data) / page * page;
    const size_t part = bytes < most ? bytes : most;
    machine::map(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(data) + part - begin);
    data += part, bytes -= part;
}

// Tell the system that a mapped file range will not be read again soon; the file stays readable.
inline void forget_mapped(const void* data, size_t bytes) {
    const uintptr_t page = machine::page_size(), begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    if (end > begin) machine::forget(reinterpret_cast<void*>(begin), end - begin);
}

}  // namespace assay
