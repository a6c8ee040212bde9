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
#include "numbers.inl"
#include "generic.inl"
#include "avx512.inl"
#include "avx512_int8.inl"
#include "avx512_bsfp.inl"
#include "avx512_panel.inl"
#include "linear.inl"

}  // namespace

const Kernels kAvx512Vnni{"avx512vnni", prepare,       linear,         patterns,
                          read_bytes,   multiply_adds, kRowwiseAvx512, kEncodersAvx2};

}  // namespace mxconv
