// What the parts of the extension module offer to each other: what Python hands over, checked.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "define.hpp"
#include "engine.hpp"
#include "parts.hpp"
#include "pass.hpp"

namespace mxconv {

using MaybeVector = std::optional<Array<float>>;
using MaybeNorm = std::optional<Norm>;
using MaybeProjection = std::optional<Projection>;
using PartPointer = std::shared_ptr<const Part>;

// The numbers of a vector, or null where there is none. These three raise where it has another length or shape.
const float* vector_of(const MaybeVector& array, const char* name, int64_t length);

// A norm over rows of `length`, or none.
Norm norm_of(const MaybeNorm& norm, const char* name, int64_t length);

// A matrix (rows, columns) and its bias, or none; -1 is any number.
Projection projection_of(const MaybeProjection& projection, const char* name, int64_t rows, int64_t columns);

// Raise where there is no such name.
Activation activation_of(const std::string& name);
CacheDtype cache_dtype_of(const std::string& name);
FloatFormat float_format_of(const std::string& name);

// Raises where rows [first, first + rows) are no whole tiles of a matrix.
void require_tiles(const Matrix& matrix, int64_t first, int64_t rows);

// The pages of a sequence's cache by their numbers in some slabs: the first slab has pages 0, 1, ..., the next one goes on.
struct BoundPages {
    std::string dtype;
    std::vector<nb::object> slabs;
    Array<int32_t> numbers;
};

// States of a sequence and its way through a pass.
struct BoundWalk {
    MutableArray<float> windows, memories, inputs, kept;
    Walk walk;  // without its pointers
};

// The tokens of one sequence in a pass: arrays as Python hands them over, checked when they meet a decoder.
struct BoundSequence {
    BoundPages pages;
    int64_t length, num_tokens, num_logits;
    std::optional<Array<uint64_t>> masks;
    int64_t mask_start;
    std::vector<int64_t> stages;
    std::optional<MutableArray<float>> states;
    int64_t num_left_out;
    std::optional<BoundWalk> walk;
    std::optional<MutableArray<float>> key_ranges;
    int64_t num_ranges;

    // Raises where an array does not fit.
    SequenceTokens checked(const DecoderParts& decoder) const;
};

void bind_attention(nb::module_& module);
void bind_codecs(nb::module_& module);
void bind_composed(nb::module_& module);
void bind_decoder(nb::module_& module);
void bind_delta_net(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_latent(nb::module_& module);
void bind_mamba2(nb::module_& module);
void bind_matrices(nb::module_& module);
void bind_mixture(nb::module_& module);
void bind_mlp(nb::module_& module);
void bind_parts(nb::module_& module);
void bind_recurrent(nb::module_& module);
void bind_routing(nb::module_& module);
void bind_rowwise(nb::module_& module);
void bind_sequences(nb::module_& module);
void bind_short_convolution(nb::module_& module);

}  // namespace mxconv
