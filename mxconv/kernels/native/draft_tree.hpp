// The tree of a draft that takes the likeliest tokens, or those that coupled draws take: a depth a pass, all in one call.
// mxconv/speculation/trees.py grows the same tree pass by pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels.hpp"

namespace mxconv {

// Draws at random with the noise of a seed and a position: mxconv/speculation/acceptance.py, CoupledAcceptance.
struct Draws {
    double temperature;
    int64_t top_k;
    double top_p, min_p;
    uint64_t seed, position;  // of the first token to be drawn
};

// The numbers of a position, computed when they are asked for: NumPy's Philox(key=[seed, position]).random().
class Noise {
  public:
    void begin(uint64_t seed, uint64_t position, int64_t num_tokens);
    double of(int64_t token);

  private:
    uint64_t seed_ = 0, position_ = 0;
    std::vector<double> numbers_;  // by token; negative: not yet
};

// What is held against tokens by those of the text: mxconv/text/distribution.py.
struct Penalties {
    float repetition, presence, frequency;
    std::vector<std::pair<int64_t, float>> bias;  // by token
    std::vector<int64_t> tokens;                  // of the text, each once
    std::vector<int32_t> in_text, in_answer;      // how often it has them

    // Change logits after some more tokens of the answer.
    void apply(float* logits, int64_t count, const std::vector<int64_t>& path) const;
};

struct TreeLimits {
    int64_t most_depth;           // of a path
    std::vector<double> floors;   // the chance that a node must have, the likeliest one's first
    double least_own, least_sum;  // a pass pays below nodes one of which has this chance after its parent, and all that
    double sharpness;             // factor of the logits
    int64_t most_siblings, most_in_frontier, most_rows;
    std::optional<Draws> draws;  // the likeliest tokens without
    std::optional<Penalties> penalties;
};

struct TreeNode {
    int32_t token;
    int64_t parent;      // -1: the context
    double own, chance;  // after its parent, and of its path
};

class DraftTree {
  public:
    explicit DraftTree(TreeLimits limits) : limits_(std::move(limits)) {}

    // Nodes, parents before children, and those that were evaluated, a row each.
    const std::vector<TreeNode>& nodes() const { return nodes_; }
    const std::vector<int64_t>& rows() const { return rows_; }

    // Add guesses after the context, or after the rows that were evaluated last, and choose the next rows: logits `stride` apart, `count` each, to which
    // penalties are applied. Noise is that of the tokens' ids, where they are not their places.
    void add_guesses(float* logits, int64_t stride, int64_t count, const int64_t* ids);

    // Settle the rows that `add_guesses` chose to evaluate next: their masks, or none where no further pass pays; how many.
    int64_t go_on();

    int64_t num_passes() const { return depth_; }
    // Of a node that was evaluated; -1 of the context.
    int64_t row_of(int64_t node) const { return node < 0 ? -1 : row_of_[static_cast<std::size_t>(node)]; }
    // The first of the rows that were evaluated last.
    int64_t first_of_last() const { return first_of_last_; }

    // Of the last rows: which of all rows lie on each one's path, bit by bit, itself included.
    const std::vector<uint64_t>& masks() const { return masks_; }

  private:
    std::vector<int64_t> able(int64_t first) const;
    std::vector<int64_t> path(int64_t node) const;  // its tokens, from the last one on

    TreeLimits limits_;
    Noise noise_;
    std::vector<TreeNode> nodes_;
    std::vector<int64_t> rows_, row_of_;  // nodes of rows, rows of nodes or -1
    std::vector<uint64_t> all_masks_, masks_;
    int64_t num_last_ = 0, first_of_last_ = 0, depth_ = 0;
};

// Rows of an embedding of 16 bits, widened and multiplied, one after another.
void look_up(const Kernels& kernels, const Matrix& embedding, float multiplier, const std::vector<int64_t>& ids,
             float* x);

}  // namespace mxconv
