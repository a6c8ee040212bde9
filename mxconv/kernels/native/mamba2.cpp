// Mamba-2: a state space a head, whose decay is one number. See mxconv/arch/elements.py.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <tuple>

#include "bindings.hpp"
#include "recurrent.hpp"
#include "step.hpp"

namespace mxconv {

namespace {

constexpr int64_t kUnitsPerThread = 4;

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

    int forms() const override { return inputs.form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override {
        Room room = step.room();
        Memory m = memory(room, step.slice);
        m.way.mixed.finite = step.finite;
        step.multiply({{&inputs, &taken, m.rows, width()}});
        // Units are heads of one group, for which its b and c are convolved once.
        const int64_t grouped = num_heads() / num_groups;
        const int64_t at_once = std::clamp<int64_t>(num_heads() / (kUnitsPerThread * step.num_threads()), 1, grouped);
        const int64_t in_group = ceil_divide(grouped, at_once), units = num_groups * in_group;
        step.share(static_cast<int64_t>(step.slice.walks.size()) * units, [&](int64_t i) {
            const int64_t group = i % units / in_group, begin = group * grouped + i % units % in_group * at_once;
            const int64_t end = std::min(begin + at_once, (group + 1) * grouped);
            walk(step, step.slice.walks[static_cast<size_t>(i / units)], begin, end, m);
        });
        keep(step, m.rows + size(), width(), m.way);
        finish(step, m);
        step.add_product(output, m.way.mixed, sum, m.way.products);
    }

  private:
    struct Memory {
        float* rows;    // (tokens, width): gates, then inputs of the state
        float* made;    // (tokens, size)
        float* shared;  // of some steps, b and c of a group
        float* x;       // of a step's head, and after it what is read of a row that is there
        Way way;
    };

    Memory memory(Room& room, const Slice& slice) const {
        Memory m{};
        m.rows = room.shared.take<float>(slice.num_tokens * width());
        m.made = room.shared.take<float>(slice.num_tokens * size());
        m.shared = room.own.take<float>(kStepsAtOnce * 2 * state_size());
        m.x = room.own.take<float>(2 * head_dim());
        m.way = way(room, slice);
        return m;
    }

    int64_t width() const { return size() + sizes.input(); }

    // Heads [first, last) of a group along all steps, and their gates.
    void walk(Step& step, const SliceWalk& walk, int64_t first, int64_t last, const Memory& m) const {
        const LayerWalk states = walk_of(walk, m.rows + size(), width());
        const int64_t group = first * num_groups / num_heads(), count = walk.num_steps();
        for (int64_t head = first; head < last; ++head) states.begin(head);
        for (int64_t begin = 0, end; begin < count; begin = end) {
            end = states.run_end(begin, count);
            read_group(step, states, group, begin, end, m);
            for (int64_t head = first; head < last; ++head) move(step, states, head, begin, end, m);
        }
        const auto activate = step.kernels.rowwise.activate[static_cast<int>(Activation::kSilu)];
        for (int64_t token = walk.token; token < walk.token + walk.num_tokens; ++token) {
            float* made = m.made + token * size() + first * head_dim();
            activate(m.rows + token * width() + first * head_dim(), made, (last - first) * head_dim(), made);
        }
    }

    // b and c of a group in steps [first, last).
    void read_group(const Step& step, const LayerWalk& states, int64_t group, int64_t first, int64_t last,
                    const Memory& m) const {
        const auto activated = step.kernels.rowwise.activate[static_cast<int>(activation)];
        for (int64_t number = first; number < last; ++number) {
            float* b = m.shared + (number - first) * 2 * state_size();
            for (int64_t role = 0; role < 2; ++role) {
                const int64_t channel = size() + (role * num_groups + group) * state_size();
                convolve(step, states, number, channel, state_size(), m.way, b + role * state_size());
            }
            activated(b, nullptr, 2 * state_size(), b);
        }
    }

    // The memory of a head along steps [first, last).
    void move(const Step& step, const LayerWalk& states, int64_t head, int64_t first, int64_t last,
              const Memory& m) const {
        const Rowwise& rowwise = step.kernels.rowwise;
        const auto activated = rowwise.activate[static_cast<int>(activation)];
        states.each(head, first, last, m.way.copies, [&](int64_t number, const float* from, float* to) {
            convolve(step, states, number, head * head_dim(), head_dim(), m.way, m.x);
            activated(m.x, nullptr, head_dim(), m.x);
            const float* b = m.shared + (number - first) * 2 * state_size();
            const float wanted = states.input(number)[sizes.num_channels + head] + step_bias[head];
            const SpaceRow row{m.x, b, b + state_size(), wanted, least_step, most_step, rate[head], skip[head]};
            const int64_t token = states.step(number).token;
            float* out = token >= 0 ? m.made + token * size() + head * head_dim() : m.x + head_dim();
            rowwise.go_through_space(row, {head_dim(), state_size(), from, to}, out);
        });
    }

    // All heads of a row together, after a barrier: a norm needs them.
    void finish(Step& step, const Memory& m) const {
        const int64_t length = size() / norm_groups;
        step.share(step.slice.num_tokens, [&](int64_t token) {
            float* made = m.made + token * size();
            for (int64_t group = 0; group < norm_groups; ++group) {
                const int64_t at = group * length;
                step.kernels.rowwise.rms_norm(made + at, norm.weight + at, length, norm.eps, made + at);
            }
            step.kernels.prepare(made, token, 0, size(), output.form(), m.way.mixed);
        });
    }
};

PartPointer make_mamba2(const BoundConvolution& convolution, int64_t num_groups,
                        const std::tuple<int64_t, int64_t, int64_t>& memory, const std::string& activation,
                        const Projection& inputs, const Array<float>& step_bias,
                        const std::tuple<double, double>& step_limits, const Array<float>& rate,
                        const Array<float>& skip, const Norm& norm, int64_t norm_groups, const Projection& output) {
    auto part = std::make_shared<Mamba2>();
    StateSizes sizes = with_memory(memory, 1);
    const auto [heads, head_dim, state_size] = memory;
    const int64_t size = heads * head_dim, hidden = output.matrix->rows;
    if (num_groups < 1 || heads % num_groups) throw nb::value_error("heads must be a multiple of their groups");
    if (norm_groups < 1 || size % norm_groups) throw nb::value_error("a norm of groups that are not equal");
    sizes.num_channels = size + 2 * num_groups * state_size;
    part->begin(convolution, sizes);
    part->num_groups = num_groups;
    part->activation = activation_of(activation);
    part->inputs = projection_of(inputs, "inputs", size + part->sizes.input(), hidden);
    part->step_bias = vector_of(step_bias, "step_bias", heads);
    part->least_step = static_cast<float>(std::get<0>(step_limits));
    part->most_step = static_cast<float>(std::get<1>(step_limits));
    part->rate = vector_of(rate, "rate", heads);
    part->skip = vector_of(skip, "skip", heads);
    part->norm = norm_of(norm, "norm", size);
    if (part->norm.is_centered) throw nb::value_error("a norm of the mean square is required");
    part->norm_groups = norm_groups;
    part->output = projection_of(output, "output", hidden, size);
    return part;
}

}  // namespace

void bind_mamba2(nb::module_& module) {
    define<0>(module, "mamba2", &make_mamba2,
              {"convolution", "num_groups", "memory", "activation", "inputs", "step_bias", "step_limits", "rate",
               "skip", "norm", "norm_groups", "output"},
              nb::kw_only(), "Mamba-2 of memories (heads, head_dim, state_size).");
}

}  // namespace mxconv
