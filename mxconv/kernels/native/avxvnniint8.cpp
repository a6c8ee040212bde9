// AVX2 with the dot product of signed by signed bytes (AVX-VNNI-INT8): what ML-SpecQD's processor has.
#include <immintrin.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

#define MXCONV_AVXVNNIINT8

namespace mxconv {
namespace {

#include "ahead.inl"
#include "unrolled.inl"
#include "numbers.inl"
#include "generic.inl"
#include "avx2_rows.inl"
#include "avx2_bsfp.inl"
#include "avx2_int8.inl"
#include "avx2_float.inl"
#include "avx2_rates.inl"
#include "linear.inl"

}  // namespace

const Kernels kAvxVnniInt8{"avxvnniint8", prepare,       linear,       patterns,
                           read_bytes,    multiply_adds, kRowwiseAvx2, kEncodersAvx2};

}  // namespace mxconv
