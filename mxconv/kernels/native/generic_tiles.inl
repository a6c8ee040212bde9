// Tiles in scratch for instruction sets without a way of their own: rows in order, 8 columns each.

using Bf16Element = uint16_t;

inline const Bf16Element* bf16_panel(const Activations& a, int64_t token) { return a.bf16 + token * a.padded; }

inline int64_t place_of(int64_t tile, int64_t row) { return (tile * kTileRows + row) * kTileColumns; }

#include "dense_tiles.inl"

void bsfp_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, EscapeCursor& escapes,
                uint16_t* scratch) {
    const int64_t planes = matrix.residual_planes;
    for (int64_t tile = 0; tile < count; ++tile) {
        const int64_t index = row_tile * matrix.column_tiles() + first + tile;
        const uint8_t* codes = matrix.codes + index * 64;
        const uint8_t* low = matrix.residual_low + index * 128;
        const uint8_t* high = matrix.residual_high + index * planes * 16;
        uint16_t* to = scratch + tile * kTileRows * kTileColumns;
        for (int64_t r = 0; r < kTileRows; ++r) {
            const uint16_t* starts = matrix.starts + (row_tile * kTileRows + r) * 8;
            for (int64_t c = 0; c < kTileColumns; ++c) {
                const int nibble = codes[4 * r + c % 4] >> (c < 4 ? 0 : 4) & 0xF;
                int pattern = starts[nibble & 7] + low[8 * r + c];
                for (int64_t plane = 0; plane < planes; ++plane)
                    pattern += (high[16 * plane + r] >> c & 1) << (8 + plane);
                to[8 * r + c] = static_cast<uint16_t>(pattern | (nibble & 8) << 12);
            }
        }
        for (int escape = 0; escape < matrix.escape_counts[index]; ++escape) {
            uint16_t& pattern = to[*escapes.positions++ & 127];
            pattern = static_cast<uint16_t>(*escapes.high++ << 8 | (pattern & 0xFF));
        }
    }
}

bool whole_tile(const Matrix&, int64_t, const Activations&, float*, int64_t) { return false; }
