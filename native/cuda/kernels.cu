// Every kernel, for the shim. NVRTC compiles each of these files on its own.
#include "attention.cu"
#include "gemm.cu"
#include "products.cu"
#include "repack.cu"
#include "rows.cu"
