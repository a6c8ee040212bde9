// BSFP with NEON: a tile's row a register, four rows of a group at a time. The search and the sums are those of
// encode_bsfp_avx2.inl. Included inside an anonymous namespace, after encode_mxfp4_neon.inl, encode_bsfp.inl and
// list_escapes.inl.

// By row: the boundaries that the three steps of the search ask for, and starts by rank.
struct SegmentTables {
    alignas(16) uint16_t middle[16], quarters[16][8] = {}, eighths[16][8] = {}, starts[16][8];
    alignas(16) uint8_t codes[16] = {};  // at twice the rank
    alignas(16) uint16_t levels[8];      // as 16-bit floats of the weights' format
    bool has_levels;                     // whether they are exact

    SegmentTables(const Rows& rows, const Segments& segments, int64_t row_tile) {
        for (int r = 0; r < 16; ++r) {
            const uint16_t* given = starts_of(segments, row_tile * kTileRows + r);
            for (int rank = 0; rank < 8; ++rank) starts[r][rank] = given[segments.order[rank]];
            middle[r] = starts[r][4];
            for (int rank = 0; rank < 8; rank += 4) quarters[r][rank] = starts[r][rank + 2];
            for (int rank = 0; rank < 8; rank += 2) eighths[r][rank] = starts[r][rank + 1];
        }
        has_levels = true;
        for (int rank = 0; rank < 8; ++rank) {
            codes[2 * rank] = segments.order[rank];
            const float level = segments.levels[segments.order[rank]];
            const bool is_bf16 = rows.format == WeightFormat::kBf16;
            levels[rank] = is_bf16 ? round_to_bf16(level)
                                   : vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(level))), 0);
            has_levels = has_levels && (is_bf16 ? bf16_value(levels[rank]) : f16_value(levels[rank])) == level;
        }
    }
};

inline uint16x8_t words_at(const uint16_t table[8], uint16x8_t index) {
    return vreinterpretq_u16_u8(vqtbl1q_u8(vreinterpretq_u8_u16(vld1q_u16(table)), vreinterpretq_u8_u16(index)));
}

// Indices into tables of words, a byte for each half: the rank of each magnitude's segment in the row.
inline uint16x8_t find_segments(const SegmentTables& tables, int row, uint16x8_t m) {
    const uint16x8_t at_middle = vcgeq_u16(m, vld1q_dup_u16(tables.middle + row));
    uint16x8_t index = vorrq_u16(vandq_u16(at_middle, vdupq_n_u16(0x0808)), vdupq_n_u16(0x0100));
    const uint16x8_t at_quarter = vcgeq_u16(m, words_at(tables.quarters[row], index));
    index = vorrq_u16(index, vandq_u16(at_quarter, vdupq_n_u16(0x0404)));
    const uint16x8_t at_eighth = vcgeq_u16(m, words_at(tables.eighths[row], index));
    return vorrq_u16(index, vandq_u16(at_eighth, vdupq_n_u16(0x0202)));
}

struct FloatHalves {
    float32x4_t of[2];
};

template <bool kIsBf16>
inline FloatHalves floats_of(uint16x8_t v) {
    if (kIsBf16) {
        return {
            {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(v, 16))}};
    }
    const float16x8_t halves = vreinterpretq_f16_u16(v);
    return {{vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)}};
}

// The low bytes of two tiles' rows.
inline uint8x16_t low_bytes(const uint16x8_t v[2]) {
    return vuzp1q_u8(vreinterpretq_u8_u16(v[0]), vreinterpretq_u8_u16(v[1]));
}

// Of 32 columns of a row: a byte each, tiles 0 and 1, tiles 2 and 3. Marks have the bit of their column in the tile, or 0.
template <int kPlanes>
struct EncodedRow {
    uint8x16_t nibbles[2], residuals[2], escapes[2], planes[kPlanes + 1][2];
};

struct RowSums {
    float32x4_t of[2];
};

