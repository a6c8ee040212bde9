// Matrices over arrays of a memory-mapped package, their products with activations, and the reader of their planes.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "plane_reader.hpp"

namespace mxconv {

FloatFormat float_format_of(const std::string& name) {
    return named<FloatFormat>("float_format", name, {"BF16", "F16"});
}

void require_tiles(const Matrix& matrix, int64_t first, int64_t rows) {
    const int64_t end = first + rows;
    require_that(
        first >= 0 && first % kTileRows == 0 && end <= matrix.rows && (rows % kTileRows == 0 || end == matrix.rows),
        "rows must be whole tiles of 16 of the matrix");
}

namespace {

void set_shape(Matrix& matrix, int64_t rows, int64_t columns) {
    constexpr int64_t kMost = int64_t{1} << 40;
    require_that(rows >= 1 && columns >= 1 && rows <= kMost && columns <= kMost, "a matrix must have rows and columns");
    matrix.rows = rows;
    matrix.columns = columns;
}

Matrix dense(Array<uint16_t> patterns, const std::string& format) {
    require(patterns, "patterns", {-1, -1});
    Matrix m{};
    m.kind = MatrixKind::kDense;
    m.format = float_format_of(format);
    set_shape(m, static_cast<int64_t>(patterns.shape(0)), static_cast<int64_t>(patterns.shape(1)));
    m.patterns = patterns.data();
    return m;
}

Matrix bsfp(int64_t rows, int64_t columns, const std::string& format, Array<uint8_t> codes, Array<uint8_t> residual_low,
            Array<uint8_t> residual_high, Array<uint16_t> starts, Array<uint8_t> escape_counts,
            Array<int64_t> escape_offsets, Array<uint8_t> escape_positions, Array<uint8_t> escape_high) {
    Matrix m{};
    m.kind = MatrixKind::kBsfp;
    m.format = float_format_of(format);
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
        require_that(offsets[t] == num_escapes, "escape_offsets are not the sums of escape_counts");
        for (int64_t c = 0; c < C; ++c) {
            const uint8_t count = escape_counts.data()[t * C + c];
            require_that(count <= 128, "escape_counts above 128");
            num_escapes += count;
        }
    }
    require_that(offsets[T] == num_escapes && num_escapes == static_cast<int64_t>(escape_high.shape(0)),
                 "escape_offsets do not end at the number of escapes");
    const uint8_t* position = escape_positions.data();
    for (int64_t tile = 0; tile < T * C; ++tile) {
        int last = -1;
        for (int i = 0; i < escape_counts.data()[tile]; ++i, ++position) {
            require_that(*position <= 127, "escape_positions above 127");
            require_that(*position > last, "escape_positions of a tile that do not ascend");
            last = *position;
        }
    }
    m.codes = codes.data();
    m.residual_low = residual_low.data();
    m.residual_high = residual_high.data();
    m.starts = starts.data();
    m.shared_starts = true;
    for (int64_t i = 8; i < 128 * T; ++i) {
        if (m.starts[i] != m.starts[i - 8]) m.shared_starts = false;
    }
    m.escape_counts = escape_counts.data();
    m.escape_offsets = escape_offsets.data();
    m.escape_positions = escape_positions.data();
    m.escape_high = escape_high.data();
    return m;
}

// Codes: (T, C, 64), or elements of 8 bits (T, 2 C, 64). Scales: uint8 E8M0 (T, blocks, 16), or uint16 BF16 (T, groups, 16).
template <class Scale>
void set_codes(Matrix& m, int64_t rows, int64_t columns, const Array<uint8_t>& codes, const Array<Scale>& scales,
               float scale_factor) {
    set_shape(m, rows, columns);
    const int64_t T = m.row_tiles(), C = m.column_tiles();
    const bool is_mxint8 = m.kind == MatrixKind::kMxint8;
    require(codes, is_mxint8 ? "elements" : "codes", {T, is_mxint8 ? 2 * C : C, 64});
    constexpr bool kIsE8m0 = sizeof(Scale) == 1;
    require(scales, "scales", {T, kIsE8m0 ? C / 4 : (C + 15) / 16, 16});
    m.codes = codes.data();
    m.scales = scales.data();
    m.scale_format = kIsE8m0 ? ScaleFormat::kE8m0 : ScaleFormat::kBf16;
    m.scale_factor = scale_factor;
}

template <class Scale>
Matrix four_bit_int8(int64_t rows, int64_t columns, Array<uint8_t> codes, Array<int8_t> levels, Array<Scale> scales,
                     float scale_factor) {
    Matrix m{};
    m.kind = MatrixKind::kFourBitInt8;
    set_codes(m, rows, columns, codes, scales, scale_factor);
    require(levels, "levels", {16});
    for (int i = 0; i < 16; ++i) {
        if (levels.data()[i] == -128) throw nb::value_error("levels must be -127 to 127");
    }
    std::memcpy(m.levels, levels.data(), 16);
    return m;
}

template <class Scale>
Matrix four_bit_float(int64_t rows, int64_t columns, Array<uint8_t> codes, Array<float> levels, Array<Scale> scales,
                      float scale_factor) {
    Matrix m{};
    m.kind = MatrixKind::kFourBitFloat;
    set_codes(m, rows, columns, codes, scales, scale_factor);
    require(levels, "levels", {16});
    std::memcpy(m.float_levels, levels.data(), 16 * sizeof(float));
    return m;
}

Matrix mxint8(int64_t rows, int64_t columns, Array<uint8_t> elements, Array<uint8_t> scales) {
    Matrix m{};
    m.kind = MatrixKind::kMxint8;
    set_codes(m, rows, columns, elements, scales, 0x1p-6f);  // an element is its integer times 2^-6
    return m;
}

constexpr int64_t kTilesAtOnce = 4;  // row tiles that a thread takes; 16 rows of 8192 weights are 64 KB at 4 bits

void multiply(const Matrix& m, Engine& engine, Array<float> x, MutableArray<float> out) {
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

void restore(const Matrix& m, Engine& engine, int64_t first, MutableArray<uint16_t> out) {
    if (m.kind != MatrixKind::kDense && m.kind != MatrixKind::kBsfp) {
        throw nb::type_error("a 4-bit or 8-bit matrix has no 16-bit patterns");
    }
    require(out, "out", {-1, m.columns});
    const auto rows = static_cast<int64_t>(out.shape(0));
    require_tiles(m, first, rows);
    uint16_t* outputs = out.data();
    nb::gil_scoped_release unlocked;
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    if (tiles == 1) {  // an embedding look-up: waking the team takes longer
        return restore_tile(engine.kernels->family, m, first / kTileRows, outputs);
    }
    Pieces pieces(engine.team->size());
    engine.team->run([&](int thread) {
        for (int64_t i; (i = pieces.take(tiles, thread)) >= 0;) {
            engine.kernels->family.patterns(m, first / kTileRows + i, first / kTileRows + i + 1,
                                            outputs + i * kTileRows * m.columns);
        }
    });
}

using Matrices = PlaneReader::Matrices;

void make_reader(PlaneReader* self, const std::vector<std::pair<std::string, Array<uint8_t>>>& mapped,
                 const std::vector<Matrices>& stages, Matrix* head, const std::vector<Matrices>& experts,
                 const Matrices& tables, const Matrices& made) {
    std::vector<std::unique_ptr<PlaneFile>> files;
    for (const auto& [path, bytes] : mapped) {
        require(bytes, "bytes", {-1});
        files.push_back(std::make_unique<PlaneFile>(path, bytes.data(), static_cast<int64_t>(bytes.shape(0))));
    }
    new (self) PlaneReader(std::move(files), stages, head, experts, tables, made);
}

void start(PlaneReader& self, int64_t num_kept, int64_t num_buffers) {
    require_that(num_kept >= 0 && num_kept <= static_cast<int64_t>(self.stage_bytes().size()), "no such stages");
    require_that(num_buffers >= 1, "a buffer is required");
    nb::gil_scoped_release unlocked;
    self.start(num_kept, num_buffers);
}

}  // namespace

void bind_matrices(nb::module_& module) {
    nb::class_<Matrix> matrix(module, "Matrix", "A weight matrix over arrays that stay where they are.");
    matrix.def_prop_ro("shape", [](const Matrix& self) { return std::pair(self.rows, self.columns); });
    define_method(matrix, "multiply", &multiply, {"engine", "x", "out"},
                  "Write x (tokens, in_features) times the matrix to out (tokens, out_features), float32.");
    define_method(
        matrix, "patterns", &restore, {"engine", "first_row", "out"},
        "Write the 16-bit patterns of rows first_row, first_row + 1, ... to out (rows, in_features), uint16.");
    define<0>(module, "dense", &dense, {"patterns", "float_format"});
    define<0>(module, "bsfp", &bsfp,
              {"rows", "columns", "float_format", "codes", "residual_low", "residual_high", "starts", "escape_counts",
               "escape_offsets", "escape_positions", "escape_high"});
    constexpr const char* kFourBits[] = {"rows", "columns", "codes", "levels", "scales", "scale_factor"};
    define<0>(module, "four_bit_int8", &four_bit_int8<uint8_t>, kFourBits);
    define<0>(module, "four_bit_int8", &four_bit_int8<uint16_t>, kFourBits);
    define<0>(module, "four_bit_float", &four_bit_float<uint8_t>, kFourBits);
    define<0>(module, "four_bit_float", &four_bit_float<uint16_t>, kFourBits);
    define<0>(module, "mxint8", &mxint8, {"rows", "columns", "elements", "scales"});
    nb::exception<ReadError>(module, "ReadError");
    nb::class_<PlaneReader>(module, "PlaneReader",
                            "Reads weights into memory, or what passes multiply by ahead of them.")
        .def("__init__", &make_reader, nb::arg("files"), nb::arg("stages"), nb::arg("head").none(), nb::arg("experts"),
             nb::arg("tables"), nb::arg("made"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
             "Of files, each a path and all that is mapped of it; of matrices by stages, and of an output head at last "
             "(None: it is in memory); of experts by layers; of tables that rows are looked up in; of all that was "
             "made.")
        .def_prop_ro("resident_bytes", &PlaneReader::resident_bytes, "Bytes of what is read for good.")
        .def("measure", &PlaneReader::measure, nb::call_guard<nb::gil_scoped_release>(),
             "Bytes a second that the disk gives. Call it before `start`.")
        .def_prop_ro("stage_bytes", &PlaneReader::stage_bytes,
                     "Bytes that each stage takes, parts of the head after the others, then each layer's experts.")
        .def_prop_ro("num_stages", &PlaneReader::num_stages, "Number of stages of a pass, without experts.")
        .def("start", &start, nb::arg("num_kept"), nb::arg("num_buffers"),
             "Read for good what is resident and the first stages, other stages through buffers from now on, and other "
             "experts when they are chosen. Call it once.");
}

}  // namespace mxconv
