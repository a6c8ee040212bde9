// What the mixers with a state have in common: a causal convolution, and states that go with the text.
#pragma once

#include <tuple>
#include <vector>

#include "bindings.hpp"

namespace mxconv {

// A causal convolution a channel.
struct Convolution {
    const float* taps;  // (kernel_size, channels), the oldest row's first
    const float* bias;  // (channels), or null
};

struct BoundConvolution {
    Array<float> taps;
    MaybeVector bias;
    int64_t layer;
};

// Of a memory (heads, rows, columns), and some gates a head.
StateSizes with_memory(const std::tuple<int64_t, int64_t, int64_t>& memory, int64_t gates);

struct Recurrent : Part {
    int64_t layer;  // among those with a state
    StateSizes sizes;
    Convolution convolution;
    Projection output;

    // Take what all are described by. Raises where the convolution has other sizes.
    void begin(const BoundConvolution& bound, const StateSizes& given);

    Demands demands() const override;

  protected:
    // What rows become before `output`, and what a thread needs on the way.
    struct Way {
        Activations mixed;
        float* products;     // (tokens, hidden_size)
        const float** seen;  // by a convolution
        float* copies;       // of memories, for branches
        float* windows;
    };

    Way way(Room& room, const Slice& slice) const;
    LayerWalk walk_of(const SliceWalk& walk, const float* inputs, int64_t stride) const;

    // The channels [first, first + count) of a step, convolved.
    void convolve(const Step& step, const LayerWalk& walk, int64_t number, int64_t first, int64_t count, const Way& way,
                  float* out) const;

    // After the barrier that ends the walk.
    void keep(Step& step, const float* inputs, int64_t stride, const Way& way) const;
};

}  // namespace mxconv
