// What all x86 kernels with AVX2 share, and the encoders of those with AVX-512 too: on Cascade Lake wider ones were no faster.
#include <immintrin.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

namespace mxconv {
namespace {

#include "numbers.inl"
#include "rowwise.inl"
#include "avx2.inl"
#include "draft_linear.inl"
#include "avx2_rows.inl"
#include "avx2_bsfp.inl"
#include "fill.inl"
#include "avx2_prompt.inl"
#include "avx2_float.inl"
#include "linear.inl"

namespace encoding {
#include "encoders.inl"
}

}  // namespace

const Rowwise kRowwiseAvx2 = kRowwise;
const Encoders kEncodersAvx2 = encoding::kAll;
const Family kFamilyAvx2{linear_of_floats, patterns, read_bytes, kRowwiseAvx2, kEncodersAvx2};

}  // namespace mxconv
