// What parts of a decoder are made of, and how they make layers.
#include "bound_parts.hpp"
#include "define.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "joined.hpp"

namespace mxconv {

Norm norm_of(const MaybeNorm& bound, const char* name, int64_t length, Owners& owners) {
    if (!bound) return {};
    if (bound->norm.length != length) {
        throw nb::type_error((std::string(name) + ": " + std::to_string(bound->norm.length) + " weights; " +
                              std::to_string(length) + " are required")
                                 .c_str());
    }
    keep(owners, bound->owners);
    return bound->norm;
}

Projection projection_of(const MaybeProjection& bound, const char* name, int64_t rows, int64_t columns,
                         Owners& owners) {
    if (!bound) return {};
    const Matrix& m = *bound->projection.matrix;
    if ((rows >= 0 && m.rows != rows) || (columns >= 0 && m.columns != columns)) {
        throw nb::type_error((std::string(name) + ": shape (" + std::to_string(m.rows) + ", " +
                              std::to_string(m.columns) + "); (" + std::to_string(rows) + ", " +
                              std::to_string(columns) + ") is required")
                                 .c_str());
    }
    keep(owners, bound->owners);
    return bound->projection;
}

const float* vector_of(const std::optional<Array<float>>& array, const char* name, int64_t length, Owners& owners) {
    if (!array) return nullptr;
    require(*array, name, {length});
    owners.push_back(nb::cast(*array));
    return array->data();
}

namespace {

BoundNorm make_norm(const Array<float>& weight, const std::optional<Array<float>>& bias, double eps, bool is_centered) {
    BoundNorm made;
    require(weight, "weight", {-1});
    const auto length = static_cast<int64_t>(weight.shape(0));
    if (length < 1) throw nb::value_error("a norm needs a weight");
    if (bias && !is_centered) throw nb::value_error("a norm with a bias takes the mean away");
    made.norm = {length, vector_of(weight, "weight", length, made.owners), nullptr, static_cast<float>(eps),
                 is_centered};
    made.norm.bias = vector_of(bias, "bias", length, made.owners);
    return made;
}

BoundProjection make_projection(const nb::handle_t<BoundMatrix>& matrix, const std::optional<Array<float>>& bias) {
    BoundProjection made;
    const Matrix& found = nb::cast<const BoundMatrix&>(matrix).matrix;
    made.owners.push_back(nb::borrow(matrix));
    made.projection = {&found, vector_of(bias, "bias", found.rows, made.owners)};
    return made;
}

BoundPart make_joined(const std::vector<std::pair<BoundPart, MaybeNorm>>& addends) {
    BoundPart made;
    auto joined = std::make_shared<Joined>();
    if (addends.empty()) throw nb::value_error("parts to join are required");
    joined->hidden_size = addends.front().first.part->demands().hidden_size;
    for (const auto& [bound, norm] : addends) {
        const Demands demands = bound.part->demands();
        if (demands.num_caches > 0 || demands.layer_input >= 0) throw nb::type_error("what is joined looks nothing up");
        if (demands.hidden_size != joined->hidden_size) throw nb::type_error("a part of another hidden size");
        joined->addends.push_back({bound.part, norm_of(norm, "norm", joined->hidden_size, made.owners)});
        keep(made.owners, bound.owners);
    }
    made.part = std::move(joined);
    return made;
}

BoundBranch make_branch(const BoundPart& part, const MaybeNorm& norm, bool is_parallel, const MaybeNorm& sum_norm,
                        double multiplier) {
    BoundBranch made;
    made.owners = part.owners;
    const int64_t hidden = part.part->demands().hidden_size;
    const Sum sum{norm_of(sum_norm, "sum_norm", hidden, made.owners), static_cast<float>(multiplier)};
    made.branch = {part.part, norm_of(norm, "norm", hidden, made.owners), is_parallel, sum};
    return made;
}

BoundLayer make_layer(const std::vector<BoundBranch>& branches, double scalar) {
    BoundLayer made;
    made.layer.scalar = static_cast<float>(scalar);
    bool was_parallel = true;  // the first has none beside it
    for (const BoundBranch& bound : branches) {
        Branch branch = bound.branch;
        if (made.layer.branches.empty()) branch.is_parallel = false;
        if (branch.is_parallel && was_parallel) throw nb::value_error("three branches side by side");
        was_parallel = branch.is_parallel;
        keep(made.owners, bound.owners);
        made.layer.branches.push_back(branch);
    }
    return made;
}

}  // namespace

void bind_parts(nb::module_& module) {
    nb::class_<BoundNorm> norm(module, "Norm",
                               "A norm of the last axis: by the mean square, or by the variance (`is_centered`).");
    define_init(norm, &make_norm, {"weight", "bias", "eps", "is_centered"});
    nb::class_<BoundProjection> projection(module, "Projection", "A matrix and perhaps a bias.");
    define_init(projection, &make_projection, {"matrix", "bias"});
    nb::class_<BoundPart>(module, "Part", "What a layer adds to its rows.");
    define(module, "joined", &make_joined, {"addends"},
           "The sum of what several parts make of the same rows, each after a norm or none.");
    nb::class_<BoundBranch> branch(module, "Branch", "A part of a layer with its norms.");
    define_init(
        branch, &make_branch, {"part", "norm", "is_parallel", "sum_norm", "multiplier"},
        "Adds multiplier * sum_norm(part(norm(x))) to x; a parallel one takes in x as the branch before it did.");
    nb::class_<BoundLayer> layer(module, "Layer", "Branches one after another, then a multiplication.");
    define_init(layer, &make_layer, {"branches", "scalar"});
}

}  // namespace mxconv
