// Gated DeltaNet: linear attention whose memory forgets, and is corrected by what it misses. See
// mxconv/arch/state_mixers.py.
#pragma once

#include "recurrent.hpp"

namespace mxconv {

struct DeltaNet final : Recurrent {
    int64_t num_key_heads;
    Projection queries_keys_values;  // and the gate, where they are fused
    Projection gate;                 // of what is given; none where it is fused
    Projection beta;                 // and the decay, likewise
    Projection decay;
    const float* decay_bias;  // (value heads), as is the rate
    const float* rate;
    Norm norm;  // of a value head, before the gate
    float eps;  // of a query's and a key's length

    // Key head by key head: its query, key, values and gates in one matrix, its betas and decays in the other.
    bool is_fused() const { return !gate.exists(); }

    int64_t num_value_heads() const { return sizes.heads; }
    int64_t key_dim() const { return sizes.rows; }
    int64_t value_dim() const { return sizes.columns; }
    int64_t num_keys() const { return num_key_heads * key_dim(); }
    int64_t num_values() const { return num_value_heads() * value_dim(); }

    // Once, after all of the above.
    void prepare();

    int forms() const override;
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override;

  private:
    struct Memory {
        float* fused;  // (tokens, width), as fused matrices give them
        float* rows;   // (tokens, width): inputs of the state, then gates
        float* made;   // (tokens, values)
        float* keyed;  // of some steps, a query and a key
        float* value;  // of a step's value head, and after it what is read of a row that is there
        float* row;    // of some heads
        Way way;
    };

    Memory memory(Room& room, const Slice& slice) const;
    int64_t width() const { return sizes.input() + num_values(); }
    int64_t key_heads_at_once() const;
    void project(Step& step, const Activations& taken, const Memory& memory) const;
    void unravel(const float* fused, float* row) const;
    void walk(Step& step, const SliceWalk& walk, int64_t first, int64_t last, const Memory& memory) const;
    void read_keys(const Step& step, const LayerWalk& states, int64_t head, int64_t first, int64_t last,
                   const Memory& memory) const;
    void move(const Step& step, const LayerWalk& states, int64_t head, int64_t first, int64_t last,
              const Memory& memory) const;
    void gate_values(const Step& step, const SliceWalk& walk, int64_t first, int64_t last, const Memory& memory) const;

    Lines<float> query_scale_, key_scale_;  // (key_dim), of rows whose mean square is one
};

}  // namespace mxconv
