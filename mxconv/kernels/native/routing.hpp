// How rows choose among experts, as mxconv/arch/elements.py has it.
#pragma once

#include "bindings.hpp"

namespace mxconv {

struct Routing {
    enum class Score { kSoftmax, kSoftmaxOfChosen, kSigmoid };

    int64_t num_experts, num_chosen;
    Score score;
    bool is_normalized;
    const float* correction;  // (num_experts), or null
    int64_t num_groups, num_chosen_groups;
    float multiplier;
    const float* multipliers;  // (num_experts), or null

    // Of one row: `chosen` and `shares` (num_chosen) in ascending order of experts; `scores` is room for two rows of logits.
    void choose(const float* logits, float* scores, int32_t* chosen, float* shares) const;

  private:
    void correct(float* scores, float* corrected) const;
};

// How rows choose, and by which matrix; the number of experts is that of its rows.
struct BoundRouting {
    Routing routing;
    Projection router;
};

}  // namespace mxconv
