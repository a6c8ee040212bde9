// NEON with dot products and products of int8 matrices (I8MM: smmla).
#define MXCONV_NAME "neoni8mm"
#define MXCONV_TABLE kNeonI8mm
#include "neon_kernels.inl"
