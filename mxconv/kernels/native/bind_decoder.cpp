// The forward pass as Python sees it: a decoder over matrices and vectors that it keeps alive.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "bound_pages.hpp"
#include "bound_parts.hpp"
#include "bound_walk.hpp"
#include "decoder.hpp"

namespace mxconv {

namespace {

// The tokens of one sequence in a pass: arrays as Python hands them over, checked when they meet a decoder.
struct BoundSequence {
    BoundSequence(BoundPages pages, int64_t length, int64_t num_tokens, int64_t num_logits,
                  std::optional<Array<uint64_t>> masks, int64_t mask_start, std::vector<int64_t> stages,
                  std::optional<MutableArray<float>> states, int64_t num_left_out, const std::optional<BoundWalk>& walk)
        : pages(std::move(pages)),
          length(length),
          num_tokens(num_tokens),
          num_logits(num_logits),
          masks(masks),
          mask_start(mask_start),
          stages(std::move(stages)),
          states(states),
          num_left_out(num_left_out),
          walk(walk) {}

    // Raises where an array does not fit.
    SequenceTokens checked(const DecoderParts& decoder) const {
        SequenceTokens sequence{};
        sequence.cache = pages.checked(decoder);
        const auto capacity = static_cast<int64_t>(sequence.cache.pages.size()) * kPagePositions;
        if (length < 0 || num_tokens < 1 || num_tokens > capacity || length > capacity - num_tokens ||
            capacity > INT32_MAX) {
            throw nb::value_error("the tokens do not fit into the cache");
        }
        if (num_logits < 0 || num_logits > num_tokens) throw nb::value_error("more logits than tokens");
        sequence.num_tokens = num_tokens;
        sequence.num_logits = num_logits;
        sequence.length = length;
        if (num_left_out < 0 || num_left_out > INT32_MAX) throw nb::value_error("num_left_out must be 0 or more");
        sequence.num_left_out = num_left_out;
        if (masks) set_masks(sequence);
        if (states.has_value() == stages.empty()) throw nb::value_error("states and their stages go together");
        if (states) set_states(sequence, static_cast<int64_t>(decoder.layers.size()), decoder.hidden_size);
        return sequence;
    }

    const BoundPages pages;
    const int64_t length, num_tokens, num_logits;
    const std::optional<Array<uint64_t>> masks;
    const int64_t mask_start;
    const std::vector<int64_t> stages;
    const std::optional<MutableArray<float>> states;
    const int64_t num_left_out;
    const std::optional<BoundWalk> walk;

  private:
    // A token sees itself and nothing after itself.
    void set_masks(SequenceTokens& sequence) const {
        require(*masks, "masks", {num_tokens});
        if (mask_start < 0 || mask_start > length || length + num_tokens - mask_start > kTreeTokens) {
            throw nb::value_error("masks reach over the newest 64 positions");
        }
        for (int64_t token = 0; token < num_tokens; ++token) {
            const int64_t itself = length + token - mask_start;
            if (masks->data()[token] >> itself != 1) throw nb::value_error("a token sees itself and nothing after");
        }
        sequence.masks = masks->data();
        sequence.mask_start = mask_start;
    }

    void set_states(SequenceTokens& sequence, int64_t num_layers, int64_t hidden_size) const {
        require(*states, "states", {static_cast<int64_t>(stages.size()), num_tokens, hidden_size});
        const auto [least, most] = std::minmax_element(stages.begin(), stages.end());
        if (*least < 0 || *most > num_layers + 1) throw nb::value_error("a stage that there is not");
        sequence.stages = stages;
        sequence.states = states->data();
    }
};

// What parts of a decoder demand of it, put together: tables of a pass by their numbers.
struct Tables {
    std::vector<int64_t> num_pairs;  // of each table of rotations; 0: nobody's
    int64_t num_temperatures = 0, num_layer_inputs = 0, layer_input_size = 0;

