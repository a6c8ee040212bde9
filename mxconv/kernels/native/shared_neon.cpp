// What all NEON kernels share.
#include <arm_neon.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

#define MXCONV_NEON

namespace mxconv {
namespace {

#include "ahead.inl"
#include "unrolled.inl"
#include "numbers.inl"
#include "rowwise.inl"

namespace encoding {
#include "encoders.inl"
}

}  // namespace

const Rowwise kRowwiseNeon = kRowwise;
const Encoders kEncodersNeon = encoding::kAll;

}  // namespace mxconv
