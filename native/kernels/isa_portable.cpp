// Plain C++: compiles everywhere, and defines what the vector types of the other instruction sets must compute.
#include <cmath>
#include <utility>

#include "blocks.h"
#include "isa.h"

#if defined(__OPTIMIZE_SIZE__)  // one copy of a step for all types
#define INLINE inline
#define INLINE_LAMBDA
#else
#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))
#endif

namespace assay::kernels {
namespace {

#include "portable.h"
using V = Portable;

#include "expand.h"
constexpr const Packer& packer = portable::kPacker;
#include "isa_table.h"

}  // namespace

const Isa* isa_portable() {
    static const Isa table = make_isa("portable", &portable::kRowOps);
    return &table;
}

}  // namespace assay::kernels
