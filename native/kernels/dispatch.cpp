// The public functions of kernels.h: available instruction sets, properties of types, measurements.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

#include "blocks.h"
#include "isa.h"

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
namespace {

struct Candidate {
    const char* name;
    const Isa* (*table)();
    bool (*runs_here)();
};

bool always() { return true; }

bool has_dotprod() {
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
bool x86_has([[maybe_unused]] unsigned ecx1, [[maybe_unused]] unsigned ebx7, [[maybe_unused]] unsigned ecx7,
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

bool has_avx2() { return x86_has(kFma | kF16c, kAvx2, 0, 0x06); }

bool has_avx512vnni() { return x86_has(kFma | kF16c, kAvx2 | kAvx512, kVnni, 0xe6); }

bool has_i8mm() {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long i8mm = 1ul << 13;
    return has_dotprod() && (getauxval(AT_HWCAP2) & i8mm);
#else
    return false;
#endif
}

// A process must request permission for AMX tiles, because they add 8 KB of state to every context switch.
bool has_amx() {
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

constexpr Candidate candidates[] = {
    // best first
    {"amx", isa_amx, has_amx},       {"avx512vnni", isa_avx512vnni, has_avx512vnni},
    {"avx2", isa_avx2, has_avx2},    {"i8mm", isa_i8mm, has_i8mm},
    {"neon", isa_neon, has_dotprod}, {"portable", isa_portable, always},
};

}  // namespace

const std::vector<const Isa*>& isas() {
    static const std::vector<const Isa*> here = [] {
        std::vector<const Isa*> found;
        for (const Candidate& c : candidates)
            // building a table may already use its instructions
            if (c.runs_here() && c.table()) found.push_back(c.table());
        return found;
    }();
    return here;
}

const Isa& find_isa(const std::string& name) {
    const char* asked = std::getenv("ASSAY_ISA");
    const std::string wanted = name.empty() && asked ? asked : name;
    if (wanted.empty()) return *isas().front();
    std::string known;
    for (const Isa* isa : isas()) {
        if (wanted == isa->name) return *isa;
        known += (known.empty() ? "" : ", ") + std::string(isa->name);
    }
    throw std::invalid_argument("instruction set: not on this machine (found " + wanted + ", expected " + known + ")");
}

bool supported(Type type) { return type_info(type) != nullptr; }

bool packable(Type type) { return supported(type) && type != Type::Q8_K; }

bool finite_halves(const uint8_t* data, size_t n) {
    uint16_t odd = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        __builtin_memcpy(&h, data + 2 * i, 2);
        odd |= (h & 0x7c00) == 0x7c00;
    }
    return !odd;
}

Acts acts_format(Type type, bool exact) {
    const TypeInfo* info = type_info(type);
    return exact || !info || !info->unpack || type == Type::Q8_K ? Acts::F32 : Acts::Q8;
}

int64_t block_size(Type type) {
    const TypeInfo* info = type_info(type);
    return info ? info->block_size : 0;
}

size_t row_bytes(Type type, int64_t k) {
    const TypeInfo& info = *type_info(type);
    return size_t(k / info.block_size * info.block_bytes);
}

size_t acts_bytes(Acts format, int64_t m, int64_t k) {
    if (format == Acts::F32) return size_t((m < 2 ? 2 : m < 4 ? m : (m + 3) / 4 * 4) * ((k + 15) / 16 * 16)) * 4;
    // groups of 4 tokens (token_groups.h), or of 16 (isa_amx.cpp)
    const int64_t groups = m <= 4 ? 1 : (m + 15) / 16 * 4;
    return size_t(groups * (k / 32)) * 192;
}

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

double measure_dot_peak(const Isa& table, double seconds) {
    constexpr int64_t batch = 20000;
    double best = 0;
    table.dot_loop(batch);
    // the best of short batches: the rate without interference
    for (const double start = now(); now() - start < seconds;) {
        const double t = now();
        table.dot_loop(batch);
        const double rate = table.dot_ops * double(batch) / (now() - t);
        best = rate > best ? rate : best;
    }
    return best;
}

// The median over windows of 8 MB, so that neither a window lost to another process nor a lucky one counts.
double measure_read_bandwidth(const void* buffer, size_t bytes, double seconds) {
    constexpr size_t window = size_t(8) << 20;
    const uint64_t* p = static_cast<const uint64_t*>(buffer);
    std::vector<double> rates;
    for (const double start = now(); rates.empty() || now() - start < seconds;)
        for (size_t at = 0; at < bytes; at += window) {
            const size_t words = (bytes - at < window ? bytes - at : window) / 8 / 32 * 32;
            const double t = now();
            uint64_t sums[32] = {};
            for (size_t i = 0; i < words; i += 32)
                for (size_t j = 0; j < 32; j++) sums[j] ^= p[at / 8 + i + j];
            volatile uint64_t sink = 0;
            for (uint64_t s : sums) sink = sink ^ s;
            if (words) rates.push_back(double(words * 8) / (now() - t));
        }
    std::nth_element(rates.begin(), rates.begin() + ptrdiff_t(rates.size() / 2), rates.end());
    return rates[rates.size() / 2];
}

}  // namespace assay::kernels
