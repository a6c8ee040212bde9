// What a sequence keeps of mixers with a state, and the way of a pass through its rows: as mxconv/engine/recurrent/walk.py and
// state_cache.py beside it have them. Places count the rows of a cache.
#pragma once

#include <cstdint>
#include <vector>

namespace mxconv {

constexpr int64_t kTip = 0;  // the running state's slot; those of snapshots follow

// Of the state of a layer.
struct StateSizes {
    int64_t kernel_size = 1;                   // rows that the convolution sees, its own included
    int64_t num_channels = 0;                  // of the convolution
    int64_t num_gates = 0;                     // of a row's input, after the channels
    int64_t heads = 0, rows = 0, columns = 0;  // of the memory

    int64_t input() const { return num_channels + num_gates; }
    int64_t window() const { return (kernel_size - 1) * num_channels; }
    int64_t head() const { return rows * columns; }

    friend bool operator==(const StateSizes& a, const StateSizes& b) {
        return a.kernel_size == b.kernel_size && a.num_channels == b.num_channels && a.num_gates == b.num_gates &&
               a.heads == b.heads && a.rows == b.rows && a.columns == b.columns;
    }
};

// Inputs of the rows from `origin` on: (layers, room, input).
struct KeptInputs {
    float* values;
    int64_t origin, room;
};

struct PlacePair {
    int64_t place, other;
};

// The states of one sequence, and its way through a pass.
struct Walk {
    int64_t num_layers;               // that have a state
    float* windows;                   // (slots, layers, kernel_size - 1, channels), the oldest row first
    float* memories;                  // (slots, layers, heads, rows, columns)
    KeptInputs inputs;                // of the rows that are there
    KeptInputs kept;                  // where those of new rows go, from its origin on
    int64_t source;                   // the slot to start from
    int64_t first;                    // how many places that state has seen
    int64_t stop;                     // the running state walks first .. stop - 1
    int64_t length;                   // rows from here on are new
    std::vector<PlacePair> saves;     // (place, slot): of the running state that has seen so many places
    std::vector<PlacePair> branches;  // (row, parent) after `stop`, parents before children
};

// A row on its way through a layer.
struct WalkStep {
    int64_t place;
    int64_t token;     // in the slice; -1: the row is there, and its input
    int64_t before;    // the step of the row that it hangs below; -1: none, but what the running state has seen
    int64_t from, to;  // states: 0 is the running one, others are copies
};

// The rows of a walk that a slice evaluates, and those before them that are walked again.
struct SliceWalk {
    // Of the new rows from `place` on, `count` of them, which are the slice's from `token` on.
    SliceWalk(const Walk& walk, int64_t place, int64_t count, int64_t token);

    const Walk* walk;
    bool begins;                  // with the source; or else where the slice before has left the running state
    int64_t start;                // how many places the running state has seen then
    std::vector<WalkStep> steps;  // of the running state, then of branches
    int64_t num_running;          // steps
    int64_t num_settled;          // of these: of rows that are there
    int64_t num_copies = 0;
    int64_t token, num_tokens;  // of the slice

  private:
    void branch();
};

}  // namespace mxconv
