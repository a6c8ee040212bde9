// What a decoder is made of, as mxconv/arch/description.py has it: plain structs over weights that others keep alive. What
// a layer adds to its rows is a `Part`: attention, an MLP; each in a file of its own, which knows nothing of the others.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "scratch.hpp"
#include "walk.hpp"

namespace mxconv {

struct Step;
struct Slice;

// Over rows of `length`.
struct Norm {
    int64_t length;
    const float* weight;  // null: no norm
    const float* bias;    // or null
    float eps;
    bool is_centered;  // a layer norm: the mean is taken away first

    bool exists() const { return weight != nullptr; }

    // `out` may be `x`.
    void apply(const Rowwise& rowwise, const float* x, float* out) const {
        if (is_centered) {
            rowwise.layer_norm(x, weight, bias, length, eps, out);
        } else {
            rowwise.rms_norm(x, weight, length, eps, out);
        }
    }

    // Normed where there is a norm, else as they are: `columns` values.
    void put(const Rowwise& rowwise, const float* x, int64_t columns, float* out) const {
        if (exists()) {
            apply(rowwise, x, out);
        } else {
            std::memcpy(out, x, static_cast<size_t>(columns) * sizeof(float));
        }
    }
};

struct Projection {
    const Matrix* matrix;  // null: there is none
    const float* bias;     // (rows), or null

    bool exists() const { return matrix != nullptr; }
    int form() const { return exists() ? form_of(matrix->kind, matrix->format) : 0; }
    int64_t rows() const { return exists() ? matrix->rows : 0; }
};

// How what a part makes of rows is added to them.
struct Sum {
    Norm norm;  // of what is added
    float multiplier;
    const float* factors = nullptr;  // (tokens): a multiplier of each row's own, or null
    float* rows = nullptr;           // (tokens, hidden_size) to which it is added; null: the slice's
};

// Memory that parts use one after another: `shared` by all threads, and `own` of one.
struct Room {
    Scratch shared, own;

    // Grow to what lay_out(room) takes of an empty one.
    template <class LayOut>
    void fit(const LayOut& lay_out) {
        Room room;
        lay_out(room);
        shared.fit(room.shared);
        own.fit(room.own);
    }
};

// What a part takes for granted of its decoder and of each pass.
struct Demands {
    int64_t hidden_size;
    int64_t taken_size = 0;                                         // of the rows that it takes in; 0: hidden_size
    int64_t num_caches = 0, num_key_value_heads = 0, head_dim = 0;  // what a cache has room for, at least
    int64_t rotation = -1, num_pairs = 0;                           // a table of rotations, -1: none
    int64_t temperature = -1;                                       // a row of temperatures, likewise
    int64_t layer_input = -1, layer_input_size = 0;                 // inputs of the layer's own, likewise
    int64_t num_states = 0;                                         // layers with a state, at least
    StateSizes state{};                                             // of each
    bool retrieves = false;                                         // pages, by the ranges of their keys
};

class Part {
  public:
    virtual ~Part() = default;

    virtual Demands demands() const = 0;

    // The forms of rows that its matrices take in.
    virtual int forms() const = 0;

    // Lay out what it needs for a slice.
    virtual void lay_out(Room& room, const Slice& slice) const = 0;

    // On every thread: add to the slice's rows what it makes of those that it takes in. Ends with a barrier.
    virtual void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const = 0;
};

// A part of a layer with its norms.
struct Branch {
    std::shared_ptr<const Part> part;
    Norm norm;         // of what it takes in
    bool is_parallel;  // takes in the rows as they were before the branch before it
    Sum sum;
};

struct Layer {
    std::vector<Branch> branches;  // one after another; a draft's may lack some
    float scalar;                  // what rows are multiplied by at last
};

struct DecoderParts {
    int64_t hidden_size;
    std::vector<Layer> layers;
    Norm norm;
    const Matrix* head;
    float logit_multiplier;
    float logit_cap;  // 0: none

    int64_t num_caches, num_key_value_heads, head_dim;  // of a cache, which has room for the largest layer
    int64_t num_states;                                 // layers that have one; 0: none
    StateSizes state;                                   // of each
    bool retrieves;                                     // pages, by the ranges of their keys
};

}  // namespace mxconv
