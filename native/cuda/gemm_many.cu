// gemm_tiles.h for many tokens: tiles of 128 rows x 128 tokens, 128 x 64, and for up to 64 tokens 64 x 64, 32 x 64, 32
// x 32.
#include "gemm_tiles.h"

namespace assay {

CROWDED(product_128_128, ProductArgs, 512, 1) { product_tile<4, 4, 2, 4>(a); }
CROWDED(product_128_64, ProductArgs, 256, 1) { product_tile<4, 2, 2, 4>(a); }
CROWDED(product_64_64, ProductArgs, 256, 2) { product_tile<2, 4, 2, 2>(a); }
CROWDED(product_32_64, ProductArgs, 512, 1) { product_tile<1, 8, 2, 1, 2>(a); }
CROWDED(product_32_32, ProductArgs, 128, 4) { product_tile<1, 4, 2, 1>(a); }

}  // namespace assay
