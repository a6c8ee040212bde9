// Which implementations this build has and this processor can run, and what everything native runs on: one of them with a
// thread team.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "kernels.hpp"
#include "team.hpp"

namespace mxconv {

struct Engine {
    const Kernels* kernels;
    std::unique_ptr<Team> team;
};

// Best first; the last one is `portable`.
const std::vector<const Kernels*>& available();

// Null where the name is unknown or the processor lacks the instructions.
const Kernels* find(std::string_view name);

}  // namespace mxconv
