// What parts of a decoder are made of, and how they make layers.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "bindings.hpp"

namespace mxconv {

Norm norm_of(const MaybeNorm& norm, const char* name, int64_t length) {
    if (!norm) return {};
    if (norm->length != length) {
        const std::string found = std::to_string(norm->length), wanted = std::to_string(length);
        throw nb::type_error((std::string(name) + ": " + found + " weights; " + wanted + " are required").c_str());
    }
    return *norm;
}

Projection projection_of(const MaybeProjection& projection, const char* name, int64_t rows, int64_t columns) {
    if (!projection) return {};
    const Matrix& m = *projection->matrix;
    if ((rows >= 0 && m.rows != rows) || (columns >= 0 && m.columns != columns)) {
        const auto shape = [](int64_t a, int64_t b) { return std::to_string(a) + ", " + std::to_string(b); };
        throw nb::type_error((std::string(name) + ": shape (" + shape(m.rows, m.columns) + "); (" +
                              shape(rows, columns) + ") is required")
                                 .c_str());
    }
    return *projection;
}

const float* vector_of(const MaybeVector& array, const char* name, int64_t length) {
    if (!array) return nullptr;
    require(*array, name, {length});
    return array->data();
}

namespace {

Norm make_norm(const Array<float>& weight, const MaybeVector& bias, double eps, bool is_centered) {
    require(weight, "weight", {-1});
    const auto length = static_cast<int64_t>(weight.shape(0));
    require_that(length >= 1, "a norm needs a weight");
    require_that(is_centered || !bias, "a norm with a bias takes the mean away");
    return {length, weight.data(), vector_of(bias, "bias", length), static_cast<float>(eps), is_centered};
}

Projection make_projection(const Matrix& matrix, const MaybeVector& bias) {
    return {&matrix, vector_of(bias, "bias", matrix.rows)};
}

Branch make_branch(const PartPointer& part, const MaybeNorm& norm, bool is_parallel, const MaybeNorm& sum_norm,
                   double multiplier) {
    const int64_t hidden = part->demands().hidden_size;
    const Sum sum{norm_of(sum_norm, "sum_norm", hidden), static_cast<float>(multiplier)};
    return {part, norm_of(norm, "norm", hidden), is_parallel, sum};
}

Layer make_layer(std::vector<Branch> branches, double scalar) {
    if (!branches.empty()) branches.front().is_parallel = false;  // it has none beside it
    for (size_t i = 1; i < branches.size(); ++i) {
        require_that(!(branches[i - 1].is_parallel && branches[i].is_parallel), "three branches side by side");
    }
    return {std::move(branches), static_cast<float>(scalar)};
}

}  // namespace

void bind_parts(nb::module_& module) {
    nb::class_<Norm> norm(module, "Norm",
                          "A norm of the last axis: by the mean square, or by the variance (`is_centered`).");
    define_init(norm, &make_norm, {"weight", "bias", "eps", "is_centered"});
    nb::class_<Projection> projection(module, "Projection", "A matrix and perhaps a bias.");
    define_init(projection, &make_projection, {"matrix", "bias"});
    nb::class_<Part>(module, "Part", "What a layer adds to its rows.");
    nb::class_<Branch> branch(module, "Branch", "A part of a layer with its norms.");
    define_init(
        branch, &make_branch, {"part", "norm", "is_parallel", "sum_norm", "multiplier"},
        "Adds multiplier * sum_norm(part(norm(x))) to x; a parallel one takes in x as the branch before it did.");
    nb::class_<Layer> layer(module, "Layer", "Branches one after another, then a multiplication.");
    define_init(layer, &make_layer, {"branches", "scalar"});
}

}  // namespace mxconv
