// Products of floats, and patterns, which all instruction sets share in shape. Included inside an anonymous namespace by each of them,
// after its own definitions of
//
//     place_of                                  where scratch keeps the eight columns of a row of a tile
//     dense_tiles, bsfp_tiles                   16-bit patterns of some tiles of a row tile, 256 bytes each, into scratch
//     Bf16Element, bf16_panel                   the activations that BF16 weights are multiplied by
//     kBf16Lanes, bf16_product, bf16_sum        partial sums a row, products of tiles in scratch, their total
//     kF16Lanes, f16_product, f16_sum
//     whole_tile                                a short cut past scratch with the same products in the same order, or false
//     four_bit_float                            rows of one row tile times up to kWidest tokens
//
// A target's products run over scratch, whichever format the patterns came from. That is why BSFP and the 16-bit
// file give the same bits: they differ in who fills scratch. A short cut must add the same products in the same order.

// Fill scratch with column tiles [first, first + count) of a row tile.
inline void fill(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, EscapeCursor& escapes,
                 uint16_t* scratch) {
    if (matrix.kind == MatrixKind::kDense) {
        dense_tiles(matrix, row_tile, first, count, scratch);
    } else {
        bsfp_tiles(matrix, row_tile, first, count, escapes, scratch);
    }
}

struct Bf16Product {
    using Element = Bf16Element;
    static constexpr int64_t kLanes = kBf16Lanes * kTileRows;
    static const Element* panel(const Activations& a, int64_t token) { return bf16_panel(a, token); }
    static void add(const uint16_t* scratch, int64_t count, const Element* x, int64_t width, float* sums) {
        bf16_product(scratch, count, x, width, sums);
    }
    static void total(const float* sums, float* out) { bf16_sum(sums, out); }
};

struct F16Product {
    using Element = float;
    static constexpr int64_t kLanes = kF16Lanes * kTileRows;
    static const Element* panel(const Activations& a, int64_t token) { return a.values + token * a.padded; }
    static void add(const uint16_t* scratch, int64_t count, const Element* x, int64_t width, float* sums) {
        f16_product(scratch, count, x, width, sums);
    }
    static void total(const float* sums, float* out) { f16_sum(sums, out); }
};

constexpr int64_t kTilesTogether = 4;  // row tiles that one reading of many tokens' activations serves

template <class Product>
void target_linear(const Matrix& matrix, const Activations& a, int64_t first, int64_t last, float* out,
                   int64_t stride) {
    constexpr int64_t kSums = kRoom * Product::kLanes;
    alignas(64) uint16_t scratch[kScratch];
    alignas(64) float sums[kTilesTogether * kSums];
    alignas(64) float rows[kTileRows];
    const int64_t column_tiles = matrix.column_tiles();
    for (int64_t row_tile = first, together; row_tile < last; row_tile += together) {
        together = 1;
        if (whole_tile(matrix, row_tile, a, out, stride)) continue;
        if (a.num_tokens > kWidest) together = least(kTilesTogether, last - row_tile);
        for (int64_t base = 0; base < a.num_tokens; base += kRoom) {
            const int64_t num_tokens = least(kRoom, a.num_tokens - base);
            EscapeCursor escapes[kTilesTogether];
            for (int64_t i = 0; i < together; ++i) {
                escapes[i] = escapes_of(matrix, row_tile + i);
                std::memset(sums + i * kSums, 0, static_cast<size_t>(num_tokens * Product::kLanes) * sizeof(float));
            }
            for (int64_t tile = 0; tile < column_tiles; tile += kChunk) {
                const int64_t count = least(kChunk, column_tiles - tile);
                for (int64_t i = 0; i < together; ++i) {
                    fill(matrix, row_tile + i, tile, count, escapes[i], scratch);
                    for (int64_t token = 0; token < num_tokens; token += kWidest) {
                        const int64_t width = least(kWidest, num_tokens - token);
                        const auto* x = Product::panel(a, base + token) + tile * kTileColumns * width;
                        Product::add(scratch, count, x, width, sums + i * kSums + token * Product::kLanes);
                    }
                }
            }
            for (int64_t i = 0; i < together; ++i) {
                for (int64_t token = 0; token < num_tokens; ++token) {
                    Product::total(sums + i * kSums + token * Product::kLanes, rows);
                    store_rows(rows, matrix, row_tile + i, out + (base + token) * stride);
                }
            }
        }
    }
}

void linear_of_floats(const Matrix& matrix, const Activations& a, int64_t first, int64_t last, float* out,
                      int64_t stride) {
    if (matrix.kind == MatrixKind::kFourBitFloat) {
        return draft_linear(matrix, a, first, last, out, stride, four_bit_float, no_many);
    }
    if (matrix.format == FloatFormat::kBf16) return target_linear<Bf16Product>(matrix, a, first, last, out, stride);
    target_linear<F16Product>(matrix, a, first, last, out, stride);
}

void patterns(const Matrix& matrix, int64_t first, int64_t last, uint16_t* out) {
    alignas(64) uint16_t scratch[kScratch];
    const int64_t column_tiles = matrix.column_tiles();
    for (int64_t row_tile = first; row_tile < last; ++row_tile) {
        const int64_t rows = least(kTileRows, matrix.rows - row_tile * kTileRows);
        EscapeCursor escapes = escapes_of(matrix, row_tile);
        for (int64_t tile = 0; tile < column_tiles; tile += kChunk) {
            const int64_t count = least(kChunk, column_tiles - tile);
            fill(matrix, row_tile, tile, count, escapes, scratch);
            for (int64_t t = 0; t < count; ++t) {
                const int64_t column = (tile + t) * kTileColumns;
                const int64_t columns = least(kTileColumns, matrix.columns - column);
                if (columns <= 0) break;
                for (int64_t r = 0; r < rows; ++r) {
                    const uint16_t* from = scratch + place_of(t, r);
                    uint16_t* to = out + ((row_tile - first) * kTileRows + r) * matrix.columns + column;
                    std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(uint16_t));
                }
            }
        }
    }
}
