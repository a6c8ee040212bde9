// What a draft that goes on with features of its own attends by: beside each row, here a feature, the embedding of a token,
// which the pass has among the inputs of layers. Each is normed by itself.
#pragma once

#include "parts.hpp"

namespace mxconv {

struct Pairs final : Part {
    std::shared_ptr<const Part> part;  // takes in rows of twice the hidden size: an embedding, then a feature
    Norm norm;                         // of features, or none; embeddings come normed
    int64_t layer_input;               // which of the pass's

    Demands demands() const override;
    int forms() const override { return 0; }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override;

  private:
    struct Memory {
        Activations taken;  // (tokens, 2 * hidden_size)
        float* row;
    };

    Memory memory(Room& room, const Slice& slice) const;
};

}  // namespace mxconv
