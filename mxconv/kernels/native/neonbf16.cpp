// NEON with dot products and products of int8 and BF16 matrices (smmla, bfmmla).
#define MXCONV_NAME "neonbf16"
#define MXCONV_TABLE kNeonBf16
#include "neon_kernels.inl"