    // Raises where a part does not fit, or two parts contradict each other.
    void add(const Demands& demands, const DecoderParts& decoder) {
        constexpr int64_t kMost = 1 << 16;
        if (demands.hidden_size != decoder.hidden_size) throw nb::type_error("a part of another hidden size");
        if (demands.num_caches > decoder.num_caches || demands.num_key_value_heads > decoder.num_key_value_heads ||
            demands.head_dim > decoder.head_dim) {
            throw nb::type_error("heads that do not fit into the cache");
        }
        if (std::max({demands.rotation, demands.temperature, demands.layer_input}) >= kMost) {
            throw nb::value_error("a table of an impossible number");
        }
        if (demands.rotation >= 0) {
            const auto table = static_cast<size_t>(demands.rotation);
            if (num_pairs.size() <= table) num_pairs.resize(table + 1);
            if (num_pairs[table] != 0 && num_pairs[table] != demands.num_pairs) {
                throw nb::type_error("rotations of one table and of different sizes");
            }
            num_pairs[table] = demands.num_pairs;
        }
        num_temperatures = std::max(num_temperatures, demands.temperature + 1);
        if (demands.layer_input < 0) return;
        if (num_layer_inputs > 0 && demands.layer_input_size != layer_input_size) {
            throw nb::type_error("inputs of layers of different sizes");
        }
        num_layer_inputs = std::max(num_layer_inputs, demands.layer_input + 1);
        layer_input_size = demands.layer_input_size;
    }
};

// Layers with a state are all alike.
void add_state(const Demands& demands, DecoderParts& decoder) {
    if (demands.num_states == 0) return;
    if (decoder.num_states > 0 && !(decoder.state == demands.state)) throw nb::type_error("states of different sizes");
    decoder.num_states = std::max(decoder.num_states, demands.num_states);
    decoder.state = demands.state;
}

class BoundDecoder {
  public:
    BoundDecoder(const nb::handle_t<Engine>& engine, const std::vector<BoundLayer>& layers, const BoundNorm& norm,
                 const nb::handle_t<BoundMatrix>& head, double logit_multiplier, double logit_cap,
                 const std::tuple<int64_t, int64_t, int64_t>& cache) {
        const Matrix& matrix = nb::cast<const BoundMatrix&>(head).matrix;
        owners_ = {nb::borrow(engine), nb::borrow(head)};
        DecoderParts parts{};
        parts.hidden_size = matrix.columns;
        parts.norm = norm_of(norm, "norm", matrix.columns, owners_);
        parts.head = &matrix;
        parts.logit_multiplier = static_cast<float>(logit_multiplier);
        parts.logit_cap = static_cast<float>(logit_cap);
        std::tie(parts.num_caches, parts.num_key_value_heads, parts.head_dim) = cache;
        if (layers.empty()) throw nb::value_error("a decoder needs a layer");
        for (const BoundLayer& bound : layers) {
            for (const Branch& branch : bound.layer.branches) {
                tables_.add(branch.part->demands(), parts);
                add_state(branch.part->demands(), parts);
            }
            keep(owners_, bound.owners);
            parts.layers.push_back(bound.layer);
        }
        decoder_ = std::make_unique<Decoder>(nb::cast<Engine&>(engine), std::move(parts));
    }

    void forward(MutableArray<float> x, const std::vector<std::pair<Array<float>, Array<float>>>& rotations,
                 const std::vector<Array<float>>& temperatures, const std::optional<Array<float>>& layer_inputs,
                 MutableArray<float> logits, nb::typed<nb::list, BoundSequence> sequences) {
        const DecoderParts& parts = decoder_->parts();
        Pass pass{};
        int64_t num_logits = 0;
        std::deque<Walk> walks;
        for (nb::handle handle : sequences) {
            const auto& sequence = nb::cast<const BoundSequence&>(handle);
            pass.sequences.push_back(sequence.checked(parts));
            if (parts.num_states > 0) {
                if (!sequence.walk || sequence.walk->walk.length != sequence.length) {
                    throw nb::value_error("a walk through the states is missing");
                }
                pass.sequences.back().walk = &walks.emplace_back(sequence.walk->checked(parts, sequence.num_tokens));
            }
            pass.num_tokens += pass.sequences.back().num_tokens;
            num_logits += pass.sequences.back().num_logits;
        }
        require(x, "x", {pass.num_tokens, parts.hidden_size});
        require(logits, "logits", {num_logits, parts.head->rows});
        pass.x = x.data();
        pass.logits = logits.data();
        set_rotations(pass, rotations);
        if (static_cast<int64_t>(temperatures.size()) < tables_.num_temperatures) {
            throw nb::value_error("temperatures are missing");
        }
        for (const auto& factors : temperatures) {
            require(factors, "temperatures", {pass.num_tokens});
            pass.temperatures.push_back(factors.data());
        }
        if (tables_.num_layer_inputs > 0) {
            if (!layer_inputs) throw nb::value_error("inputs of layers are missing");
            require(*layer_inputs, "layer_inputs", {-1, pass.num_tokens, tables_.layer_input_size});
            if (static_cast<int64_t>(layer_inputs->shape(0)) < tables_.num_layer_inputs) {
                throw nb::value_error("inputs of layers are missing");
            }
            pass.layer_inputs = layer_inputs->data();
        }
        nb::gil_scoped_release unlocked;
        decoder_->forward(pass);
    }

