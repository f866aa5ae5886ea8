// Arm: NEON with the dot product extension (armv8.2-a+dotprod+fp16).
#include "isa.h"

#if defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#include <utility>

#include "blocks.h"

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace assay::kernels {
namespace {

#include "neon.h"
using V = Neon;

#include "expand.h"
constexpr const Packer& packer = neon::kPacker;
#include "isa_table.h"

}  // namespace

const Isa* isa_neon() {
    static const Isa table = make_isa("neon", &neon::kRowOps);
    return &table;
}

}  // namespace assay::kernels

#else
namespace assay::kernels {
const Isa* isa_neon() { return nullptr; }
}  // namespace assay::kernels
#endif
