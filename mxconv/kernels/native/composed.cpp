// Parts made of others.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "bindings.hpp"
#include "step.hpp"

namespace mxconv {

namespace {

// What several parts make of the same rows, added up before it is added to them: for a norm of the sum.
struct Joined final : Part {
    struct Addend {
        std::shared_ptr<const Part> part;
        Norm norm;  // of what it makes
    };

    int64_t hidden_size;
    std::vector<Addend> addends;

    Demands demands() const override { return {hidden_size}; }
    int forms() const override {
        int forms = 0;
        for (const Addend& addend : addends) forms |= addend.part->forms();
        return forms;
    }

    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override {
        Room room = step.room();
        float* rows = memory(room, step.slice);
        step.each_token([&](int64_t token) { std::fill_n(rows + token * hidden_size, hidden_size, 0.0f); });
        step.barrier();
        for (const Addend& addend : addends) addend.part->add_to_rows(step, taken, {addend.norm, 1.0f, nullptr, rows});
        step.add_rows(rows, sum);
    }

  private:
    // The rows of the sum, (tokens, hidden_size), after the memory that its parts use one after another.
    float* memory(Room& room, const Slice& slice) const {
        Room most;
        for (const Addend& addend : addends) most.fit([&](Room& theirs) { addend.part->lay_out(theirs, slice); });
        room.shared.take<std::byte>(most.shared.num_bytes());
        room.own.take<std::byte>(most.own.num_bytes());
        return room.shared.take<float>(slice.num_tokens * hidden_size);
    }
};

// What a draft that goes on with features of its own attends by: beside each row, here a feature, the embedding of a token,
// which the pass has among the inputs of layers. Each is normed by itself.
struct Pairs final : Part {
    std::shared_ptr<const Part> part;  // takes in rows of twice the hidden size: an embedding, then a feature
    Norm norm;                         // of features, or none; embeddings come normed
    int64_t layer_input;               // which of the pass's

    Demands demands() const override {
        Demands demands = part->demands();
        demands.layer_input = layer_input;
        demands.layer_input_size = demands.taken_size = demands.hidden_size;
        return demands;
    }

    int forms() const override { return 0; }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations&, const Sum& sum) const override {
        Room room = step.room();
        Memory m = memory(room, step.slice);
        const int64_t hidden = step.hidden_size;
        const Pass& pass = *step.slice.pass;
        const float* embedded = pass.layer_inputs + (layer_input * pass.num_tokens + step.slice.first) * hidden;
        for (int64_t token = 0; token < step.slice.num_tokens; ++token, embedded += hidden) {
            std::copy_n(embedded, hidden, m.row);
            norm.put(step.kernels.rowwise, step.slice.x + token * hidden, hidden, m.row + hidden);
            if (m.taken.finite != nullptr) m.taken.finite[token] = 1;
            step.kernels.prepare(m.row, token, 0, 2 * hidden, part->forms(), m.taken);
        }
        part->add_to_rows(step, m.taken, sum);
    }

  private:
    struct Memory {
        Activations taken;  // (tokens, 2 * hidden_size)
        float* row;
    };

    // Every thread's own, after the memory that the part uses.
    Memory memory(Room& room, const Slice& slice) const {
        Room theirs;
        part->lay_out(theirs, slice);
        room.own.take<std::byte>(theirs.own.num_bytes());
        room.shared.take<std::byte>(theirs.shared.num_bytes());
        const int64_t columns = 2 * part->demands().hidden_size;
        uint8_t* const finite = room.own.take<uint8_t>(slice.num_tokens);
        return {room.own.activations(slice.num_tokens, columns, part->forms(), finite), room.own.take<float>(columns)};
    }
};

PartPointer make_joined(const std::vector<std::pair<PartPointer, MaybeNorm>>& addends) {
    require_that(!addends.empty(), "parts to join are required");
    auto joined = std::make_shared<Joined>();
    joined->hidden_size = addends.front().first->demands().hidden_size;
    for (const auto& [part, norm] : addends) {
        const Demands demands = part->demands();
        if (demands.num_caches > 0 || demands.layer_input >= 0) throw nb::type_error("what is joined looks nothing up");
        if (demands.hidden_size != joined->hidden_size) throw nb::type_error("a part of another hidden size");
        joined->addends.push_back({part, norm_of(norm, "norm", joined->hidden_size)});
    }
    return joined;
}

PartPointer make_pairs(const PartPointer& part, const MaybeNorm& norm, int64_t layer_input) {
    const Demands demands = part->demands();
    require_that(demands.taken_size == 2 * demands.hidden_size, "a part that takes in pairs of rows is required");
    require_that(layer_input >= 0 && demands.layer_input < 0, "a layer's input of its own is required");
    auto pairs = std::make_shared<Pairs>();
    pairs->part = part;
    pairs->norm = norm_of(norm, "norm", demands.hidden_size);
    pairs->layer_input = layer_input;
    return pairs;
}

}  // namespace

void bind_composed(nb::module_& module) {
    define<0>(module, "joined", &make_joined, {"addends"},
              "The sum of what several parts make of the same rows, each after a norm or none.");
    define<0>(
        module, "pairs", &make_pairs, {"part", "norm", "layer_input"},
        "A part over pairs: an embedding, of the layer's own inputs in the pass, and a row after a norm or none.");
}

}  // namespace mxconv
