// BSFP in plain C++: formats/bsfp.md. Included inside an anonymous namespace, after encode_mxfp4.inl.

inline const uint16_t* patterns_of(const Rows& rows, int64_t row) { return rows.patterns + row * rows.columns; }

inline const uint16_t* starts_of(const Segments& segments, int64_t row) {
    return segments.starts + (segments.shared_starts ? 0 : 8 * row);
}

// A weight's value in binary64; 0 for infinities and NaNs.
inline double weight_value(uint16_t pattern, FloatFormat format) {
    const bool is_bf16 = format == FloatFormat::kBf16;
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

// Segments of up to 32 weights of a row.
struct Split {
    uint16_t offsets[32];  // from the start, modulo 2^16: an escape's is 2^R or more
    uint8_t codes[32];
};

inline void split(const uint16_t* patterns, int64_t count, const uint16_t* starts, const uint8_t* order, Split& out) {
    uint16_t magnitudes[32] = {};
    for (int64_t i = 0; i < count; ++i) magnitudes[i] = patterns[i] & 0x7FFF;
    uint16_t chosen[32], codes[32];
    for (int i = 0; i < 32; ++i) {
        chosen[i] = starts[order[0]];
        codes[i] = order[0];
    }
    for (int k = 1; k < 8; ++k) {
        const uint16_t start = starts[order[k]], code = order[k];
        for (int i = 0; i < 32; ++i) {
            const bool is_above = magnitudes[i] >= start;
            chosen[i] = is_above ? start : chosen[i];
            codes[i] = is_above ? code : codes[i];
        }
    }
    for (int i = 0; i < 32; ++i) {
        out.offsets[i] = static_cast<uint16_t>(magnitudes[i] - chosen[i]);
        out.codes[i] = static_cast<uint8_t>(codes[i]);
    }
}

// The BF16 pattern of sum(w q) / sum(q q) over a group of a row: through binary32, each time to nearest even.
uint16_t exact_group_scale(const Rows& rows, const Segments& segments, int64_t row, int64_t group) {
    double products[kGroup] = {}, squares[kGroup] = {};
    for (int64_t begin = 0; begin < kGroup; begin += 32) {
        const int64_t column = group * kGroup + begin;
        const int64_t count = least(32, rows.columns - column);
        if (count <= 0) break;
        const uint16_t* patterns = patterns_of(rows, row) + column;
        Split found;
        split(patterns, count, starts_of(segments, row), segments.order, found);
        for (int64_t i = 0; i < count; ++i) {
            // with the sign of both: an infinity counts as +0, and a negative level times that is -0
            const double level = static_cast<double>(segments.levels[found.codes[i]]);
            products[begin + i] = weight_value(patterns[i], rows.format) * (patterns[i] & 0x8000 ? -level : level);
            squares[begin + i] = level * level;
        }
    }
    const double square = fold<kGroup>(squares);
    if (!(square > 0)) return 0;
    const double scale = fold<kGroup>(products) / square;
    return round_to_bf16(static_cast<float>(scale < 0x1.fep127 ? scale : 0x1.fep127));
}

// One block of a row tile; returns the number of escapes after the `num_escapes` that were listed before.
int64_t bsfp_block(const Rows& rows, const Segments& segments, int64_t row_tile, int64_t block, int64_t num_escapes,
                   const BsfpTile& out) {
    const int64_t planes = segments.residual_bits - 8;
    const int64_t num_rows = least(kTileRows, rows.rows - row_tile * kTileRows);
    const int64_t columns = least(kBlock, rows.columns - block * kBlock);
    uint8_t nibbles[16][32] = {}, low[16][32] = {}, high[16][32] = {}, high_bytes[16][32];
    bool is_escape[16][32] = {};
    for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t row = row_tile * kTileRows + r;
        const uint16_t* patterns = patterns_of(rows, row) + block * kBlock;
        Split found;
        split(patterns, columns, starts_of(segments, row), segments.order, found);
        for (int64_t i = 0; i < columns; ++i) {
            is_escape[r][i] = found.offsets[i] >> segments.residual_bits != 0;
            nibbles[r][i] = static_cast<uint8_t>(found.codes[i] | (patterns[i] >> 12 & 8));
            low[r][i] = static_cast<uint8_t>(found.offsets[i]);
            high[r][i] = static_cast<uint8_t>(is_escape[r][i] ? 0 : found.offsets[i] >> 8);
            high_bytes[r][i] = static_cast<uint8_t>(patterns[i] >> 8);
        }
    }
    for (int64_t t = 0; t < 4; ++t) {
        const int64_t tile = block * 4 + t;
        const int64_t before = num_escapes;
        for (int64_t r = 0; r < kTileRows; ++r) {
            const uint8_t* nibble = nibbles[r] + 8 * t;
            for (int j = 0; j < 4; ++j) {
                out.codes[tile * 64 + 4 * r + j] = static_cast<uint8_t>(nibble[j] | nibble[j + 4] << 4);
            }
            std::memcpy(out.residual_low + tile * 128 + 8 * r, low[r] + 8 * t, 8);
            for (int64_t plane = 0; plane < planes; ++plane) {
                int bits = 0;
                for (int j = 0; j < 8; ++j) bits |= (high[r][8 * t + j] >> plane & 1) << j;
                out.residual_high[(tile * planes + plane) * 16 + r] = static_cast<uint8_t>(bits);
            }
            for (int j = 0; j < 8; ++j) {  // always written, kept only where it is one
                out.escape_positions[num_escapes] = static_cast<uint8_t>(8 * r + j);
                out.escape_high[num_escapes] = high_bytes[r][8 * t + j];
                num_escapes += is_escape[r][8 * t + j];
            }
        }
        out.escape_counts[tile] = static_cast<uint8_t>(num_escapes - before);
    }
    return num_escapes;
}

int64_t encode_bsfp_plainly(const Rows& rows, const Segments& segments, int64_t row_tile, const BsfpTile& out) {
    const int64_t num_rows = least(kTileRows, rows.rows - row_tile * kTileRows);
    int64_t num_escapes = 0;
    for (int64_t block = 0; block < rows.blocks(); ++block) {
        num_escapes = bsfp_block(rows, segments, row_tile, block, num_escapes, out);
    }
    for (int64_t group = 0; group < rows.groups(); ++group) {
        for (int64_t r = 0; r < kTileRows; ++r) {
            out.scales[group * kTileRows + r] =
                r < num_rows ? exact_group_scale(rows, segments, row_tile * kTileRows + r, group) : uint16_t{0};
        }
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
