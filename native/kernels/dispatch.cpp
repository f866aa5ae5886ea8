// The public functions of kernels.h: the choice of an instruction set, and calls into its table.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "blocks.h"
#include "isa.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
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

bool has_avx2() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");  // F16C came with FMA on every such machine
#else
    return false;
#endif
}

bool has_avx512vnni() {
#if defined(__x86_64__)
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

constexpr Candidate candidates[] = {
    // best first
    {"avx512vnni", isa_avx512vnni, has_avx512vnni},
    {"avx2", isa_avx2, has_avx2},
    {"neon", isa_neon, has_dotprod},
    {"portable", isa_portable, always},
};

const Isa* find(const char* name) {
    for (const Candidate& c : candidates)
        if ((!name || std::strcmp(name, c.name) == 0) && c.table() && c.runs_here()) return c.table();
    return nullptr;
}

const char* requested() {
    const char* name = std::getenv("ASSAY_ISA");
    return name && *name ? name : nullptr;
}

std::atomic<const Isa*> chosen{nullptr};

const Isa& in_use() {
    const Isa* table = chosen.load(std::memory_order_acquire);
    if (!table) {
        table = find(requested());
        if (!table) table = isa_portable();
        chosen.store(table, std::memory_order_release);
    }
    return *table;
}

}  // namespace

const char* isa() { return in_use().name; }
bool isa_available(const char* name) { return name && find(name) != nullptr; }

bool select_isa(const char* name) {
    const Isa* table = name ? find(name) : nullptr;
    if (table) chosen.store(table, std::memory_order_release);
    return table != nullptr;
}

const char* isa_error() {
    const char* name = requested();
    if (!name || find(name)) return nullptr;
    for (const Candidate& c : candidates)
        if (std::strcmp(name, c.name) == 0) return "not supported by this machine";
    return "unknown (expected portable, neon, avx2 or avx512vnni)";
}

bool supported(Type type) { return type_info(type) != nullptr; }

bool packable(Type type) {
    switch (type) {
        case Type::F32:
        case Type::F16:
        case Type::BF16:
        case Type::Q4_0:
        case Type::Q4_1:
        case Type::Q5_0:
        case Type::Q5_1:
        case Type::Q8_0:
        case Type::Q2_K:
        case Type::Q3_K:
        case Type::Q4_K:
        case Type::Q5_K:
        case Type::Q6_K:
        case Type::IQ4_NL:
        case Type::IQ4_XS:
        case Type::MXFP4: return true;
        default: return false;
    }
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

int panel_rows() { return in_use().panel_rows; }
size_t packed_bytes(Type type, int64_t n, int64_t k) { return in_use().packed_bytes(type, n, k); }

void pack(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t begin, int64_t end, uint8_t* dst) {
    in_use().pack(type, src, n, k, begin, end, dst);
}

void decode_row(const Matrix& w, int64_t row, float* out) {
    if (w.packed)
        in_use().decode_packed(w, row, out);
    else
        decode(w.type, w.data + size_t(row) * row_bytes(w.type, w.k), w.k, out);
}

size_t acts_bytes(Acts format, int64_t m, int64_t k) {
    if (format == Acts::F32) return size_t(m * ((k + 15) / 16 * 16)) * 4;
    return size_t((m + 3) / 4 * (k / 32)) * 192;  // panel.h: Group
}

void prepare(Acts format, const float* x, int64_t ldx, int64_t m, int64_t k, int64_t begin, int64_t end, void* dst) {
    in_use().prepare(format, x, ldx, m, k, begin, end, dst);
}

void gemm(const Matrix& w, Acts format, const void* acts, int64_t m, float* out, int64_t ldo, int64_t begin,
          int64_t end) {
    in_use().gemm(w, format, acts, m, out, ldo, begin, end);
}

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

double measure_dot_peak(double seconds) {
    const Isa& table = in_use();
    constexpr int64_t batch = 20000;
    double best = 0;
    table.dot_loop(batch);
    for (const double start = now(); now() - start < seconds;) {  // the best of short batches: the undisturbed rate
        const double t = now();
        table.dot_loop(batch);
        const double rate = table.dot_ops * double(batch) / (now() - t);
        best = rate > best ? rate : best;
    }
    return best;
}

// The median over windows of 8 MB: a window lost to another process does not count, a lucky one neither.
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
