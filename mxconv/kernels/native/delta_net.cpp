// Gated DeltaNet: linear attention whose memory forgets, and is corrected by what it misses. See
// mxconv/arch/elements.py.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "bindings.hpp"
#include "recurrent.hpp"
#include "step.hpp"

namespace mxconv {

namespace {

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
    void prepare() {
        // x / |x| is an RMS norm whose weights are 1 / sqrt(key_dim); queries are divided by that once more
        const double length = static_cast<double>(key_dim());
        key_scale_.assign(static_cast<size_t>(key_dim()), static_cast<float>(1 / std::sqrt(length)));
        query_scale_.assign(static_cast<size_t>(key_dim()), static_cast<float>(1 / length));
    }

    int forms() const override { return queries_keys_values.form() | gate.form() | beta.form() | decay.form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override {
        Room room = step.room();
        Memory m = memory(room, step.slice);
        m.way.mixed.finite = step.finite;
        project(step, taken, m);
        const int64_t at_once = key_heads_at_once(), units = ceil_divide(num_key_heads, at_once);
        step.share(static_cast<int64_t>(step.slice.walks.size()) * units, [&](int64_t i) {
            const int64_t first = i % units * at_once;
            walk(step, step.slice.walks[static_cast<size_t>(i / units)], first,
                 std::min(first + at_once, num_key_heads), m);
        });
        keep(step, m.rows, width(), m.way);
        step.add_product(output, m.way.mixed, sum, m.way.products);
    }

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

    Memory memory(Room& room, const Slice& slice) const {
        Memory m{};
        if (is_fused()) m.fused = room.shared.take<float>(slice.num_tokens * width());
        m.rows = room.shared.take<float>(slice.num_tokens * width());
        m.made = room.shared.take<float>(slice.num_tokens * num_values());
        m.keyed = room.own.take<float>(kStepsAtOnce * 2 * key_dim());
        m.value = room.own.take<float>(2 * value_dim());
        m.row = room.own.take<float>(key_heads_at_once() * num_values() / num_key_heads);
        m.way = way(room, slice);
        return m;
    }

    int64_t width() const { return sizes.input() + num_values(); }
    // Heads that fill whole blocks of 32 columns of what comes out, so that these can be prepared at once.
    int64_t key_heads_at_once() const {
        const int64_t columns = num_values() / num_key_heads;
        return std::lcm(columns, kBlock) / columns;
    }

    void project(Step& step, const Activations& taken, const Memory& m) const {
        const auto product = [&](const Projection& projection, float* to, int64_t column) {
            return Product{&projection, &taken, to + column, width()};
        };
        if (!is_fused()) {
            const int64_t betas = sizes.num_channels;
            return step.multiply({product(queries_keys_values, m.rows, 0), product(gate, m.rows, sizes.input()),
                                  product(beta, m.rows, betas), product(decay, m.rows, betas + num_value_heads())});
        }
        step.multiply({product(queries_keys_values, m.fused, 0), product(beta, m.fused, queries_keys_values.rows())});
        step.each_token([&](int64_t token) { unravel(m.fused + token * width(), m.rows + token * width()); });
        step.barrier();
    }

    // What fused matrices give of a row, as the others would.
    void unravel(const float* fused, float* row) const {
        const int64_t group = num_value_heads() / num_key_heads, values = group * value_dim();
        float* const betas = row + sizes.num_channels;
        const auto take = [&](int64_t count, float* to) {
            std::memcpy(to, fused, static_cast<size_t>(count) * sizeof(float));
            fused += count;
        };
        for (int64_t head = 0; head < num_key_heads; ++head) {
            take(key_dim(), row + head * key_dim());
            take(key_dim(), row + num_keys() + head * key_dim());
            take(values, row + 2 * num_keys() + head * values);
            take(values, row + sizes.input() + head * values);
        }
        for (int64_t head = 0; head < num_key_heads; ++head) {
            take(group, betas + head * group);
            take(group, betas + num_value_heads() + head * group);
        }
    }

    // Key heads [first, last) with their value heads, along all steps.
    void walk(Step& step, const SliceWalk& walk, int64_t first, int64_t last, const Memory& m) const {
        const LayerWalk states = walk_of(walk, m.rows, width());
        const int64_t group = num_value_heads() / num_key_heads, count = walk.num_steps();
        for (int64_t head = first * group; head < last * group; ++head) states.begin(head);
        for (int64_t head = first; head < last; ++head) {
            for (int64_t begin = 0, end; begin < count; begin = end) {
                end = states.run_end(begin, count);
                read_keys(step, states, head, begin, end, m);
                for (int64_t each = 0; each < group; ++each) move(step, states, head * group + each, begin, end, m);
            }
        }
        gate_values(step, walk, first, last, m);
    }

    // Queries and keys of a key head in steps [first, last).
    void read_keys(const Step& step, const LayerWalk& states, int64_t head, int64_t first, int64_t last,
                   const Memory& m) const {
        const Rowwise& rowwise = step.kernels.rowwise;
        const auto activate = rowwise.activate[static_cast<int>(Activation::kSilu)];
        const float mean_eps = eps / static_cast<float>(key_dim());
        for (int64_t number = first; number < last; ++number) {
            float* query = m.keyed + (number - first) * 2 * key_dim();
            for (int64_t role = 0; role < 2; ++role) {
                float* to = query + role * key_dim();
                convolve(step, states, number, role * num_keys() + head * key_dim(), key_dim(), m.way, to);
                activate(to, nullptr, key_dim(), to);
                rowwise.rms_norm(to, (role == 0 ? query_scale_ : key_scale_).data(), key_dim(), mean_eps, to);
            }
        }
    }

    // The memory of a value head along steps [first, last).
    void move(const Step& step, const LayerWalk& states, int64_t head, int64_t first, int64_t last,
              const Memory& m) const {
        const Rowwise& rowwise = step.kernels.rowwise;
        const auto activate = rowwise.activate[static_cast<int>(Activation::kSilu)];
        states.each(head, first, last, m.way.copies, [&](int64_t number, const float* from, float* to) {
            convolve(step, states, number, 2 * num_keys() + head * value_dim(), value_dim(), m.way, m.value);
            activate(m.value, nullptr, value_dim(), m.value);
            const float* gates = states.input(number) + sizes.num_channels;
            const float* query = m.keyed + (number - first) * 2 * key_dim();
            const DeltaRow row{query,      query + key_dim(),
                               m.value,    gates[num_value_heads() + head] + decay_bias[head],
                               rate[head], gates[head]};
            const int64_t token = states.step(number).token;
            float* out = token >= 0 ? m.made + token * num_values() + head * value_dim() : m.value + value_dim();
            rowwise.correct(row, {key_dim(), value_dim(), from, to}, out);
        });
    }

    // What the value heads of key heads [first, last) gave, normed, gated and as `output` takes it.
    void gate_values(const Step& step, const SliceWalk& walk, int64_t first, int64_t last, const Memory& m) const {
        const Rowwise& rowwise = step.kernels.rowwise;
        const auto activate = rowwise.activate[static_cast<int>(Activation::kSilu)];
        const int64_t unit = num_values() / num_key_heads, column = first * unit, count = (last - first) * unit;
        for (int64_t token = walk.token; token < walk.token + walk.num_tokens; ++token) {
            float* made = m.made + token * num_values() + column;
            for (int64_t at = 0; at < count; at += value_dim()) norm.apply(rowwise, made + at, made + at);
            activate(m.rows + token * width() + sizes.input() + column, made, count, m.row);
            step.kernels.prepare(m.row, token, column, count, output.form(), m.way.mixed);
        }
    }

    Lines<float> query_scale_, key_scale_;  // (key_dim), of rows whose mean square is one
};

PartPointer make_delta_net(const BoundConvolution& convolution, int64_t num_key_heads,
                           const std::tuple<int64_t, int64_t, int64_t>& memory, const Projection& queries_keys_values,
                           const MaybeProjection& gate, const Projection& beta, const MaybeProjection& decay,
                           const Array<float>& decay_bias, const Array<float>& rate, const Norm& norm, double eps,
                           const Projection& output) {
    auto part = std::make_shared<DeltaNet>();
    StateSizes sizes = with_memory(memory, 2);
    const auto [heads, key_dim, value_dim] = memory;
    require_that(num_key_heads >= 1 && heads % num_key_heads == 0, "value heads must be a multiple of key heads");
    require_that(gate.has_value() == decay.has_value(), "gates and decays are both fused, or neither");
    const int64_t keys = num_key_heads * key_dim, values = heads * value_dim, fused = gate ? 0 : 1;
    const int64_t hidden = output.matrix->rows, channels = 2 * keys + values;
    sizes.num_channels = channels;
    part->begin(convolution, sizes);
    part->num_key_heads = num_key_heads;
    part->queries_keys_values =
        projection_of(queries_keys_values, "queries_keys_values", channels + fused * values, hidden);
    part->gate = projection_of(gate, "gate", values, hidden);
    part->beta = projection_of(beta, "beta", heads + fused * heads, hidden);
    part->decay = projection_of(decay, "decay", heads, hidden);
    part->decay_bias = vector_of(decay_bias, "decay_bias", heads);
    part->rate = vector_of(rate, "rate", heads);
    part->norm = norm_of(norm, "norm", value_dim);
    part->eps = static_cast<float>(eps);
    part->output = projection_of(output, "output", hidden, values);
    part->prepare();
    return part;
}

}  // namespace

void bind_delta_net(nb::module_& module) {
    define<0>(
        module, "delta_net", &make_delta_net,
        {"convolution", "num_key_heads", "memory", "queries_keys_values", "gate", "beta", "decay", "decay_bias", "rate",
         "norm", "eps", "output"},
        nb::kw_only(),
        "Gated DeltaNet of memories (value heads, key_dim, value_dim). Without `gate` and `decay` the others hold "
        "them too, key head by key head.");
}

}  // namespace mxconv
