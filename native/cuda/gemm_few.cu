// 32 rows x 8, 16 or 32 tokens, for batches of up to 64.
#include "gemm.h"

namespace assay {

KERNEL(product_8, ProductArgs, 256) { few_tokens<Integers, 1, 8>(a); }
KERNEL(product_16, ProductArgs, 256) { few_tokens<Integers, 2, 8>(a); }
CROWDED(product_32, ProductArgs, 128, 2) { few_tokens<Integers, 4, 4>(a); }

}  // namespace assay
