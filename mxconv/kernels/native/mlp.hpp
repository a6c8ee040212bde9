// The MLP of a layer: an activation between two matrices, and perhaps a third, the gate, whose activated rows multiply.
#pragma once

#include "parts.hpp"

namespace mxconv {

struct Mlp final : Part {
    int64_t size;
    Activation activation;
    Projection gate;  // none: what `up` gives is activated
    Projection up;    // none: the layer's own inputs in the pass stand for what it gives
    Projection down;
    Projection row_gate;  // (1, hidden_size), whose sigmoid multiplies what the MLP makes of a row; or none
    bool is_fused;        // gate and up are one matrix, the gate's rows first
    int64_t layer_input;  // whose number these inputs have, where `up` is none

    Demands demands() const override;
    int forms() const override { return gate.form() | up.form() | row_gate.form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override;

  private:
    struct Memory {
        float* gates;  // (tokens, stride), as are the ups after them
        float* ups;    // null: there are none
        int64_t stride;
        float* row;  // of a piece
        Activations inner;
        float* products;  // (tokens, hidden_size)
        float* factors;   // (tokens), of the row gate
    };

    Memory memory(Room& room, const Slice& slice) const;
    void weigh_rows(Step& step, const Activations& taken, const Memory& memory) const;
    const float* inputs_of(const Slice& slice, int64_t token) const;
    void multiply(Step& step, const Activations& taken, int64_t first, int64_t last, const Memory& memory) const;
    void activate(Step& step, int64_t row, int64_t count, const Memory& memory) const;
};

}  // namespace mxconv
