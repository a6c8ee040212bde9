// Which positions a token sees.
#pragma once

#include "kernels.hpp"
#include "pass.hpp"

namespace mxconv {

struct Sight {
    int64_t window;        // how many positions, itself included; 0 is all
    int64_t sink, recent;  // a draft's: the first and the last so many; recent 0 is all
    bool is_chunked;       // windows lie side by side: what is seen begins at the last multiple of `window`

    // `others` has room for `most_others`.
    Visible of(const Token& token, int32_t* others) const;

    int64_t most_others(int64_t most_visible) const;
};

}  // namespace mxconv
