// Products of a draft, a row tile at a time: multiply(matrix, row tile, activations, first token, tokens, (tokens, 16) sums)
// takes up to kWidest tokens; a short cut for more, up to kRoom, gives the same sums, or false.

inline bool no_many(const Matrix&, int64_t, const Activations&, int64_t, int64_t, float*) { return false; }

template <class Multiply, class MultiplyMany>
void draft_linear(const Matrix& matrix, const Activations& a, int64_t first, int64_t last, float* out, int64_t stride,
                  Multiply multiply, MultiplyMany multiply_many) {
    alignas(64) float rows[kRoom * kTileRows];
    for (int64_t row_tile = first; row_tile < last; ++row_tile) {
        for (int64_t base = 0; base < a.num_tokens; base += kRoom) {
            const int64_t num_tokens = least(kRoom, a.num_tokens - base);
            if (!multiply_many(matrix, row_tile, a, base, num_tokens, rows)) {
                for (int64_t token = 0; token < num_tokens; token += kWidest) {
                    const int64_t width = least(kWidest, num_tokens - token);
                    multiply(matrix, row_tile, a, base + token, width, rows + token * kTileRows);
                }
            }
            for (int64_t t = 0; t < num_tokens; ++t) {
                float* row = rows + t * kTileRows;
                if (form_of(matrix.kind, matrix.format) == kInt8 && !a.finite[base + t]) {
                    for (int64_t r = 0; r < kTileRows; ++r) row[r] = __builtin_nanf("");
                }
                store_rows(row, matrix, row_tile, out + (base + t) * stride);
            }
        }
    }
}
