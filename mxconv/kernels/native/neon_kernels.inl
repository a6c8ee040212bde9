// Kernels with NEON, but for what shared_neon.cpp compiles once for those without BF16 arithmetic.
#include <arm_neon.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

#define MXCONV_NEON

namespace mxconv {
namespace {

#include "numbers.inl"
#include "generic.inl"
#include "draft_linear.inl"
#include "neon_int8.inl"
#include "rates.inl"
#include "integers.inl"
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "neon_dense.inl"
#include "neon_bsfp.inl"
#include "neon_float.inl"
#include "fill.inl"
#include "linear.inl"
#endif

}  // namespace

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
static const Family kFamily{linear_of_floats, patterns, read_bytes, kRowwiseNeon, kEncodersNeon};
#else
static const Family& kFamily = kFamilyNeon;
#endif

const Kernels MXCONV_TABLE{MXCONV_NAME, prepare, linear_of_integers, multiply_adds, kFamily, kRowwiseNeon};

}  // namespace mxconv
