// NEON with dot products and products of int8 and BF16 matrices (smmla, bfmmla).
#include <arm_neon.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

#define MXCONV_NEON

namespace mxconv {
namespace {

constexpr int32_t kOffsetBase = 0;

#include "ahead.inl"
#include "unrolled.inl"
#include "numbers.inl"
#include "generic.inl"
#include "neon_dense.inl"
#include "neon_bsfp.inl"
#include "neon_int8.inl"
#include "neon_float.inl"
#include "neon_rates.inl"
#include "linear.inl"

}  // namespace

const Kernels kNeonBf16{"neonbf16", prepare, linear, patterns, read_bytes, multiply_adds, kRowwiseNeon, kEncodersNeon};

}  // namespace mxconv
