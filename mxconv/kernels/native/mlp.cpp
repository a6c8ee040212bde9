// The MLP of a layer: an activation between two matrices, and perhaps a third, the gate, whose activated rows multiply.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>

#include "bindings.hpp"
#include "parts.hpp"
#include "step.hpp"

namespace mxconv {

namespace {

struct Mlp final : Part {
    int64_t size;
    Activation activation;
    Projection gate;  // none: what `up` gives is activated
    Projection up;    // none: the layer's own inputs in the pass stand for what it gives
    Projection down;
    Projection row_gate;  // (1, hidden_size), whose sigmoid multiplies what the MLP makes of a row; or none
    bool is_fused;        // gate and up are one matrix, the gate's rows first
    int64_t layer_input;  // whose number these inputs have, where `up` is none

    Demands demands() const override {
        Demands demands{down.rows()};
        if (!up.exists()) {
            demands.layer_input = layer_input;
            demands.layer_input_size = size;
        }
        return demands;
    }

    int forms() const override { return gate.form() | up.form() | row_gate.form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override {
        Room room = step.room();
        Memory m = memory(room, step.slice);
        m.inner.finite = step.finite;
        // A piece is the same rows of gate and up, and fills whole blocks of 32 columns of what comes out. Where both are one
        // matrix and the others begin within a tile, they are multiplied first.
        const bool begins_with_a_tile = !is_fused || size % kTileRows == 0;
        if (!begins_with_a_tile) {
            const int64_t tiles = up.matrix->row_tiles(), at_once = step.tiles_at_once(*up.matrix, tiles, 1);
            step.share(ceil_divide(tiles, at_once), [&](int64_t i) {
                const int64_t first = i * at_once, last = std::min(first + at_once, tiles);
                step.kernels.linear(*up.matrix, taken, first, last, m.gates, m.stride);
            });
        }
        const Matrix& matrix = gate.exists() ? *gate.matrix : *up.matrix;
        const int64_t tiles = ceil_divide(size, kTileRows),
                      at_once = step.tiles_at_once(matrix, tiles, kBlock / kTileRows);
        const int64_t pieces = ceil_divide(tiles, at_once);
        step.share(pieces + (row_gate.exists() ? 1 : 0), [&](int64_t i) {
            if (i == pieces) return weigh_rows(step, taken, m);
            const int64_t first = i * at_once, last = std::min(first + at_once, tiles), row = first * kTileRows;
            if (begins_with_a_tile) multiply(step, taken, first, last, m);
            activate(step, row, std::min(last * kTileRows, size) - row, m);
        });
        Sum weighed = sum;
        weighed.factors = m.factors;
        step.add_product(down, m.inner, weighed, m.products);
    }

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

    Memory memory(Room& room, const Slice& slice) const {
        const int64_t tokens = slice.num_tokens;
        const bool has_both = gate.exists() && up.exists();
        Memory m{};
        m.stride = has_both ? 2 * size : size;
        m.gates = room.shared.take<float>(tokens * m.stride);
        m.ups = has_both && m.gates != nullptr ? m.gates + size : nullptr;
        m.inner = room.shared.activations(tokens, size, down.form());
        m.products = room.shared.take<float>(tokens * down.rows());
        m.factors = row_gate.exists() ? room.shared.take<float>(tokens) : nullptr;
        m.row = room.own.take<float>(size);
        return m;
    }

    // What the row gate multiplies each row by.
    void weigh_rows(Step& step, const Activations& taken, const Memory& m) const {
        step.kernels.linear(*row_gate.matrix, taken, 0, 1, m.factors, 1);
        const float bias = row_gate.bias != nullptr ? *row_gate.bias : 0.0f;
        for (int64_t token = 0; token < step.slice.num_tokens; ++token) {
            m.factors[token] = 1.0f / (1.0f + std::exp(-(m.factors[token] + bias)));
        }
    }

    const float* inputs_of(const Slice& slice, int64_t token) const {
        const Pass& pass = *slice.pass;
        return pass.layer_inputs + (layer_input * pass.num_tokens + slice.first + token) * size;
    }

    // Row tiles [first, last) of the gate, and the same ones of `up`.
    void multiply(Step& step, const Activations& taken, int64_t first, int64_t last, const Memory& m) const {
        const auto linear = [&](const auto&... values) { step.kernels.linear(values...); };
        if (gate.exists()) linear(*gate.matrix, taken, first, last, m.gates, m.stride);
        if (!up.exists()) return;
        if (is_fused) {
            const int64_t begin = size / kTileRows;
            linear(*up.matrix, taken, begin + first, begin + last, m.gates, m.stride);
        } else {
            linear(*up.matrix, taken, first, last, gate.exists() ? m.ups : m.gates, m.stride);
        }
    }

    // Rows [row, row + count) of all tokens, as `down` takes them.
    void activate(Step& step, int64_t row, int64_t count, const Memory& m) const {
        const Rowwise& rowwise = step.kernels.rowwise;
        const auto activated = rowwise.activate[static_cast<int>(activation)];
        const float* gate_bias = gate.exists() ? gate.bias : up.bias;
        const float* up_bias = is_fused && up.bias != nullptr ? up.bias + size : up.bias;
        for (int64_t token = 0; token < step.slice.num_tokens; ++token) {
            float* gates = m.gates + token * m.stride + row;
            float* ups = m.ups == nullptr ? nullptr : m.ups + token * m.stride + row;
            if (gate_bias != nullptr) rowwise.add(gate_bias + row, count, gates);
            if (ups != nullptr && up_bias != nullptr) rowwise.add(up_bias + row, count, ups);
            activated(gates, up.exists() ? ups : inputs_of(step.slice, token) + row, count, m.row);
            step.kernels.prepare(m.row, token, row, count, down.form(), m.inner);
        }
    }
};

PartPointer make_mlp(const std::string& activation, const MaybeProjection& gate, const MaybeProjection& up,
                     const Projection& down, const MaybeProjection& row_gate, bool is_fused, int64_t layer_input) {
    auto mlp = std::make_shared<Mlp>();
    mlp->activation = activation_of(activation);
    mlp->size = down.matrix->columns;
    mlp->is_fused = is_fused;
    mlp->layer_input = layer_input;
    require_that(gate || up, "an MLP needs a matrix that takes rows in");
    require_that(!is_fused || (gate && up), "what is fused is both gate and up");
    require_that(!gate || up || layer_input >= 0, "a gate alone needs the layer's own inputs");
    const int64_t hidden = down.rows(), inner = (is_fused ? 2 : 1) * mlp->size;
    mlp->gate = projection_of(gate, "gate", inner, hidden);
    mlp->up = projection_of(up, "up", inner, hidden);
    mlp->down = down;
    mlp->row_gate = projection_of(row_gate, "row_gate", 1, hidden);
    return mlp;
}

}  // namespace

void bind_mlp(nb::module_& module) {
    define<0>(
        module, "mlp", &make_mlp, {"activation", "gate", "up", "down", "row_gate", "is_fused", "layer_input"},
        nb::kw_only(),
        "An MLP; without `up` the layer's inputs of that number replace what it would give. The sigmoid of a row gate "
        "multiplies the MLP's result of a row.");
}

}  // namespace mxconv
