// Self-check and micro-benchmark of native/kernels: a plain program without Python or a test framework.
//
//   test_kernels                 check every instruction set of this machine; exit code 1 on any mismatch
//   test_kernels bench [THREADS [TYPE...]]   operations and bytes per second by type, as shares of the measured
//                              ceilings (in CPU time, so that other processes do not count)
//
// Checks for each type and instruction set, on shapes with ragged rows and columns:
//   decode     packed rows decode to the same float32 as the rows of the file.
//   value      fast product against float64 on decoded weights: NMSE below the type's limit; exact: below 1e-12.
//   bits       out[t, r] is the same for every number of tokens, range of rows, and for packed and mapped weights.
//   agreement  every instruction set equals the others bit for bit, and the recorded hash.
//   strange    activations and scales that are NaN, infinite, huge or tiny: the same on every path.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/blocks.h"
#include "kernels/kernels.h"

using namespace assay::kernels;

namespace {

const Type all_types[] = {
    Type::Q4_0,   Type::Q4_1,  Type::Q5_0,    Type::Q5_1,   Type::Q8_0,   Type::Q2_K,  Type::Q3_K,
    Type::Q4_K,   Type::Q5_K,  Type::Q6_K,    Type::IQ4_NL, Type::IQ4_XS, Type::MXFP4, Type::F32,
    Type::F16,    Type::BF16,  Type::Q8_1,    Type::Q8_K,   Type::TQ1_0,  Type::TQ2_0, Type::IQ2_XXS,
    Type::IQ2_XS, Type::IQ2_S, Type::IQ3_XXS, Type::IQ3_S,  Type::IQ1_S,  Type::IQ1_M,
};

// Types that came after `recorded` was recorded; they have a hash of their own.
const Type newer_types[] = {Type::NVFP4, Type::Q1_0, Type::Q2_0};

// Offsets of the f16 scales in a block (-1: none); random_rows handles types with other scales.
struct ScaleAt {
    Type type;
    int first, second;
};
const ScaleAt scale_at[] = {
    {Type::Q4_0, 0, -1},    {Type::Q4_1, 0, 2},    {Type::Q5_0, 0, -1},   {Type::Q5_1, 0, 2},     {Type::Q8_0, 0, -1},
    {Type::Q8_1, 0, 2},     {Type::Q2_K, 80, 82},  {Type::Q3_K, 108, -1}, {Type::Q4_K, 0, 2},     {Type::Q5_K, 0, 2},
    {Type::Q6_K, 208, -1},  {Type::IQ4_NL, 0, -1}, {Type::IQ4_XS, 0, -1}, {Type::TQ1_0, 52, -1},  {Type::TQ2_0, 64, -1},
    {Type::IQ2_XXS, 0, -1}, {Type::IQ2_XS, 0, -1}, {Type::IQ2_S, 0, -1},  {Type::IQ3_XXS, 0, -1}, {Type::IQ3_S, 0, -1},
    {Type::IQ1_S, 0, -1},   {Type::Q1_0, 0, -1},   {Type::Q2_0, 0, -1},
};

int failures = 0;
void fail(const std::string& what) {
    if (++failures <= 40) std::printf("FAIL %s\n", what.c_str());
}

struct Buffer {  // 64-byte aligned, with a guard that reveals writes past the end
    std::vector<uint8_t> bytes;
    uint8_t* data;
    size_t size;
    explicit Buffer(size_t n) : bytes(n + 128, 0xAB), size(n) {
        data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
    }
    bool intact() const {
        for (const uint8_t* p = data + size; p < bytes.data() + bytes.size(); p++)
            if (*p != 0xAB) return false;
        return true;
    }
};

uint16_t small_f16(std::mt19937& rng, bool positive) {  // magnitudes 2^-11 .. 2^-7
    const uint32_t r = uint32_t(rng());
    return uint16_t((positive ? 0 : (r & 1) << 15) | (4 + (r >> 1 & 3)) << 10 | (r >> 8 & 1023));
}

// Approximately normal, the same numbers with every library: the sum of twelve uniform draws.
float normal(std::mt19937& rng) {
    int sum = 0;
    for (int i = 0; i < 12; i++) sum += int(rng() >> 16);
    return float(sum - 6 * 65536) / 65536;
}

std::vector<uint8_t> random_rows(Type type, int64_t n, int64_t k, std::mt19937& rng) {
    const TypeInfo& info = *type_info(type);
    std::vector<uint8_t> rows(size_t(n) * row_bytes(type, k));
    if (!info.unpack) {
        for (int64_t i = 0; i < n * k; i++) {
            const float x = normal(rng) * 0.05f;
            const uint32_t bits = __builtin_bit_cast(uint32_t, x);
            if (type == Type::F32) std::memcpy(rows.data() + 4 * i, &x, 4);
            const uint16_t half = type == Type::BF16 ? uint16_t(bits >> 16) : small_f16(rng, false);
            if (type != Type::F32) std::memcpy(rows.data() + 2 * i, &half, 2);
        }
        return rows;
    }
    for (size_t i = 0; i + 4 <= rows.size(); i += 4) {
        const uint32_t r = uint32_t(rng());
        std::memcpy(rows.data() + i, &r, 4);
    }
    const bool zero_block = rng() % 4 == 0;
    for (size_t b = 0; b * size_t(info.block_bytes) < rows.size(); b++) {
        uint8_t* p = rows.data() + b * size_t(info.block_bytes);
        for (const ScaleAt& s : scale_at)
            if (s.type == type)
                for (int at : {s.first, s.second})
                    if (at >= 0) {
                        const uint16_t h = zero_block && b == 0 ? 0 : small_f16(rng, false);
                        std::memcpy(p + at, &h, 2);
                    }
        if (type == Type::MXFP4) p[0] = uint8_t(118 + rng() % 6);
        if (type == Type::NVFP4)
            for (int i = 0; i < 4; i++) p[i] = uint8_t(rng() % 16 == 0 ? 0x7f : 8 + rng() % 16);
        if (type == Type::Q8_K) {
            const float d = 0.001f * float(1 + rng() % 7);
            std::memcpy(p, &d, 4);
        }
        if (type == Type::IQ1_M) {
            const uint16_t h = small_f16(rng, false);
            for (int i = 0; i < 4; i++) p[49 + 2 * i] = uint8_t((p[49 + 2 * i] & 15) | (h >> (4 * i) & 15) << 4);
        }
    }
    return rows;
}

std::vector<float> random_acts(int64_t m, int64_t k, std::mt19937& rng) {
    std::vector<float> x(size_t(m * k));
    for (float& v : x) {
        const float size = rng() % 200 == 0 ? 8.0f : 1.0f;  // a few outliers, as models have
        v = normal(rng) * size;
    }
    for (int64_t i = 0; i < std::min<int64_t>(32, k); i++) x[size_t(i)] = 0;  // and a block of zeros
    return x;
}

std::vector<float> product(const Isa& isa, const Matrix& w, Acts format, const float* x, int64_t m, int64_t begin,
                           int64_t end) {
    Buffer acts(acts_bytes(format, m, w.k));
    isa.prepare(format, x, w.k, m, w.k, 0, m, acts.data);
    std::vector<float> out(size_t(m * w.n), -12345.0f);
    isa.gemm(w, format, acts.data, m, out.data(), w.n, begin, end);
    if (!acts.intact()) fail("activation buffer overrun");
    return out;
}

double nmse(const std::vector<float>& got, const std::vector<double>& want) {
    double error = 0, power = 0;
    for (size_t i = 0; i < got.size(); i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        power += want[i] * want[i];
    }
    return error / power;
}

// Recorded hash of all products of run_checks, on every machine (docs/reference/arithmetic.md, version 1).
constexpr uint64_t recorded = 0xed2e730c92627902, recorded_newer = 0x1c8fccd20d97ed72;

uint64_t hash(const std::vector<float>& x, uint64_t h) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(x.data());
    for (size_t i = 0; i < 4 * x.size(); i++) h = (h ^ bytes[i]) * 0x100000001b3;
    return h;
}

