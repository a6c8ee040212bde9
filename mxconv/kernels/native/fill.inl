// Scratch of patterns, which a 16-bit matrix or BSFP fills: by dense_tiles and bsfp_tiles of an instruction set.

// Fill scratch with column tiles [first, first + count) of a row tile.
inline void fill(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, EscapeCursor& escapes,
                 uint16_t* scratch) {
    if (matrix.kind == MatrixKind::kDense) {
        dense_tiles(matrix, row_tile, first, count, scratch);
    } else {
        bsfp_tiles(matrix, row_tile, first, count, escapes, scratch);
    }
}

// The columns of a dense row tile that are filled into scratch next: while tokens are multiplied, some of their lines are asked
// for.
struct NextColumns {
    const uint16_t* first;
    int64_t columns;  // of the matrix
    int64_t num_lines, num_asked;

    NextColumns(const Matrix& matrix, int64_t row_tile, int64_t tile, int64_t most)
        : first(matrix.patterns + row_tile * kTileRows * matrix.columns + tile * kTileColumns),
          columns(matrix.columns),
          num_lines(0),
          num_asked(0) {
        if (matrix.kind != MatrixKind::kDense) return;
        num_lines = least(most, matrix.column_tiles() - tile) * (kTileRows * kTileColumns / kLineWeights);
    }

    void ask(int64_t num_times) {
        const int64_t end = least(num_asked + num_lines / num_times + 1, num_lines);
        for (; num_asked < end; ++num_asked) {
            ask_level2(first + num_asked % kTileRows * columns + num_asked / kTileRows * kLineWeights);
        }
    }
};
