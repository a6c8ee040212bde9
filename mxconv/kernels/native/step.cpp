#include "step.hpp"

#include <algorithm>

namespace mxconv {

namespace {

constexpr int64_t kWeightsAtOnce = 1 << 16;   // in a piece: long enough to stream, short enough to end together
constexpr int64_t kWeightsForMany = 1 << 18;  // of many tokens: several row tiles share a reading of activations
constexpr int64_t kFewestWeights = 1 << 12;   // under which taking a piece costs more than it
constexpr int64_t kPiecesPerThread = 4;

}  // namespace

int64_t Step::tiles_at_once(const Matrix& matrix, int64_t row_tiles, int64_t multiple) const {
    const int64_t tile = kTileRows * matrix.columns;
    const int64_t shared = row_tiles / (kPiecesPerThread * num_threads());
    const int64_t most = slice.num_tokens > 2 * kWidest ? kWeightsForMany : kWeightsAtOnce;
    const int64_t wanted = std::max(std::min(most / tile, shared), kFewestWeights / tile);
    return std::max<int64_t>(wanted / multiple, 1) * multiple;
}

void Step::take_in(const Norm& norm, int forms, Activations& to, const std::vector<int64_t>* tokens) {
    to.num_tokens = tokens != nullptr ? static_cast<int64_t>(tokens->size()) : slice.num_tokens;
    for (int64_t i = 0; i < to.num_tokens; ++i) {
        const float* row = slice.x + (tokens != nullptr ? (*tokens)[static_cast<size_t>(i)] : i) * hidden_size;
        if (forms & kInt8) to.finite[i] = 1;
        kernels.prepare(normed(norm, row), i, 0, hidden_size, forms, to);
    }
}

void Step::add_product(const Projection& projection, const Activations& inputs, const Sum& sum, float* products) {
    multiply({{&projection, &inputs, products, hidden_size}},
             [&](int64_t, int64_t token, int64_t row, int64_t count, const float* values) {
                 if (!sum.norm.exists()) add_row(values, sum, token, row, count);
             });
    if (sum.norm.exists()) add_rows(products, sum);
}

void Step::add_rows(const float* products, const Sum& sum) {
    each_token(
        [&](int64_t token) { add_row(normed(sum.norm, products + token * hidden_size), sum, token, 0, hidden_size); });
    barrier();
}

const float* Step::normed(const Norm& norm, const float* row) const {
    if (!norm.exists()) return row;
    norm.apply(kernels.rowwise, row, own.row.data());
    return own.row.data();
}

void Step::add_row(const float* product, const Sum& sum, int64_t token, int64_t first, int64_t count) const {
    float* x = (sum.rows != nullptr ? sum.rows : slice.x) + token * hidden_size + first;
    const float factor = sum.factors != nullptr ? sum.multiplier * sum.factors[token] : sum.multiplier;
    if (factor == 1.0f) {
        kernels.rowwise.add(product, count, x);
    } else {
        kernels.rowwise.add_scaled(product, factor, count, x);
    }
}

void HeadRotation::apply(const Step& step, int64_t token, float factor, int64_t size, float* values) const {
    const Rowwise& rowwise = step.kernels.rowwise;
    int64_t rotated = 0;
    if (table >= 0) {
        const Rotations& r = step.slice.pass->rotations[static_cast<size_t>(table)];
        const int64_t at = (step.slice.first + token) * r.num_pairs;
        const auto turn = is_interleaved ? rowwise.rotate_neighbours : rowwise.rotate;
        turn(r.cosines + at, r.sines + at, r.num_pairs, factor, values);
        rotated = 2 * r.num_pairs;
    }
    if (factor != 1.0f && rotated < size) rowwise.scale(factor, size - rotated, values + rotated);
}

}  // namespace mxconv
