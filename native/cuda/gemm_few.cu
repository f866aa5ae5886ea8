// gemm.h for batches of up to 16 tokens: tiles of 32 rows x 8 or 16 tokens, or of 16 rows for matrices with few rows.
#include "gemm.h"

namespace assay {

CROWDED(product_8, ProductArgs, 256, 2) { few_tokens<Integers, 1, 8>(a); }
CROWDED(product_16, ProductArgs, 256, 2) { few_tokens<Integers, 2, 8>(a); }
CROWDED(product_16_8, ProductArgs, 256, 2) { few_tokens<Integers, 1, 8, 16>(a); }
CROWDED(product_16_16, ProductArgs, 256, 2) { few_tokens<Integers, 2, 8, 16>(a); }

}  // namespace assay
