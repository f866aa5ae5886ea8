// 32 rows x 8 tokens
#include "gemm.h"

namespace assay {

KERNEL(product_eight, ProductArgs, 32) { many_tokens<1, 1, 1, 4>(a); }

}  // namespace assay
