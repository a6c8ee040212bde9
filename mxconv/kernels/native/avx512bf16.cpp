// AVX-512 with VNNI and BF16 instructions.
#include <immintrin.h>

#include <cstring>

#include "kernels.hpp"

namespace mxconv {
namespace {

#include "generic.inl"
#include "avx512.inl"
#include "linear.inl"
#include "rowwise.inl"

}  // namespace

const Kernels kAvx512Bf16{"avx512bf16", prepare, linear, patterns, read_bytes, multiply_adds, kRowwise};

}  // namespace mxconv
