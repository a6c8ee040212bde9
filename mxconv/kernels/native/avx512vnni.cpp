// AVX-512 with VNNI: 16 rows are 16 lanes.
#include <immintrin.h>

#include <cstring>

#include "cpuid.hpp"
#include "encoders.hpp"
#include "kernels.hpp"

namespace mxconv {
namespace {

constexpr int32_t kOffsetBase = 0x4B400000;  // the bits of 1.5 * 2^23: sums are floats as they are, see avx512.inl

#include "ahead.inl"
#include "unrolled.inl"
#include "generic.inl"
#include "avx512.inl"
#include "avx512_int8.inl"
#include "avx512_bsfp.inl"
#include "avx512_panel.inl"
#include "linear.inl"
#include "encode_mxfp4.inl"
#include "encode_bsfp.inl"
#include "encode_mxfp4_avx512.inl"
#include "list_escapes.inl"
#include "encode_bsfp_avx512.inl"
#include "encoders_avx512.inl"
#include "rowwise.inl"

}  // namespace

const Kernels kAvx512Vnni{"avx512vnni", prepare, linear, patterns, read_bytes, multiply_adds, kRowwise, &kEncoders};

}  // namespace mxconv
