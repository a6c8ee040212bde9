// The pages of a sequence's cache as Python hands them over.
#pragma once

#include <string>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "parts.hpp"
#include "pass.hpp"

namespace mxconv {

CacheDtype cache_dtype_of(const std::string& name);

// Pages of some slabs, by their numbers: the first slab has pages 0, 1, ..., the next one goes on.
class BoundPages {
  public:
    BoundPages(const std::string& dtype, const std::vector<nb::object>& slabs, Array<int32_t> numbers);

    // Raises where they do not fit.
    CachePages checked(const DecoderParts& decoder) const;

  private:
    const CacheDtype dtype_;
    std::vector<MutableArray<float>> wide_;
    std::vector<MutableArray<uint16_t>> narrow_;
    const Array<int32_t> numbers_;
};

void bind_pages(nb::module_& module);

}  // namespace mxconv
