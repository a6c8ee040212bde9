// BSFP in plain C++: formats/bsfp.md. Included inside an anonymous namespace, after encode_mxfp4.inl.

inline const uint16_t* patterns_of(const Rows& rows, int64_t row) {
    return static_cast<const uint16_t*>(rows.values) + row * rows.columns;
}

inline const uint16_t* starts_of(const Segments& segments, int64_t row) {
    return segments.starts + (segments.shared_starts ? 0 : 8 * row);
}

// A weight's value in binary64; 0 for infinities and NaNs.
inline double weight_value(uint16_t pattern, WeightFormat format) {
    const bool is_bf16 = format == WeightFormat::kBf16;
    const bool is_finite = (pattern & 0x7FFF) < (is_bf16 ? 0x7F80 : 0x7C00);
    const float value = is_bf16 ? bf16_value(pattern) : finite_f16(pattern);
    return is_finite ? static_cast<double>(value) : 0.0;
}

void sum_of_squares_plainly(const Rows& rows, int64_t first, int64_t last, double* sums) {
    for (int64_t row = first; row < last; ++row) {
        const uint16_t* patterns = patterns_of(rows, row);
        double total = 0;
        for (int64_t column = 0; column < rows.columns; column += kGroup) {
            const int64_t count = least(kGroup, rows.columns - column);
            double squares[kGroup];
            for (int64_t i = 0; i < count; ++i) {
                const double value = weight_value(patterns[column + i], rows.format);
                squares[i] = value * value;
            }
            for (int64_t i = count; i < kGroup; ++i) squares[i] = 0;
            total += fold<kGroup>(squares);
        }
        sums[row - first] = total;
    }
}

void count_patterns(const uint16_t* patterns, int64_t num_patterns, int64_t* counts) {
    int64_t i = 0;
    for (; i + 4 <= num_patterns; i += 4) {
        uint64_t four;
        std::memcpy(&four, patterns + i, sizeof four);
        ++counts[four & 0x7FFF];
        ++counts[four >> 16 & 0x7FFF];
        ++counts[four >> 32 & 0x7FFF];
        ++counts[four >> 48 & 0x7FFF];
    }
    for (; i < num_patterns; ++i) ++counts[patterns[i] & 0x7FFF];
}

// The BF16 pattern of sum(w q) / sum(q q): through binary32, each time to nearest even.
inline uint16_t group_scale(double products, double squares) {
    if (!(squares > 0)) return 0;
    const double scale = products / squares;
    return round_to_bf16(static_cast<float>(scale < 0x1.fep127 ? scale : 0x1.fep127));
}

