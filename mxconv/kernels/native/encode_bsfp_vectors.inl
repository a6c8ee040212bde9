// BSFP by the vectors of an instruction set: four rows of a group at a time. Included after encode_mxfp4_vectors.inl.
//
// A binary search in three steps finds a weight's segment. What it has found so far is the index into tables of eight
// words, a byte for each half: first the boundary that is asked next, in the end the start, the code and the level. Group
// scales are rounded to 8 bits in the end, so sums in binary32 decide all but a few of them; near a rounding boundary the
// exact sums do.

// By row; boundaries are one less, so that a signed comparison finds what is above.
struct SegmentTables {
    uint16_t middle[16];  // the boundary of ranks 3 and 4
    alignas(16) uint16_t quarters[16][8] = {}, eighths[16][8] = {}, starts[16][8];
    alignas(16) uint16_t codes[8];   // by rank
    alignas(16) uint16_t levels[8];  // the same, as 16-bit floats of the weights' format
    bool has_levels;                 // whether they are exact

    SegmentTables(const Rows& rows, const Segments& segments, int64_t row_tile) {
        for (int r = 0; r < 16; ++r) {
            const uint16_t* given = starts_of(segments, row_tile * kTileRows + r);
            for (int rank = 0; rank < 8; ++rank) starts[r][rank] = given[segments.order[rank]];
            const auto below = [&](int rank) { return static_cast<uint16_t>(starts[r][rank] - 1); };
            middle[r] = below(4);
            for (int rank = 0; rank < 8; rank += 4) quarters[r][rank] = below(rank + 2);
            for (int rank = 0; rank < 8; rank += 2) eighths[r][rank] = below(rank + 1);
        }
        has_levels = true;
        for (int rank = 0; rank < 8; ++rank) {
            codes[rank] = segments.order[rank];
            const float level = segments.levels[segments.order[rank]];
            const bool is_bf16 = rows.format == FloatFormat::kBf16;
            levels[rank] = is_bf16 ? round_to_bf16(level) : round_to_f16(level);
            has_levels = has_levels && (is_bf16 ? bf16_value(levels[rank]) : f16_value(levels[rank])) == level;
        }
    }
};

inline Words word_at(const uint16_t table[8], Words index) {
    return reinterpret_cast<Words>(look_up(table, reinterpret_cast<Bytes>(index)));
}

// Indices into tables of words: the rank of each magnitude's segment in the row.
inline Words find_segments(const SegmentTables& tables, int row, Words m) {
    Words index = (above(m, all_words(tables.middle[row])) & 0x0808) | 0x0100;
    index |= above(m, word_at(tables.quarters[row], index)) & 0x0404;
    return index | (above(m, word_at(tables.eighths[row], index)) & 0x0202);
}

// The sums of a row's products and squares in a group, eight of each.
struct RowSums {
    Floats products[kPairs] = {}, squares[kPairs] = {};
};

// What one block of one row becomes; only the signs of escapes and planes count.
template <int kPlanes>
struct EncodedRow {
    Bytes nibbles[kPairs], residuals[kPairs], escapes[kPairs], planes[kPlanes + 1][kPairs];
};

template <bool kIsBf16, int kPlanes>
[[gnu::always_inline]] inline EncodedRow<kPlanes> encode_row(const SegmentTables& tables, int row, const uint16_t* from,
                                                             RowSums& sums) {
    EncodedRow<kPlanes> out;
    each<kPairs>([&](auto pair) kInlined {
        Words patterns[2], offsets[2], codes[2], is_escape[2];
        each<2>([&](auto h) kInlined {
            patterns[h] = load_words(from + (2 * pair + h) * kLanes);
            const Words m = patterns[h] & kMagnitude, index = find_segments(tables, row, m);
            offsets[h] = m - word_at(tables.starts[row], index);
            codes[h] = word_at(tables.codes, index);
            is_escape[h] = at_least(offsets[h], all_words(1 << (8 + kPlanes)));
            Floats values[2], levels[2];
            widen<kIsBf16>(m, values);
            widen<kIsBf16>(word_at(tables.levels, index), levels);
            each<2>([&](auto i) kInlined {
                constexpr int kAt = i % kPairs;
                sums.products[kAt] = fused(values[i], levels[i], sums.products[kAt]);
                sums.squares[kAt] = fused(levels[i], levels[i], sums.squares[kAt]);
            });
        });
        out.nibbles[pair] = narrow(codes[0], codes[1]) | signs_of(patterns);
        out.residuals[pair] = narrow(offsets[0] & 0xFF, offsets[1] & 0xFF);
        out.escapes[pair] = narrow_signs(is_escape[0], is_escape[1]);
        each<kPlanes>([&](auto plane) kInlined {  // the plane's bit becomes a sign
            const Bytes bits = narrow_signs(offsets[0] << (7 - plane), offsets[1] << (7 - plane));
            out.planes[plane][pair] = bits & ~out.escapes[pair];
        });
    });
    return out;
}

