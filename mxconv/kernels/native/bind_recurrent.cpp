// Mixers with a state as Python describes them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "bindings.hpp"
#include "delta_net.hpp"
#include "mamba2.hpp"
#include "short_convolution.hpp"

namespace mxconv {

namespace {

struct BoundConvolution {
    Array<float> taps;
    MaybeVector bias;
    int64_t layer;
    bool only_follows;
};

// What all have. Raises where the convolution has other sizes.
void begin(Recurrent& part, const BoundConvolution& bound, const StateSizes& sizes) {
    constexpr int64_t kMost = 1 << 16;
    require_that(bound.layer >= 0 && bound.layer < kMost, "a layer of an impossible number");
    part.layer = bound.layer;
    part.only_follows = bound.only_follows;
    part.sizes = sizes;
    require(bound.taps, "taps", {-1, sizes.num_channels});
    part.sizes.kernel_size = static_cast<int64_t>(bound.taps.shape(0));
    if (part.sizes.kernel_size < 1) throw nb::value_error("a convolution needs a tap");
    part.convolution = {bound.taps.data(), vector_of(bound.bias, "bias", sizes.num_channels)};
}

// Of a memory (heads, rows, columns), and some gates a head.
StateSizes with_memory(const std::tuple<int64_t, int64_t, int64_t>& memory, int64_t gates) {
    constexpr int64_t kMost = 1 << 20;
    StateSizes sizes{};
    std::tie(sizes.heads, sizes.rows, sizes.columns) = memory;
    for (const int64_t each : {sizes.heads, sizes.rows, sizes.columns}) {
        require_that(each >= 1 && each <= kMost, "a memory of impossible sizes");
    }
    sizes.num_gates = gates * sizes.heads;
    return sizes;
}

PartPointer make_short_convolution(const BoundConvolution& convolution, const Projection& inputs,
                                   const Projection& output) {
    auto part = std::make_shared<ShortConvolution>();
    const int64_t hidden = output.matrix->rows, size = output.matrix->columns;
    StateSizes sizes{};
    sizes.num_channels = size;
    begin(*part, convolution, sizes);
    part->inputs = projection_of(inputs, "inputs", 3 * size, hidden);
    part->output = projection_of(output, "output", hidden, size);
    return part;
}

PartPointer make_delta_net(const BoundConvolution& convolution, int64_t num_key_heads,
                           const std::tuple<int64_t, int64_t, int64_t>& memory, const Projection& queries_keys_values,
                           const MaybeProjection& gate, const Projection& beta, const MaybeProjection& decay,
                           const Array<float>& decay_bias, const Array<float>& rate, const Norm& norm, double eps,
                           const Projection& output) {
    auto part = std::make_shared<DeltaNet>();
    StateSizes sizes = with_memory(memory, 2);
    const auto [heads, key_dim, value_dim] = memory;
    require_that(num_key_heads >= 1 && heads % num_key_heads == 0, "value heads must be a multiple of key heads");
    require_that(gate.has_value() == decay.has_value(), "gates and decays are both fused, or neither");
    const int64_t keys = num_key_heads * key_dim, values = heads * value_dim, fused = gate ? 0 : 1;
    const int64_t hidden = output.matrix->rows, channels = 2 * keys + values;
    sizes.num_channels = channels;
    begin(*part, convolution, sizes);
    part->num_key_heads = num_key_heads;
    part->queries_keys_values =
        projection_of(queries_keys_values, "queries_keys_values", channels + fused * values, hidden);
    part->gate = projection_of(gate, "gate", values, hidden);
    part->beta = projection_of(beta, "beta", heads + fused * heads, hidden);
    part->decay = projection_of(decay, "decay", heads, hidden);
    part->decay_bias = vector_of(decay_bias, "decay_bias", heads);
    part->rate = vector_of(rate, "rate", heads);
    part->norm = norm_of(norm, "norm", value_dim);
    part->eps = static_cast<float>(eps);
    part->output = projection_of(output, "output", hidden, values);
    part->prepare();
    return part;
}

PartPointer make_mamba2(const BoundConvolution& convolution, int64_t num_groups,
                        const std::tuple<int64_t, int64_t, int64_t>& memory, const std::string& activation,
                        const Projection& inputs, const Array<float>& step_bias,
                        const std::tuple<double, double>& step_limits, const Array<float>& rate,
                        const Array<float>& skip, const Norm& norm, int64_t norm_groups, const Projection& output) {
    auto part = std::make_shared<Mamba2>();
    StateSizes sizes = with_memory(memory, 1);
    const auto [heads, head_dim, state_size] = memory;
    const int64_t size = heads * head_dim, hidden = output.matrix->rows;
    if (num_groups < 1 || heads % num_groups) throw nb::value_error("heads must be a multiple of their groups");
    if (norm_groups < 1 || size % norm_groups) throw nb::value_error("a norm of groups that are not equal");
    sizes.num_channels = size + 2 * num_groups * state_size;
    begin(*part, convolution, sizes);
    part->num_groups = num_groups;
    part->activation = activation_of(activation);
    part->inputs = projection_of(inputs, "inputs", size + part->sizes.input(), hidden);
    part->step_bias = vector_of(step_bias, "step_bias", heads);
    part->least_step = static_cast<float>(std::get<0>(step_limits));
    part->most_step = static_cast<float>(std::get<1>(step_limits));
    part->rate = vector_of(rate, "rate", heads);
    part->skip = vector_of(skip, "skip", heads);
    part->norm = norm_of(norm, "norm", size);
    if (part->norm.is_centered) throw nb::value_error("a norm of the mean square is required");
    part->norm_groups = norm_groups;
    part->output = projection_of(output, "output", hidden, size);
    return part;
}

}  // namespace

void bind_recurrent(nb::module_& module) {
    nb::class_<BoundConvolution> convolution(
        module, "Convolution",
        "A convolution of the layer with a state of that number; a draft may only follow the text.");
    define_members<Array<float>, MaybeVector, int64_t, bool>(convolution, {"taps", "bias", "layer", "only_follows"});
    define<0>(module, "short_convolution", &make_short_convolution, {"convolution", "inputs", "output"}, nb::kw_only(),
              "A convolution between two gates, which `inputs` gives with its input.");
    define<0>(
        module, "delta_net", &make_delta_net,
        {"convolution", "num_key_heads", "memory", "queries_keys_values", "gate", "beta", "decay", "decay_bias", "rate",
         "norm", "eps", "output"},
        nb::kw_only(),
        "Gated DeltaNet of memories (value heads, key_dim, value_dim). Without `gate` and `decay` the others hold "
        "them too, key head by key head.");
    define<0>(module, "mamba2", &make_mamba2,
              {"convolution", "num_groups", "memory", "activation", "inputs", "step_bias", "step_limits", "rate",
               "skip", "norm", "norm_groups", "output"},
              nb::kw_only(), "Mamba-2 of memories (heads, head_dim, state_size).");
}

}  // namespace mxconv