struct Measured {
    Type type;
    double fast = 0, exact = 0;
};

// Bytes that packing may add. Code books for groups of weights are packed as each weight's own code: a look-up in a
// register instead of one in memory, for more bytes.
double growth(Type type) {
    switch (type) {
        case Type::IQ1_S:
        case Type::IQ1_M: return 2.15;
        case Type::IQ2_XXS:
        case Type::IQ2_XS: return 1.65;
        case Type::IQ2_S:
        case Type::IQ3_XXS: return 1.45;
        case Type::IQ3_S:
        case Type::TQ1_0: return 1.27;
        case Type::Q1_0: return 2.01;  // a bit becomes a code of two
        default: return 1.15;
    }
}

// Returns the products of this instruction set, fast and exact, for comparison with the others.
void check(const Isa& isa, Type type, int64_t n, int64_t k, unsigned seed, std::vector<std::vector<float>>& reference,
           Measured& worst) {
    std::mt19937 rng(seed);
    const TypeInfo& info = *type_info(type);
    const std::string label =
        std::string(isa.name) + " " + info.name + " " + std::to_string(n) + "x" + std::to_string(k);
    const std::vector<uint8_t> rows = random_rows(type, n, k, rng);
    const int64_t m = 64;
    const std::vector<float> x = random_acts(m, k, rng);
    const Matrix mapped{type, false, n, k, rows.data()};
    Matrix packed = mapped;
    Buffer memory(packable(type) ? isa.packed_bytes(type, n, k) : 0);
    if (packable(type)) {
        const int64_t panel = isa.panel_rows, step = panel * 2;
        for (int64_t r = 0; r < n; r += step) isa.pack(type, rows.data(), n, k, r, std::min(n, r + step), memory.data);
        packed = {type, true, n, k, memory.data};
        if (!memory.intact()) fail(label + ": pack overrun");
        const double padded = double((n + panel - 1) / panel * panel) / double(n);
        if (k % 256 == 0 && double(memory.size) > growth(type) * padded * double(rows.size()))
            fail(label + ": packed too large");
    }
    std::vector<float> decoded(size_t(n * k)), row(static_cast<size_t>(k));
    for (int64_t r = 0; r < n; r++) {
        isa.decode_row(mapped, r, decoded.data() + r * k);
        isa.decode_row(packed, r, row.data());
        if (!std::equal(row.begin(), row.end(), decoded.begin() + r * k))
            fail(label + ": decode of packed row " + std::to_string(r));
    }
    std::vector<double> want(size_t(m * n));
    for (int64_t t = 0; t < m; t++)
        for (int64_t r = 0; r < n; r++) {
            double sum = 0;
            for (int64_t i = 0; i < k; i++) sum += double(decoded[size_t(r * k + i)]) * double(x[size_t(t * k + i)]);
            want[size_t(t * n + r)] = sum;
        }
    for (int exact = 0; exact < 2; exact++) {
        const Acts format = acts_format(type, exact);
        const std::string mode = label + (exact ? " exact" : " fast");
        const std::vector<float> all = product(isa, packed, format, x.data(), m, 0, n);
        const double error = nmse(all, want);
        (exact ? worst.exact : worst.fast) = std::max(exact ? worst.exact : worst.fast, error);
        if (!(error < (format == Acts::F32 ? 1e-12 : 1e-4)))
            fail(mode + ": NMSE " + std::to_string(error * 1e9) + "e-9");
        const auto same = [&](const Matrix& w, int64_t tokens, int64_t t0, int64_t begin, int64_t end,
                              const char* what) {
            const std::vector<float> part = product(isa, w, format, x.data() + t0 * k, tokens, begin, end);
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t r = 0; r < n; r++) {
                    const float got = part[size_t(t * n + r)];
                    const float expected = r >= begin && r < end ? all[size_t((t0 + t) * n + r)] : -12345.0f;
                    if (std::memcmp(&got, &expected, 4) != 0)
                        return fail(mode + ": bits, " + what + ", tokens " + std::to_string(tokens) + " from " +
                                    std::to_string(t0) + ", rows " + std::to_string(begin) + ".." +
                                    std::to_string(end));
                }
        };
        for (int64_t tokens : {1, 2, 3, 4, 5, 7, 8, 9, 17, 61})
            same(packed, tokens, int64_t(rng() % (64 - tokens + 1)), 0, n, "packed");
        for (int i = 0; i < 6; i++) {
            const int64_t begin = int64_t(rng() % uint32_t(n)), end = begin + 1 + int64_t(rng() % uint32_t(n - begin));
            same(packed, i % 2 ? 1 : 11, 5, begin, end, "range");
        }
        for (int64_t tokens : {1, 2, 6, 8, 33}) {
            const int64_t begin = int64_t(rng() % uint32_t(n));
            same(mapped, tokens, 2, begin, n, "mapped");
            same(mapped, tokens, 2, begin, begin + 1 + int64_t(rng() % uint32_t(n - begin)), "mapped range");
        }
        const size_t slot = size_t(exact);
        if (reference.size() <= slot)
            reference.push_back(all);
        else if (std::memcmp(reference[slot].data(), all.data(), all.size() * 4) != 0)
            fail(mode + ": differs from " + isas().front()->name);
    }
}

