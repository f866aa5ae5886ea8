// Every kernel, for the shim. NVRTC compiles each of these files on its own.
#include "attention.cu"
#include "gemm_eight.cu"
#include "gemm_many.cu"
#include "gemm_some.cu"
#include "products.cu"
#include "repack.cu"
#include "rows.cu"
