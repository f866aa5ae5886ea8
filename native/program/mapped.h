// Protection against memory-mapped files that shrink: reading past the new end raises SIGBUS, which kills a process
// without a handler.
//
// Contract: while a Guard of a map exists, such a read gives zeros, from that page to the end of the map, and `lost`
// becomes true. The reader must check `lost` and discard its result. Reads elsewhere raise SIGBUS as before. On Windows
// a mapped file cannot be shortened.
#pragma once

#include <cstddef>
#include <cstdint>

#include "system.h"
#if !defined(_WIN32)
#include <signal.h>

#include <array>
#include <atomic>
#include <mutex>
#endif

namespace assay {

#if defined(_WIN32)
class Guard {
public:
    Guard(const void*, size_t) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    bool lost() const { return false; }
};
#else
class Guard {
public:
    Guard(const void* data, size_t bytes) {
        static std::once_flag once;
        std::call_once(once, install);
        for (Range& range : ranges()) {
            uintptr_t none = 0;
            if (!range.begin.compare_exchange_strong(none, uintptr_t(data))) continue;
            range.lost = false;
            range.end = uintptr_t(data) + bytes;  // written last: publishes the range to the handler
            range_ = &range;
            return;
        }
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() {
        if (!range_) return;
        range_->end = 0;
        range_->begin = 0;
    }
    bool lost() const { return range_ && range_->lost; }

private:
    struct Range {
        std::atomic<uintptr_t> begin{0}, end{0};
        std::atomic<bool> lost{false};
    };
    static std::array<Range, 1024>& ranges() {
        static std::array<Range, 1024> all;  // further maps are not guarded
        return all;
    }
    static struct sigaction& before() {
        static struct sigaction kept;
        return kept;
    }
    static void install() {
        ranges();
        machine::page_size();
        struct sigaction action = {};
        action.sa_sigaction = answer;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, &before());
    }
    // Only calls that are allowed in a signal handler: mmap is one system call.
    static void answer(int, siginfo_t* info, void*) {
        const uintptr_t at = uintptr_t(info->si_addr);
        for (Range& range : ranges()) {
            const uintptr_t end = range.end;
            if (at < range.begin || at >= end) continue;
            const uintptr_t page = at / machine::page_size() * machine::page_size();
            void* zeros = mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
            if (zeros == MAP_FAILED) break;
            range.lost = true;
            return;
        }
        // not in a guarded range: restore the previous handler and repeat the read
        sigaction(SIGBUS, &before(), nullptr);
    }

    Range* range_ = nullptr;
};
#endif

}  // namespace assay
