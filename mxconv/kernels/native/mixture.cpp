#include "mixture.hpp"

#include <algorithm>

#include "step.hpp"

namespace mxconv {

namespace {

// Rows [first, first + count) of some that stand together.
Activations part_of(Activations all, int64_t first, int64_t count) {
    all.num_tokens = count;
    const int64_t begin = first * all.padded, block = first * (all.padded / kBlock);
    if (all.values != nullptr) all.values += begin;
    if (all.bf16 != nullptr) all.bf16 += begin, all.split += begin;
    if (all.codes != nullptr) all.codes += begin, all.scales += block, all.offsets += block, all.finite += first;
    return all;
}

}  // namespace

Mixture::Memory Mixture::memory(Room& room, const Slice& slice) const {
    const int64_t tokens = slice.num_tokens, entries = tokens * routing.num_chosen, hidden = norm.length;
    const Expert& one = experts.front();
    const auto form = [](const Matrix& matrix) { return form_of(matrix.kind, matrix.format); };
    Memory m{};
    m.rows = room.shared.take<float>(tokens * hidden);
    m.routed = room.shared.activations(tokens, hidden, router.form(), room.shared.take<uint8_t>(tokens));
    m.logits = room.shared.take<float>(tokens * routing.num_experts);
    m.chosen = room.shared.take<int32_t>(entries);
    m.shares = room.shared.take<float>(entries);
    m.taken = room.shared.activations(entries, hidden, form(*one.gate), room.shared.take<uint8_t>(entries));
    m.gates = room.shared.take<float>(entries * 2 * size);
    m.inner = room.shared.activations(entries, size, form(*one.down), room.shared.take<uint8_t>(entries));
    m.products = room.shared.take<float>(entries * hidden);
    m.scores = room.own.take<float>(2 * routing.num_experts);
    m.row = room.own.take<float>(size);
    m.first = room.own.take<int32_t>(routing.num_experts + 1);
    m.tokens = room.own.take<int32_t>(entries);
    m.places = room.own.take<int32_t>(entries);
    m.active = room.own.take<int32_t>(routing.num_experts);
    return m;
}

void Mixture::add_to_rows(Step& step, const Activations&, const Sum& sum) const {
    Room room = step.room();
    const Memory m = memory(room, step.slice);
    route(step, m);
    const int64_t num_active = group(step.slice.num_tokens, m);
    gather(step, m);
    go_in(step, num_active, m);
    come_out(step, num_active, m);
    add_up(step, m);
    step.add_rows(m.rows, sum);  // the same tokens on the same thread
}

// Norm the rows, and let each choose its experts.
void Mixture::route(Step& step, const Memory& m) const {
    const int64_t hidden = norm.length, num_chosen = routing.num_chosen;
    step.each_token([&](int64_t token) {
        float* row = m.rows + token * hidden;
        norm.apply(step.kernels.rowwise, step.slice.x + token * hidden, row);
        if (m.routed.codes != nullptr) m.routed.finite[token] = 1;
        step.kernels.prepare(row, token, 0, hidden, router.form(), m.routed);
    });
    step.barrier();
    const Matrix& matrix = *router.matrix;
    const int64_t at_once = step.tiles_at_once(matrix, 1);
    step.share(ceil_divide(matrix.row_tiles(), at_once), [&](int64_t i) {
        const int64_t first = i * at_once, last = std::min(first + at_once, matrix.row_tiles());
        step.kernels.linear(matrix, m.routed, first, last, m.logits, matrix.rows);
    });
    step.each_token([&](int64_t token) {
        const float* logits = m.logits + token * routing.num_experts;
        routing.choose(logits, m.scores, m.chosen + token * num_chosen, m.shares + token * num_chosen);
    });
    step.barrier();
}

// Every thread for itself: which entries each expert has. Returns how many have any.
int64_t Mixture::group(int64_t num_tokens, const Memory& m) const {
    const int64_t num_chosen = routing.num_chosen, entries = num_tokens * num_chosen;
    std::fill(m.first, m.first + routing.num_experts + 1, 0);
    for (int64_t i = 0; i < entries; ++i) ++m.first[m.chosen[i] + 1];
    int64_t num_active = 0;
    for (int64_t expert = 0; expert < routing.num_experts; ++expert) {
        if (m.first[expert + 1] > 0) m.active[num_active++] = static_cast<int32_t>(expert);
        m.first[expert + 1] += m.first[expert];
    }
    for (int64_t i = entries; i-- > 0;) {  // from the back: an expert's entries end where the next one's begin
        const int32_t place = --m.first[m.chosen[i] + 1];
        m.places[i] = place;
        m.tokens[place] = static_cast<int32_t>(i / num_chosen);
    }
    // each beginning stands one behind its own place now
    std::copy(m.first + 1, m.first + routing.num_experts + 1, m.first);
    m.first[routing.num_experts] = static_cast<int32_t>(entries);
    return num_active;
}

// Rows in the forms that experts take, those of one expert together.
void Mixture::gather(Step& step, const Memory& m) const {
    const int64_t hidden = norm.length;
    for (int64_t expert = 0; expert < routing.num_experts; ++expert) {
        const int64_t first = m.first[expert], count = m.first[expert + 1] - first;
        const Activations taken = part_of(m.taken, first, count);
        for (int64_t i = 0; i < count; ++i) {
            if ((first + i) % step.num_threads() != step.own.thread) continue;
            if (m.taken.codes != nullptr) m.taken.finite[first + i] = 1;
            if (m.inner.codes != nullptr) m.inner.finite[first + i] = 1;
            const Expert& one = experts.front();
            const int form = form_of(one.gate->kind, one.gate->format);
            step.kernels.prepare(m.rows + m.tokens[first + i] * hidden, i, 0, hidden, form, taken);
        }
    }
    step.barrier();
}

// Pieces are row tiles of one expert's gate and up; each fills whole blocks of 32 columns of what comes out.
void Mixture::go_in(Step& step, int64_t num_active, const Memory& m) const {
    const Expert& one = experts.front();
    const int form = form_of(one.down->kind, one.down->format);
    const int64_t tiles = ceil_divide(size, kTileRows), stride = 2 * size;
    const int64_t at_once = step.tiles_at_once(*one.gate, tiles * num_active, kBlock / kTileRows);
    const int64_t pieces = ceil_divide(tiles, at_once);
    const auto activated = step.kernels.rowwise.activate[static_cast<int>(activation)];
    step.share(num_active * pieces, [&](int64_t piece) {
        const int64_t number = m.active[piece / pieces];
        const Expert& expert = experts[static_cast<size_t>(number)];
        const int64_t begin = m.first[number], count = m.first[number + 1] - begin;
        const int64_t first = piece % pieces * at_once, last = std::min(first + at_once, tiles);
        const Activations taken = part_of(m.taken, begin, count), inner = part_of(m.inner, begin, count);
        float* gates = m.gates + begin * stride;
        step.kernels.linear(*expert.gate, taken, first, last, gates, stride);
        if (expert.up != nullptr) {
            step.kernels.linear(*expert.up, taken, first, last, gates + size, stride);
        } else {  // `size` is whole tiles
            step.kernels.linear(*expert.gate, taken, tiles + first, tiles + last, gates, stride);
        }
        const int64_t row = first * kTileRows, rows = std::min(last * kTileRows, size) - row;
        for (int64_t i = 0; i < count; ++i) {
            float* gate = gates + i * stride + row;
            activated(gate, gate + size, rows, m.row);
            step.kernels.prepare(m.row, i, row, rows, form, inner);
        }
    });
}

void Mixture::come_out(Step& step, int64_t num_active, const Memory& m) const {
    const int64_t hidden = norm.length, tiles = ceil_divide(hidden, kTileRows);
    const int64_t at_once = step.tiles_at_once(*experts.front().down, tiles * num_active, 1);
    const int64_t pieces = ceil_divide(tiles, at_once);
    step.share(num_active * pieces, [&](int64_t piece) {
        const int64_t number = m.active[piece / pieces], begin = m.first[number];
        const int64_t first = piece % pieces * at_once, last = std::min(first + at_once, tiles);
        const Activations inner = part_of(m.inner, begin, m.first[number + 1] - begin);
        step.kernels.linear(*experts[static_cast<size_t>(number)].down, inner, first, last, m.products + begin * hidden,
                            hidden);
    });
}

// A row's experts in ascending order of their numbers, whatever other rows chose.
void Mixture::add_up(Step& step, const Memory& m) const {
    const int64_t hidden = norm.length, num_chosen = routing.num_chosen;
    step.each_token([&](int64_t token) {
        float* row = m.rows + token * hidden;
        std::fill(row, row + hidden, 0.0f);
        for (int64_t i = token * num_chosen; i < (token + 1) * num_chosen; ++i) {
            step.kernels.rowwise.add_scaled(m.products + m.places[i] * hidden, m.shares[i], hidden, row);
        }
    });
}

}  // namespace mxconv
