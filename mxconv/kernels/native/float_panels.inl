// 4 bits x float, four tokens of a panel at once: by float_rows and FloatLevels of an instruction set, which knows levels whose
// lower halves are zeros.

template <bool kShort>
void float_panel(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                 const FloatLevels& levels, float* out) {
    int64_t lane = 0;
    for (int64_t count; lane < width; lane += count) {
        count = least(4, width - lane);
        with_index<1, 4>(count, [&](auto tokens) {
            float* to = out + lane * kTileRows;
            float_rows<kShort, tokens>(matrix, row_tile, a, panel, width, lane, levels, to);
        });
    }
}

void four_bit_float(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                    float* out) {
    const FloatLevels levels(matrix);
    if (levels.is_short) return float_panel<true>(matrix, row_tile, a, panel, width, levels, out);
    float_panel<false>(matrix, row_tile, a, panel, width, levels, out);
}
