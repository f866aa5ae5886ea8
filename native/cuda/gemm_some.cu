// 32 rows x 64 tokens
#include "gemm.h"

namespace assay {

KERNEL(product_some, ProductArgs, 64) { many_tokens<1, 2, 4, 2>(a); }

}  // namespace assay
