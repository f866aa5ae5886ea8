// 32 rows x 8 or 16 tokens, for batches of up to 16.
#include "gemm.h"

namespace assay {

KERNEL(product_8, ProductArgs, 256) { few_tokens<Integers, 1, 8>(a); }
KERNEL(product_16, ProductArgs, 256) { few_tokens<Integers, 2, 8>(a); }

}  // namespace assay
