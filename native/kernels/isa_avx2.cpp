#include "isa.h"
namespace assay::kernels {
const Isa* isa_avx2() { return nullptr; }
}  // namespace assay::kernels
