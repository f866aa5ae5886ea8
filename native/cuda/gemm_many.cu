// 128 rows x 64 tokens
#include "gemm.h"

namespace assay {

KERNEL(product_many, ProductArgs, 256) { many_tokens<4, 2, 4, 2>(a); }

}  // namespace assay
