// NEON with the dot products of ARMv8.2 (sdot).
#define MXCONV_NAME "neon"
#define MXCONV_TABLE kNeon
#include "neon_kernels.inl"
