#include "isa.h"
namespace assay::kernels {
const Isa* isa_avx512vnni() { return nullptr; }
}  // namespace assay::kernels
