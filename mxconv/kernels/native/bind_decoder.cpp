// The forward pass as Python sees it: a decoder over matrices and vectors that it keeps alive.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "decoder.hpp"

namespace mxconv {

namespace {

using Vector = std::optional<Array<float>>;

// The tokens of one sequence in a pass: arrays as Python hands them over, checked when they meet a decoder.
struct BoundSequence {
    BoundSequence(MutableArray<float> keys, MutableArray<float> values, int64_t length, int64_t num_tokens,
                  int64_t num_logits, std::optional<Array<uint64_t>> masks, int64_t mask_start,
                  std::vector<int64_t> stages, std::optional<MutableArray<float>> states)
        : keys(keys),
          values(values),
          length(length),
          num_tokens(num_tokens),
          num_logits(num_logits),
          masks(masks),
          mask_start(mask_start),
          stages(std::move(stages)),
          states(states) {}

    // Raises where an array does not fit.
    SequenceTokens checked(const DecoderWeights& w) const {
        const auto num_layers = static_cast<int64_t>(w.layers.size());
        SequenceTokens sequence{};
        require(keys, "keys", {num_layers, w.num_key_value_heads, -1, w.head_dim});
        const auto capacity = static_cast<int64_t>(keys.shape(2));
        require(values, "values", {num_layers, w.num_key_value_heads, capacity, w.head_dim});
        if (length < 0 || num_tokens < 1 || num_tokens > capacity || length > capacity - num_tokens ||
            capacity > INT32_MAX) {
            throw nb::value_error("the tokens do not fit into the cache");
        }
        if (num_logits < 0 || num_logits > num_tokens) throw nb::value_error("more logits than tokens");
        sequence.num_tokens = num_tokens;
        sequence.num_logits = num_logits;
        sequence.keys = keys.data();
        sequence.values = values.data();
        sequence.capacity = capacity;
        sequence.length = length;
        if (masks) set_masks(sequence);
        if (states.has_value() == stages.empty()) throw nb::value_error("states and their stages go together");
        if (states) set_states(sequence, num_layers, w.hidden_size);
        return sequence;
    }

    const MutableArray<float> keys, values;
    const int64_t length, num_tokens, num_logits;
    const std::optional<Array<uint64_t>> masks;
    const int64_t mask_start;
    const std::vector<int64_t> stages;
    const std::optional<MutableArray<float>> states;

