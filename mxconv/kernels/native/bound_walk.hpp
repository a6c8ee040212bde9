// States of a sequence and its way through a pass, as Python hands them over.
#pragma once

#include <utility>
#include <vector>

#include "arrays.hpp"
#include "parts.hpp"

namespace mxconv {

struct BoundWalk {
    MutableArray<float> windows, memories, inputs, kept;
    Walk walk;  // without its pointers

    // Raises where it does not fit a decoder, or the rows of a sequence.
    Walk checked(const DecoderParts& decoder, int64_t num_tokens) const;

  private:
    void check_places(int64_t num_tokens, int64_t num_slots) const;
    void check_branches(int64_t num_tokens) const;
};

}  // namespace mxconv
