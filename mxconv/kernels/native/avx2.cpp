// AVX2 with FMA and F16C.
#include <immintrin.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

namespace mxconv {
namespace {

#include "ahead.inl"
#include "unrolled.inl"
#include "generic.inl"
#include "avx2_rows.inl"
#include "avx2_bsfp.inl"
#include "avx2_int8.inl"
#include "avx2_float.inl"
#include "avx2_rates.inl"
#include "linear.inl"
#include "encode_mxfp4.inl"
#include "encode_mxfp4_avx2.inl"
#include "encode_bsfp.inl"
#include "list_escapes.inl"
#include "encode_bsfp_avx2.inl"
#include "encoders_avx2.inl"
#include "rowwise.inl"

}  // namespace

const Kernels kAvx2{"avx2", prepare, linear, patterns, read_bytes, multiply_adds, kRowwise, &kEncoders};

}  // namespace mxconv