template <bool kIsBf16, int kPlanes>
[[gnu::always_inline]] inline void encode_row(const SegmentTables& tables, int row, const uint16_t* from,
                                              RowSums& product, RowSums& square, EncodedRow<kPlanes>& out) {
    const uint8x16_t column = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    for (int pair = 0; pair < 2; ++pair) {
        uint16x8_t patterns[2], offsets[2], indices[2], is_escape[2];
        for (int h = 0; h < 2; ++h) {
            patterns[h] = vld1q_u16(from + 16 * pair + 8 * h);
            const uint16x8_t m = magnitudes_of(patterns[h]);
            indices[h] = find_segments(tables, row, m);
            offsets[h] = vsubq_u16(m, words_at(tables.starts[row], indices[h]));
            is_escape[h] = vcgeq_u16(offsets[h], vdupq_n_u16(1 << (8 + kPlanes)));
            const FloatHalves values = floats_of<kIsBf16>(m);
            const FloatHalves levels = floats_of<kIsBf16>(words_at(tables.levels, indices[h]));
            for (int i = 0; i < 2; ++i) {
                product.of[i] = vfmaq_f32(product.of[i], values.of[i], levels.of[i]);
                square.of[i] = vfmaq_f32(square.of[i], levels.of[i], levels.of[i]);
            }
        }
        const uint8x16_t escapes = low_bytes(is_escape);
        out.nibbles[pair] = vorrq_u8(vqtbl1q_u8(vld1q_u8(tables.codes), low_bytes(indices)), signs_of(patterns));
        out.residuals[pair] = low_bytes(offsets);
        out.escapes[pair] = vandq_u8(escapes, column);
        for (int plane = 0; plane < kPlanes; ++plane) {
            const uint8x16_t high = vuzp2q_u8(vreinterpretq_u8_u16(offsets[0]), vreinterpretq_u8_u16(offsets[1]));
            const uint8x16_t is_set = vtstq_u8(high, vdupq_n_u8(static_cast<uint8_t>(1 << plane)));
            out.planes[plane][pair] = vandq_u8(vbicq_u8(is_set, escapes), column);
        }
    }
}

// Marks of four rows as bits: a byte for each of four tiles, row after row.
inline uint8x16_t bits_of(const uint8x16_t a[2], const uint8x16_t b[2], const uint8x16_t c[2], const uint8x16_t d[2]) {
    return vpaddq_u8(vpaddq_u8(vpaddq_u8(a[0], a[1]), vpaddq_u8(b[0], b[1])),
                     vpaddq_u8(vpaddq_u8(c[0], c[1]), vpaddq_u8(d[0], d[1])));
}

// The totals of four rows' sums, in their order.
inline float32x4_t totals_of(const RowSums rows[4]) {
    float32x4_t four[4];
    for (int k = 0; k < 4; ++k) four[k] = vaddq_f32(rows[k].of[0], rows[k].of[1]);
    return vpaddq_f32(vpaddq_f32(four[0], four[1]), vpaddq_f32(four[2], four[3]));
}

// Scales of a group of 16 rows from its sums in binary32.
inline void group_scales(const Rows& rows, const Segments& segments, bool has_levels, int64_t row_tile, int64_t group,
                         const RowSums products[16], const RowSums squares[16], uint16_t* out) {
    for (int r = 0; r < 16; r += 4) {
        const float32x4_t product = totals_of(products + r), square = totals_of(squares + r);
        const uint32x4_t bits = vreinterpretq_u32_f32(vdivq_f32(product, square));
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        vst1_u16(out + r, vshrn_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd), 16));
        // Sums of positive numbers in at most 19 roundings each, and a division: 39 units in the last place at most.
        // Beyond these ranges numbers may have overflowed, or be less exact.
        constexpr uint32_t kDoubt = 64;
        const uint32x4_t from_middle = vabdq_u32(vandq_u32(bits, vdupq_n_u32(0xFFFF)), vdupq_n_u32(0x8000));
        const auto is_within = [](float32x4_t sum, float least, float most) {
            return vandq_u32(vcgtq_f32(sum, vdupq_n_f32(least)), vcltq_f32(sum, vdupq_n_f32(most)));
        };
        uint32x4_t is_good = vcgtq_u32(from_middle, vdupq_n_u32(kDoubt));
        is_good = vandq_u32(is_good, is_within(product, 0x1p-80f, 0x1p100f));
        is_good = vandq_u32(is_good, is_within(square, 0x1p-20f, 0x1p60f));
        if (has_levels && vminvq_u32(is_good) != 0) continue;
        uint32_t good[4];
        vst1q_u32(good, is_good);
        for (int k = 0; k < 4; ++k) {
            if (has_levels && good[k]) continue;
            out[r + k] = exact_group_scale(rows, segments, row_tile * kTileRows + r + k, group);
        }
    }
}

