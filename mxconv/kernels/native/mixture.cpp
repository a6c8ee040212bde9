#include "mixture.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "step.hpp"

namespace mxconv {

namespace {

constexpr float kLeastSum = 1e-20f;  // below which scores are not divided by their sum
constexpr float kNever = -std::numeric_limits<float>::infinity();

// The place of the greatest of values that are not taken yet; of equal ones the first.
template <class IsTaken>
int64_t greatest(const float* values, int64_t count, IsTaken is_taken) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; ++i) {
        if (!is_taken(i) && (best < 0 || values[i] > values[best])) best = i;
    }
    return best;
}

void softmax(float* values, int64_t count) {
    const float most = *std::max_element(values, values + count);
    float sum = 0.0f;
    for (int64_t i = 0; i < count; ++i) sum += values[i] = std::exp(values[i] - most);
    for (int64_t i = 0; i < count; ++i) values[i] /= sum;
}

}  // namespace

void Routing::choose(const float* logits, float* scores, int32_t* chosen, float* shares) const {
    float* const ranked = scores + num_experts;  // by which they are chosen
    std::copy(logits, logits + num_experts, scores);
    std::copy(logits, logits + num_experts, ranked);
    if (score == Score::kSoftmax) softmax(scores, num_experts);
    if (score == Score::kSigmoid) {
        for (int64_t i = 0; i < num_experts; ++i) scores[i] = 1.0f / (1.0f + std::exp(-logits[i]));
    }
    if (correction != nullptr) correct(scores, ranked);
    for (int64_t n = 0; n < num_chosen; ++n) {
        const auto taken = [&](int64_t i) {
            return std::find(chosen, chosen + n, static_cast<int32_t>(i)) != chosen + n;
        };
        chosen[n] = static_cast<int32_t>(greatest(ranked, num_experts, taken));
        shares[n] = scores[chosen[n]];
    }
    if (score == Score::kSoftmaxOfChosen) softmax(shares, num_chosen);
    float sum = kLeastSum;
    for (int64_t n = 0; n < num_chosen; ++n) sum += shares[n];
    for (int64_t n = 0; n < num_chosen; ++n) {
        if (is_normalized) shares[n] /= sum;
        shares[n] *= multiplier;
        if (multipliers != nullptr) shares[n] *= multipliers[chosen[n]];
    }
    for (int64_t n = 1; n < num_chosen; ++n) {
        for (int64_t i = n; i > 0 && chosen[i] < chosen[i - 1]; --i) {
            std::swap(chosen[i], chosen[i - 1]);
            std::swap(shares[i], shares[i - 1]);
        }
    }
}

// Scores with the correction, and nothing of groups that are not among the best by the sum of their two best scores.
void Routing::correct(float* scores, float* corrected) const {
    for (int64_t i = 0; i < num_experts; ++i) corrected[i] = scores[i] + correction[i];
    const int64_t length = num_experts / num_groups;
    for (int64_t excess = num_groups - num_chosen_groups; excess > 0;
         --excess) {  // the worst goes; of equal ones the last
        int64_t worst = -1;
        float least = 0.0f;
        for (int64_t g = 0; g < num_groups; ++g) {
            const float* values = corrected + g * length;
            const int64_t best = greatest(values, length, [](int64_t) { return false; });
            if (values[best] == kNever) continue;
            const int64_t next = greatest(values, length, [&](int64_t i) { return i == best; });
            const float sum = values[best] + values[next];
            if (worst < 0 || sum <= least) worst = g, least = sum;
        }
        if (worst < 0) return;
        std::fill(corrected + worst * length, corrected + (worst + 1) * length, kNever);
    }
}

