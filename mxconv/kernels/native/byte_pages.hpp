// A draft's copy of whole pages of a cache, a byte a number.
//
// Every number of a page's keys has a range of its own, which attention multiplies into queries, every position of its
// values a step, which it multiplies into shares: so both are sums of products of bytes. Ranges by column are KIVI's
// (arXiv 2402.02750); a quantized cache as a draft's is QuantSpec's (arXiv 2502.10424).
#pragma once

#include "pass.hpp"

namespace mxconv {

// Copy a page of one head. Where keys or values are not finite, what is read of them is arbitrary.
void put_byte_page(const SequenceTokens& sequence, int64_t layer, int64_t head, int64_t head_dim, int64_t page);

}  // namespace mxconv
