// AVX-512 with VNNI: 16 rows are 16 lanes.
#define MXCONV_NAME "avx512vnni"
#define MXCONV_TABLE kAvx512Vnni
#include "avx512_kernels.inl"
