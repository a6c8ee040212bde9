#include "mamba2.hpp"

#include <algorithm>

#include "step.hpp"

namespace mxconv {

namespace {

constexpr int64_t kUnitsPerThread = 4;

}  // namespace

Mamba2::Memory Mamba2::memory(Room& room, const Slice& slice) const {
    Memory m{};
    if (!only_follows) {
        m.rows = room.shared.take<float>(slice.num_tokens * width());
        m.made = room.shared.take<float>(slice.num_tokens * size());
    }
    m.shared = room.own.take<float>(kStepsAtOnce * 2 * state_size());
    m.x = room.own.take<float>(2 * head_dim());
    m.way = way(room, slice);
    return m;
}

void Mamba2::add_to_rows(Step& step, const Activations& taken, const Sum& sum) const {
    Room room = step.room();
    Memory m = memory(room, step.slice);
    m.way.mixed.finite = step.finite;
    if (!only_follows) step.multiply({{&inputs, &taken, m.rows, width()}});
    // Units are heads of one group, for which its b and c are convolved once.
    const int64_t grouped = num_heads() / num_groups;
    const int64_t at_once = std::clamp<int64_t>(num_heads() / (kUnitsPerThread * step.num_threads()), 1, grouped);
    const int64_t in_group = ceil_divide(grouped, at_once), units = num_groups * in_group;
    step.share(static_cast<int64_t>(step.slice.walks.size()) * units, [&](int64_t i) {
        const int64_t group = i % units / in_group, begin = group * grouped + i % units % in_group * at_once;
        const int64_t end = std::min(begin + at_once, (group + 1) * grouped);
        walk(step, step.slice.walks[static_cast<size_t>(i / units)], begin, end, m);
    });
    keep(step, inputs_of(m), width(), m.way);
    if (only_follows) return step.barrier();
    finish(step, m);
    step.add_product(output, m.way.mixed, sum, m.way.products);
}

// Heads [first, last) of a group along all steps, and their gates.
void Mamba2::walk(Step& step, const SliceWalk& walk, int64_t first, int64_t last, const Memory& m) const {
    const LayerWalk states = walk_of(walk, inputs_of(m), width());
    const int64_t group = first * num_groups / num_heads(), count = num_steps(walk);
    for (int64_t head = first; head < last; ++head) states.begin(head);
    for (int64_t begin = 0, end; begin < count; begin = end) {
        end = states.run_end(begin, count);
        read_group(step, states, group, begin, end, m);
        for (int64_t head = first; head < last; ++head) move(step, states, head, begin, end, m);
    }
    if (only_follows) return;
    const auto activate = step.kernels.rowwise.activate[static_cast<int>(Activation::kSilu)];
    for (int64_t token = walk.token; token < walk.token + walk.num_tokens; ++token) {
        float* made = m.made + token * size() + first * head_dim();
        activate(m.rows + token * width() + first * head_dim(), made, (last - first) * head_dim(), made);
    }
}

// b and c of a group in steps [first, last).
void Mamba2::read_group(const Step& step, const LayerWalk& states, int64_t group, int64_t first, int64_t last,
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
void Mamba2::move(const Step& step, const LayerWalk& states, int64_t head, int64_t first, int64_t last,
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
void Mamba2::finish(Step& step, const Memory& m) const {
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

}  // namespace mxconv
