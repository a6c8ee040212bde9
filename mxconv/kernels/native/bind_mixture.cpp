// Mixtures of experts as Python describes them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bound_parts.hpp"
#include "define.hpp"
#include "mixture.hpp"
#include "mlp.hpp"

namespace mxconv {

namespace {

using BoundExpert = std::tuple<BoundProjection, MaybeProjection, BoundProjection>;
using MaybeVector = std::optional<Array<float>>;

// How rows choose, and by which matrix; the number of experts is that of its rows.
struct BoundRouting {
    Routing routing{};
    BoundProjection router;
    Owners owners;
};

Routing::Score score_of(const std::string& name) {
    if (name == "softmax") return Routing::Score::kSoftmax;
    if (name == "softmax_of_chosen") return Routing::Score::kSoftmaxOfChosen;
    if (name == "sigmoid") return Routing::Score::kSigmoid;
    throw nb::value_error("a score that there is not");
}

BoundRouting make_routing(const BoundProjection& router, int64_t num_chosen, const std::string& score,
                          bool is_normalized, const MaybeVector& correction, std::tuple<int64_t, int64_t> groups,
                          double multiplier, const MaybeVector& multipliers) {
    BoundRouting made;
    made.router = router;
    const int64_t count = router.projection.rows();
    const auto [num_groups, num_chosen_groups] = groups;
    const bool has_groups = num_groups >= 1 && count % num_groups == 0 && num_chosen_groups >= 1 &&
                            num_chosen_groups <= num_groups && num_chosen <= num_chosen_groups * (count / num_groups) &&
                            (num_groups == 1 || (count / num_groups >= 2 && correction));
    if (num_chosen < 1 || num_chosen > count || !has_groups) throw nb::value_error("experts that cannot be chosen");
    made.routing = {count,
                    num_chosen,
                    score_of(score),
                    is_normalized,
                    vector_of(correction, "correction", count, made.owners),
                    num_groups,
                    num_chosen_groups,
                    static_cast<float>(multiplier),
                    vector_of(multipliers, "multipliers", count, made.owners)};
    return made;
}

// Of one expert. Raises where it has another shape than the first, or its matrices another kind.
Expert expert_of(const BoundExpert& bound, const Mixture& mixture, Owners& owners) {
    const auto& [gate, up, down] = bound;
    const int64_t size = mixture.size, hidden = mixture.hidden_size, inner = (up ? 1 : 2) * size;
    const Expert expert{projection_of(gate, "gate", inner, hidden, owners),
                        projection_of(up, "up", size, hidden, owners),
                        projection_of(down, "down", hidden, size, owners)};
    const Expert& first = mixture.experts.empty() ? expert : mixture.experts.front();
    const bool is_alike = expert.gate.form() == first.gate.form() && expert.down.form() == first.down.form() &&
                          expert.up.exists() == first.up.exists() &&
                          (!expert.up.exists() || expert.up.form() == expert.gate.form());
    if (!is_alike) throw nb::type_error("experts of one layer take rows in one form");
    if (expert.up.exists() && mixture.is_interleaved) throw nb::value_error("what takes turns is one matrix");
    return expert;
}

BoundPart make_mixture(const std::string& activation, const std::optional<std::pair<double, double>>& clamped,
                       bool is_interleaved, bool scales_input, const MaybeNorm& norm, const MaybeNorm& router_norm,
                       bool is_routed_apart, const BoundRouting& routing, const std::vector<BoundExpert>& experts) {
    BoundPart made;
    auto mixture = std::make_shared<Mixture>();
    mixture->hidden_size = routing.router.projection.matrix->columns;
    mixture->activation = activation_of(activation);
    if (clamped) {
        mixture->clamped = ClampedGate{static_cast<float>(clamped->first), static_cast<float>(clamped->second)};
        if (!(mixture->clamped->limit >= 0.0f)) throw nb::value_error("a limit of gates must be 0 or more");
    }
    mixture->is_interleaved = is_interleaved;
    mixture->scales_input = scales_input;
    mixture->norm = norm_of(norm, "norm", mixture->hidden_size, made.owners);
    mixture->router_norm = norm_of(router_norm, "router_norm", mixture->hidden_size, made.owners);
    mixture->is_routed_apart = is_routed_apart;
    mixture->router = projection_of(routing.router, "router", -1, -1, made.owners);
    mixture->routing = routing.routing;
    keep(made.owners, routing.owners);
    if (static_cast<int64_t>(experts.size()) != routing.routing.num_experts) {
        throw nb::value_error("an expert for each row of the router is required");
    }
    mixture->size = std::get<2>(experts.front()).projection.matrix->columns;
    for (const BoundExpert& expert : experts) mixture->experts.push_back(expert_of(expert, *mixture, made.owners));
    made.part = std::move(mixture);
    return made;
}

}  // namespace

void bind_mixture(nb::module_& module) {
    nb::class_<BoundRouting> routing(module, "Routing", "How rows choose their experts.");
    define_init(routing, &make_routing,
                {"router", "num_chosen", "score", "is_normalized", "correction", "groups", "multiplier", "multipliers"},
                nb::kw_only());
    define(
        module, "mixture", &make_mixture,
        {"activation", "clamped", "is_interleaved", "scales_input", "norm", "router_norm", "is_routed_apart", "routing",
         "experts"},
        nb::kw_only(),
        "Experts, each a gate, an up (none: its rows come after the gate's, or between them) and a down. `clamped`, a "
        "slope and a limit, replaces the activation. Rows are normed by the mixture, for its router by another norm "
        "where that is apart.");
}

namespace {

BoundPart make_mlp(const std::string& activation, const MaybeProjection& gate, const MaybeProjection& up,
                   const BoundProjection& down, const MaybeProjection& row_gate, bool is_fused, int64_t layer_input) {
    BoundPart made;
    auto mlp = std::make_shared<Mlp>();
    mlp->activation = activation_of(activation);
    mlp->size = down.projection.matrix->columns;
    mlp->is_fused = is_fused;
    mlp->layer_input = layer_input;
    if (!gate && !up) throw nb::value_error("an MLP needs a matrix that takes rows in");
    if (is_fused && !(gate && up)) throw nb::value_error("what is fused is both gate and up");
    if (gate && !up && layer_input < 0) throw nb::value_error("a gate alone needs the layer's own inputs");
    const int64_t hidden = down.projection.matrix->rows, inner = (is_fused ? 2 : 1) * mlp->size;
    mlp->gate = projection_of(gate, "gate", inner, hidden, made.owners);
    mlp->up = projection_of(up, "up", inner, hidden, made.owners);
    mlp->down = projection_of(down, "down", hidden, mlp->size, made.owners);
    mlp->row_gate = projection_of(row_gate, "row_gate", 1, hidden, made.owners);
    made.part = std::move(mlp);
    return made;
}

}  // namespace

void bind_mlp(nb::module_& module) {
    define(
        module, "mlp", &make_mlp, {"activation", "gate", "up", "down", "row_gate", "is_fused", "layer_input"},
        nb::kw_only(),
        "An MLP; without `up` the layer's inputs of that number replace what it would give. The sigmoid of a row gate "
        "multiplies the MLP's result of a row.");
}

}  // namespace mxconv