  private:
    void set_rotations(Pass& pass, const std::vector<std::pair<Array<float>, Array<float>>>& rotations) const {
        if (rotations.size() < tables_.num_pairs.size()) throw nb::value_error("rotations are missing");
        for (size_t table = 0; table < tables_.num_pairs.size(); ++table) {
            const auto& [cosines, sines] = rotations[table];
            const int64_t num_pairs = tables_.num_pairs[table];
            if (num_pairs > 0) {
                require(cosines, "cosines", {pass.num_tokens, num_pairs});
                require(sines, "sines", {pass.num_tokens, num_pairs});
            }
            pass.rotations.push_back({cosines.data(), sines.data(), num_pairs});
        }
    }

    Owners owners_;
    Tables tables_;
    std::unique_ptr<Decoder> decoder_;
};

}  // namespace

void bind_decoder(nb::module_& module) {
    bind_pages(module);
    nb::class_<BoundDecoder>(module, "Decoder", "A forward pass over matrices and vectors that stay where they are.")
        .def(nb::init<const nb::handle_t<Engine>&, const std::vector<BoundLayer>&, const BoundNorm&,
                      const nb::handle_t<BoundMatrix>&, double, double, const std::tuple<int64_t, int64_t, int64_t>&>(),
             nb::arg("engine"), nb::arg("layers"), nb::arg("norm"), nb::arg("head"), nb::arg("logit_multiplier"),
             nb::arg("logit_cap"), nb::arg("cache"),
             "Layers, then a norm and a head, whose logits are multiplied and, where logit_cap is not 0, capped. "
             "`cache` is layers, heads and head_dim of its pages.")
        .def("forward", &BoundDecoder::forward, nb::arg("x").noconvert(), nb::arg("rotations"), nb::arg("temperatures"),
             nb::arg("layer_inputs").noconvert().none(), nb::arg("logits").noconvert(), nb::arg("sequences"),
             "Evaluate tokens of some sequences, no two of one cache, each after those of the one before in x (tokens, "
             "hidden_size), which is overwritten, and in logits (sum of num_logits, vocabulary). Rotations are cosines "
             "and sines, (tokens, pairs) each; temperatures are (tokens,); layer_inputs (layers, tokens, size).");
    nb::class_<BoundSequence>(module, "SequenceTokens", "The tokens of one sequence in a pass.")
        .def(nb::init<BoundPages, int64_t, int64_t, int64_t, std::optional<Array<uint64_t>>, int64_t,
                      std::vector<int64_t>, std::optional<MutableArray<float>>, int64_t,
                      const std::optional<BoundWalk>&>(),
             nb::arg("pages"), nb::arg("length"), nb::arg("num_tokens"), nb::arg("num_logits"),
             nb::arg("masks").noconvert() = nb::none(), nb::arg("mask_start") = 0,
             nb::arg("stages") = std::vector<int64_t>{}, nb::arg("states").noconvert() = nb::none(),
             nb::arg("num_left_out") = 0, nb::arg("walk") = nb::none(),
             "Tokens after `length` positions, where their keys and values are written; the last num_logits of them "
             "get logits. With masks, token i sees the positions before mask_start and mask_start + b for each bit b. "
             "states (stages, num_tokens, hidden_size) receives x before the layers of those numbers; one more than "
             "the last layer's is what they all give, two more that after the norm. num_left_out positions of the text "
             "before these are in no place.");
}

}  // namespace mxconv
