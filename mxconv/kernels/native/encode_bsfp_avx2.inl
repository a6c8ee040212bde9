// BSFP with AVX2: a row's block in two registers, four blocks of a row pair at a time. Included inside an anonymous
// namespace, after encode_mxfp4_avx2.inl, encode_bsfp.inl and list_escapes.inl.
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
            const bool is_bf16 = rows.format == WeightFormat::kBf16;
            levels[rank] = is_bf16 ? round_to_bf16(level) : static_cast<uint16_t>(_cvtss_sh(level, 0));
            has_levels = has_levels && (is_bf16 ? bf16_value(levels[rank]) : f16_value(levels[rank])) == level;
        }
    }
};

inline __m256i word_table(const uint16_t words[8]) { return _mm256_broadcastsi128_si256(load_half(words)); }

// Indices into tables of words: the rank of each magnitude's segment in the row.
inline __m256i find_segments(const SegmentTables& tables, int row, __m256i m) {
    const auto words = [](int both) { return _mm256_set1_epi16(static_cast<int16_t>(both)); };
    const __m256i at_middle = _mm256_cmpgt_epi16(m, words(tables.middle[row]));
    __m256i index = _mm256_or_si256(_mm256_and_si256(at_middle, words(0x0808)), words(0x0100));
    const __m256i at_quarter = _mm256_cmpgt_epi16(m, _mm256_shuffle_epi8(word_table(tables.quarters[row]), index));
    index = _mm256_or_si256(index, _mm256_and_si256(at_quarter, words(0x0404)));
    const __m256i at_eighth = _mm256_cmpgt_epi16(m, _mm256_shuffle_epi8(word_table(tables.eighths[row]), index));
    return _mm256_or_si256(index, _mm256_and_si256(at_eighth, words(0x0202)));
}

// 16-bit floats as floats: eight of them, in an order that is the same for all.
template <bool kIsBf16>
inline __m256 first_floats(__m256i v) {
    if (!kIsBf16) return _mm256_cvtph_ps(_mm256_castsi256_si128(v));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

template <bool kIsBf16>
inline __m256 second_floats(__m256i v) {
    if (!kIsBf16) return _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
}

// What one block of one row becomes; bytes and bits are in the order of columns 0..7, 16..23, 8..15, 24..31.
template <int kPlanes>
struct EncodedRow {
    __m256i nibbles, residuals;
    uint32_t escapes, planes[kPlanes + 1];
};

template <bool kIsBf16, int kPlanes>
[[gnu::always_inline]] inline EncodedRow<kPlanes> encode_row(const SegmentTables& tables, int row, const uint16_t* from,
                                                             __m256& product, __m256& square) {
    const __m256i span = _mm256_set1_epi16(1 << (8 + kPlanes));
    __m256i patterns[2], offsets[2], codes[2], is_escape[2];
    each<2>([&](auto h) kInlined {
        patterns[h] = load(from + 16 * h);
        const __m256i m = magnitudes_of(patterns[h]);
        const __m256i index = find_segments(tables, row, m);
        offsets[h] = _mm256_sub_epi16(m, _mm256_shuffle_epi8(word_table(tables.starts[row]), index));
        codes[h] = _mm256_shuffle_epi8(word_table(tables.codes), index);
        is_escape[h] = _mm256_cmpeq_epi16(_mm256_min_epu16(offsets[h], span), span);
        const __m256i levels = _mm256_shuffle_epi8(word_table(tables.levels), index);
        const __m256 first = first_floats<kIsBf16>(levels), second = second_floats<kIsBf16>(levels);
        product = _mm256_fmadd_ps(first_floats<kIsBf16>(m), first, product);
        square = _mm256_fmadd_ps(first, first, square);
        product = _mm256_fmadd_ps(second_floats<kIsBf16>(m), second, product);
        square = _mm256_fmadd_ps(second, second, square);
    });
    const __m256i low_byte = _mm256_set1_epi16(0xFF);
    const __m256i escapes = _mm256_packs_epi16(is_escape[0], is_escape[1]);
    EncodedRow<kPlanes> out;
    out.nibbles = _mm256_or_si256(_mm256_packus_epi16(codes[0], codes[1]), signs_of(patterns));
    out.residuals = _mm256_packus_epi16(_mm256_and_si256(offsets[0], low_byte), _mm256_and_si256(offsets[1], low_byte));
    out.escapes = static_cast<uint32_t>(_mm256_movemask_epi8(escapes));
    each<kPlanes>([&](auto plane) kInlined {  // the plane's bit becomes a sign
        const __m256i bits =
            _mm256_packs_epi16(_mm256_slli_epi16(offsets[0], 7 - plane), _mm256_slli_epi16(offsets[1], 7 - plane));
        out.planes[plane] = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_andnot_si256(escapes, bits)));
    });
    return out;
}