// Scales of a group of 16 rows from its sums in binary32.
inline void group_scales(const Rows& rows, const Segments& segments, bool has_levels, int64_t row_tile, int64_t group,
                         const float (*products)[8], const float (*squares)[8], uint16_t* out) {
    // Sums of positive numbers in at most 19 roundings each, and a division: 39 units in the last place at most.
    // Beyond these ranges numbers may have overflowed, or be less exact.
    constexpr int32_t kDoubt = 64;
    const auto total = [](const float* s) { return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])); };
    for (int r = 0; r < kTileRows; ++r) {
        const float product = total(products[r]), square = total(squares[r]);
        const uint32_t bits = float_bits(product / square);
        const auto from_middle = static_cast<int32_t>(bits & 0xFFFF) - 0x8000;
        const bool is_good = (from_middle > kDoubt || from_middle < -kDoubt) && product > 0x1p-80f &&
                             product < 0x1p100f && square > 0x1p-20f && square < 0x1p60f;
        out[r] = has_levels && is_good ? static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
                                       : exact_group_scale(rows, segments, row_tile * kTileRows + r, group);
    }
}

// Append the escapes of one tile, whose bits 8 * row + column are set; `high` points to the high byte of its first weight.
inline int64_t list_escapes(const uint8_t bits[16], const uint8_t* high, int64_t row_bytes, uint8_t* positions,
                            uint8_t* high_bytes) {
    int64_t count = 0;
    for (int half = 0; half < 2; ++half) {
        uint64_t word;
        std::memcpy(&word, bits + 8 * half, sizeof word);
        const int64_t in_word = __builtin_popcountll(word);
        const uint8_t* from = high + 8 * half * row_bytes;
        for (int64_t i = 0; i < 4 || i < in_word; ++i) {  // at least four: a loop of an unknown length costs more
            const int p = __builtin_ctzll(word | uint64_t{1} << 63);
            positions[count + i] = static_cast<uint8_t>(64 * half + p);
            high_bytes[count + i] = from[(p >> 3) * row_bytes + (p & 7) * 2];
            word &= word - 1;
        }
        count += in_word;
    }
    return count;
}

