// Which implementations this build has and this processor can run.
#pragma once

#include <string_view>
#include <vector>

#include "kernels.hpp"

namespace mxconv {

// Best first; the last one is `portable`.
const std::vector<const Kernels*>& available();

// Null where the name is unknown or the processor lacks the instructions.
const Kernels* find(std::string_view name);

}  // namespace mxconv
