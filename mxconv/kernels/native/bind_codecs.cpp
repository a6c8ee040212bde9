// Encoders and decoders of the formats. They run on the thread that calls them, without the interpreter's lock.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "encoders.hpp"

namespace mxconv {

namespace {

Rows rows_of(const Array<uint16_t>& weights, const std::string& format) {
    require(weights, "weights", {-1, -1});
    const auto rows = static_cast<int64_t>(weights.shape(0)), columns = static_cast<int64_t>(weights.shape(1));
    return {float_format_of(format), weights.data(), rows, columns};
}

// Row-major index of the first weight that is not finite.
int64_t first_nonfinite(const Rows& rows) {
    for (int64_t i = 0; i < rows.rows * rows.columns; ++i) {
        if ((rows.patterns[i] & 0x7FFF) >= rows.infinity()) return i;
    }
    return -1;
}

int64_t encode_mxfp4(const Engine& engine, Array<uint16_t> weights, const std::string& float_format,
                     const std::string& rule_name, MutableArray<uint8_t> codes, MutableArray<uint8_t> scales) {
    const Rows rows = rows_of(weights, float_format);
    const int64_t T = rows.row_tiles(), blocks = rows.blocks();
    require(codes, "codes", {T, 4 * blocks, 64});
    require(scales, "scales", {T, blocks, 16});
    const auto rule = named<ScaleRule>("scale_rule", rule_name, {"ocp", "even", "ceil", "ggml", "mse"});
    uint8_t *codes_out = codes.data(), *scales_out = scales.data();
    nb::gil_scoped_release unlocked;
    bool is_finite = true;
    for (int64_t t = 0; t < T && is_finite; ++t) {
        is_finite = engine.kernels->family.encoders.mxfp4(rows, rule, t, codes_out + t * blocks * 256,
                                                          scales_out + t * blocks * kTileRows);
    }
    return is_finite ? -1 : first_nonfinite(rows);
}

int64_t encode_bsfp(const Engine& engine, Array<uint16_t> weights, const std::string& float_format, int residual_bits,
                    Array<uint16_t> starts, Array<uint8_t> order, Array<float> levels, MutableArray<uint8_t> codes,
                    MutableArray<uint8_t> residual_low, MutableArray<uint8_t> residual_high,
                    MutableArray<uint16_t> scales, MutableArray<uint8_t> escape_counts,
                    MutableArray<uint8_t> escape_positions, MutableArray<uint8_t> escape_high) {
    const Rows rows = rows_of(weights, float_format);
    const int64_t T = rows.row_tiles(), C = rows.blocks() * (kBlock / kTileColumns), groups = rows.groups();
    require_that(residual_bits >= 8 && residual_bits <= 12, "residual_bits must be 8 to 12");
    Segments segments{};
    segments.residual_bits = residual_bits;
    segments.shared_starts = starts.ndim() == 2 && starts.shape(0) == 1;
    require(starts, "starts", {segments.shared_starts ? 1 : rows.rows, 8});
    segments.starts = starts.data();
    require(order, "order", {8});
    require(levels, "levels", {8});
    for (int i = 0; i < 8; ++i) require_that(order.data()[i] <= 7, "order must be codes 0 to 7");
    std::memcpy(segments.order, order.data(), 8);
    std::memcpy(segments.levels, levels.data(), 8 * sizeof(float));
    for (size_t row = 0; row < starts.shape(0); ++row) {
        for (int rank = 1; rank < 8; ++rank) {
            const uint16_t* s = starts.data() + 8 * row;
            require_that(s[segments.order[rank - 1]] <= s[segments.order[rank]],
                         "starts must ascend in the order of codes");
        }
    }
    const int64_t planes = residual_bits - 8, room = T * C * 128 + kEscapeSlack;
    require(codes, "codes", {T, C, 64});
    require(residual_low, "residual_low", {T, C, 128});
    require(residual_high, "residual_high", {T, C, planes, 16});
    require(scales, "scales", {T, groups, 16});
    require(escape_counts, "escape_counts", {T, C});
    require(escape_positions, "escape_positions", {room});
    require(escape_high, "escape_high", {room});
    BsfpTile out{codes.data(),         residual_low.data(),     residual_high.data(), scales.data(),
                 escape_counts.data(), escape_positions.data(), escape_high.data()};
    nb::gil_scoped_release unlocked;
    int64_t num_escapes = 0;
    for (int64_t t = 0; t < T; ++t) {
        const int64_t found = engine.kernels->family.encoders.bsfp(rows, segments, t, out);
        out.codes += C * 64;
        out.residual_low += C * 128;
        out.residual_high += C * planes * 16;
        out.scales += groups * kTileRows;
        out.escape_counts += C;
        out.escape_positions += found;
        out.escape_high += found;
        num_escapes += found;
    }
    return num_escapes;
}

void sum_of_squares(const Engine& engine, Array<uint16_t> weights, const std::string& float_format,
                    MutableArray<double> out) {
    const Rows rows = rows_of(weights, float_format);
    require(out, "out", {rows.rows});
    double* sums = out.data();
    nb::gil_scoped_release unlocked;
    engine.kernels->family.encoders.sum_of_squares(rows, 0, rows.rows, sums);
}

// Row shifts: how many boundaries do not exceed a row's mean square, counted from the least shift; 0 for rows of zeros.
void row_shifts(const Engine& engine, Array<uint16_t> weights, const std::string& float_format,
                Array<double> boundaries, int least_shift, MutableArray<int8_t> out) {
    const Rows rows = rows_of(weights, float_format);
    require(boundaries, "boundaries", {-1});
    require(out, "out", {rows.rows});
    const double *begin = boundaries.data(), *end = begin + boundaries.shape(0);
    int8_t* shifts = out.data();
    nb::gil_scoped_release unlocked;
    const Encoders& encoders = engine.kernels->family.encoders;
    const auto columns = static_cast<double>(std::max<int64_t>(rows.columns, 1));
    const auto shift_of = [&](double sum) {
        return static_cast<int8_t>(std::upper_bound(begin, end, sum / columns) - begin + least_shift);
    };
    const double doubt = (columns / 16 + 64) * 0x1p-23;  // twice what the roundings can amount to
    for (int64_t row = 0; row < rows.rows; ++row) {
        if (encoders.squares_nearly != nullptr) {
            float nearly;
            encoders.squares_nearly(rows, row, row + 1, &nearly);
            const double sum = static_cast<double>(nearly);
            const int8_t low = shift_of(sum * (1 - doubt)), high = shift_of(sum * (1 + doubt));
            if (sum > 0x1p-80 && sum < 0x1p100 && low == high) {
                shifts[row] = low;
                continue;
            }
        }
        double sum;
        encoders.sum_of_squares(rows, row, row + 1, &sum);
        shifts[row] = sum > 0 ? shift_of(sum) : int8_t{0};
    }
}

void count_patterns(const Engine& engine, Array<uint16_t> weights, Array<int64_t> slots, MutableArray<int64_t> counts) {
    const Rows rows = rows_of(weights, "BF16");
    require(slots, "slots", {rows.rows});
    require(counts, "counts", {-1, 1 << 15});
    for (int64_t row = 0; row < rows.rows; ++row) {
        require_that(slots.data()[row] >= 0 && slots.data()[row] < static_cast<int64_t>(counts.shape(0)),
                     "slots must be rows of counts");
    }
    const int64_t* slot = slots.data();
    int64_t* out = counts.data();
    nb::gil_scoped_release unlocked;
    for (int64_t row = 0; row < rows.rows; ++row) {
        engine.kernels->family.encoders.count(rows.patterns + row * rows.columns, rows.columns,
                                              out + (slot[row] << 15));
    }
}

// Cells as arrays; returns the relative error and writes eight indices.
double fit_cuts(const Engine& engine, Array<double> weights, Array<double> energy, Array<double> reach, double price,
                MutableArray<int64_t> chosen) {
    require(reach, "reach", {-1});
    const auto n = static_cast<int64_t>(reach.shape(0));
    require_that(n >= 8, "at least eight cuts are required");
    require(weights, "weights", {n + 1});
    require(energy, "energy", {3, n + 1});
    require(chosen, "chosen", {8});
    const double* sums = energy.data();
    const Cells cells{n, weights.data(), sums, sums + n + 1, sums + 2 * (n + 1), reach.data()};
    int64_t* out = chosen.data();
    nb::gil_scoped_release unlocked;
    std::vector<double> numbers(static_cast<size_t>(9 * n));
    return engine.kernels->family.encoders.fit_cuts(cells, price, numbers.data(), numbers.data() + n, out);
}

void dequantize(const Engine& engine, const Matrix& m, int64_t first, MutableArray<float> out) {
    if (m.kind != MatrixKind::kFourBitFloat) throw nb::type_error("a 4-bit matrix with float levels is required");
    require(out, "out", {-1, m.columns});
    const auto rows = static_cast<int64_t>(out.shape(0));
    require_tiles(m, first, rows);
    float* values = out.data();
    nb::gil_scoped_release unlocked;
    for (int64_t row = 0; row < rows; row += kTileRows) {
        engine.kernels->family.encoders.values(m, (first + row) / kTileRows, values + row * m.columns);
    }
}

}  // namespace

void bind_codecs(nb::module_& module) {
    define(module, "encode_mxfp4", &encode_mxfp4,
           {"engine", "weights", "float_format", "scale_rule", "codes", "scales"},
           "Encode rows of 16-bit patterns to codes (T, C, 64) and scales (T, C / 4, 16). Returns -1, or the row-major "
           "index of the first weight that is not finite; the output then means nothing.");
    define(module, "encode_bsfp", &encode_bsfp,
           {"engine", "weights", "float_format", "residual_bits", "starts", "order", "levels", "codes", "residual_low",
            "residual_high", "scales", "escape_counts", "escape_positions", "escape_high"},
           "Encode rows of 16-bit patterns as BSFP; returns the number of escapes. The lists of escapes need room for "
           "every weight and 64 more bytes.");
    define(module, "sum_of_squares", &sum_of_squares, {"engine", "weights", "float_format", "out"},
           "Write the folded sum of squares of each row of 16-bit patterns to out (rows), float64.");
    define(module, "row_shifts", &row_shifts, {"engine", "weights", "float_format", "boundaries", "least_shift", "out"},
           "Write the row shifts of 16-bit patterns to out (rows), int8.");
    define(module, "count_patterns", &count_patterns, {"engine", "weights", "slots", "counts"},
           "Add 1 to counts[slots[row], magnitude] for every 16-bit pattern.");
    define(module, "fit_cuts", &fit_cuts, {"engine", "weights", "energy", "reach", "price", "chosen"},
           "Write the eight cuts of least cost to chosen; returns the relative error that they leave.");
    define(module, "dequantize", &dequantize, {"engine", "matrix", "first_row", "out"},
           "Write the values of rows first_row, first_row + 1, ... of a four_bit_float matrix to out, float32.");
}

}  // namespace mxconv
