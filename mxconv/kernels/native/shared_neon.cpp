// What NEON kernels share.
#include <arm_neon.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

#define MXCONV_NEON

namespace mxconv {
namespace {

#include "numbers.inl"
#include "rowwise.inl"
#include "draft_linear.inl"
#include "neon_dense.inl"
#include "neon_bsfp.inl"
#include "neon_float.inl"
#include "fill.inl"
#include "linear.inl"

namespace encoding {
#include "encoders.inl"
}

}  // namespace

const Rowwise kRowwiseNeon = kRowwise;
const Encoders kEncodersNeon = encoding::kAll;
const Family kFamilyNeon{linear_of_floats, patterns, read_bytes, kRowwiseNeon, kEncodersNeon};

}  // namespace mxconv