  private:
    // A token sees itself and nothing behind itself.
    void set_masks(SequenceTokens& sequence) const {
        require(*masks, "masks", {num_tokens});
        if (mask_start < 0 || mask_start > length || length + num_tokens - mask_start > kTokensAtOnce) {
            throw nb::value_error("masks reach over the newest 64 positions");
        }
        for (int64_t token = 0; token < num_tokens; ++token) {
            const int64_t itself = length + token - mask_start;
            if (masks->data()[token] >> itself != 1) throw nb::value_error("a token sees itself and nothing behind");
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

// Takes layers until the first pass, then stays as it is.
class BoundDecoder {
  public:
    BoundDecoder(nb::object engine, int64_t num_heads, int64_t num_key_value_heads, int64_t head_dim,
                 double rms_norm_eps, Array<float> norm, nb::object head)
        : engine_(nb::cast<Engine&>(engine)) {
        if (num_key_value_heads < 1 || num_heads < 1 || num_heads % num_key_value_heads) {
            throw nb::value_error("num_heads must be a multiple of num_key_value_heads");
        }
        if (head_dim < 2 || head_dim % 2 || head_dim > 1 << 20 || num_heads > 1 << 20) {
            throw nb::value_error("head_dim must be even");
        }
        owners_.push_back(engine);
        weights_.num_heads = num_heads;
        weights_.num_key_value_heads = num_key_value_heads;
        weights_.head_dim = head_dim;
        weights_.rms_norm_eps = static_cast<float>(rms_norm_eps);
        weights_.hidden_size = nb::cast<const BoundMatrix&>(head).matrix.columns;
        weights_.head = matrix(head, -1, weights_.hidden_size);
        weights_.norm = vector(norm, "norm", weights_.hidden_size);
    }

    void add_layer(bool skips_attention, bool skips_mlp, int64_t sink, int64_t recent, int64_t window,
                   Array<float> input_norm, Array<float> mlp_norm, Vector query_norm, Vector key_norm, nb::object query,
                   Vector query_bias, nb::object key, Vector key_bias, nb::object value, Vector value_bias,
                   nb::object output, Vector output_bias, nb::object gate, Vector gate_bias, nb::object up,
                   Vector up_bias, nb::object down, Vector down_bias) {
        if (decoder_) throw nb::value_error("a decoder that has run takes no more layers");
        if (window < 0) throw nb::value_error("window must be 0 (all) or more");
        if (sink < 0 || recent < 0) throw nb::value_error("sink and recent must be 0 or more");
        const int64_t hidden = weights_.hidden_size;
        const int64_t heads = weights_.num_heads * weights_.head_dim;
        const int64_t kv_heads = weights_.num_key_value_heads * weights_.head_dim;
        const int64_t inner = nb::cast<const BoundMatrix&>(gate).matrix.rows;
        if (!weights_.layers.empty() && inner != weights_.intermediate_size) {
            throw nb::type_error("layers of different intermediate sizes");
        }
        DecoderLayer layer{};
        layer.skips_attention = skips_attention;
        layer.skips_mlp = skips_mlp;
        layer.sink = sink;
        layer.recent = recent;
        layer.window = window;
        layer.input_norm = vector(input_norm, "input_norm", hidden);
        layer.mlp_norm = vector(mlp_norm, "mlp_norm", hidden);
        layer.query_norm = vector(query_norm, "query_norm", weights_.head_dim);
        layer.key_norm = vector(key_norm, "key_norm", weights_.head_dim);
        layer.query = {matrix(query, heads, hidden), vector(query_bias, "query_bias", heads)};
        layer.key = {matrix(key, kv_heads, hidden), vector(key_bias, "key_bias", kv_heads)};
        layer.value = {matrix(value, kv_heads, hidden), vector(value_bias, "value_bias", kv_heads)};
        layer.output = {matrix(output, hidden, heads), vector(output_bias, "output_bias", hidden)};
        layer.gate = {matrix(gate, inner, hidden), vector(gate_bias, "gate_bias", inner)};
        layer.up = {matrix(up, inner, hidden), vector(up_bias, "up_bias", inner)};
        layer.down = {matrix(down, hidden, inner), vector(down_bias, "down_bias", hidden)};
        weights_.intermediate_size = inner;
        weights_.layers.push_back(layer);
    }

    void forward(MutableArray<float> x, Array<float> cosines, Array<float> sines, MutableArray<float> logits,
                 nb::typed<nb::list, BoundSequence> sequences) {
        const DecoderWeights& w = weights_;
        if (w.layers.empty()) throw nb::value_error("a decoder needs a layer");
        Pass pass{};
        int64_t num_tokens = 0, num_logits = 0;
        for (nb::handle sequence : sequences) {
            pass.sequences.push_back(nb::cast<const BoundSequence&>(sequence).checked(w));
            num_tokens += pass.sequences.back().num_tokens;
            num_logits += pass.sequences.back().num_logits;
        }
        require(x, "x", {num_tokens, w.hidden_size});
        require(cosines, "cosines", {num_tokens, w.head_dim / 2});
        require(sines, "sines", {num_tokens, w.head_dim / 2});
        require(logits, "logits", {num_logits, w.head->rows});
        pass.x = x.data();
        pass.cosines = cosines.data();
        pass.sines = sines.data();
        pass.logits = logits.data();
        if (!decoder_) decoder_ = std::make_unique<Decoder>(engine_, weights_);
        nb::gil_scoped_release unlocked;
        decoder_->forward(pass);
    }

  private:
    const Matrix* matrix(const nb::object& object, int64_t rows, int64_t columns) {
        const Matrix& found = nb::cast<const BoundMatrix&>(object).matrix;
        if ((rows >= 0 && found.rows != rows) || found.columns != columns) {
            throw nb::type_error("a matrix has another shape than the sizes of the decoder require");
        }
        owners_.push_back(object);
        return &found;
    }

    const float* vector(const Vector& array, const char* name, int64_t length) {
        if (!array) return nullptr;
        require(*array, name, {length});
        owners_.push_back(nb::cast(*array));
        return array->data();
    }

    Engine& engine_;
    DecoderWeights weights_{};
    std::vector<nb::object> owners_;
    std::unique_ptr<Decoder> decoder_;
};

}  // namespace

void bind_decoder(nb::module_& module) {
    const auto optional = [](const char* name) { return nb::arg(name).noconvert().none(); };
    nb::class_<BoundDecoder>(module, "Decoder", "A forward pass over matrices and vectors that stay where they are.")
        .def(nb::init<nb::object, int64_t, int64_t, int64_t, double, Array<float>, nb::object>(), nb::arg("engine"),
             nb::arg("num_heads"), nb::arg("num_key_value_heads"), nb::arg("head_dim"), nb::arg("rms_norm_eps"),
             nb::arg("norm").noconvert(), nb::arg("head"))
        .def("add_layer", &BoundDecoder::add_layer, nb::kw_only(), nb::arg("skips_attention"), nb::arg("skips_mlp"),
             nb::arg("sink"), nb::arg("recent"), nb::arg("window"), nb::arg("input_norm").noconvert(),
             nb::arg("mlp_norm").noconvert(), optional("query_norm"), optional("key_norm"), nb::arg("query"),
             optional("query_bias"), nb::arg("key"), optional("key_bias"), nb::arg("value"), optional("value_bias"),
             nb::arg("output"), optional("output_bias"), nb::arg("gate"), optional("gate_bias"), nb::arg("up"),
             optional("up_bias"), nb::arg("down"), optional("down_bias"),
             "Append a layer; window 0 sees all positions and recent 0 leaves none of them out, a bias or head norm "
             "may be None.")
        .def(
            "forward", &BoundDecoder::forward, nb::arg("x").noconvert(), nb::arg("cosines").noconvert(),
            nb::arg("sines").noconvert(), nb::arg("logits").noconvert(), nb::arg("sequences"),
            "Evaluate tokens of some sequences, no two of one cache, each behind those of the one before in x (tokens, "
            "hidden_size), which is overwritten, and in logits (sum of num_logits, vocabulary).");
    nb::class_<BoundSequence>(module, "SequenceTokens", "The tokens of one sequence in a pass.")
        .def(nb::init<MutableArray<float>, MutableArray<float>, int64_t, int64_t, int64_t,
                      std::optional<Array<uint64_t>>, int64_t, std::vector<int64_t>,
                      std::optional<MutableArray<float>>>(),
             nb::arg("keys").noconvert(), nb::arg("values").noconvert(), nb::arg("length"), nb::arg("num_tokens"),
             nb::arg("num_logits"), nb::arg("masks").noconvert() = nb::none(), nb::arg("mask_start") = 0,
             nb::arg("stages") = std::vector<int64_t>{}, nb::arg("states").noconvert() = nb::none(),
             "Tokens behind `length` positions, where their keys and values are written; the last num_logits of them "
             "get logits. With masks, token i sees the positions before mask_start and mask_start + b for each bit b. "
             "states (stages, num_tokens, hidden_size) receives x before the layers of those numbers; one more than "
             "the last layer's is what they all give, two more that behind the norm.");
}

}  // namespace mxconv
