// Mixtures of experts as Python describes them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bindings.hpp"
#include "mixture.hpp"
#include "mlp.hpp"

namespace mxconv {

namespace {

using BoundExpert = std::tuple<Projection, MaybeProjection, Projection>;

// How rows choose, and by which matrix; the number of experts is that of its rows.
struct BoundRouting {
    Routing routing;
    Projection router;
};

BoundRouting make_routing(const Projection& router, int64_t num_chosen, const std::string& score, bool is_normalized,
                          const MaybeVector& correction, std::tuple<int64_t, int64_t> groups, double multiplier,
                          const MaybeVector& multipliers) {
    const int64_t count = router.rows();
    const auto [num_groups, num_chosen_groups] = groups;
    const bool has_groups = num_groups >= 1 && count % num_groups == 0 && num_chosen_groups >= 1 &&
                            num_chosen_groups <= num_groups && num_chosen <= num_chosen_groups * (count / num_groups) &&
                            (num_groups == 1 || (count / num_groups >= 2 && correction));
    require_that(num_chosen >= 1 && num_chosen <= count && has_groups, "experts that cannot be chosen");
    Routing made{};
    made.num_experts = count;
    made.num_chosen = num_chosen;
    made.score = named<Routing::Score>("score", score, {"softmax", "softmax_of_chosen", "sigmoid"});
    made.is_normalized = is_normalized;
    made.correction = vector_of(correction, "correction", count);
    made.num_groups = num_groups;
    made.num_chosen_groups = num_chosen_groups;
    made.multiplier = static_cast<float>(multiplier);
    made.multipliers = vector_of(multipliers, "multipliers", count);
    return {made, router};
}

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

PartPointer make_mlp(const std::string& activation, const MaybeProjection& gate, const MaybeProjection& up,
                     const Projection& down, const MaybeProjection& row_gate, bool is_fused, int64_t layer_input) {
    auto mlp = std::make_shared<Mlp>();
    mlp->activation = activation_of(activation);
    mlp->size = down.matrix->columns;
    mlp->is_fused = is_fused;
    mlp->layer_input = layer_input;
    require_that(gate || up, "an MLP needs a matrix that takes rows in");
    require_that(!is_fused || (gate && up), "what is fused is both gate and up");
    require_that(!gate || up || layer_input >= 0, "a gate alone needs the layer's own inputs");
    const int64_t hidden = down.rows(), inner = (is_fused ? 2 : 1) * mlp->size;
    mlp->gate = projection_of(gate, "gate", inner, hidden);
    mlp->up = projection_of(up, "up", inner, hidden);
    mlp->down = down;
    mlp->row_gate = projection_of(row_gate, "row_gate", 1, hidden);
    return mlp;
}

}  // namespace

void bind_mixture(nb::module_& module) {
    nb::class_<BoundRouting> routing(module, "Routing", "How rows choose their experts.");
    define_init(routing, &make_routing,
                {"router", "num_chosen", "score", "is_normalized", "correction", "groups", "multiplier", "multipliers"},
                nb::kw_only());
    define<0>(
        module, "mixture", &make_mixture,
        {"activation", "clamped", "is_interleaved", "scales_input", "norm", "router_norm", "is_routed_apart", "routing",
         "experts"},
        nb::kw_only(),
        "Experts, each a gate, an up (none: its rows come after the gate's, or between them) and a down. `clamped`, a "
        "slope and a limit, replaces the activation. Rows are normed by the mixture, for its router by another norm "
        "where that is apart.");
    define<0>(
        module, "mlp", &make_mlp, {"activation", "gate", "up", "down", "row_gate", "is_fused", "layer_input"},
        nb::kw_only(),
        "An MLP; without `up` the layer's inputs of that number replace what it would give. The sigmoid of a row gate "
        "multiplies the MLP's result of a row.");
}

}  // namespace mxconv
