// The states of one layer on the way of a slice through one sequence: what rows see, and what moves memories on.
#pragma once

#include <cstring>

#include "walk.hpp"

namespace mxconv {

constexpr int64_t kStepsAtOnce = 64;  // of a walk, whose convolutions are at hand together; a tree has no more

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

    // After all steps, of which the first `num_running` were the running state's: windows of the states that were made, and
    // the inputs of new rows. `windows` is room for those of `num_windows` states.
    void keep(int64_t num_running, float* windows) const;
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
