// AVX2 with FMA and F16C.
#define MXCONV_NAME "avx2"
#define MXCONV_TABLE kAvx2
#include "avx2_kernels.inl"
