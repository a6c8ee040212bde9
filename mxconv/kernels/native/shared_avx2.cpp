// What all x86 kernels with AVX2 share, and the encoders of those with AVX-512 too: on Cascade Lake wider ones were no faster.
#include <immintrin.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

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

const Rowwise kRowwiseAvx2 = kRowwise;
const Encoders kEncodersAvx2 = encoding::kAll;

}  // namespace mxconv
