// AVX2 with the VEX-encoded dot-product instruction (AVX-VNNI).
#include <immintrin.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

namespace mxconv {
namespace {

constexpr int32_t kOffsetBase = 0;

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

const Kernels kAvxVnni{"avxvnni", prepare, linear, patterns, read_bytes, multiply_adds, kRowwiseAvx2, kEncodersAvx2};

}  // namespace mxconv
