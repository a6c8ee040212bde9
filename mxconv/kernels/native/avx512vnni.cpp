// AVX-512 with VNNI: 16 rows are 16 lanes.
#include <immintrin.h>

#include <cstring>

#include "kernels.hpp"

namespace mxconv {
namespace {

#include "generic.inl"
#include "avx512.inl"
#include "linear.inl"
#include "rowwise.inl"

}  // namespace

const Kernels kAvx512Vnni{"avx512vnni", prepare, linear, patterns, read_bytes, multiply_adds, kRowwise};

}  // namespace mxconv
