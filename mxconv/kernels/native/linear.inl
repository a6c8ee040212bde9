// Products of floats, and patterns, which all instruction sets share in shape. Included inside an anonymous namespace by each,
// after its own definitions of
//
//     place_of                  where scratch keeps four columns of a row of a tile, from 0 or 4 on
//     dense_tiles, bsfp_tiles   16-bit patterns of some tiles of a row tile, 256 bytes each, into scratch
//     Bf16, F16                 formats of weights, each with an Element of activations, their panel, and kFloats partial sums a
//                               token
//     multiply_tiles, total     by format: products of tiles in scratch added to such sums; the totals of 16 rows
//     whole_tiles               how many of the first row tiles took a short cut past scratch with the same products in the
//                               same order
//     four_bit_float            rows of one row tile times up to kWidest tokens
//
// A target's products run over scratch, whichever format the patterns came from. That is why BSFP and the 16-bit
// file give the same bits: they differ in who fills scratch. A short cut must add the same products in the same order.

constexpr int64_t kTilesTogether = 4;       // row tiles that one reading of many tokens' activations serves
constexpr int64_t kSumsTogether = 1 << 16;  // their partial sums, 256 KB

template <class Format>
void target_linear(const Matrix& matrix, const Activations& a, int64_t first, int64_t last, float* out,
                   int64_t stride) {
    constexpr int64_t kSums = kSumsTogether / kTilesTogether, kMost = kSums / Format::kFloats;
    alignas(64) uint16_t scratch[kScratch];
    alignas(64) float sums[kTilesTogether * kSums];
    alignas(64) float rows[kTileRows];
    const int64_t column_tiles = matrix.column_tiles();
    for (int64_t row_tile = first, together; row_tile < last; row_tile += together) {
        together = whole_tiles(matrix, row_tile, last, a, out, stride);
        if (together > 0) continue;
        together = 1;
        if (a.num_tokens > kWidest) together = least(kTilesTogether, last - row_tile);
        for (int64_t base = 0; base < a.num_tokens; base += kMost) {
            const int64_t num_tokens = least(kMost, a.num_tokens - base);
            EscapeCursor escapes[kTilesTogether];
            for (int64_t i = 0; i < together; ++i) {
                escapes[i] = escapes_of(matrix, row_tile + i);
                std::memset(sums + i * kSums, 0, static_cast<size_t>(num_tokens * Format::kFloats) * sizeof(float));
            }
            for (int64_t tile = 0; tile < column_tiles; tile += kChunk) {
                const int64_t count = least(kChunk, column_tiles - tile);
                for (int64_t i = 0; i < together; ++i) {
                    fill(matrix, row_tile + i, tile, count, escapes[i], scratch);
                    const int64_t next_row = (i + 1) % together, next_tile = next_row == 0 ? tile + kChunk : tile;
                    NextColumns next(matrix, row_tile + next_row, next_tile, kChunk);
                    for (int64_t token = 0; token < num_tokens; token += kWidest) {
                        const int64_t width = least(kWidest, num_tokens - token);
                        const auto* x = Format::panel(a, base + token) + tile * kTileColumns * width;
                        multiply_tiles<Format>(scratch, count, x, width, sums + i * kSums + token * Format::kFloats);
                        next.ask((num_tokens + kWidest - 1) / kWidest);
                    }
                }
            }
            for (int64_t i = 0; i < together; ++i) {
                for (int64_t token = 0; token < num_tokens; ++token) {
                    total<Format>(sums + i * kSums + token * Format::kFloats, rows);
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
    if (matrix.format == FloatFormat::kBf16) return target_linear<Bf16>(matrix, a, first, last, out, stride);
    target_linear<F16>(matrix, a, first, last, out, stride);
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
                    uint16_t* to = out + ((row_tile - first) * kTileRows + r) * matrix.columns + column;
                    for (int64_t c = 0; c < columns; c += 4) {
                        std::memcpy(to + c, scratch + place_of(t, r, c), least(4, columns - c) * sizeof(uint16_t));
                    }
                }
            }
        }
    }
}

// For benchmarks: as fast as memory delivers.
uint64_t read_bytes(const uint8_t* bytes, int64_t num_bytes) {
    typedef uint64_t Register __attribute__((vector_size(kVector * sizeof(float))));
    constexpr int kRegisters = 256 / sizeof(Register);
    Register sums[kRegisters] = {};
    for (int64_t i = 0; i + 256 <= num_bytes; i += 256) {
        each<4>([&](auto line) kInlined { ask_level1(bytes + i + kPage + 64 * line); });
        each<kRegisters>([&](auto k) kInlined {
            Register part;
            std::memcpy(&part, bytes + i + k * sizeof part, sizeof part);
            sums[k] ^= part;
        });
    }
    uint64_t all = 0, words[32];
    std::memcpy(words, sums, sizeof sums);
    for (const uint64_t word : words) all ^= word;
    return all;
}
