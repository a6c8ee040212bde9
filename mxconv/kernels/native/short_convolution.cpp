// A convolution between two gates: of a row B, C, x the output is C * convolution(B * x).
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>

#include "bindings.hpp"
#include "recurrent.hpp"
#include "step.hpp"

namespace mxconv {

namespace {

constexpr int64_t kChannelsAtOnce = 4 * kBlock;

void multiply_by(const float* x, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) out[i] *= x[i];
}

struct ShortConvolution final : Recurrent {
    Projection inputs;  // (3 * channels, hidden_size): B, C and x

    int forms() const override { return inputs.form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override {
        Room room = step.room();
        Memory m = memory(room, step.slice);
        m.way.mixed.finite = step.finite;
        const int64_t size = sizes.num_channels;
        step.multiply({{&inputs, &taken, m.projected, 3 * size}});
        const int64_t pieces = ceil_divide(size, kChannelsAtOnce);
        step.share(static_cast<int64_t>(step.slice.walks.size()) * pieces, [&](int64_t i) {
            const int64_t first = i % pieces * kChannelsAtOnce;
            mix(step, step.slice.walks[static_cast<size_t>(i / pieces)], first, std::min(kChannelsAtOnce, size - first),
                m);
        });
        keep(step, m.projected, 3 * size, m.way);
        step.add_product(output, m.way.mixed, sum, m.way.products);
    }

  private:
    struct Memory {
        float* projected;  // (tokens, 3 * channels); B becomes B * x
        float* row;        // of some channels
        Way way;
    };

    Memory memory(Room& room, const Slice& slice) const {
        Memory m{};
        m.projected = room.shared.take<float>(slice.num_tokens * 3 * sizes.num_channels);
        m.row = room.own.take<float>(kChannelsAtOnce);
        m.way = way(room, slice);
        return m;
    }

    // Channels [first, first + count) of a sequence's rows.
    void mix(Step& step, const SliceWalk& walk, int64_t first, int64_t count, const Memory& m) const {
        const int64_t size = sizes.num_channels;
        for (int64_t token = walk.token; token < walk.token + walk.num_tokens; ++token) {
            float* row = m.projected + token * 3 * size + first;
            multiply_by(row + 2 * size, count, row);
        }
        const LayerWalk states = walk_of(walk, m.projected, 3 * size);
        for (int64_t number = 0; number < walk.num_steps(); ++number) {
            const int64_t token = states.step(number).token;
            if (token < 0) continue;
            convolve(step, states, number, first, count, m.way, m.row);
            multiply_by(m.projected + token * 3 * size + size + first, count, m.row);
            step.kernels.prepare(m.row, token, first, count, output.form(), m.way.mixed);
        }
    }
};

PartPointer make_short_convolution(const BoundConvolution& convolution, const Projection& inputs,
                                   const Projection& output) {
    auto part = std::make_shared<ShortConvolution>();
    const int64_t hidden = output.matrix->rows, size = output.matrix->columns;
    StateSizes sizes{};
    sizes.num_channels = size;
    part->begin(convolution, sizes);
    part->inputs = projection_of(inputs, "inputs", 3 * size, hidden);
    part->output = projection_of(output, "output", hidden, size);
    return part;
}

}  // namespace

void bind_short_convolution(nb::module_& module) {
    define<0>(module, "short_convolution", &make_short_convolution, {"convolution", "inputs", "output"}, nb::kw_only(),
              "A convolution between two gates, which `inputs` gives with its input.");
}

}  // namespace mxconv
