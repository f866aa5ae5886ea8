// Which table of row kernels goes with which instruction set of the matrix kernels.
#include <cstring>

#include "rowops.h"

namespace assay {

#define ASSAY_ROWS(ns)           \
    namespace ns {               \
    extern const RowOps kRowOps; \
    }
ASSAY_ROWS(portable)
#if defined(__aarch64__)
ASSAY_ROWS(neon)
#elif defined(__x86_64__)
ASSAY_ROWS(avx2)
ASSAY_ROWS(avx512vnni)
#endif
#undef ASSAY_ROWS

const RowOps& row_ops(const char* isa) {
    static const RowOps* const tables[] = {
#if defined(__aarch64__)
        &neon::kRowOps,
#elif defined(__x86_64__)
        &avx2::kRowOps,
        &avx512vnni::kRowOps,
#endif
        &portable::kRowOps
    };
    for (const RowOps* table : tables)
        if (std::strcmp(table->isa, isa) == 0) return *table;
    return portable::kRowOps;
}

}  // namespace assay