int64_t encode_bsfp_plainly(const Rows& rows, const Segments& segments, int64_t row_tile, const BsfpTile& out) {
    const int64_t tiles = rows.blocks() * (kBlock / kTileColumns);
    const int64_t planes = segments.residual_bits - 8;
    const int64_t num_rows = least(kTileRows, rows.rows - row_tile * kTileRows);
    std::memset(out.codes, 0, static_cast<size_t>(tiles * 64));
    std::memset(out.residual_low, 0, static_cast<size_t>(tiles * 128));
    std::memset(out.residual_high, 0, static_cast<size_t>(tiles * planes * 16));
    std::memset(out.scales, 0, static_cast<size_t>(rows.groups() * kTileRows) * sizeof(uint16_t));
    for (int64_t r = 0; r < num_rows; ++r) {
        const uint16_t* patterns = patterns_of(rows, row_tile * kTileRows + r);
        const uint16_t* starts = starts_of(segments, row_tile * kTileRows + r);
        double products[kGroup], squares[kGroup];
        for (int64_t column = 0; column < rows.columns; ++column) {
            const uint16_t pattern = patterns[column];
            const int magnitude = pattern & 0x7FFF;
            int rank = 0;
            for (int k = 1; k < 8; ++k) rank += magnitude >= starts[segments.order[k]];
            const int code = segments.order[rank];
            const int offset = magnitude - starts[code];
            const bool is_escape = offset < 0 || offset >> segments.residual_bits != 0;
            const int residual = is_escape ? offset & 0xFF : offset;
            const int nibble = code | (pattern >> 12 & 8);
            const int64_t tile = column / kTileColumns, c = column % kTileColumns;
            out.codes[tile * 64 + 4 * r + c % 4] |= static_cast<uint8_t>(c < 4 ? nibble : nibble << 4);
            out.residual_low[tile * 128 + 8 * r + c] = static_cast<uint8_t>(residual);
            for (int64_t plane = 0; plane < planes; ++plane) {
                out.residual_high[(tile * planes + plane) * 16 + r] |=
                    static_cast<uint8_t>((residual >> (8 + plane) & 1) << c);
            }
            // with the sign of both: an infinity counts as +0, and a negative level times that is -0
            const double level = static_cast<double>(segments.levels[code]);
            const double signed_level = pattern & 0x8000 ? -level : level;
            products[column % kGroup] = weight_value(pattern, rows.format) * signed_level;
            squares[column % kGroup] = level * level;
            if (column % kGroup == kGroup - 1 || column == rows.columns - 1) {
                for (int64_t i = column % kGroup + 1; i < kGroup; ++i) products[i] = squares[i] = 0;
                const double product = fold<kGroup>(products), square = fold<kGroup>(squares);
                out.scales[column / kGroup * kTileRows + r] = group_scale(product, square);
            }
        }
    }
    int64_t num_escapes = 0;  // in the order of tiles, which the loop above does not have
    for (int64_t tile = 0; tile < tiles; ++tile) {
        int in_tile = 0;
        for (int64_t r = 0; r < num_rows; ++r) {
            const uint16_t* patterns = patterns_of(rows, row_tile * kTileRows + r);
            const uint16_t* starts = starts_of(segments, row_tile * kTileRows + r);
            for (int64_t c = 0; c < least(kTileColumns, rows.columns - tile * kTileColumns); ++c) {
                const uint16_t pattern = patterns[tile * kTileColumns + c];
                const int code = out.codes[tile * 64 + 4 * r + c % 4] >> (c < 4 ? 0 : 4) & 7;
                const int offset = (pattern & 0x7FFF) - starts[code];
                if (offset >= 0 && offset >> segments.residual_bits == 0) continue;
                out.escape_positions[num_escapes] = static_cast<uint8_t>(8 * r + c);
                out.escape_high[num_escapes] = static_cast<uint8_t>(pattern >> 8);
                ++num_escapes;
                ++in_tile;
            }
        }
        out.escape_counts[tile] = static_cast<uint8_t>(in_tile);
    }
    return num_escapes;
}

// ---- the draft's values, of MXFP4 as of BSFP ----

void draft_values(const Matrix& matrix, int64_t row_tile, float* out) {
    const int64_t num_rows = least(kTileRows, matrix.rows - row_tile * kTileRows);
    const int64_t blocks = matrix.column_tiles() * kTileColumns / kBlock;
    const uint8_t* codes = matrix.codes + row_tile * blocks * 256;
    for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t block = 0; block < blocks; ++block) {
            float scale = scale_value(matrix, row_tile, block, r);
            if (matrix.scale_format == ScaleFormat::kE8m0) {  // 255 is NaN; kernels may take it for an infinity
                const auto* stored = static_cast<const uint8_t*>(matrix.scales);
                if (stored[(row_tile * blocks + block) * kTileRows + r] == 255) scale = __builtin_nanf("");
            }
            const int64_t columns = least(kBlock, matrix.columns - block * kBlock);
            for (int64_t c = 0; c < columns; ++c) {
                const uint8_t byte = codes[block * 256 + c / 8 * 64 + 4 * r + c % 4];
                const float level = matrix.float_levels[byte >> (c % 8 < 4 ? 0 : 4) & 0xF];
                out[r * matrix.columns + block * kBlock + c] = level * scale;
            }
        }
    }
}
