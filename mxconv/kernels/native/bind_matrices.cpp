// Matrices over arrays of a memory-mapped package, and their products with activations.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <string>
#include <utility>

#include "arrays.hpp"
#include "bindings.hpp"
#include "define.hpp"

namespace mxconv {

Activations& ActivationBuffer::reserve(int64_t num_tokens, int64_t columns, int forms) {
    Scratch needed;
    needed.activations(num_tokens, columns, forms);
    memory_.reserve(needed.num_bytes());
    if (finite_.size() < static_cast<size_t>(num_tokens)) finite_.resize(static_cast<size_t>(num_tokens));
    return activations_ = memory_.scratch().activations(num_tokens, columns, forms, finite_.data());
}

namespace {

FloatFormat float_format(const std::string& name) {
    if (name == "BF16") return FloatFormat::kBf16;
    if (name == "F16") return FloatFormat::kF16;
    throw nb::value_error("float_format must be BF16 or F16");
}

template <class T>
const T* keep(BoundMatrix& bound, const Array<T>& array) {
    bound.owners.push_back(nb::cast(array));
    return array.data();
}

void set_shape(Matrix& matrix, int64_t rows, int64_t columns) {
    if (rows < 1 || columns < 1 || rows > int64_t{1} << 40 || columns > int64_t{1} << 40) {
        throw nb::value_error("a matrix must have rows and columns");
    }
    matrix.rows = rows;
    matrix.columns = columns;
}

BoundMatrix dense(Array<uint16_t> patterns, const std::string& format) {
    require(patterns, "patterns", {-1, -1});
    BoundMatrix bound;
    Matrix& m = bound.matrix;
    m.kind = MatrixKind::kDense;
    m.format = float_format(format);
    set_shape(m, static_cast<int64_t>(patterns.shape(0)), static_cast<int64_t>(patterns.shape(1)));
    m.patterns = keep(bound, patterns);
    return bound;
}

BoundMatrix bsfp(int64_t rows, int64_t columns, const std::string& format, Array<uint8_t> codes,
                 Array<uint8_t> residual_low, Array<uint8_t> residual_high, Array<uint16_t> starts,
                 Array<uint8_t> escape_counts, Array<int64_t> escape_offsets, Array<uint8_t> escape_positions,
                 Array<uint8_t> escape_high) {
    BoundMatrix bound;
    Matrix& m = bound.matrix;
    m.kind = MatrixKind::kBsfp;
    m.format = float_format(format);
    set_shape(m, rows, columns);
    const int64_t T = m.row_tiles(), C = m.column_tiles();
    require(codes, "codes", {T, C, 64});
    require(residual_low, "residual_low", {T, C, 128});
    require(residual_high, "residual_high", {T, C, -1, 16});
    m.residual_planes = static_cast<int64_t>(residual_high.shape(2));
    if (m.residual_planes > 4) throw nb::type_error("residual_high: more than 4 planes");
    require(starts, "starts", {16 * T, 8});
    require(escape_counts, "escape_counts", {T, C});
    require(escape_offsets, "escape_offsets", {T + 1});
    require(escape_positions, "escape_positions", {-1});
    require(escape_high, "escape_high", {static_cast<int64_t>(escape_positions.shape(0))});
    const int64_t* offsets = escape_offsets.data();
    int64_t num_escapes = 0;  // counts of a damaged file must not lead out of the lists
    for (int64_t t = 0; t < T; ++t) {
        if (offsets[t] != num_escapes) throw nb::value_error("escape_offsets are not the sums of escape_counts");
        for (int64_t c = 0; c < C; ++c) num_escapes += escape_counts.data()[t * C + c];
        for (int64_t c = 0; c < C; ++c) {
            if (escape_counts.data()[t * C + c] > 128) throw nb::value_error("escape_counts above 128");
        }
    }
    if (offsets[T] != num_escapes || num_escapes != static_cast<int64_t>(escape_high.shape(0))) {
        throw nb::value_error("escape_offsets do not end at the number of escapes");
    }
    const uint8_t* position = escape_positions.data();
    for (int64_t tile = 0; tile < T * C; ++tile) {
        int last = -1;
        for (int i = 0; i < escape_counts.data()[tile]; ++i, ++position) {
            if (*position > 127) throw nb::value_error("escape_positions above 127");
            if (*position <= last) throw nb::value_error("escape_positions of a tile that do not ascend");
            last = *position;
        }
    }
    m.codes = keep(bound, codes);
    m.residual_low = keep(bound, residual_low);
    m.residual_high = keep(bound, residual_high);
    m.starts = keep(bound, starts);
    m.shared_starts = true;
    for (int64_t i = 8; i < 128 * T; ++i) {
        if (m.starts[i] != m.starts[i - 8]) m.shared_starts = false;
    }
    m.escape_counts = keep(bound, escape_counts);
    m.escape_offsets = keep(bound, escape_offsets);
    m.escape_positions = keep(bound, escape_positions);
    m.escape_high = keep(bound, escape_high);
    return bound;
}

// Codes: (T, C, 64), or elements of 8 bits (T, 2 C, 64). Scales: uint8 E8M0 (T, blocks, 16), or uint16 BF16 (T, groups, 16).
template <class Scale>
void set_codes(BoundMatrix& bound, int64_t rows, int64_t columns, const Array<uint8_t>& codes,
               const Array<Scale>& scales, float scale_factor) {
    Matrix& m = bound.matrix;
    set_shape(m, rows, columns);
    const int64_t T = m.row_tiles(), C = m.column_tiles();
    if (m.kind == MatrixKind::kMxint8) {
        require(codes, "elements", {T, 2 * C, 64});
    } else {
        require(codes, "codes", {T, C, 64});
    }
    constexpr bool kIsE8m0 = sizeof(Scale) == 1;
    require(scales, "scales", {T, kIsE8m0 ? C / 4 : (C + 15) / 16, 16});
    m.codes = keep(bound, codes);
    m.scales = keep(bound, scales);
    m.scale_format = kIsE8m0 ? ScaleFormat::kE8m0 : ScaleFormat::kBf16;
    m.scale_factor = scale_factor;
}

template <class Scale>
BoundMatrix four_bit_int8(int64_t rows, int64_t columns, Array<uint8_t> codes, Array<int8_t> levels,
                          Array<Scale> scales, float scale_factor) {
    BoundMatrix bound;
    bound.matrix.kind = MatrixKind::kFourBitInt8;
    set_codes(bound, rows, columns, codes, scales, scale_factor);
    require(levels, "levels", {16});
    for (int i = 0; i < 16; ++i) {
        if (levels.data()[i] == -128) throw nb::value_error("levels must be -127 to 127");
    }
    std::memcpy(bound.matrix.levels, levels.data(), 16);
    return bound;
}

template <class Scale>
BoundMatrix four_bit_float(int64_t rows, int64_t columns, Array<uint8_t> codes, Array<float> levels,
                           Array<Scale> scales, float scale_factor) {
    BoundMatrix bound;
    bound.matrix.kind = MatrixKind::kFourBitFloat;
    set_codes(bound, rows, columns, codes, scales, scale_factor);
    require(levels, "levels", {16});
    std::memcpy(bound.matrix.float_levels, levels.data(), 16 * sizeof(float));
    return bound;
}

BoundMatrix mxint8(int64_t rows, int64_t columns, Array<uint8_t> elements, Array<uint8_t> scales) {
    BoundMatrix bound;
    bound.matrix.kind = MatrixKind::kMxint8;
    set_codes(bound, rows, columns, elements, scales, 0x1p-6f);  // an element is its integer times 2^-6
    return bound;
}

constexpr int64_t kTilesAtOnce = 4;  // row tiles that a thread takes; 16 rows of 8192 weights are 64 KB at 4 bits

void multiply(const BoundMatrix& self, Engine& engine, Array<float> x, MutableArray<float> out) {
    const Matrix& m = self.matrix;
    require(x, "x", {-1, m.columns});
    const auto num_tokens = static_cast<int64_t>(x.shape(0));
    require(out, "out", {num_tokens, m.rows});
    const float* inputs = x.data();
    float* outputs = out.data();
    nb::gil_scoped_release unlocked;
    const int form = form_of(m.kind, m.format);
    static thread_local ActivationBuffer buffer;
    const Activations& a = buffer.reserve(num_tokens, m.columns, form);
    Pieces pieces(engine.team->size());
    engine.team->run([&](int thread) {
        for (int64_t t = thread; t < num_tokens; t += engine.team->size()) {
            if (form & kInt8) a.finite[t] = 1;
            engine.kernels->prepare(inputs + t * m.columns, t, 0, m.columns, form, a);
        }
        engine.team->barrier();
        const int64_t tiles = m.row_tiles(), count = (tiles + kTilesAtOnce - 1) / kTilesAtOnce;
        for (int64_t i; (i = pieces.take(count, thread)) >= 0;) {
            const int64_t first = i * kTilesAtOnce;
            engine.kernels->linear(m, a, first, std::min(first + kTilesAtOnce, tiles), outputs, m.rows);
        }
    });
}

void restore(const BoundMatrix& self, Engine& engine, int64_t first, MutableArray<uint16_t> out) {
    const Matrix& m = self.matrix;
    if (m.kind != MatrixKind::kDense && m.kind != MatrixKind::kBsfp) {
        throw nb::type_error("a 4-bit or 8-bit matrix has no 16-bit patterns");
    }
    require(out, "out", {-1, m.columns});
    const auto rows = static_cast<int64_t>(out.shape(0));
    if (first % kTileRows || first < 0 || first + rows > m.rows || (rows % kTileRows && first + rows != m.rows)) {
        throw nb::value_error("rows must be whole tiles of 16 of the matrix");
    }
    uint16_t* outputs = out.data();
    nb::gil_scoped_release unlocked;
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    if (tiles == 1) {  // an embedding look-up: waking the team takes longer
        engine.kernels->family.patterns(m, first / kTileRows, first / kTileRows + 1, outputs);
        return;
    }
    Pieces pieces(engine.team->size());
    engine.team->run([&](int thread) {
        for (int64_t i; (i = pieces.take(tiles, thread)) >= 0;) {
            engine.kernels->family.patterns(m, first / kTileRows + i, first / kTileRows + i + 1,
                                            outputs + i * kTileRows * m.columns);
        }
    });
}

}  // namespace

void bind_matrices(nb::module_& module) {
    nb::class_<BoundMatrix> matrix(module, "Matrix", "A weight matrix over arrays that stay where they are.");
    matrix.def_prop_ro("shape",
                       [](const BoundMatrix& self) { return std::pair(self.matrix.rows, self.matrix.columns); });
    define_method(matrix, "multiply", &multiply, {"engine", "x", "out"},
                  "Write x (tokens, in_features) times the matrix to out (tokens, out_features), float32.");
    define_method(
        matrix, "patterns", &restore, {"engine", "first_row", "out"},
        "Write the 16-bit patterns of rows first_row, first_row + 1, ... to out (rows, in_features), uint16.");
    define(module, "dense", &dense, {"patterns", "float_format"});
    define(module, "bsfp", &bsfp,
           {"rows", "columns", "float_format", "codes", "residual_low", "residual_high", "starts", "escape_counts",
            "escape_offsets", "escape_positions", "escape_high"});
    constexpr const char* kFourBits[] = {"rows", "columns", "codes", "levels", "scales", "scale_factor"};
    define(module, "four_bit_int8", &four_bit_int8<uint8_t>, kFourBits);
    define(module, "four_bit_int8", &four_bit_int8<uint16_t>, kFourBits);
    define(module, "four_bit_float", &four_bit_float<uint8_t>, kFourBits);
    define(module, "four_bit_float", &four_bit_float<uint16_t>, kFourBits);
    define(module, "mxint8", &mxint8, {"rows", "columns", "elements", "scales"});
}

}  // namespace mxconv
