// What a sequence keeps of mixers with a state, and the way of a pass through its rows: as mxconv/engine/recurrent.py and
// mxconv/engine/state_cache.py have them. Places count the rows of a cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
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

using PlacePair = std::pair<int64_t, int64_t>;

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
    int64_t num_copies = 0;
    int64_t token, num_tokens;  // of the slice

    int64_t num_steps() const { return static_cast<int64_t>(steps.size()); }

  private:
    void branch();
};

constexpr int64_t kStepsAtOnce = 64;  // of a walk, whose convolutions are at hand together; a tree has no more

// The states of one layer on the way of a slice through one sequence: what rows see, and what moves memories on.
class LayerWalk {
  public:
    // `inputs` are those of the slice's rows, `stride` apart.
    LayerWalk(const SliceWalk& walk, const StateSizes& sizes, int64_t layer, const float* inputs, int64_t stride)
        : walk_(walk), sizes_(sizes), layer_(layer), inputs_(inputs), stride_(stride) {}

    const WalkStep& step(int64_t number) const { return walk_.steps[static_cast<size_t>(number)]; }

    // (channels + gates) of a step's row.
    const float* input(int64_t number) const;

    // What the convolution sees in a step: kernel_size rows of channels, the oldest one first.
    void see(int64_t number, const float** rows) const;

    // The running state's memory of a head, as the walk begins with it.
    void begin(int64_t head) const;

    // The end of a run of steps from `first` on, of `count` at most: running ones, or branches.
    int64_t run_end(int64_t first, int64_t count) const;

    // Steps [first, last) of a head: move(step, from, to) makes of one memory that after the step's row. `copies` is room
    // for those of branches.
    template <class Move>
    void each(int64_t head, int64_t first, int64_t last, float* copies, const Move& move) const {
        float* const tip = memory(kTip, head);
        const auto state = [&](int64_t number) { return number == 0 ? tip : copies + (number - 1) * sizes_.head(); };
        for (int64_t number = first; number < last; ++number) {
            move(number, state(step(number).from), state(step(number).to));
            if (number < walk_.num_running) save(head, step(number).place + 1);
        }
    }

    // After all steps: windows of the states that were made, and the inputs of new rows. `windows` is room for those of
    // `num_windows` states.
    void keep(float* windows) const;
    static int64_t num_windows(const SliceWalk& walk) { return 1 + static_cast<int64_t>(walk.walk->saves.size()); }

  private:
    float* memory(int64_t slot, int64_t head) const;
    float* window(int64_t slot) const;
    void save(int64_t head, int64_t place) const;

    const SliceWalk& walk_;
    const StateSizes& sizes_;
    const int64_t layer_;
    const float* const inputs_;
    const int64_t stride_;
};

}  // namespace mxconv
