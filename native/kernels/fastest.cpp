// Prints the fastest instruction set of this machine: CMakeLists.txt runs it for ASSAY_ISAS=fastest.
#include <cstdio>

#include "features.h"

int main() {
    using namespace assay::kernels;
    std::puts(has_amx()          ? "amx"
              : has_avx512vnni() ? "avx512vnni"
              : has_avx512()     ? "avx512"
              : has_avx2()       ? "avx2"
              : has_i8mm()       ? "i8mm"
              : has_dotprod()    ? "neon"
                                 : "portable");
}
