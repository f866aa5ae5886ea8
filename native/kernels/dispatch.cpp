// The public functions of kernels.h: available instruction sets, properties of types, measurements.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

#include "blocks.h"
#include "features.h"
#include "isa.h"

namespace assay::kernels {
namespace {

struct Candidate {
    const char* name;
    const Isa* (*table)();
    bool (*runs_here)();
};

constexpr Candidate candidates[] = {
// those of this build, best first
#if defined(ASSAY_AMX)
    {"amx", isa_amx, has_amx},
#endif
#if defined(ASSAY_AVX512VNNI)
    {"avx512vnni", isa_avx512vnni, has_avx512vnni},
#endif
#if defined(ASSAY_AVX512)
    {"avx512", isa_avx512, has_avx512},
#endif
#if defined(ASSAY_AVX2)
    {"avx2", isa_avx2, has_avx2},
#endif
#if defined(ASSAY_I8MM)
    {"i8mm", isa_i8mm, has_i8mm},
#endif
#if defined(ASSAY_NEON)
    {"neon", isa_neon, has_dotprod},
#endif
#if defined(ASSAY_PLAIN)
    {"portable", isa_portable, always},
#endif
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
    if (isas().empty())
        throw std::invalid_argument("instruction set: this build has none of this machine's (found only " +
                                    std::string(candidates[0].name) + "); build again with ASSAY_ISAS=all");
    if (wanted.empty()) return *isas().front();
    std::string known;
    for (const Isa* isa : isas()) {
        if (wanted == isa->name) return *isa;
        known += (known.empty() ? "" : ", ") + std::string(isa->name);
    }
    throw std::invalid_argument("instruction set: not on this machine, or not in this build (found " + wanted + ", expected " + known + ")");
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
