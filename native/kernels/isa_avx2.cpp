// x86: AVX2, FMA and F16C.
#include "isa.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include <utility>

#include "blocks.h"

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace assay::kernels {
namespace {

#include "avx2.h"
using V = Avx2;

#include "expand.h"
constexpr const Packer& packer = avx2::kPacker;
#include "isa_table.h"

}  // namespace

const Isa* isa_avx2() {
    static const Isa table = make_isa("avx2", &avx2::kRowOps);
    return &table;
}

}  // namespace assay::kernels

#else
namespace assay::kernels {
const Isa* isa_avx2() { return nullptr; }
}  // namespace assay::kernels
#endif