// A token with a NaN, an infinity, huge and tiny values: its outputs are NaN or finite as docs/reference/arithmetic.md
// says, the same for one token and for many, packed and mapped. The outputs of other tokens do not change.
template <class Types>
void check_strange(const Isa& isa, const Types& types) {
    constexpr int64_t n = 37, k = 512, m = 12;
    for (Type type : types) {
        std::mt19937 rng(7);
        const std::string label = std::string(isa.name) + " " + type_info(type)->name + " strange";
        std::vector<uint8_t> rows = random_rows(type, n, k, rng);
        const std::vector<float> plain = random_acts(m, k, rng);
        for (float value : {NAN, -NAN, INFINITY, -INFINITY, 3e38f, 1e-37f, 1e-44f}) {
            std::vector<float> x = plain;
            if (std::fabs(value) < 1) std::fill_n(x.begin() + 5 * k, k, 0.0f);
            x[size_t(5 * k + 40)] = value;
            for (int exact = 0; exact < 2; exact++) {
                const Acts format = acts_format(type, exact);
                const Matrix mapped{type, false, n, k, rows.data()};
                Matrix packed = mapped;
                Buffer memory(packable(type) ? isa.packed_bytes(type, n, k) : 0);
                if (packable(type)) {
                    isa.pack(type, rows.data(), n, k, 0, n, memory.data);
                    packed = {type, true, n, k, memory.data};
                }
                const std::vector<float> out = product(isa, packed, format, x.data(), m, 0, n),
                                         before = product(isa, packed, format, plain.data(), m, 0, n),
                                         alone = product(isa, packed, format, x.data() + 5 * k, 1, 0, n),
                                         other = product(isa, mapped, format, x.data(), m, 0, n),
                                         mapped_alone = product(isa, mapped, format, x.data() + 5 * k, 1, 0, n);
                const auto equal = [](float a, float b) { return std::memcmp(&a, &b, 4) == 0 || (a != a && b != b); };
                for (int64_t t = 0; t < m; t++)
                    for (int64_t r = 0; r < n; r++) {
                        const float got = out[size_t(t * n + r)];
                        if (!equal(got, other[size_t(t * n + r)])) return fail(label + ": packed and mapped differ");
                        if (t != 5 && !equal(got, before[size_t(t * n + r)])) return fail(label + ": another token");
                        if (t != 5) continue;
                        if (!equal(got, alone[size_t(r)])) return fail(label + ": one token and many differ");
                        if (!equal(got, mapped_alone[size_t(r)])) return fail(label + ": one token in place differs");
                        if (!(std::fabs(value) < INFINITY) && format == Acts::Q8 && !std::isnan(got))
                            return fail(label + ": not NaN");
                        if (std::fabs(value) < 1 && !std::isfinite(got)) return fail(label + ": not finite");
                    }
            }
        }
    }
}

