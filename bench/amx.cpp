// The limits of a tile product on an AMX machine: cycles of its parts, alone and beside multiplications
// (docs/explanation/kernels.md).
//
//   g++ -O2 -std=c++20 -march=sapphirerapids bench/amx.cpp -o amx && ./amx
//
// A product is 16 tokens x 16 rows x 32 columns of int8. The minimum of many short runs, so that a neighbour's load does
// not count. Cycles are counted in dependent multiplications of 3 cycles each, so that the clock need not be known.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>

namespace {

alignas(4096) uint8_t acts[4096], weights[4096], sums[4096];

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class F>
double least(F f) {  // seconds for 200 calls
    double best = 1;
    for (int run = 0; run < 1000; run++) {
        const double start = now();
        for (int i = 0; i < 200; i++) f();
        best = std::min(best, now() - start);
    }
    return best;
}

void configure() {
    struct alignas(64) {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 32, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8, 8};
    } shape;
    asm volatile("ldtilecfg %0" ::"m"(shape));
}

// N vector operations, all independent: eight registers in turn, zeros.
#define EIGHT(op)                                                                                       \
    op "16\n" op "17\n" op "18\n" op "19\n" op "20\n" op "21\n" op "22\n" op "23\n"
#define OPERATIONS(name, op)                                                                            \
    template <int N>                                                                                    \
    inline void name() {                                                                                \
        if constexpr (N > 0)                                                                            \
            asm volatile("vpxord %%zmm0, %%zmm0, %%zmm0\n.rept %c0\n" EIGHT(op) ".endr" ::"i"(N / 8)    \
                         : "xmm0", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23"); \
    }
OPERATIONS(multiply, "vfmadd231ps %%zmm0, %%zmm0, %%zmm")
OPERATIONS(convert, "vcvtdq2ps %%zmm0, %%zmm")
OPERATIONS(add, "vaddps %%zmm0, %%zmm0, %%zmm")
OPERATIONS(add_integers, "vpaddd %%zmm0, %%zmm0, %%zmm")

inline void load() {
    asm volatile("tileloadd (%0,%2,1), %%tmm4\ntileloadd (%1,%3,1), %%tmm6" ::"r"(acts), "r"(weights), "r"(32l),
                 "r"(64l)
                 : "memory");
}
inline void dot() { asm volatile("tilezero %%tmm0\ntdpbssd %%tmm6, %%tmm4, %%tmm0" ::); }
inline void store() { asm volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(sums), "r"(64l) : "memory"); }
inline void whole() { load(), store(), dot(); }  // the sums that are stored are those of the product before

double cycle;

template <int N>
void table() {
    const auto line = [](const char* name, auto f) {
        std::printf("%2d multiplications%-34s %5.1f\n", N, name, least(f) / 200 / cycle);
    };
    line("", [] { multiply<N>(); });
    line(" beside two tile loads", [] { load(), multiply<N>(); });
    line(" beside a product", [] { dot(), multiply<N>(); });
    line(" beside a tile store", [] { store(), multiply<N>(); });
    line(" beside loads, product and store", [] { whole(), multiply<N>(); });
}

}  // namespace

int main() {
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) != 0) {
        std::fprintf(stderr,
                     "amx: the kernel refuses the tiles' state (found no permission, expected AMX and Linux)\n");
        return 2;
    }
    uint64_t x = 3;
    cycle = least([&] { asm volatile("imul %0, %0\nimul %0, %0\nimul %0, %0\nimul %0, %0" : "+r"(x)); }) / 200 / 12;
    configure();
    std::printf("%.2f GHz; cycles:\n", 1e-9 / cycle);
    table<0>();
    table<32>();
    table<48>();
    const auto line = [](const char* name, auto alone, auto beside) {
        std::printf("32 %-20s alone %5.1f, beside a product %5.1f\n", name, least(alone) / 200 / cycle,
                    least(beside) / 200 / cycle);
    };
    line("conversions", [] { convert<32>(); }, [] { dot(), convert<32>(); });
    line("additions", [] { add<32>(); }, [] { dot(), add<32>(); });
    line("integer additions", [] { add_integers<32>(); }, [] { dot(), add_integers<32>(); });
}
