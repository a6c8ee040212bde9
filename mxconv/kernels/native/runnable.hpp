// The names of the kernels that this processor can run, whether this build has them or not.
#pragma once

#include <string_view>
#include <vector>

namespace mxconv {

// Best first; the last one is `portable`.
std::vector<std::string_view> runnable();

}  // namespace mxconv