// Our reading of CPUID agrees with that of the compiler's library.
void check_choice() {
#if defined(__x86_64__) && defined(__linux__)
    const auto listed = [](const char* name) {
        return std::any_of(isas().begin(), isas().end(), [&](const Isa* i) { return !std::strcmp(i->name, name); });
    };
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (listed("avx2") != avx2) fail("avx2 was found otherwise");
    if (listed("avx512") != (avx2 && wide)) fail("avx512 was found otherwise");
    if (listed("avx512vnni") != (avx2 && wide && __builtin_cpu_supports("avx512vnni"))) fail("avx512vnni was found otherwise");
#endif
}

// The checks of some types; returns the hash of their products.
template <class Types>
uint64_t check_types(const Types& types) {
    uint64_t bits = 0xcbf29ce484222325;
    for (Type type : types) {
        const TypeInfo& info = *type_info(type);
        const int64_t unit = info.block_size;
        struct Shape {
            int64_t n, k;
        };
        std::vector<Shape> shapes = {{37, 3 * std::max<int64_t>(unit, 32)}, {64, 1024}, {5, 2304}};
        if (unit == 32) shapes.push_back({33, 576});
        if (unit == 1) shapes.push_back({9, 101});
        Measured worst{type};
        unsigned seed = 1;
        for (const Shape& s : shapes) {
            std::vector<std::vector<float>> reference;
            seed++;
            for (const Isa* isa : isas()) check(*isa, type, s.n, s.k, seed, reference, worst);
            for (const std::vector<float>& products : reference) bits = hash(products, bits);
        }
        // More columns than a panel of the file's rows holds scales of. These products are not in the hash.
        std::vector<std::vector<float>> wide;
        if (unit == 32)
            for (const Isa* isa : isas()) check(*isa, type, 33, 2112, seed + 1, wide, worst);
        std::printf("%-8s NMSE fast %.2e exact %.2e\n", info.name, worst.fast, worst.exact);
    }
    for (const Isa* isa : isas()) check_strange(*isa, types);
    std::printf("bits %016llx\n", static_cast<unsigned long long>(bits));
    return bits;
}