// The bits of 16 rows, four bytes each in the order above, become 16 bytes for each of four tiles.
inline void bits_by_tile(const uint32_t rows[16], uint8_t tiles[4][16]) {
    const __m128i bytes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i four[4];
    for (int i = 0; i < 4; ++i) four[i] = _mm_shuffle_epi8(load_half(rows + 4 * i), bytes);
    const __m128i low[2] = {_mm_unpacklo_epi32(four[0], four[1]), _mm_unpacklo_epi32(four[2], four[3])};
    const __m128i high[2] = {_mm_unpackhi_epi32(four[0], four[1]), _mm_unpackhi_epi32(four[2], four[3])};
    store_half(tiles[0], _mm_unpacklo_epi64(low[0], low[1]));
    store_half(tiles[2], _mm_unpackhi_epi64(low[0], low[1]));
    store_half(tiles[1], _mm_unpacklo_epi64(high[0], high[1]));
    store_half(tiles[3], _mm_unpackhi_epi64(high[0], high[1]));
}

// The totals of eight registers, in their order.
inline __m256 totals_of(const float (*rows)[8]) {
    __m256 four[2];
    for (int i = 0; i < 2; ++i) {
        const auto row = [&](int r) { return _mm256_load_ps(rows[4 * i + r]); };
        four[i] = _mm256_hadd_ps(_mm256_hadd_ps(row(0), row(1)), _mm256_hadd_ps(row(2), row(3)));
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20),
                         _mm256_permute2f128_ps(four[0], four[1], 0x31));
}

// Scales of a group of 16 rows from its sums in binary32.
inline void group_scales(const Rows& rows, const Segments& segments, bool has_levels, int64_t row_tile, int64_t group,
                         const float (*products)[8], const float (*squares)[8], uint16_t* out) {
    __m256i rounded[2];
    uint32_t good = 0;
    for (int half = 0; half < 2; ++half) {
        const __m256 product = totals_of(products + 8 * half), square = totals_of(squares + 8 * half);
        const __m256i bits = _mm256_castps_si256(_mm256_div_ps(product, square));
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        rounded[half] = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
        // Sums of positive numbers in at most 19 roundings each, and a division: 39 units in the last place at most.
        // Beyond these ranges numbers may have overflowed, or be less exact.
        constexpr int kDoubt = 64;
        const __m256i from_middle =
            _mm256_sub_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0xFFFF)), _mm256_set1_epi32(0x8000));
        __m256 is_good =
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_abs_epi32(from_middle), _mm256_set1_epi32(kDoubt)));
        const auto is_within = [&](__m256 sum, float least, float most) {
            return _mm256_and_ps(_mm256_cmp_ps(sum, _mm256_set1_ps(least), _CMP_GT_OQ),
                                 _mm256_cmp_ps(sum, _mm256_set1_ps(most), _CMP_LT_OQ));
        };
        is_good = _mm256_and_ps(is_good, is_within(product, 0x1p-80f, 0x1p100f));
        is_good = _mm256_and_ps(is_good, is_within(square, 0x1p-20f, 0x1p60f));
        good |= static_cast<uint32_t>(_mm256_movemask_ps(is_good)) << 8 * half;
    }
    store(out, _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded[0], rounded[1]), 0xD8));
    for (uint32_t doubtful = has_levels ? ~good & 0xFFFFu : 0xFFFFu; doubtful; doubtful &= doubtful - 1) {
        const int r = __builtin_ctz(doubtful);
        out[r] = exact_group_scale(rows, segments, row_tile * kTileRows + r, group);
    }
}

