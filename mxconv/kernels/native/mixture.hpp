// Experts in the place of an MLP: each row goes through a few out of many, and what no row chooses is not read.
#pragma once

#include <optional>

#include "parts.hpp"

namespace mxconv {

// How rows choose, as mxconv/arch/mixture.py has it.
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

struct Expert {
    Projection gate;  // with the rows of `up` after its own, or between them, where that is none
    Projection up;
    Projection down;
};

// What becomes of gates and ups instead of an activation of the one times the other: see `Rowwise::clamped_gates`.
struct ClampedGate {
    float slope, limit;
};

struct Mixture final : Part {
    int64_t hidden_size, size;  // of an expert
    Activation activation;
    std::optional<ClampedGate> clamped;
    bool is_interleaved;  // gates and ups are rows of one matrix in turn
    bool scales_input;    // shares multiply what experts take in, not what they give

    // Rows are normed here: they are gathered by expert after it.
    Norm norm;         // of what experts take in; may be none
    Norm router_norm;  // of what the router takes in, where `is_routed_apart`
    bool is_routed_apart;

    Projection router;
    Routing routing;
    std::vector<Expert> experts;

    Demands demands() const override { return {hidden_size}; }
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
        Activations taken;   // (entries, hidden_size)
        float* gates;        // (entries, 2 size), as matrices give them, or ups after gates
        Activations inner;   // (entries, size)
        float* products;     // (entries, hidden_size)
        float* scores;       // of a thread: (2, num_experts)
        float* row;          // (size)
        float* pair;         // (2, size): gates and ups that stood in turn
        int32_t* first;      // (num_experts + 1): an expert's entries
        int32_t* chosen_by;  // (entries): which of `chosen` an entry is
        int32_t* places;     // (tokens, num_chosen): the entry of a row at each of its experts
        int32_t* active;     // (num_experts): those that any row chose
    };

    Memory memory(Room& room, const Slice& slice) const;
    void route(Step& step, const Memory& m) const;
    int64_t group(int64_t num_tokens, const Memory& m) const;
    void gather(Step& step, const Memory& m) const;
    void add_up(Step& step, const Memory& m) const;

    void go_in(Step& step, int64_t num_active, const Memory& m) const;
    void come_out(Step& step, int64_t num_active, const Memory& m) const;
    void multiply(Step& step, const Expert& expert, const Activations& taken, int64_t first, int64_t last,
                  float* gates) const;
    void activate(const Step& step, const Expert& expert, int64_t row, int64_t count, float* gates,
                  const Memory& m) const;
    template <class Work>
    void share(Step& step, int64_t num_active, const Memory& m, const Matrix& matrix, int64_t tiles, int64_t multiple,
               Work work) const;
};

// Rows [first, first + count) of some that stand together.
inline Activations part_of(Activations all, int64_t first, int64_t count) {
    all.num_tokens = count;
    const int64_t begin = first * all.padded, block = first * (all.padded / kBlock);
    if (all.values != nullptr) all.values += begin;
    if (all.bf16 != nullptr) all.bf16 += begin, all.split += begin;
    if (all.codes != nullptr) all.codes += begin, all.scales += block, all.offsets += block, all.finite += first;
    return all;
}

}  // namespace mxconv
