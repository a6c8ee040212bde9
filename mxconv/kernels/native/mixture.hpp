// Experts in the place of an MLP: each row goes through a few out of many, and what no row chooses is not read.
#pragma once

#include "parts.hpp"

namespace mxconv {

// How rows choose, as mxconv/model/mixture.py has it.
struct Routing {
    enum class Score { kSoftmax, kSoftmaxOfChosen, kSigmoid };

    int64_t num_experts, num_chosen;
    Score score;
    bool is_normalized;
    const float* correction;  // (num_experts), or null
    int64_t num_groups, num_chosen_groups;
    float multiplier;

    // Of one row: `chosen` and `shares` (num_chosen) in ascending order of experts; `scores` is room for two rows of logits.
    void choose(const float* logits, float* scores, int32_t* chosen, float* shares) const;

  private:
    void correct(float* scores, float* corrected) const;
};

struct Expert {
    const Matrix* gate;  // with the rows of `up` behind its own, where that is none
    const Matrix* up;
    const Matrix* down;
};

struct Mixture final : Part {
    int64_t size;  // of an expert
    Activation activation;
    Norm norm;  // of what router and experts take in: rows are gathered by expert behind it
    Projection router;
    Routing routing;
    std::vector<Expert> experts;

    Demands demands() const override { return {norm.length}; }
    int forms() const override { return 0; }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override;

  private:
    // An entry is a row at one of its experts. Entries of an expert stand together, experts in ascending order.
    struct Memory {
        float* rows;         // (tokens, hidden_size) normed, and at last what experts make of them
        Activations routed;  // the same, as the router takes them
        float* logits;       // (tokens, num_experts)
        int32_t* chosen;     // (tokens, num_chosen)
        float* shares;
        Activations taken;  // (entries, hidden_size)
        float* gates;       // (entries, 2 size), ups behind gates
        Activations inner;  // (entries, size)
        float* products;    // (entries, hidden_size)
        float* scores;      // of a thread: (2, num_experts)
        float* row;         // (size)
        int32_t* first;     // (num_experts + 1): an expert's entries
        int32_t* tokens;    // (entries)
        int32_t* places;    // (tokens, num_chosen): the entry of a row at each of its experts
        int32_t* active;    // (num_experts): those that any row chose
    };

    Memory memory(Room& room, const Slice& slice) const;
    void route(Step& step, const Memory& m) const;
    int64_t group(int64_t num_tokens, const Memory& m) const;
    void gather(Step& step, const Memory& m) const;
    void go_in(Step& step, int64_t num_active, const Memory& m) const;
    void come_out(Step& step, int64_t num_active, const Memory& m) const;
    void add_up(Step& step, const Memory& m) const;
};

}  // namespace mxconv