// Blocks [first, last) of one group, all of them columns of the matrix; returns where escapes are listed next.
template <bool kIsBf16, int kPlanes>
int64_t bsfp_whole_blocks(const Rows& rows, const SegmentTables& tables, int64_t row_tile, int64_t first, int64_t last,
                          int64_t num_escapes, const BsfpTile& out, RowSums products[16], RowSums squares[16]) {
    const uint16_t* patterns = patterns_of(rows, row_tile * kTileRows);
    const int64_t columns = rows.columns;
    alignas(16) uint8_t escapes[4][64], planes[kPlanes + 1][4][64];  // by block of the group: (16 rows, 4 tiles)
    for (int r = 0; r < 16; r += 4) {
        RowSums product[4], square[4];
        for (int k = 0; k < 4; ++k)
            for (int i = 0; i < 2; ++i) product[k].of[i] = square[k].of[i] = vdupq_n_f32(0);
        for (int64_t block = first; block < last; ++block) {
            EncodedRow<kPlanes> four[4];
            for (int k = 0; k < 4; ++k) {
                const uint16_t* from = patterns + (r + k) * columns + block * kBlock;
                ask_level1(reinterpret_cast<const char*>(from) + kWeightsAhead);
                encode_row<kIsBf16, kPlanes>(tables, r + k, from, product[k], square[k], four[k]);
            }
            for (int pair = 0; pair < 2; ++pair) {
                const uint8x16_t nibbles[4] = {four[0].nibbles[pair], four[1].nibbles[pair], four[2].nibbles[pair],
                                               four[3].nibbles[pair]};
                store_nibbles(nibbles, out.codes + block * 256 + 128 * pair + 4 * r);
                for (int i = 0; i < 4; i += 2) {
                    uint8_t* to = out.residual_low + block * 512 + 256 * pair + 8 * (r + i);
                    const uint64x2_t a = vreinterpretq_u64_u8(four[i].residuals[pair]);
                    const uint64x2_t b = vreinterpretq_u64_u8(four[i + 1].residuals[pair]);
                    vst1q_u8(to, vreinterpretq_u8_u64(vzip1q_u64(a, b)));
                    vst1q_u8(to + 128, vreinterpretq_u8_u64(vzip2q_u64(a, b)));
                }
            }
            vst1q_u8(escapes[block - first] + 4 * r,
                     bits_of(four[0].escapes, four[1].escapes, four[2].escapes, four[3].escapes));
            for (int plane = 0; plane < kPlanes; ++plane) {
                vst1q_u8(planes[plane][block - first] + 4 * r, bits_of(four[0].planes[plane], four[1].planes[plane],
                                                                       four[2].planes[plane], four[3].planes[plane]));
            }
        }
        for (int k = 0; k < 4; ++k) {
            products[r + k] = product[k];
            squares[r + k] = square[k];
        }
    }
    for (int64_t block = first; block < last; ++block) {
        for (int plane = 0; plane < kPlanes; ++plane) {
            const uint8x16x4_t tiles = vld4q_u8(planes[plane][block - first]);
            for (int64_t t = 0; t < 4; ++t) {
                vst1q_u8(out.residual_high + ((block * 4 + t) * kPlanes + plane) * 16, tiles.val[t]);
            }
        }
        const uint8x16x4_t tiles = vld4q_u8(escapes[block - first]);
        for (int64_t t = 0; t < 4; ++t) {
            uint64_t words[2];
            vst1q_u64(words, vreinterpretq_u64_u8(tiles.val[t]));
            const auto* high = reinterpret_cast<const uint8_t*>(patterns + block * kBlock + t * kTileColumns) + 1;
            const int64_t count = list_escapes(words, high, 2 * columns, true, out.escape_positions + num_escapes,
                                               out.escape_high + num_escapes);
            out.escape_counts[block * 4 + t] = static_cast<uint8_t>(count);
            num_escapes += count;
        }
    }
    return num_escapes;
}

