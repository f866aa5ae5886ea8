// 128 rows x 64 tokens
#include "gemm.h"

namespace assay {

CROWDED(product_many, ProductArgs, 256, 2) { many_tokens<Integers, 4, 2, 4, 2>(a); }

}  // namespace assay
