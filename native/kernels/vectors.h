// Chooses the vector type of the instruction set that a translation unit is compiled for. Such a unit includes
// ASSAY_VECTORS inside an anonymous namespace, and there the type ASSAY_V is defined.
#pragma once
#include <cmath>
#include <utility>

#include "isa.h"

#if !defined(ASSAY_PORTABLE) && defined(__AVX512BW__)
#include <immintrin.h>
#define ASSAY_VECTORS "avx512.h"
#define ASSAY_V Avx512
#elif !defined(ASSAY_PORTABLE) && defined(__AVX2__)
#include <immintrin.h>
#define ASSAY_VECTORS "avx2.h"
#define ASSAY_V Avx2
#elif !defined(ASSAY_PORTABLE) && defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define ASSAY_VECTORS "neon.h"
#define ASSAY_V Neon
#else
#define ASSAY_VECTORS "portable.h"
#define ASSAY_V Portable
#endif

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))