template <bool kIsBf16, int kPlanes>
int64_t bsfp_whole_tile(const Rows& rows, const Segments& segments, int64_t row_tile, const BsfpTile& out) {
    const SegmentTables tables(rows, segments, row_tile);
    int64_t num_escapes = 0;
    for (int64_t group = 0; group < rows.groups(); ++group) {
        RowSums products[16], squares[16];
        const int64_t first = 4 * group, last = least(first + 4, rows.blocks());
        const int64_t whole = least(last, rows.columns / kBlock);
        num_escapes = bsfp_whole_blocks<kIsBf16, kPlanes>(rows, tables, row_tile, first, whole, num_escapes, out,
                                                          products, squares);
        // the end of a row that is not a multiple of 32
        if (whole < last) num_escapes = bsfp_block(rows, segments, row_tile, whole, num_escapes, out);
        group_scales(rows, segments, tables.has_levels && whole == last, row_tile, group, products, squares,
                     out.scales + group * kTileRows);
    }
    return num_escapes;
}

int64_t encode_bsfp_neon(const Rows& rows, const Segments& segments, int64_t row_tile, const BsfpTile& out) {
    if ((row_tile + 1) * kTileRows > rows.rows) return encode_bsfp_plainly(rows, segments, row_tile, out);
    if (rows.format == WeightFormat::kBf16) {
        switch (segments.residual_bits) {
            case 8: return bsfp_whole_tile<true, 0>(rows, segments, row_tile, out);
            case 9: return bsfp_whole_tile<true, 1>(rows, segments, row_tile, out);
            default: break;
        }
    } else {
        switch (segments.residual_bits) {
            case 10: return bsfp_whole_tile<false, 2>(rows, segments, row_tile, out);
            case 11: return bsfp_whole_tile<false, 3>(rows, segments, row_tile, out);
            case 12: return bsfp_whole_tile<false, 4>(rows, segments, row_tile, out);
            default: break;
        }
    }
    return encode_bsfp_plainly(rows, segments, row_tile, out);
}

// ---- sums of squares, nearly ----

// In binary32, where each of 16 lanes adds up its part of the row.
template <bool kIsBf16>
void squares_nearly(const Rows& rows, int64_t first, int64_t last, float* sums) {
    for (int64_t row = first; row < last; ++row) {
        const uint16_t* patterns = patterns_of(rows, row);
        float32x4_t sum[4];
        for (float32x4_t& part : sum) part = vdupq_n_f32(0);
        const auto add = [&](const uint16_t* from) __attribute__((always_inline)) {
            for (int h = 0; h < 2; ++h) {
                const FloatHalves values = floats_of<kIsBf16>(magnitudes_of(vld1q_u16(from + 8 * h)));
                for (int i = 0; i < 2; ++i) {
                    sum[2 * h + i] = vfmaq_f32(sum[2 * h + i], values.of[i], values.of[i]);
                }
            }
        };
        int64_t column = 0;
        for (; column + 16 <= rows.columns; column += 16) add(patterns + column);
        if (column < rows.columns) {
            uint16_t padded[16] = {};
            std::memcpy(padded, patterns + column, static_cast<size_t>(rows.columns - column) * sizeof(uint16_t));
            add(padded);
        }
        sums[row - first] = vaddvq_f32(vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3])));
    }
}

void squares_nearly_neon(const Rows& rows, int64_t first, int64_t last, float* sums) {
    if (rows.format == WeightFormat::kBf16) return squares_nearly<true>(rows, first, last, sums);
    squares_nearly<false>(rows, first, last, sums);
}