// Blocks [first, last) of one group, all of them columns of the matrix; returns where escapes are listed next.
template <bool kIsBf16, int kPlanes>
int64_t bsfp_whole_blocks(const Rows& rows, const SegmentTables& tables, int64_t row_tile, int64_t first, int64_t last,
                          int64_t num_escapes, const BsfpTile& out, float (*products)[8], float (*squares)[8]) {
    const uint16_t* patterns = patterns_of(rows, row_tile * kTileRows);
    const int64_t columns = rows.columns;
    alignas(16) uint8_t bits[4][kPlanes + 1][64];  // by block of the group and plane, escapes last: (16 rows, 4 tiles)
    for (int r = 0; r < 16; r += 4) {
        RowSums sums[4];
        for (int64_t block = first; block < last; ++block) {
            Bytes nibbles[4][kPairs], residuals[4][kPairs];
            each<4>([&](auto k) kInlined {
                const uint16_t* from = patterns + (r + k) * columns + block * kBlock;
                ask_level1(reinterpret_cast<const char*>(from) + kWeightsAhead);
                const auto row = encode_row<kIsBf16, kPlanes>(tables, r + k, from, sums[k]);
                each<kPairs>([&](auto pair) kInlined {
                    nibbles[k][pair] = row.nibbles[pair];
                    residuals[k][pair] = row.residuals[pair];
                });
                each<kPlanes>([&](auto plane) kInlined {
                    store_bits(row.planes[plane], bits[block - first][plane] + 4 * (r + k));
                });
                store_bits(row.escapes, bits[block - first][kPlanes] + 4 * (r + k));
            });
            store_nibbles(nibbles, out.codes + block * 256 + 4 * r);
            each<2>([&](auto i) kInlined {
                uint8_t* to = out.residual_low + block * 512 + 8 * r + 16 * i;
                store_residuals(residuals[2 * i], residuals[2 * i + 1], to);
            });
        }
        for (int k = 0; k < 4; ++k) {
            store_vector(products[r + k], sums[k].products);
            store_vector(squares[r + k], sums[k].squares);
        }
    }
    for (int64_t block = first; block < last; ++block) {
        alignas(16) uint8_t tiles[4][16];
        for (int plane = 0; plane < kPlanes; ++plane) {
            bits_by_tile(bits[block - first][plane], tiles);
            for (int64_t t = 0; t < 4; ++t) {
                std::memcpy(out.residual_high + ((block * 4 + t) * kPlanes + plane) * 16, tiles[t], 16);
            }
        }
        bits_by_tile(bits[block - first][kPlanes], tiles);
        for (int64_t t = 0; t < 4; ++t) {
            const auto* high = reinterpret_cast<const uint8_t*>(patterns + block * kBlock + t * kTileColumns) + 1;
            const int64_t count = list_escapes(tiles[t], high, 2 * columns, out.escape_positions + num_escapes,
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
        alignas(32) float products[16][8], squares[16][8];
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

int64_t encode_bsfp(const Rows& rows, const Segments& segments, int64_t row_tile, const BsfpTile& out) {
    const bool is_whole = (row_tile + 1) * kTileRows <= rows.rows, is_bf16 = rows.format == FloatFormat::kBf16;
    switch (is_whole ? segments.residual_bits + (is_bf16 ? 0 : 100) : 0) {
        case 8: return bsfp_whole_tile<true, 0>(rows, segments, row_tile, out);
        case 9: return bsfp_whole_tile<true, 1>(rows, segments, row_tile, out);
        case 110: return bsfp_whole_tile<false, 2>(rows, segments, row_tile, out);
        case 111: return bsfp_whole_tile<false, 3>(rows, segments, row_tile, out);
        case 112: return bsfp_whole_tile<false, 4>(rows, segments, row_tile, out);
        default: return encode_bsfp_plainly(rows, segments, row_tile, out);
    }
}

// The sums of rows' squares in binary32, where each lane adds up a 16th of the row at most, in as many roundings.
template <bool kIsBf16>
void squares_nearly(const Rows& rows, int64_t first, int64_t last, float* sums) {
    for (int64_t row = first; row < last; ++row) {
        const uint16_t* patterns = patterns_of(rows, row);
        Floats sum[4] = {};
        const auto add = [&](const uint16_t* from) kInlined {
            each<2>([&](auto h) kInlined {
                Floats values[2];
                widen<kIsBf16>(load_words(from + kLanes * h) & kMagnitude, values);
                each<2>([&](auto i) kInlined { sum[2 * h + i] = fused(values[i], values[i], sum[2 * h + i]); });
            });
        };
        int64_t column = 0;
        for (; column + 2 * kLanes <= rows.columns; column += 2 * kLanes) add(patterns + column);
        if (column < rows.columns) {
            uint16_t padded[2 * kLanes] = {};
            std::memcpy(padded, patterns + column, static_cast<size_t>(rows.columns - column) * sizeof(uint16_t));
            add(padded);
        }
        const Floats all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        float total = 0;
        for (int i = 0; i < kLanes / 2; ++i) total += all[i];
        sums[row - first] = total;
    }
}

void squares_nearly(const Rows& rows, int64_t first, int64_t last, float* sums) {
    if (rows.format == FloatFormat::kBf16) return squares_nearly<true>(rows, first, last, sums);
    squares_nearly<false>(rows, first, last, sums);
}
