// The forward pass as Python sees it: a decoder over matrices and vectors that it keeps alive.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "decoder.hpp"
#include "draft_tree.hpp"

namespace mxconv {

namespace {

// What parts of a decoder demand of it, put together: tables of a pass by their numbers.
struct Tables {
    std::vector<int64_t> num_pairs;  // of each table of rotations; 0: nobody's
    int64_t num_temperatures = 0, num_layer_inputs = 0, layer_input_size = 0;

    // Raises where a part does not fit, or two parts contradict each other.
    void add(const Demands& demands, const DecoderParts& decoder) {
        constexpr int64_t kMost = 1 << 16;
        const bool takes_rows = demands.taken_size == 0 || demands.taken_size == decoder.hidden_size;
        if (demands.hidden_size != decoder.hidden_size || !takes_rows) {
            throw nb::type_error("a part of another hidden size");
        }
        if (demands.num_caches > decoder.num_caches || demands.num_key_value_heads > decoder.num_key_value_heads ||
            demands.head_dim > decoder.head_dim) {
            throw nb::type_error("heads that do not fit into the cache");
        }
        require_that(std::max({demands.rotation, demands.temperature, demands.layer_input}) < kMost,
                     "a table of an impossible number");
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

// What a head takes in that goes on with features of its own: see composed.cpp.
struct BoundFeatures {
    Array<float> features;          // (tokens, hidden_size): before each token of the chain
    Norm of_embedding;              // of tokens' embeddings
    MaybeNorm when_taken, of_made;  // of features: before layers add to them, and of what layers make
    Array<int64_t> ids;             // in the embedding, of the head's tokens
};

class BoundDecoder {
  public:
    BoundDecoder(Engine& engine, const std::vector<Layer>& layers, const Norm& norm, const Matrix& head,
                 double logit_multiplier, double logit_cap, const std::tuple<int64_t, int64_t, int64_t>& cache,
                 const std::optional<HeadScreen>& screen) {
        DecoderParts parts{};
        parts.hidden_size = head.columns;
        parts.layers = layers;
        parts.norm = norm_of(norm, "norm", head.columns);
        parts.head = &head;
        parts.logit_multiplier = static_cast<float>(logit_multiplier);
        parts.logit_cap = static_cast<float>(logit_cap);
        std::tie(parts.num_caches, parts.num_key_value_heads, parts.head_dim) = cache;
        require_that(!layers.empty(), "a decoder needs a layer");
        for (const Layer& layer : layers) {
            for (const Branch& branch : layer.branches) {
                tables_.add(branch.part->demands(), parts);
                add_state(branch.part->demands(), parts);
                parts.retrieves |= branch.part->demands().retrieves;
            }
        }
        if (screen) {
            const bool is_projected = screen->projection.exists();
            if (is_projected) projection_of(screen->projection, "screen.projection", -1, head.columns);
            const int64_t rank = is_projected ? screen->projection.rows() : head.columns;
            projection_of(screen->scores, "screen.scores", head.rows, rank);
        }
        decoder_ = std::make_unique<Decoder>(engine, std::move(parts), screen.value_or(HeadScreen{}));
        kernels_ = engine.kernels;
    }

    void forward(MutableArray<float> x, const std::vector<std::pair<Array<float>, Array<float>>>& rotations,
                 const std::vector<Array<float>>& temperatures, const std::optional<Array<float>>& layer_inputs,
                 MutableArray<float> logits, nb::typed<nb::list, BoundSequence> sequences) {
        const DecoderParts& parts = decoder_->parts();
        Pass pass{};
        int64_t num_logits = 0;
        for (nb::handle handle : sequences) {
            const auto& sequence = nb::cast<const BoundSequence&>(handle);
            pass.sequences.push_back(sequence.checked(parts));
            pass.num_tokens += pass.sequences.back().num_tokens;
            num_logits += pass.sequences.back().num_logits;
        }
        require(x, "x", {pass.num_tokens, parts.hidden_size});
        require(logits, "logits", {num_logits, parts.head->rows});
        pass.x = x.data();
        pass.logits = logits.data();
        set_tables(pass, rotations, temperatures, pass.num_tokens);
        if (tables_.num_layer_inputs > 0) {
            require_that(layer_inputs.has_value(), "inputs of layers are missing");
            require(*layer_inputs, "layer_inputs", {-1, pass.num_tokens, tables_.layer_input_size});
            require_that(static_cast<int64_t>(layer_inputs->shape(0)) >= tables_.num_layer_inputs,
                         "inputs of layers are missing");
            pass.layer_inputs = layer_inputs->data();
        }
        nb::gil_scoped_release unlocked;
        decoder_->forward(pass);
    }

    void read_ahead(PlaneReader& planes, std::vector<int64_t> stages) {
        const std::vector<int64_t> there = planes.stage_bytes();
        require_that(stages.size() == decoder_->parts().layers.size(), "a stage of each layer is required");
        for (const int64_t stage : stages) {
            require_that(stage >= 0 && stage < static_cast<int64_t>(there.size()), "a stage that there is not");
        }
        decoder_->read_ahead(planes, std::move(stages));
    }

    // Passes over tokens after those of a sequence, then over a tree of guesses below them, a depth a pass. With features each
    // row begins as that of the token before, and its embedding is an input of the first layer's own.
    DraftTree grow(const std::vector<int64_t>& token_ids, const Matrix& embedding, double multiplier,
                   const std::vector<std::pair<Array<float>, Array<float>>>& rotations,
                   const std::vector<Array<float>>& temperatures, const BoundSequence& bound, int64_t vocab_size,
                   const TreeLimits& limits, const std::optional<BoundFeatures>& given) {
        const DecoderParts& parts = decoder_->parts();
        const int64_t hidden = parts.hidden_size;
        SequenceTokens sequence = bound.checked(parts);
        const int64_t first = sequence.num_tokens, length = sequence.length, vocabulary = parts.head->rows;
        const auto room = static_cast<int64_t>(sequence.cache.pages.size()) * kPagePositions;
        require_that(static_cast<int64_t>(token_ids.size()) == first && sequence.num_logits == 1 && !bound.masks &&
                         sequence.stages.empty() && !bound.walk && tables_.num_layer_inputs == (given ? 1 : 0),
                     "a chain of tokens without states, and logits of the last, are required");
        require_that(length + first + limits.most_rows <= room, "no room for the tree in the cache");
        require_that(!limits.floors.empty() && limits.most_depth >= 1 && limits.most_rows <= kTreeTokens,
                     "limits of a tree of 1 to 64 rows are required");
        require_that(vocab_size >= 1 && vocab_size <= vocabulary, "vocab_size must be one of the head's rows");
        require_that(embedding.columns == hidden &&
                         (embedding.kind == MatrixKind::kDense || embedding.kind == MatrixKind::kBsfp),
                     "an embedding of 16 bits is required");
        for (const int64_t id : token_ids)
            require_that(id >= 0 && id < embedding.rows, "a token that the embedding does not have");
        if (given) check(*given, embedding, first);
        require_that(given || vocab_size <= embedding.rows, "an embedding of all tokens is required");
        Pass tables{};
        set_tables(tables, rotations, temperatures, first + limits.most_depth - 1);
        nb::gil_scoped_release unlocked;
        DraftTree tree(limits);
        thread_local std::vector<float> x, logits, repeated, embedded, made;  // made: after the context, then by rows
        made.clear();
        std::vector<int64_t> ids = token_ids;
        for (int64_t depth = 0, count = first; count > 0; ++depth) {
            Pass pass{};
            const int64_t position = depth == 0 ? 0 : first + depth - 1;
            if (depth > 0) {
                sequence.length += sequence.num_tokens;
                sequence.num_tokens = sequence.num_logits = count;
                sequence.masks = tree.masks().data();
                sequence.mask_start = length + first;
                ids.clear();
                for (auto row = tree.rows().end() - count; row != tree.rows().end(); ++row) {
                    const int32_t token = tree.nodes()[static_cast<size_t>(*row)].token;
                    ids.push_back(given ? given->ids.data()[token] : token);
                }
            }
            pass.sequences = {sequence};
            pass.num_tokens = count;
            make_room(x, count * hidden);
            std::vector<float>& rows = given ? embedded : x;
            make_room(rows, count * hidden);
            look_up(*kernels_, embedding, static_cast<float>(multiplier), ids, rows.data());
            for (int64_t i = 0; given && i < count; ++i) {
                given->of_embedding.apply(kernels_->rowwise, &embedded[i * hidden], &embedded[i * hidden]);
                const float* before = given->features.data() + i * hidden;
                if (depth > 0) {
                    const int64_t node = *(tree.rows().end() - count + i);
                    before = &made[(tree.row_of(tree.nodes()[static_cast<size_t>(node)].parent) + 1) * hidden];
                }
                given->when_taken.value_or(Norm{}).put(kernels_->rowwise, before, hidden, &x[i * hidden]);
            }
            pass.layer_inputs = given ? embedded.data() : nullptr;
            make_room(logits, sequence.num_logits * vocabulary);
            pass.x = x.data();
            pass.logits = logits.data();
            take_tables(tables, position, depth > 0, pass, repeated);
            decoder_->forward(pass);
            for (int64_t i = count - sequence.num_logits; given && i < count; ++i) {
                made.resize(made.size() + static_cast<size_t>(hidden));
                given->of_made.value_or(Norm{}).put(kernels_->rowwise, &x[i * hidden], hidden, &*(made.end() - hidden));
            }
            tree.add_guesses(logits.data(), vocabulary, vocab_size, given ? given->ids.data() : nullptr);
            count = tree.go_on();
        }
        return tree;
    }

  private:
    void check(const BoundFeatures& given, const Matrix& embedding, int64_t num_tokens) const {
        const int64_t hidden = decoder_->parts().hidden_size;
        require(given.features, "features", {num_tokens, hidden});
        norm_of(given.of_embedding, "of_embedding", hidden);
        norm_of(given.when_taken, "when_taken", hidden);
        norm_of(given.of_made, "of_made", hidden);
        require_that(tables_.layer_input_size == hidden, "embeddings of the hidden size are required");
        require(given.ids, "ids", {decoder_->parts().head->rows});
        for (const int64_t* id = given.ids.data(); id < given.ids.data() + given.ids.shape(0); ++id)
            require_that(*id >= 0 && *id < embedding.rows, "a token that the embedding does not have");
    }

    void set_tables(Pass& pass, const std::vector<std::pair<Array<float>, Array<float>>>& rotations,
                    const std::vector<Array<float>>& temperatures, int64_t count) const {
        require_that(rotations.size() >= tables_.num_pairs.size(), "rotations are missing");
        for (size_t table = 0; table < tables_.num_pairs.size(); ++table) {
            const auto& [cosines, sines] = rotations[table];
            const int64_t num_pairs = tables_.num_pairs[table];
            if (num_pairs > 0) {
                require(cosines, "cosines", {count, num_pairs});
                require(sines, "sines", {count, num_pairs});
            }
            pass.rotations.push_back({cosines.data(), sines.data(), num_pairs});
        }
        require_that(static_cast<int64_t>(temperatures.size()) >= tables_.num_temperatures, "temperatures are missing");
        for (const auto& factors : temperatures) {
            require(factors, "temperatures", {count});
            pass.temperatures.push_back(factors.data());
        }
    }

    // What was there stays, so that nothing is filled twice.
    static void make_room(std::vector<float>& numbers, int64_t count) {
        if (static_cast<int64_t>(numbers.size()) < count) numbers.resize(static_cast<size_t>(count));
    }

    // What tables have from a position on: for each row of the pass the next one, or for all the same.
    static void take_tables(const Pass& tables, int64_t position, bool is_same, Pass& pass,
                            std::vector<float>& repeated) {
        int64_t needed = static_cast<int64_t>(tables.temperatures.size());
        for (const Rotations& table : tables.rotations) needed += 2 * table.num_pairs;
        if (is_same) make_room(repeated, needed * pass.num_tokens);
        float* to = repeated.data();
        const auto taken = [&](const float* from, int64_t size) -> const float* {
            from += position * size;
            if (!is_same) return from;
            float* const begin = to;
            for (int64_t i = 0; i < pass.num_tokens; ++i) to = std::copy(from, from + size, to);
            return begin;
        };
        for (const Rotations& table : tables.rotations) {
            const float* cosines = taken(table.cosines, table.num_pairs);
            pass.rotations.push_back({cosines, taken(table.sines, table.num_pairs), table.num_pairs});
        }
        for (const float* factors : tables.temperatures) pass.temperatures.push_back(taken(factors, 1));
    }

    Tables tables_;
    const Kernels* kernels_ = nullptr;
    std::unique_ptr<Decoder> decoder_;
};

Penalties make_penalties(double repetition, double presence, double frequency,
                         std::vector<std::pair<int64_t, float>> bias, const Array<int64_t>& tokens,
                         const Array<int32_t>& in_text, const Array<int32_t>& in_answer) {
    const auto count = static_cast<int64_t>(tokens.size());
    require(tokens, "tokens", {count});
    require(in_text, "in_text", {count});
    require(in_answer, "in_answer", {count});
    bool are_ids = std::all_of(tokens.data(), tokens.data() + count, [](int64_t token) { return token >= 0; });
    for (const auto& one : bias) are_ids &= one.first >= 0;
    require_that(are_ids, "token ids of at least 0 are required");
    return {static_cast<float>(repetition),
            static_cast<float>(presence),
            static_cast<float>(frequency),
            std::move(bias),
            {tokens.data(), tokens.data() + count},
            {in_text.data(), in_text.data() + count},
            {in_answer.data(), in_answer.data() + count}};
}

Draws make_draws(double temperature, int64_t top_k, double top_p, double min_p, uint64_t seed, uint64_t position) {
    require_that(temperature > 0.0, "a temperature above 0 is required");
    return {temperature, top_k, top_p, min_p, seed, position};
}

// A member of each node.
template <class T>
std::vector<T> each_node(const DraftTree& tree, T TreeNode::* member) {
    std::vector<T> all;
    for (const TreeNode& node : tree.nodes()) all.push_back(node.*member);
    return all;
}

HeadScreen make_screen(const MaybeProjection& projection, const Projection& scores, int64_t num_candidates) {
    require_that(num_candidates >= 1, "a screen lets a candidate through at least");
    return {projection.value_or(Projection{}), scores, num_candidates};
}

}  // namespace

void bind_decoder(nb::module_& module) {
    nb::class_<HeadScreen> screen(module, "HeadScreen", "Which rows of an output head are read.");
    define_init(screen, &make_screen, {"projection", "scores", "num_candidates"});
    nb::class_<Draws> draws(module, "Draws", "Draws at random that are coupled by their noise.");
    define_init(draws, &make_draws, {"temperature", "top_k", "top_p", "min_p", "seed", "position"});
    nb::class_<Penalties> penalties(module, "Penalties",
                                    "What is held against tokens; counts are of a text and an answer.");
    define_init(penalties, &make_penalties,
                {"repetition", "presence", "frequency", "logit_bias", "tokens", "in_text", "in_answer"});
    nb::class_<TreeLimits> limits(module, "TreeLimits", "What a draft may propose; see draft_tree.hpp.");
    define_members<int64_t, std::vector<double>, double, double, double, int64_t, int64_t, int64_t,
                   std::optional<Draws>, std::optional<Penalties>>(
        limits, {"most_depth", "floors", "least_own", "least_sum", "sharpness", "most_siblings", "most_in_frontier",
                 "most_rows", "draws", "penalties"});
    nb::class_<DraftTree>(module, "DraftTree", "A tree of guesses, and its nodes that were evaluated, a row each.")
        .def_prop_ro("tokens", [](const DraftTree& self) { return each_node(self, &TreeNode::token); })
        .def_prop_ro("parents", [](const DraftTree& self) { return each_node(self, &TreeNode::parent); })
        .def_prop_ro("own_chances", [](const DraftTree& self) { return each_node(self, &TreeNode::own); })
        .def_prop_ro("chances", [](const DraftTree& self) { return each_node(self, &TreeNode::chance); })
        .def_prop_ro("rows", &DraftTree::rows)
        .def_prop_ro("num_passes", &DraftTree::num_passes)
        .def_prop_ro("first_of_last", &DraftTree::first_of_last);
    nb::class_<BoundFeatures> features(module, "Features",
                                       "What a head takes in that goes on with features of its own.");
    define_members<Array<float>, Norm, MaybeNorm, MaybeNorm, Array<int64_t>>(
        features, {"features", "of_embedding", "when_taken", "of_made", "ids"},
        "Features before each token of a chain, (tokens, hidden_size); norms of embeddings, of features before layers "
        "add to them, and of what layers make; ids in the embedding of the head's tokens.");
    nb::class_<BoundDecoder>(module, "Decoder", "A forward pass over matrices and vectors that stay where they are.")
        .def(nb::init<Engine&, const std::vector<Layer>&, const Norm&, const Matrix&, double, double,
                      const std::tuple<int64_t, int64_t, int64_t>&, const std::optional<HeadScreen>&>(),
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
             nb::keep_alive<1, 9>(), nb::arg("engine"), nb::arg("layers"), nb::arg("norm"), nb::arg("head"),
             nb::arg("logit_multiplier"), nb::arg("logit_cap"), nb::arg("cache"), nb::arg("screen").none(),
             "Layers, then a norm and a head, whose logits are multiplied and, where logit_cap is not 0, capped. "
             "`cache` is layers, heads and head_dim of its pages.")
        .def("forward", &BoundDecoder::forward, nb::arg("x").noconvert(), nb::arg("rotations"), nb::arg("temperatures"),
             nb::arg("layer_inputs").noconvert().none(), nb::arg("logits").noconvert(), nb::arg("sequences"),
             "Evaluate tokens of some sequences, no two of one cache, each after those of the one before in x (tokens, "
             "hidden_size), which is overwritten, and in logits (sum of num_logits, vocabulary). Rotations are cosines "
             "and sines, (tokens, pairs) each; temperatures are (tokens,); layer_inputs (layers, tokens, size).")
        .def("read_ahead", &BoundDecoder::read_ahead, nb::arg("planes"), nb::arg("stages"), nb::keep_alive<1, 2>(),
             "Have each pass read what it multiplies by: planes of the output head, and of layers by their stages.")
        .def("grow", &BoundDecoder::grow, nb::arg("token_ids"), nb::arg("embedding"), nb::arg("multiplier"),
             nb::arg("rotations"), nb::arg("temperatures"), nb::arg("sequence"), nb::arg("vocab_size"),
             nb::arg("limits"), nb::arg("features").none() = nb::none(),
             "Evaluate a chain of tokens, whose rows of an embedding are multiplied, and below them a tree of the "
             "likeliest tokens, a pass a depth. Tables are of the chain's positions and most_depth - 1 further ones. "
             "With "
             "features rows begin as those, and embeddings are the inputs of the first layer.");
}

}  // namespace mxconv
