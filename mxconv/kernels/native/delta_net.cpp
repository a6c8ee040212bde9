#include "delta_net.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "step.hpp"

namespace mxconv {

void DeltaNet::prepare() {
    // x / |x| is an RMS norm whose weights are 1 / sqrt(key_dim); queries are divided by that once more
    const double length = static_cast<double>(key_dim());
    key_scale_.assign(static_cast<size_t>(key_dim()), static_cast<float>(1 / std::sqrt(length)));
    query_scale_.assign(static_cast<size_t>(key_dim()), static_cast<float>(1 / length));
}

int DeltaNet::forms() const {
    return only_follows ? 0 : queries_keys_values.form() | gate.form() | beta.form() | decay.form();
}

// Heads that fill whole blocks of 32 columns of what comes out, so that these can be prepared at once.
int64_t DeltaNet::key_heads_at_once() const {
    const int64_t columns = num_values() / num_key_heads;
    return std::lcm(columns, kBlock) / columns;
}

DeltaNet::Memory DeltaNet::memory(Room& room, const Slice& slice) const {
    Memory m{};
    if (!only_follows) {
        if (is_fused()) m.fused = room.shared.take<float>(slice.num_tokens * width());
        m.rows = room.shared.take<float>(slice.num_tokens * width());
        m.made = room.shared.take<float>(slice.num_tokens * num_values());
    }
    m.keyed = room.own.take<float>(kStepsAtOnce * 2 * key_dim());
    m.value = room.own.take<float>(2 * value_dim());
    m.row = room.own.take<float>(key_heads_at_once() * num_values() / num_key_heads);
    m.way = way(room, slice);
    return m;
}

void DeltaNet::add_to_rows(Step& step, const Activations& taken, const Sum& sum) const {
    Room room = step.room();
    Memory m = memory(room, step.slice);
    m.way.mixed.finite = step.finite;
    if (!only_follows) project(step, taken, m);
    const int64_t at_once = key_heads_at_once(), units = ceil_divide(num_key_heads, at_once);
    step.share(static_cast<int64_t>(step.slice.walks.size()) * units, [&](int64_t i) {
        const int64_t first = i % units * at_once;
        walk(step, step.slice.walks[static_cast<size_t>(i / units)], first, std::min(first + at_once, num_key_heads),
             m);
    });
    keep(step, m.rows, width(), m.way);
    if (only_follows) return step.barrier();
    step.add_product(output, m.way.mixed, sum, m.way.products);
}

void DeltaNet::project(Step& step, const Activations& taken, const Memory& m) const {
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
void DeltaNet::unravel(const float* fused, float* row) const {
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
void DeltaNet::walk(Step& step, const SliceWalk& walk, int64_t first, int64_t last, const Memory& m) const {
    const LayerWalk states = walk_of(walk, m.rows, width());
    const int64_t group = num_value_heads() / num_key_heads, count = num_steps(walk);
    for (int64_t head = first * group; head < last * group; ++head) states.begin(head);
    for (int64_t head = first; head < last; ++head) {
        for (int64_t begin = 0, end; begin < count; begin = end) {
            end = states.run_end(begin, count);
            read_keys(step, states, head, begin, end, m);
            for (int64_t each = 0; each < group; ++each) move(step, states, head * group + each, begin, end, m);
        }
    }
    if (!only_follows) gate_values(step, walk, first, last, m);
}

// Queries and keys of a key head in steps [first, last).
void DeltaNet::read_keys(const Step& step, const LayerWalk& states, int64_t head, int64_t first, int64_t last,
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
void DeltaNet::move(const Step& step, const LayerWalk& states, int64_t head, int64_t first, int64_t last,
                    const Memory& m) const {
    const Rowwise& rowwise = step.kernels.rowwise;
    const auto activate = rowwise.activate[static_cast<int>(Activation::kSilu)];
    states.each(head, first, last, m.way.copies, [&](int64_t number, const float* from, float* to) {
        convolve(step, states, number, 2 * num_keys() + head * value_dim(), value_dim(), m.way, m.value);
        activate(m.value, nullptr, value_dim(), m.value);
        const float* gates = states.input(number) + sizes.num_channels;
        const float* query = m.keyed + (number - first) * 2 * key_dim();
        const DeltaRow row{query,      query + key_dim(), m.value, gates[num_value_heads() + head] + decay_bias[head],
                           rate[head], gates[head]};
        const int64_t token = states.step(number).token;
        float* out = token >= 0 ? m.made + token * num_values() + head * value_dim() : m.value + value_dim();
        rowwise.correct(row, {key_dim(), value_dim(), from, to}, out);
    });
}

// What the value heads of key heads [first, last) gave, normed, gated and as `output` takes it.
void DeltaNet::gate_values(const Step& step, const SliceWalk& walk, int64_t first, int64_t last,
                           const Memory& m) const {
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

}  // namespace mxconv
