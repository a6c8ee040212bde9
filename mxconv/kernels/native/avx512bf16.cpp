// AVX-512 with VNNI and BF16 instructions.
#define MXCONV_NAME "avx512bf16"
#define MXCONV_TABLE kAvx512Bf16
#include "avx512_kernels.inl"
