// AVX2 with the VEX-encoded dot-product instruction (AVX-VNNI).
#define MXCONV_NAME "avxvnni"
#define MXCONV_TABLE kAvxVnni
#include "avx2_kernels.inl"
