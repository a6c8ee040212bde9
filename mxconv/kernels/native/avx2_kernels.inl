// Kernels with AVX2, but for what shared_avx2.cpp compiles once for all of them.
#include <immintrin.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

namespace mxconv {
namespace {

#include "numbers.inl"
#include "generic.inl"
#include "avx2.inl"
#include "draft_linear.inl"
#include "avx2_int8.inl"
#include "rates.inl"
#include "integers.inl"

}  // namespace

const Kernels MXCONV_TABLE{MXCONV_NAME, prepare, linear_of_integers, multiply_adds, kFamilyAvx2, kRowwiseAvx2};

}  // namespace mxconv