// Blocks [first, last) of one group, all of them columns of the matrix; returns where escapes are listed next.
template <bool kIsBf16, int kPlanes>
int64_t bsfp_whole_blocks(const Rows& rows, const SegmentTables& tables, int64_t row_tile, int64_t first, int64_t last,
                          int64_t num_escapes, const BsfpTile& out, float (*products)[8], float (*squares)[8]) {
    const uint16_t* patterns = patterns_of(rows, row_tile * kTileRows);
    const int64_t columns = rows.columns;
    alignas(32) uint32_t escapes[4][16], planes[kPlanes + 1][4][16];
    for (int r = 0; r < 16; r += 4) {
        __m256 product[4], square[4];
        for (int k = 0; k < 4; ++k) product[k] = square[k] = _mm256_setzero_ps();
        for (int64_t block = first; block < last; ++block) {
            __m256i nibbles[4], residuals[4];
            each<4>([&](auto k) kInlined {
                const uint16_t* from = patterns + (r + k) * columns + block * kBlock;
                ask_level1(reinterpret_cast<const char*>(from) + kWeightsAhead);
                const auto row = encode_row<kIsBf16, kPlanes>(tables, r + k, from, product[k], square[k]);
                nibbles[k] = row.nibbles;
                residuals[k] = row.residuals;
                escapes[block - first][r + k] = row.escapes;
                each<kPlanes>([&](auto plane) kInlined { planes[plane][block - first][r + k] = row.planes[plane]; });
            });
            store_nibbles(nibbles, out.codes + block * 256 + 4 * r);
            each<2>([&](auto i) kInlined {
                uint8_t* to = out.residual_low + block * 512 + 8 * r + 16 * i;
                const __m256i even = _mm256_unpacklo_epi64(residuals[2 * i], residuals[2 * i + 1]);  // tiles 0 and 1
                const __m256i odd = _mm256_unpackhi_epi64(residuals[2 * i], residuals[2 * i + 1]);   // tiles 2 and 3
                store_half(to, _mm256_castsi256_si128(even));
                store_half(to + 128, _mm256_extracti128_si256(even, 1));
                store_half(to + 256, _mm256_castsi256_si128(odd));
                store_half(to + 384, _mm256_extracti128_si256(odd, 1));
            });
        }
        for (int k = 0; k < 4; ++k) {
            _mm256_store_ps(products[r + k], product[k]);
            _mm256_store_ps(squares[r + k], square[k]);
        }
    }
    for (int64_t block = first; block < last; ++block) {
        alignas(16) uint8_t tiles[4][16];
        for (int plane = 0; plane < kPlanes; ++plane) {
            bits_by_tile(planes[plane][block - first], tiles);
            for (int64_t t = 0; t < 4; ++t) {
                std::memcpy(out.residual_high + ((block * 4 + t) * kPlanes + plane) * 16, tiles[t], 16);
            }
        }
        bits_by_tile(escapes[block - first], tiles);
        for (int64_t t = 0; t < 4; ++t) {
            uint64_t words[2];
            std::memcpy(words, tiles[t], sizeof words);
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

int64_t encode_bsfp_avx2(const Rows& rows, const Segments& segments, int64_t row_tile, const BsfpTile& out) {
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

// In binary32, where each lane adds up a 32nd of the row in at most as many roundings.
template <bool kIsBf16>
void squares_nearly(const Rows& rows, int64_t first, int64_t last, float* sums) {
    for (int64_t row = first; row < last; ++row) {
        const uint16_t* patterns = patterns_of(rows, row);
        __m256 sum[4];
        for (__m256& part : sum) part = _mm256_setzero_ps();
        const auto add = [&](const uint16_t* from) kInlined {
            each<2>([&](auto h) kInlined {
                const __m256i m = magnitudes_of(load(from + 16 * h));
                const __m256 a = first_floats<kIsBf16>(m), b = second_floats<kIsBf16>(m);
                sum[2 * h] = _mm256_fmadd_ps(a, a, sum[2 * h]);
                sum[2 * h + 1] = _mm256_fmadd_ps(b, b, sum[2 * h + 1]);
            });
        };
        int64_t column = 0;
        for (; column + 32 <= rows.columns; column += 32) add(patterns + column);
        if (column < rows.columns) {
            uint16_t padded[32] = {};
            std::memcpy(padded, patterns + column, static_cast<size_t>(rows.columns - column) * sizeof(uint16_t));
            add(padded);
        }
        const __m256 all = _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
        four = _mm_add_ps(four, _mm_movehl_ps(four, four));
        sums[row - first] = _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
    }
}

void squares_nearly_avx2(const Rows& rows, int64_t first, int64_t last, float* sums) {
    if (rows.format == WeightFormat::kBf16) return squares_nearly<true>(rows, first, last, sums);
    squares_nearly<false>(rows, first, last, sums);
}
