// Mixtures of experts as Python describes them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>

#include "bound_parts.hpp"
#include "mixture.hpp"

namespace mxconv {

namespace {

using BoundExpert = std::tuple<BoundProjection, MaybeProjection, BoundProjection>;

Routing::Score score_of(const std::string& name) {
    if (name == "softmax") return Routing::Score::kSoftmax;
    if (name == "softmax_of_chosen") return Routing::Score::kSoftmaxOfChosen;
    if (name == "sigmoid") return Routing::Score::kSigmoid;
    throw nb::value_error("a score that there is not");
}

// Of one expert. Raises where it has another shape than the first, or its matrices another kind.
Expert expert_of(const BoundExpert& bound, const Mixture& mixture, int64_t hidden, Owners& owners) {
    const auto& [gate, up, down] = bound;
    const int64_t size = mixture.size, inner = (up ? 1 : 2) * size;
    const Expert expert{projection_of(gate, "gate", inner, hidden, owners).matrix,
                        projection_of(up, "up", size, hidden, owners).matrix,
                        projection_of(down, "down", hidden, size, owners).matrix};
    const Expert& first = mixture.experts.empty() ? expert : mixture.experts.front();
    const auto form = [](const Matrix* m) { return form_of(m->kind, m->format); };
    const bool is_alike = form(expert.gate) == form(first.gate) && form(expert.down) == form(first.down) &&
                          (expert.up == nullptr || form(expert.up) == form(expert.gate));
    if (!is_alike) throw nb::type_error("experts of one layer take rows in one form");
    if (expert.up == nullptr && size % kTileRows != 0) throw nb::value_error("gates and ups in one begin with a tile");
    return expert;
}

BoundPart make_mixture(const std::string& activation, const BoundNorm& norm, const BoundProjection& router,
                       const std::vector<BoundExpert>& experts, int64_t num_chosen, const std::string& score,
                       bool is_normalized, const std::optional<Array<float>>& correction,
                       std::tuple<int64_t, int64_t> groups, double multiplier) {
    BoundPart made;
    auto mixture = std::make_shared<Mixture>();
    const auto count = static_cast<int64_t>(experts.size());
    const auto [num_groups, num_chosen_groups] = groups;
    const bool has_groups = num_groups >= 1 && count % num_groups == 0 && num_chosen_groups >= 1 &&
                            num_chosen_groups <= num_groups && num_chosen <= num_chosen_groups * (count / num_groups) &&
                            (num_groups == 1 || (count / num_groups >= 2 && correction));
    if (num_chosen < 1 || num_chosen > count || !has_groups) throw nb::value_error("experts that cannot be chosen");
    const int64_t hidden = norm.norm.length;
    mixture->activation = activation_of(activation);
    keep(made.owners, norm.owners);
    mixture->norm = norm.norm;
    mixture->router = projection_of(router, "router", count, hidden, made.owners);
    if (mixture->router.bias != nullptr) throw nb::value_error("a router without a bias is required");
    mixture->routing = {count,   num_chosen, score_of(score),   is_normalized,
                        nullptr, num_groups, num_chosen_groups, static_cast<float>(multiplier)};
    if (correction) {
        require(*correction, "correction", {count});
        made.owners.push_back(nb::cast(*correction));
        mixture->routing.correction = correction->data();
    }
    mixture->size = std::get<2>(experts.front()).projection.matrix->columns;
    for (const BoundExpert& expert : experts) {
        mixture->experts.push_back(expert_of(expert, *mixture, hidden, made.owners));
    }
    made.part = std::move(mixture);
    return made;
}

}  // namespace

void bind_mixture(nb::module_& module) {
    module.def(
        "mixture", &make_mixture, nb::kw_only(), nb::arg("activation"), nb::arg("norm"), nb::arg("router"),
        nb::arg("experts"), nb::arg("num_chosen"), nb::arg("score"), nb::arg("is_normalized"),
        nb::arg("correction").noconvert().none(), nb::arg("groups"), nb::arg("multiplier"),
        "Experts, each a gate, an up (none: behind the gate's rows) and a down; rows are normed by the mixture.");
}

}  // namespace mxconv