Mixture::Memory Mixture::memory(Room& room, const Slice& slice) const {
    const int64_t tokens = slice.num_tokens, entries = tokens * routing.num_chosen;
    const Expert& one = experts.front();
    Memory m{};
    m.rows = room.shared.take<float>(tokens * hidden_size);
    m.routed = room.shared.activations(tokens, hidden_size, router.form(), room.shared.take<uint8_t>(tokens));
    m.logits = room.shared.take<float>(tokens * routing.num_experts);
    m.chosen = room.shared.take<int32_t>(entries);
    m.shares = room.shared.take<float>(entries);
    m.taken = room.shared.activations(entries, hidden_size, one.gate.form(), room.shared.take<uint8_t>(entries));
    m.gates = room.shared.take<float>(entries * 2 * size);
    m.inner = room.shared.activations(entries, size, one.down.form(), room.shared.take<uint8_t>(entries));
    m.products = room.shared.take<float>(entries * hidden_size);
    m.scores = room.own.take<float>(2 * routing.num_experts);
    m.row = room.own.take<float>(size);
    m.pair = room.own.take<float>(is_interleaved ? 2 * size : 0);
    m.first = room.own.take<int32_t>(routing.num_experts + 1);
    m.chosen_by = room.own.take<int32_t>(entries);
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
    const Rowwise& rowwise = step.kernels.rowwise;
    const int64_t num_chosen = routing.num_chosen;
    step.each_token([&](int64_t token) {
        const float* x = step.slice.x + token * hidden_size;
        float* row = m.rows + token * hidden_size;
        norm.put(rowwise, x, hidden_size, row);
        if (is_routed_apart) {
            row = step.own.row.data();
            router_norm.put(rowwise, x, hidden_size, row);
        }
        if (m.routed.codes != nullptr) m.routed.finite[token] = 1;
        step.kernels.prepare(row, token, 0, hidden_size, router.form(), m.routed);
    });
    step.barrier();
    step.multiply({{&router, &m.routed, m.logits, routing.num_experts}});
    step.each_token([&](int64_t token) {
        float* logits = m.logits + token * routing.num_experts;
        routing.choose(logits, m.scores, m.chosen + token * num_chosen, m.shares + token * num_chosen);
    });
    step.barrier();
}

// Every thread for itself: which entries each expert has. Returns how many have any.
int64_t Mixture::group(int64_t num_tokens, const Memory& m) const {
    const int64_t entries = num_tokens * routing.num_chosen;
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
        m.chosen_by[place] = static_cast<int32_t>(i);
    }
    // each beginning stands one after its own place now
    std::copy(m.first + 1, m.first + routing.num_experts + 1, m.first);
    m.first[routing.num_experts] = static_cast<int32_t>(entries);
    return num_active;
}

// Rows in the forms that experts take, those of one expert together.
void Mixture::gather(Step& step, const Memory& m) const {
    const int form = experts.front().gate.form();
    for (int64_t expert = 0; expert < routing.num_experts; ++expert) {
        const int64_t first = m.first[expert], count = m.first[expert + 1] - first;
        const Activations taken = part_of(m.taken, first, count);
        for (int64_t i = 0; i < count; ++i) {
            if ((first + i) % step.num_threads() != step.own.thread) continue;
            if (m.taken.codes != nullptr) m.taken.finite[first + i] = 1;
            if (m.inner.codes != nullptr) m.inner.finite[first + i] = 1;
            const int32_t chosen = m.chosen_by[first + i];
            const float* row = m.rows + chosen / routing.num_chosen * hidden_size;
            if (scales_input) {
                float* scaled = step.own.row.data();
                std::copy(row, row + hidden_size, scaled);
                step.kernels.rowwise.scale(m.shares[chosen], hidden_size, scaled);
                row = scaled;
            }
            step.kernels.prepare(row, i, 0, hidden_size, form, taken);
        }
    }
    step.barrier();
}

// A row's experts in ascending order of their numbers, whatever other rows chose.
void Mixture::add_up(Step& step, const Memory& m) const {
    const int64_t num_chosen = routing.num_chosen;
    step.each_token([&](int64_t token) {
        float* row = m.rows + token * hidden_size;
        std::fill(row, row + hidden_size, 0.0f);
        for (int64_t i = token * num_chosen; i < (token + 1) * num_chosen; ++i) {
            const float share = scales_input ? 1.0f : m.shares[i];
            step.kernels.rowwise.add_scaled(m.products + m.places[i] * hidden_size, share, hidden_size, row);
        }
    });
}

// ---- rows that are gathered by expert go through the experts that have any ----

// An operator whose pieces are some of the row tiles of one expert: work(expert, its first entry, how many, first, last).
template <class Work>
void Mixture::share(Step& step, int64_t num_active, const Memory& m, const Matrix& matrix, int64_t tiles,
                    int64_t multiple, Work work) const {
    const int64_t at_once = step.tiles_at_once(matrix, tiles * num_active, multiple);
    const int64_t pieces = ceil_divide(tiles, at_once);
    step.share(num_active * pieces, [&](int64_t piece) {
        const int64_t number = m.active[piece / pieces], begin = m.first[number];
        const int64_t first = piece % pieces * at_once, last = std::min(first + at_once, tiles);
        work(experts[static_cast<size_t>(number)], begin, m.first[number + 1] - begin, first, last);
    });
}

