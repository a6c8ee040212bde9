// Experts in the place of an MLP: each row goes through a few out of many, and what no row chooses is not read.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings.hpp"
#include "routing.hpp"
#include "step.hpp"

namespace mxconv {

namespace {

struct Expert {
    Projection gate;  // with the rows of `up` after its own, or between them, where that is none
    Projection up;
    Projection down;
};

// What becomes of gates and ups instead of an activation of the one times the other: see `Rowwise::clamped_gates`.
struct ClampedGate {
    float slope, limit;
};

// Rows [first, first + count) of some that stand together.
inline Activations part_of(Activations all, int64_t first, int64_t count) {
    all.num_tokens = count;
    const int64_t begin = first * all.padded, block = first * (all.padded / kBlock);
    if (all.values != nullptr) all.values += begin;
    if (all.bf16 != nullptr) all.bf16 += begin, all.split += begin;
    if (all.codes != nullptr) all.codes += begin, all.scales += block, all.offsets += block, all.finite += first;
    return all;
}

struct Mixture final : Part {
    int64_t hidden_size, size;  // of an expert
    Activation activation;
    std::optional<ClampedGate> clamped;
    bool is_interleaved;  // gates and ups are rows of one matrix in turn
    bool scales_input;    // shares multiply what experts take in, not what they give

    // Rows are normed here: they are gathered by expert after it.
    Norm norm;         // of what experts take in; may be none
    Norm router_norm;  // of what the router takes in, where `is_routed_apart`
    bool is_routed_apart;

    Projection router;
    Routing routing;
    std::vector<Expert> experts;

    Demands demands() const override { return {hidden_size}; }
    int forms() const override { return 0; }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations&, const Sum& sum) const override {
        Room room = step.room();
        const Memory m = memory(room, step.slice);
        route(step, m);
        const int64_t num_active = group(step.slice.num_tokens, m);
        if (step.planes != nullptr) fetch(step, num_active, m);
        gather(step, m);
        go_in(step, num_active, m);
        come_out(step, num_active, m);
        add_up(step, m);
        step.add_rows(m.rows, sum);  // the same tokens on the same thread
    }

  private:
    // An entry is a row at one of its experts. Entries of an expert stand together, experts in ascending order.
    struct Memory {
        float* rows;         // (tokens, hidden_size) normed, and at last what experts make of them
        Activations routed;  // the same, as the router takes them
        float* logits;       // (tokens, num_experts)
        int32_t* chosen;     // (tokens, num_chosen)
        float* shares;
        Activations taken;   // (entries, hidden_size)
        float* gates;        // (entries, 2 size), as matrices give them, or ups after gates
        Activations inner;   // (entries, size)
        float* products;     // (entries, hidden_size)
        float* scores;       // of a thread: (2, num_experts)
        float* row;          // (size)
        float* pair;         // (2, size): gates and ups that stood in turn
        int32_t* first;      // (num_experts + 1): an expert's entries
        int32_t* chosen_by;  // (entries): which of `chosen` an entry is
        int32_t* places;     // (tokens, num_chosen): the entry of a row at each of its experts
        int32_t* active;     // (num_experts): those that any row chose
    };

