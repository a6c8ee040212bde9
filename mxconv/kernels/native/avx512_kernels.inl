// Kernels with AVX-512, but for what shared_avx512.cpp compiles once for all of them.
#include <immintrin.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"
#include "processor.hpp"

namespace mxconv {
namespace {

#include "numbers.inl"
#include "generic.inl"
#include "avx512.inl"
#include "draft_linear.inl"
#include "avx512_int8.inl"
#include "avx512_bsfp.inl"
#include "avx512_panel.inl"
#include "rates.inl"
#include "fill.inl"
#include "linear.inl"
#include "integers.inl"

}  // namespace

static const Family kFamily{linear_of_floats, patterns, read_bytes, kRowwiseAvx512, kEncodersAvx2};

const Kernels MXCONV_TABLE{MXCONV_NAME, prepare, linear_of_integers, multiply_adds, kFamily, kRowwiseAvx512};

}  // namespace mxconv
