// A convolution between two gates: of a row B, C, x the output is C * convolution(B * x).
#pragma once

#include "recurrent.hpp"

namespace mxconv {

struct ShortConvolution final : Recurrent {
    Projection inputs;  // (3 * channels, hidden_size): B, C and x

    int forms() const override { return only_follows ? 0 : inputs.form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override;

  private:
    struct Memory {
        float* projected;  // (tokens, 3 * channels); B becomes B * x
        float* row;        // of some channels
        Way way;
    };

    Memory memory(Room& room, const Slice& slice) const;
    void mix(Step& step, const SliceWalk& walk, int64_t first, int64_t count, const Memory& memory) const;
};

}  // namespace mxconv