int run_checks() {
    check_choice();
    if (check_types(all_types) != recorded) fail("other bits than the recorded ones");
    if (check_types(newer_types) != recorded_newer) fail("other bits of the newer types than the recorded ones");
    std::printf("checked:");
    for (const Isa* isa : isas()) std::printf(" %s", isa->name);
    std::printf(failures ? "\n%d failures\n" : "\nall checks passed\n", failures);
    return failures ? 1 : 0;
}

// ---- benchmark ---------------------------------------------------------------------------------------------------

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// CPU time of the calling thread: other processes on the machine do not count.
double cpu_now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

template <class F>
void parallel(int threads, F f) {
    std::vector<std::thread> pool;
    for (int i = 1; i < threads; i++) pool.emplace_back(f, i);
    f(0);
    for (std::thread& t : pool) t.join();
}

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

int run_bench(int threads, std::vector<std::string> names) {
    const Isa& isa = find_isa();
    std::vector<double> peaks(static_cast<size_t>(threads)), reads(static_cast<size_t>(threads));
    std::vector<uint8_t> big(size_t(threads) * (128u << 20), 1);
    parallel(threads, [&](int i) { peaks[size_t(i)] = measure_dot_peak(isa, 0.3); });
    parallel(threads, [&](int i) {
        reads[size_t(i)] = measure_read_bandwidth(big.data() + size_t(i) * (128u << 20), 128u << 20, 0.5);
    });
    double peak = 0, bandwidth = 0;
    for (double p : peaks) peak += p;
    for (double r : reads) bandwidth += r;
    big = {};
    std::printf("isa %s, %d threads: %.0f GOPS integer dot, %.1f GB/s read\n", isa.name, threads, peak / 1e9,
                bandwidth / 1e9);
    std::printf("%-8s %10s %6s %10s %6s %10s %10s %10s\n", "type", "512 GOPS", "peak", "1 GB/s", "read", "4 GB/s",
                "exact512", "pack ns/w");
    std::mt19937 rng(3);
    std::vector<Type> types(std::begin(all_types), std::end(all_types));
    types.insert(types.end(), std::begin(newer_types), std::end(newer_types));
    for (Type type : types) {
        const TypeInfo& info = *type_info(type);
        if (!names.empty() && std::find(names.begin(), names.end(), info.name) == names.end()) continue;
        const int64_t k = 2048, n = 8192, copies = 6;  // ~10 MB a copy at 4 bits: beyond the caches
        const std::vector<uint8_t> rows = random_rows(type, 64, k, rng);
        std::vector<uint8_t> full(size_t(n) * row_bytes(type, k));
        for (int64_t r = 0; r < n; r += 64)
            std::memcpy(full.data() + size_t(r) * row_bytes(type, k), rows.data(), rows.size());
        const bool packs = packable(type);
        std::vector<Buffer> memory;
        double pack_time = 0;
        for (int64_t c = 0; c < (packs ? copies : 0); c++) {
            memory.emplace_back(isa.packed_bytes(type, n, k));
            const double start = now();
            parallel(threads, [&](int i) {
                const int64_t step = n / threads / isa.panel_rows * isa.panel_rows;
                isa.pack(type, full.data(), n, k, i * step, i == threads - 1 ? n : (i + 1) * step, memory.back().data);
            });
            pack_time = (now() - start) * threads;
        }
        const auto matrix = [&](int64_t c) {
            return packs ? Matrix{type, true, n, k, memory[size_t(c % copies)].data}
                         : Matrix{type, false, n, k, full.data()};
        };
        const std::vector<float> x = random_acts(512, k, rng);
        std::vector<float> out(size_t(512 * n));
        const auto time = [&](Acts format, int64_t m, int64_t rows_used, int repeats) {
            Buffer acts(acts_bytes(format, m, k));
            isa.prepare(format, x.data(), k, m, k, 0, m, acts.data);
            std::vector<double> times;
            for (int c = 0; c < repeats; c++) {
                std::vector<double> busy(static_cast<size_t>(threads));
                parallel(threads, [&](int i) {
                    const double start = cpu_now();
                    const int64_t step = rows_used / threads / isa.panel_rows * isa.panel_rows;
                    isa.gemm(matrix(c), format, acts.data, m, out.data(), n, i * step,
                             i == threads - 1 ? rows_used : (i + 1) * step);
                    busy[size_t(i)] = cpu_now() - start;
                });
                times.push_back(*std::max_element(busy.begin(), busy.end()));
            }
            return median(times);
        };
        const Acts format = acts_format(type, false);
        const double bytes = double(full.size());
        const bool slow = std::strcmp(isa.name, "portable") == 0 || !packs;
        const int64_t used = slow ? 256 : 2048;
        const double prompt = 2.0 * 512 * double(used) * double(k) / time(format, 512, used, 5);
        const double one = bytes / time(format, 1, n, 13), four = bytes / time(format, 4, n, 9);
        const double exact = 2.0 * 512 * 256 * double(k) / time(Acts::F32, 512, 256, 3);
        std::printf("%-8s %10.1f %5.0f%% %10.2f %5.0f%% %10.2f %10.1f %10.2f\n", info.name, prompt / 1e9,
                    100 * prompt / peak, one / 1e9, 100 * one / bandwidth, four / 1e9, exact / 1e9,
                    pack_time * 1e9 / double(n * k));
        std::fflush(stdout);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::strcmp(argv[1], "bench") == 0)
        return run_bench(argc > 2 ? std::atoi(argv[2]) : 1,
                         std::vector<std::string>(argv + std::min(argc, 3), argv + argc));
    return run_checks();
}
