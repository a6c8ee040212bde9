// A 16-bit matrix's tiles into scratch, eight columns of a row at a time. Included after place_of.

void dense_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, uint16_t* scratch) {
    for (int64_t r = 0; r < kTileRows; ++r) {
        const int64_t row = row_tile * kTileRows + r;
        for (int64_t tile = 0; tile < count; ++tile) {
            uint16_t* to = scratch + place_of(tile, r);
            const int64_t column = (first + tile) * kTileColumns;
            const uint16_t* from = matrix.patterns + row * matrix.columns + column;
            if (row < matrix.rows && column + kTileColumns <= matrix.columns) {
                std::memcpy(to, from, kTileColumns * sizeof(uint16_t));
            } else {
                for (int64_t c = 0; c < kTileColumns; ++c) {
                    to[c] = row < matrix.rows && column + c < matrix.columns ? from[c] : uint16_t{0};
                }
            }
        }
    }
}
