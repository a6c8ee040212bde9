// Mamba-2: a state space a head, whose decay is one number. See mxconv/arch/state_mixers.py.
#pragma once

#include "recurrent.hpp"

namespace mxconv {

struct Mamba2 final : Recurrent {
    int64_t num_groups;  // of b and c
    Activation activation;
    Projection inputs;       // (gate + channels + heads, hidden_size)
    const float* step_bias;  // (heads), as are the rate and the skip
    const float* rate;
    const float* skip;
    float least_step, most_step;
    Norm norm;  // after the gate, of all heads, each of some groups by itself
    int64_t norm_groups;

    int64_t num_heads() const { return sizes.heads; }
    int64_t head_dim() const { return sizes.rows; }
    int64_t state_size() const { return sizes.columns; }
    int64_t size() const { return num_heads() * head_dim(); }

    int forms() const override { return only_follows ? 0 : inputs.form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override;

  private:
    struct Memory {
        float* rows;    // (tokens, width): gates, then inputs of the state
        float* made;    // (tokens, size)
        float* shared;  // of some steps, b and c of a group
        float* x;       // of a step's head, and after it what is read of a row that is there
        Way way;
    };

    Memory memory(Room& room, const Slice& slice) const;
    int64_t width() const { return size() + sizes.input(); }
    const float* inputs_of(const Memory& m) const { return m.rows == nullptr ? nullptr : m.rows + size(); }
    void walk(Step& step, const SliceWalk& walk, int64_t first, int64_t last, const Memory& memory) const;
    void read_group(const Step& step, const LayerWalk& states, int64_t group, int64_t first, int64_t last,
                    const Memory& memory) const;
    void move(const Step& step, const LayerWalk& states, int64_t head, int64_t first, int64_t last,
              const Memory& memory) const;
    void finish(Step& step, const Memory& memory) const;
};

}  // namespace mxconv