    Memory memory(Room& room, const Slice& slice) const {
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

    // Norm the rows, and let each choose its experts.
    void route(Step& step, const Memory& m) const {
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
    int64_t group(int64_t num_tokens, const Memory& m) const {
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

    // Have the chosen experts' planes read, where they are not in memory.
    void fetch(Step& step, int64_t num_active, const Memory& m) const {
        if (step.own.thread == 0) {
            std::vector<const Matrix*> chosen;
            for (int64_t i = 0; i < num_active; ++i) {
                const Expert& expert = experts[static_cast<size_t>(m.active[i])];
                for (const Projection* each : {&expert.gate, &expert.up, &expert.down}) {
                    if (each->exists()) chosen.push_back(each->matrix);
                }
            }
            step.planes->fetch(chosen);
        }
        step.barrier();
    }

    // Rows in the forms that experts take, those of one expert together.
    void gather(Step& step, const Memory& m) const {
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
    void add_up(Step& step, const Memory& m) const {
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

    // Pieces are tiles of gates with their ups; each fills whole blocks of 32 columns of what comes out. Where ups begin within
    // a tile of the gates' matrix, all are multiplied first.
    void go_in(Step& step, int64_t num_active, const Memory& m) const {
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

    void come_out(Step& step, int64_t num_active, const Memory& m) const {
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

    // Tiles [first, last) of an expert's gates, and their ups.
    void multiply(Step& step, const Expert& expert, const Activations& taken, int64_t first, int64_t last,
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
    void activate(const Step& step, const Expert& expert, int64_t row, int64_t count, float* gates,
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

    // An operator whose pieces are some of the row tiles of one expert: work(expert, its first entry, how many, first, last).
    template <class Work>
    void share(Step& step, int64_t num_active, const Memory& m, const Matrix& matrix, int64_t tiles, int64_t multiple,
               Work work) const {
        const int64_t at_once = step.tiles_at_once(matrix, tiles * num_active, multiple);
        const int64_t pieces = ceil_divide(tiles, at_once);
        step.share(num_active * pieces, [&](int64_t piece) {
            const int64_t number = m.active[piece / pieces], begin = m.first[number];
            const int64_t first = piece % pieces * at_once, last = std::min(first + at_once, tiles);
            work(experts[static_cast<size_t>(number)], begin, m.first[number + 1] - begin, first, last);
        });
    }
};

// ---- rows that are gathered by expert go through the experts that have any ----

using BoundExpert = std::tuple<Projection, MaybeProjection, Projection>;

// Raises where an expert has another shape than the first, or its matrices another kind.
Expert expert_of(const BoundExpert& bound, const Mixture& mixture) {
    const auto& [gate, up, down] = bound;
    const int64_t size = mixture.size, hidden = mixture.hidden_size, inner = (up ? 1 : 2) * size;
    const Expert expert{projection_of(gate, "gate", inner, hidden), projection_of(up, "up", size, hidden),
                        projection_of(down, "down", hidden, size)};
    const Expert& first = mixture.experts.empty() ? expert : mixture.experts.front();
    const bool is_alike = expert.gate.form() == first.gate.form() && expert.down.form() == first.down.form() &&
                          expert.up.exists() == first.up.exists() &&
                          (!expert.up.exists() || expert.up.form() == expert.gate.form());
    if (!is_alike) throw nb::type_error("experts of one layer take rows in one form");
    require_that(!(expert.up.exists() && mixture.is_interleaved), "what takes turns is one matrix");
    return expert;
}

PartPointer make_mixture(const std::string& activation, const std::optional<std::pair<double, double>>& clamped,
                         bool is_interleaved, bool scales_input, const MaybeNorm& norm, const MaybeNorm& router_norm,
                         bool is_routed_apart, const BoundRouting& routing, const std::vector<BoundExpert>& experts) {
    auto mixture = std::make_shared<Mixture>();
    mixture->hidden_size = routing.router.matrix->columns;
    mixture->activation = activation_of(activation);
    if (clamped) {
        mixture->clamped = ClampedGate{static_cast<float>(clamped->first), static_cast<float>(clamped->second)};
        require_that(mixture->clamped->limit >= 0.0f, "a limit of gates must be 0 or more");
    }
    mixture->is_interleaved = is_interleaved;
    mixture->scales_input = scales_input;
    mixture->norm = norm_of(norm, "norm", mixture->hidden_size);
    mixture->router_norm = norm_of(router_norm, "router_norm", mixture->hidden_size);
    mixture->is_routed_apart = is_routed_apart;
    mixture->router = routing.router;
    mixture->routing = routing.routing;
    require_that(static_cast<int64_t>(experts.size()) == routing.routing.num_experts,
                 "an expert for each row of the router is required");
    mixture->size = std::get<2>(experts.front()).matrix->columns;
    for (const BoundExpert& expert : experts) mixture->experts.push_back(expert_of(expert, *mixture));
    return mixture;
}

}  // namespace

void bind_mixture(nb::module_& module) {
    define<0>(
        module, "mixture", &make_mixture,
        {"activation", "clamped", "is_interleaved", "scales_input", "norm", "router_norm", "is_routed_apart", "routing",
         "experts"},
        nb::kw_only(),
        "Experts, each a gate, an up (none: its rows come after the gate's, or between them) and a down. `clamped`, a "
        "slope and a limit, replaces the activation. Rows are normed by the mixture, for its router by another norm "
        "where that is apart.");
}

}  // namespace mxconv
