// AVX2 with the dot product of signed by signed bytes (AVX-VNNI-INT8): what ML-SpecQD's processor has.
#define MXCONV_AVXVNNIINT8
#define MXCONV_NAME "avxvnniint8"
#define MXCONV_TABLE kAvxVnniInt8
#include "avx2_kernels.inl"
