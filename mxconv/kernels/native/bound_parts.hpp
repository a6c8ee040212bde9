// Parts of a decoder as Python hands them over: checked, and with the arrays and matrices that they point into.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "parts.hpp"

namespace mxconv {

using Owners = std::vector<nb::object>;

struct BoundNorm {
    Norm norm{};
    Owners owners;
};

struct BoundProjection {
    Projection projection{};
    Owners owners;
};

// Attention, an MLP, whatever else there is.
struct BoundPart {
    std::shared_ptr<const Part> part;
    Owners owners;
};

struct BoundBranch {
    Branch branch{};
    Owners owners;
};

struct BoundLayer {
    Layer layer{};
    Owners owners;
};

using MaybeNorm = std::optional<BoundNorm>;
using MaybeProjection = std::optional<BoundProjection>;

inline void keep(Owners& owners, const Owners& more) { owners.insert(owners.end(), more.begin(), more.end()); }

// (length), or null where there is none, kept alive by `owners`. Raises where it has another length.
const float* vector_of(const std::optional<Array<float>>& array, const char* name, int64_t length, Owners& owners);

// A norm over rows of `length`, or none, kept alive by `owners`. Raises where it has another length.
Norm norm_of(const MaybeNorm& bound, const char* name, int64_t length, Owners& owners);

// A matrix (rows, columns) and its bias, likewise; -1 is any number.
Projection projection_of(const MaybeProjection& bound, const char* name, int64_t rows, int64_t columns, Owners& owners);

// The numbers of a vector of `length`, or null, likewise.
const float* vector_of(const std::optional<Array<float>>& array, const char* name, int64_t length, Owners& owners);

}  // namespace mxconv
