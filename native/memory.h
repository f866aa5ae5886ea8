// Large zeroed memory straight from the system, and errors that say what was asked for.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace assay {

// Out of memory; the message names the purpose and the size.
struct OutOfMemory : std::bad_alloc {
    explicit OutOfMemory(std::string text) : text_(std::move(text)) {}
    const char* what() const noexcept override { return text_.c_str(); }

private:
    std::string text_;
};

// Zeroed pages. Those never touched cost nothing.
class Pages {
public:
    Pages() = default;
    Pages(size_t bytes, const std::string& purpose) : bytes_(bytes) {
        if (bytes == 0) return;
        // More than the machine has can be promised but never filled; some systems promise anything.
        const size_t present = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
        void* p = MAP_FAILED;
        if (bytes <= present) p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            throw OutOfMemory(purpose + ": the system has no room for " + std::to_string(bytes) + " bytes");
#if defined(MADV_HUGEPAGE)
        if (bytes >= size_t(4) << 20) madvise(p, bytes, MADV_HUGEPAGE);
#endif
        data_ = static_cast<uint8_t*>(p);
    }
    Pages(Pages&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
    Pages& operator=(Pages&& o) noexcept {
        std::swap(data_, o.data_);
        std::swap(bytes_, o.bytes_);
        return *this;
    }
    ~Pages() {
        if (data_) munmap(data_, bytes_);
    }
    uint8_t* data() const { return data_; }
    size_t size() const { return bytes_; }

private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
};

// Tell the system that a mapped file range will not be read again soon; the file stays readable.
inline void forget_mapped(const void* data, size_t bytes) {
    const uintptr_t page = sysconf(_SC_PAGESIZE), begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace assay
