// Every kernel, for NVRTC and for the shim.
#include "attention.cu"
#include "gemm.cu"
#include "repack.cu"
#include "rows.cu"