// Pieces are tiles of gates with their ups; each fills whole blocks of 32 columns of what comes out. Where ups begin within
// a tile of the gates' matrix, all are multiplied first.
void Mixture::go_in(Step& step, int64_t num_active, const Memory& m) const {
    const Expert& one = experts.front();
    const int64_t stride = 2 * size;
    const bool begins_with_a_tile = one.up.exists() || is_interleaved || size % kTileRows == 0;
    if (!begins_with_a_tile) {
        share(step, num_active, m, *one.gate.matrix, one.gate.matrix->row_tiles(), 1,
              [&](const Expert& expert, int64_t begin, int64_t count, int64_t first, int64_t last) {
                  const Activations taken = part_of(m.taken, begin, count);
                  step.kernels.linear(*expert.gate.matrix, taken, first, last, m.gates + begin * stride, stride);
              });
    }
    share(step, num_active, m, *one.gate.matrix, ceil_divide(size, kTileRows), kBlock / kTileRows,
          [&](const Expert& expert, int64_t begin, int64_t count, int64_t first, int64_t last) {
              const Activations inner = part_of(m.inner, begin, count);
              float* gates = m.gates + begin * stride;
              if (begins_with_a_tile) multiply(step, expert, part_of(m.taken, begin, count), first, last, gates);
              const int64_t row = first * kTileRows, rows = std::min(last * kTileRows, size) - row;
              for (int64_t i = 0; i < count; ++i) {
                  activate(step, expert, row, rows, gates + i * stride, m);
                  step.kernels.prepare(m.row, i, row, rows, one.down.form(), inner);
              }
          });
}

// Tiles [first, last) of an expert's gates, and their ups.
void Mixture::multiply(Step& step, const Expert& expert, const Activations& taken, int64_t first, int64_t last,
                       float* gates) const {
    const auto linear = [&](const Matrix& matrix, const Activations& x, int64_t begin, int64_t end, float* out) {
        step.kernels.linear(matrix, x, begin, end, out, 2 * size);
    };
    const Matrix& gate = *expert.gate.matrix;
    const int64_t tiles = size / kTileRows;
    if (is_interleaved) return linear(gate, taken, 2 * first, std::min(2 * last, gate.row_tiles()), gates);
    linear(gate, taken, first, last, gates);
    if (expert.up.exists()) {
        linear(*expert.up.matrix, taken, first, last, gates + size);
    } else {
        linear(gate, taken, tiles + first, tiles + last, gates);
    }
}

// Columns [row, row + count) of what the matrix after takes in, into `m.row`; `gates` are those of one entry.
void Mixture::activate(const Step& step, const Expert& expert, int64_t row, int64_t count, float* gates,
                       const Memory& m) const {
    const Rowwise& rowwise = step.kernels.rowwise;
    const float *gate_bias = expert.gate.bias, *up_bias = expert.up.bias;
    float *gate = gates + row, *up = gates + size + row;
    if (is_interleaved) {
        float* turns = gates + 2 * row;
        if (gate_bias != nullptr) rowwise.add(gate_bias + 2 * row, 2 * count, turns);
        gate = m.pair, up = m.pair + size;
        for (int64_t i = 0; i < count; ++i) gate[i] = turns[2 * i], up[i] = turns[2 * i + 1];
    } else {
        if (gate_bias != nullptr && !expert.up.exists()) up_bias = gate_bias + size;
        if (gate_bias != nullptr) rowwise.add(gate_bias + row, count, gate);
        if (up_bias != nullptr) rowwise.add(up_bias + row, count, up);
    }
    if (clamped) {
        rowwise.clamped_gates(gate, up, clamped->slope, clamped->limit, count, m.row);
    } else {
        rowwise.activate[static_cast<int>(activation)](gate, up, count, m.row);
    }
}

void Mixture::come_out(Step& step, int64_t num_active, const Memory& m) const {
    share(step, num_active, m, *experts.front().down.matrix, ceil_divide(hidden_size, kTileRows), 1,
          [&](const Expert& expert, int64_t begin, int64_t count, int64_t first, int64_t last) {
              const Activations inner = part_of(m.inner, begin, count);
              float* products = m.products + begin * hidden_size;
              step.kernels.linear(*expert.down.matrix, inner, first, last, products, hidden_size);
              if (expert.down.bias == nullptr) return;
              const int64_t row = first * kTileRows, rows = std::min(last * kTileRows, hidden_size) - row;
              for (int64_t i = 0; i < count; ++i) {
                  step.kernels.rowwise.add(expert.down.bias + row, rows, products + i * hidden_size + row);
              }
          });
}

}  // namespace mxconv
