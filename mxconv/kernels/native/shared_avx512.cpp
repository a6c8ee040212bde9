// What all x86 kernels with AVX-512 share.
#include <immintrin.h>

#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

namespace mxconv {
namespace {

#include "numbers.inl"
#include "rowwise.inl"

}  // namespace

const Rowwise kRowwiseAvx512 = kRowwise;

}  // namespace mxconv
