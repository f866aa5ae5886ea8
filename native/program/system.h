// System calls, for POSIX and Windows: zeroed pages, their size, and the amount of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace assay::machine {

#if defined(_WIN32)
constexpr bool kTrims = false;  // whether part of an allocation can be returned

inline size_t page_size() {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}
inline size_t memory() {
    MEMORYSTATUSEX status = {};
    status.dwLength = sizeof status;
    return GlobalMemoryStatusEx(&status) ? size_t(status.ullTotalPhys) : SIZE_MAX;
}
inline void* take(size_t bytes) { return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE); }
inline void give_back(void* data, size_t) { VirtualFree(data, 0, MEM_RELEASE); }
// VirtualUnlock on pages that are not locked removes them from the working set
inline void forget(void* data, size_t bytes) { VirtualUnlock(data, bytes); }
inline void expect(void*, size_t) {}
inline void map(void*, size_t) {}
inline bool resident(void*) { return true; }
#else
constexpr bool kTrims = true;

inline size_t page_size() {
    static const size_t size = size_t(sysconf(_SC_PAGESIZE));
    return size;
}
inline size_t memory() { return size_t(sysconf(_SC_PHYS_PAGES)) * page_size(); }
// Zeroed; null if there is no memory.
inline void* take(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}
inline void give_back(void* data, size_t bytes) { munmap(data, bytes); }
inline void forget(void* data, size_t bytes) { madvise(data, bytes, MADV_DONTNEED); }
// The range will be read soon.
inline void expect(void* data, size_t bytes) { madvise(data, bytes, MADV_WILLNEED); }
// Enter the range into the page table now, where the system can: a first read of a page would do it otherwise.
inline void map(void* data, size_t bytes) {
#if defined(MADV_POPULATE_READ)
    madvise(data, bytes, MADV_POPULATE_READ);
#else
    (void)data, (void)bytes;
#endif
}
// Whether a page can be read without waiting for a disk; true if the system does not tell.
inline bool resident(void* page) {
#if defined(__linux__)
    unsigned char known = 1;
#else
    char known = 1;
#endif
    return mincore(page, page_size(), &known) || (known & 1);
}
#endif

}  // namespace assay::machine
