// Mixers with a state as Python describes them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "bound_parts.hpp"
#include "define.hpp"
#include "delta_net.hpp"
#include "mamba2.hpp"
#include "short_convolution.hpp"

namespace mxconv {

namespace {

struct BoundConvolution {
    Array<float> taps;
    std::optional<Array<float>> bias;
    int64_t layer;
    bool only_follows;
};

// What all have. Raises where the convolution has other sizes.
void begin(Recurrent& part, const BoundConvolution& bound, const StateSizes& sizes, Owners& owners) {
    constexpr int64_t kMost = 1 << 16;
    if (bound.layer < 0 || bound.layer >= kMost) throw nb::value_error("a layer of an impossible number");
    part.layer = bound.layer;
    part.only_follows = bound.only_follows;
    part.sizes = sizes;
    require(bound.taps, "taps", {-1, sizes.num_channels});
    part.sizes.kernel_size = static_cast<int64_t>(bound.taps.shape(0));
    if (part.sizes.kernel_size < 1) throw nb::value_error("a convolution needs a tap");
    part.convolution = {bound.taps.data(), vector_of(bound.bias, "bias", sizes.num_channels, owners)};
    owners.push_back(nb::cast(bound.taps));
}

// Of a memory (heads, rows, columns), and some gates a head.
StateSizes with_memory(const std::tuple<int64_t, int64_t, int64_t>& memory, int64_t gates) {
    constexpr int64_t kMost = 1 << 20;
    StateSizes sizes{};
    std::tie(sizes.heads, sizes.rows, sizes.columns) = memory;
    for (const int64_t each : {sizes.heads, sizes.rows, sizes.columns}) {
        if (each < 1 || each > kMost) throw nb::value_error("a memory of impossible sizes");
    }
    sizes.num_gates = gates * sizes.heads;
    return sizes;
}

StateSizes with_channels(StateSizes sizes, int64_t num_channels) {
    sizes.num_channels = num_channels;
    return sizes;
}

BoundPart make_short_convolution(const BoundConvolution& convolution, const BoundProjection& inputs,
                                 const BoundProjection& output) {
    BoundPart made;
    auto part = std::make_shared<ShortConvolution>();
    const int64_t hidden = output.projection.matrix->rows, size = output.projection.matrix->columns;
    StateSizes sizes{};
    sizes.num_channels = size;
    begin(*part, convolution, sizes, made.owners);
    part->inputs = projection_of(inputs, "inputs", 3 * size, hidden, made.owners);
    part->output = projection_of(output, "output", hidden, size, made.owners);
    made.part = std::move(part);
    return made;
}

BoundPart make_delta_net(const BoundConvolution& convolution, int64_t num_key_heads,
                         const std::tuple<int64_t, int64_t, int64_t>& memory,
                         const BoundProjection& queries_keys_values, const MaybeProjection& gate,
                         const BoundProjection& beta, const MaybeProjection& decay, const Array<float>& decay_bias,
                         const Array<float>& rate, const BoundNorm& norm, double eps, const BoundProjection& output) {
    BoundPart made;
    auto part = std::make_shared<DeltaNet>();
    const StateSizes sizes = with_memory(memory, 2);
    const auto [heads, key_dim, value_dim] = memory;
    if (num_key_heads < 1 || heads % num_key_heads)
        throw nb::value_error("value heads must be a multiple of key heads");
    if (gate.has_value() != decay.has_value()) throw nb::value_error("gates and decays are both fused, or neither");
    const int64_t keys = num_key_heads * key_dim, values = heads * value_dim, fused = gate ? 0 : 1;
    const int64_t hidden = output.projection.matrix->rows, channels = 2 * keys + values;
    begin(*part, convolution, with_channels(sizes, channels), made.owners);
    part->num_key_heads = num_key_heads;
    part->queries_keys_values =
        projection_of(queries_keys_values, "queries_keys_values", channels + fused * values, hidden, made.owners);
    part->gate = projection_of(gate, "gate", values, hidden, made.owners);
    part->beta = projection_of(beta, "beta", heads + fused * heads, hidden, made.owners);
    part->decay = projection_of(decay, "decay", heads, hidden, made.owners);
    part->decay_bias = vector_of(decay_bias, "decay_bias", heads, made.owners);
    part->rate = vector_of(rate, "rate", heads, made.owners);
    part->norm = norm_of(norm, "norm", value_dim, made.owners);
    part->eps = static_cast<float>(eps);
    part->output = projection_of(output, "output", hidden, values, made.owners);
    part->prepare();
    made.part = std::move(part);
    return made;
}

BoundPart make_mamba2(const BoundConvolution& convolution, int64_t num_groups,
                      const std::tuple<int64_t, int64_t, int64_t>& memory, const std::string& activation,
                      const BoundProjection& inputs, const Array<float>& step_bias,
                      const std::tuple<double, double>& step_limits, const Array<float>& rate, const Array<float>& skip,
                      const BoundNorm& norm, int64_t norm_groups, const BoundProjection& output) {
    BoundPart made;
    auto part = std::make_shared<Mamba2>();
    const StateSizes sizes = with_memory(memory, 1);
    const auto [heads, head_dim, state_size] = memory;
    const int64_t size = heads * head_dim, hidden = output.projection.matrix->rows;
    if (num_groups < 1 || heads % num_groups) throw nb::value_error("heads must be a multiple of their groups");
    if (norm_groups < 1 || size % norm_groups) throw nb::value_error("a norm of groups that are not equal");
    begin(*part, convolution, with_channels(sizes, size + 2 * num_groups * state_size), made.owners);
    part->num_groups = num_groups;
    part->activation = activation_of(activation);
    part->inputs = projection_of(inputs, "inputs", size + part->sizes.input(), hidden, made.owners);
    part->step_bias = vector_of(step_bias, "step_bias", heads, made.owners);
    part->least_step = static_cast<float>(std::get<0>(step_limits));
    part->most_step = static_cast<float>(std::get<1>(step_limits));
    part->rate = vector_of(rate, "rate", heads, made.owners);
    part->skip = vector_of(skip, "skip", heads, made.owners);
    part->norm = norm_of(norm, "norm", size, made.owners);
    if (part->norm.is_centered) throw nb::value_error("a norm of the mean square is required");
    part->norm_groups = norm_groups;
    part->output = projection_of(output, "output", hidden, size, made.owners);
    made.part = std::move(part);
    return made;
}

BoundConvolution make_convolution(const Array<float>& taps, const std::optional<Array<float>>& bias, int64_t layer,
                                  bool only_follows) {
    return {taps, bias, layer, only_follows};
}

}  // namespace

void bind_recurrent(nb::module_& module) {
    nb::class_<BoundConvolution> convolution(
        module, "Convolution",
        "A convolution of the layer with a state of that number; a draft may only follow the text.");
    define_init(convolution, &make_convolution, {"taps", "bias", "layer", "only_follows"});
    define(module, "short_convolution", &make_short_convolution, {"convolution", "inputs", "output"}, nb::kw_only(),
           "A convolution between two gates, which `inputs` gives with its input.");
    define(module, "delta_net", &make_delta_net,
           {"convolution", "num_key_heads", "memory", "queries_keys_values", "gate", "beta", "decay", "decay_bias",
            "rate", "norm", "eps", "output"},
           nb::kw_only(),
           "Gated DeltaNet of memories (value heads, key_dim, value_dim). Without `gate` and `decay` the others hold "
           "them too, key head by key head.");
    define(module, "mamba2", &make_mamba2,
           {"convolution", "num_groups", "memory", "activation", "inputs", "step_bias", "step_limits", "rate", "skip",
            "norm", "norm_groups", "output"},
           nb::kw_only(), "Mamba-2 of memories (heads, head_dim, state_size).");
}

}  // namespace mxconv
