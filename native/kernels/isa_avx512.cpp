// x86: AVX-512 without VNNI (F, BW, VL, DQ).
#include "isa.h"

#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics: _mm512_undefined_*
#endif
#include <immintrin.h>

#include <utility>

#include "blocks.h"

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace assay::kernels {
namespace {

#include "avx512.h"
using V = Avx512;

#include "expand.h"
constexpr const Packer& packer = avx512::kPacker;
#include "isa_table.h"

}  // namespace

const Isa* isa_avx512() {
    static const Isa table = make_isa("avx512", &avx512::kRowOps);
    return &table;
}

}  // namespace assay::kernels

#else
namespace assay::kernels {
const Isa* isa_avx512() { return nullptr; }
}  // namespace assay::kernels
#endif
