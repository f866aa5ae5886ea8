// Which instruction sets this machine has. Also compiled alone, when a build for this machine asks (CMakeLists.txt).
#pragma once

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace assay::kernels {

inline bool always() { return true; }

inline bool has_dotprod() {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long fphp = 1ul << 9, asimddp = 1ul << 20;
    return (getauxval(AT_HWCAP) & (fphp | asimddp)) == (fphp | asimddp);
#elif defined(__aarch64__) && defined(__APPLE__)
    return true;  // every Apple arm64 Mac
#else
    return false;
#endif
}

constexpr unsigned bit(int n) { return 1u << n; }

// Whether the processor has these bits of CPUID leaves 1 (ecx) and 7 (ebx, ecx), and the system saves these registers
// of a thread (XCR0). __builtin_cpu_supports does the same, but needs a library that Windows does not have.
inline bool x86_has([[maybe_unused]] unsigned ecx1, [[maybe_unused]] unsigned ebx7, [[maybe_unused]] unsigned ecx7,
             [[maybe_unused]] unsigned kept) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    ecx1 |= bit(27);  // XGETBV is available
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & ecx1) != ecx1) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & ebx7) != ebx7 || (c & ecx7) != ecx7) return false;
    asm("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & kept) == kept;
#else
    return false;
#endif
}

constexpr unsigned kFma = bit(12), kF16c = bit(29), kAvx2 = bit(5);
constexpr unsigned kAvx512 = bit(16) | bit(17) | bit(30) | bit(31), kVnni = bit(11);  // F, DQ, BW, VL

inline bool has_avx2() { return x86_has(kFma | kF16c, kAvx2, 0, 0x06); }

inline bool has_avx512() { return x86_has(kFma | kF16c, kAvx2 | kAvx512, 0, 0xe6); }

inline bool has_avx512vnni() { return x86_has(kFma | kF16c, kAvx2 | kAvx512, kVnni, 0xe6); }

inline bool has_i8mm() {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long i8mm = 1ul << 13;
    return has_dotprod() && (getauxval(AT_HWCAP2) & i8mm);
#else
    return false;
#endif
}

// A process must request permission for AMX tiles, because they add 8 KB of state to every context switch.
inline bool has_amx() {
#if defined(__x86_64__) && defined(__linux__)
    unsigned a, b, c, d;
    if (!has_avx512vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned amx_tile = bit(24), amx_int8 = bit(25);
    constexpr int ask = 0x1023 /* ARCH_REQ_XCOMP_PERM */, tile_data = 18;
    return (d & (amx_tile | amx_int8)) == (amx_tile | amx_int8) && syscall(SYS_arch_prctl, ask, tile_data) == 0;
#else
    return false;
#endif
}

}  // namespace assay::kernels
