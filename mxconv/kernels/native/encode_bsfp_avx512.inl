// BSFP with AVX-512: 32 weights a register, a block of 16 rows at a time. Included inside an anonymous namespace, after
// encode_bsfp.inl and list_escapes.inl.
//
// A binary search in three steps finds a weight's segment: the seven boundaries lie in one register as a heap (node i
// has the children 2 i and 2 i + 1), behind them the eight starts. Group scales are rounded to 8 bits in the end, so
// sums in binary32 decide all but a few of them; near a rounding boundary the exact sums do.

struct SegmentTables {
    alignas(64) uint16_t starts[16][32];  // by row: boundaries at 1..7, starts by rank at 8..15
    alignas(64) uint16_t codes[32];       // by 8 + rank
    alignas(64) uint16_t levels[32];      // the same, as 16-bit floats of the weights' format
    bool has_levels;                      // whether they are exact
};

inline void fill_tables(const Rows& rows, const Segments& segments, int64_t row_tile, SegmentTables& tables) {
    constexpr int kHeap[8] = {0, 4, 2, 6, 1, 3, 5, 7};  // rank of each node's boundary
    std::memset(&tables, 0, sizeof tables);
    for (int r = 0; r < 16; ++r) {
        const uint16_t* starts = starts_of(segments, row_tile * kTileRows + r);
        for (int node = 1; node < 8; ++node) tables.starts[r][node] = starts[segments.order[kHeap[node]]];
        for (int rank = 0; rank < 8; ++rank) tables.starts[r][8 + rank] = starts[segments.order[rank]];
    }
    tables.has_levels = true;
    for (int rank = 0; rank < 8; ++rank) {
        const int code = segments.order[rank];
        const float level = segments.levels[code];
        tables.codes[8 + rank] = static_cast<uint16_t>(code);
        float stored;
        if (rows.format == WeightFormat::kBf16) {
            tables.levels[8 + rank] = round_to_bf16(level);
            stored = bf16_value(tables.levels[8 + rank]);
        } else {
            tables.levels[8 + rank] = static_cast<uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set1_ps(level), 0), 0));
            stored = f16_value(tables.levels[8 + rank]);
        }
        tables.has_levels = tables.has_levels && stored == level;
    }
}

// The total of each row's 16 lanes, in the order of rows.
inline __m512 row_totals(const __m512 rows[16]) {
    __m512 quarters[4];
    for (int i = 0; i < 4; ++i) {
        __m512 halves[2];
        for (int h = 0; h < 2; ++h) {
            const __m512 a = rows[4 * i + 2 * h], b = rows[4 * i + 2 * h + 1];
            halves[h] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
        }
        quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                                    _mm512_shuffle_f32x4(halves[0], halves[1], 0xDD));
    }
    __m512 pairs[2];
    for (int h = 0; h < 2; ++h) {
        const __m512d a = _mm512_castps_pd(quarters[2 * h]), b = _mm512_castps_pd(quarters[2 * h + 1]);
        pairs[h] =
            _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const __m512 each =
        _mm512_add_ps(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88), _mm512_shuffle_ps(pairs[0], pairs[1], 0xDD));
    // lane 4 i + k holds row 4 k + i
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), each);
}

// sum += a * b over 16-bit floats, in binary32.
template <bool kIsBf16>
inline __m512 add_products(__m512 sum, __m512i a, __m512i b) {
    if (kIsBf16) return add_pairs(sum, a, b);
    sum = _mm512_fmadd_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(a)), _mm512_cvtph_ps(_mm512_castsi512_si256(b)), sum);
    return _mm512_fmadd_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(a, 1)),
                           _mm512_cvtph_ps(_mm512_extracti64x4_epi64(b, 1)), sum);
}

// A word of 32 bits a row, bit c for column c, becomes 16 bytes a tile: bit c of byte r.
inline __m512i bits_by_tile(const uint32_t rows[16]) {
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(lanes, _mm512_shuffle_epi8(load(rows), bytes));
}

// Scales of a group of 16 rows from its sums in binary32.
inline void group_scales(const Rows& rows, const Segments& segments, bool has_levels, int64_t row_tile, int64_t group,
                         __m512 products, __m512 squares, uint16_t* out) {
    const __m512i bits = _mm512_castps_si512(_mm512_div_ps(products, squares));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(rounded));
    // Sums of positive numbers in at most 16 roundings each, and a division: 33 units in the last place at most.
    // Beyond these ranges numbers may have been flushed to zero, or overflowed.
    constexpr int kDoubt = 64;
    const __m512i from_middle =
        _mm512_sub_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0xFFFF)), _mm512_set1_epi32(0x8000 - kDoubt));
    __mmask16 good = _mm512_cmpgt_epu32_mask(from_middle, _mm512_set1_epi32(2 * kDoubt));
    good = _mm512_mask_cmp_ps_mask(good, products, _mm512_set1_ps(0x1p-80f), _CMP_GT_OQ);
    good = _mm512_mask_cmp_ps_mask(good, products, _mm512_set1_ps(0x1p100f), _CMP_LT_OQ);
    good = _mm512_mask_cmp_ps_mask(good, squares, _mm512_set1_ps(0x1p-20f), _CMP_GT_OQ);
    good = _mm512_mask_cmp_ps_mask(good, squares, _mm512_set1_ps(0x1p60f), _CMP_LT_OQ);
    for (uint32_t doubtful = has_levels ? ~good & 0xFFFFu : 0xFFFFu; doubtful; doubtful &= doubtful - 1) {
        const int r = __builtin_ctz(doubtful);
        out[r] = exact_group_scale(rows, segments, row_tile * kTileRows + r, group);
    }
}

template <bool kIsBf16, int kPlanes>
int64_t bsfp_whole_tile(const Rows& rows, const Segments& segments, int64_t row_tile, const BsfpTile& out) {
    SegmentTables tables;
    fill_tables(rows, segments, row_tile, tables);
    const __m512i codes = load(tables.codes), levels = load(tables.levels);
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
    const __m512i sign = _mm512_set1_epi16(8);
    const __m512i low_byte = _mm512_set1_epi16(0xFF);
    const __m512i one = _mm512_set1_epi16(1), two = _mm512_set1_epi16(2), three = _mm512_set1_epi16(3);
    const __m512i span = _mm512_set1_epi16(static_cast<int16_t>(1 << (8 + kPlanes)));
    const int64_t columns = rows.columns, blocks = rows.blocks();
    const uint16_t* first = patterns_of(rows, row_tile * kTileRows);
    uint8_t* positions = out.escape_positions;
    uint8_t* high_bytes = out.escape_high;
    __m512 products[16], squares[16];
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t left = columns - block * kBlock;
        const __mmask32 mask = left >= kBlock ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
        if (block % 4 == 0) {
            for (int r = 0; r < 16; ++r) products[r] = squares[r] = _mm512_setzero_ps();
        }
        alignas(64) uint32_t escapes[16];
        alignas(64) uint32_t planes[kPlanes + 1][16];
        __m512i residuals[8], pairs[8];  // of two rows each: a byte a residual, four bytes of nibbles a tile
        for (int i = 0; i < 8; ++i) {
            __m512i nibble[2], residual[2];
            for (int k = 0; k < 2; ++k) {
                const int r = 2 * i + k;
                const uint16_t* from = first + r * columns + block * kBlock;
                _mm_prefetch(reinterpret_cast<const char*>(from) + kWeightsAhead, _MM_HINT_T0);
                const __m512i pattern = _mm512_maskz_loadu_epi16(mask, from);
                const __m512i m = _mm512_and_si512(pattern, magnitude);
                const __m512i table = load(tables.starts[r]);
                const __mmask32 above_root = _mm512_cmpge_epu16_mask(m, _mm512_permutexvar_epi16(one, table));
                __m512i node = _mm512_mask_blend_epi16(above_root, two, three);
                for (int step = 0; step < 2; ++step) {
                    const __mmask32 is_above = _mm512_cmpge_epu16_mask(m, _mm512_permutexvar_epi16(node, table));
                    node = _mm512_add_epi16(node, node);
                    node = _mm512_mask_add_epi16(node, is_above, node, one);
                }
                const __m512i offset = _mm512_maskz_sub_epi16(mask, m, _mm512_permutexvar_epi16(node, table));
                const __mmask32 is_escape = _mm512_cmpge_epu16_mask(offset, span);
                escapes[r] = is_escape;
                for (int plane = 0; plane < kPlanes; ++plane) {
                    planes[plane][r] = _mm512_mask_test_epi16_mask(
                        ~is_escape, offset, _mm512_set1_epi16(static_cast<int16_t>(1 << (8 + plane))));
                }
                residual[k] = _mm512_and_si512(offset, low_byte);
                const __m512i code = _mm512_maskz_permutexvar_epi16(mask, node, codes);
                nibble[k] = _mm512_ternarylogic_epi32(code, _mm512_srli_epi16(pattern, 12), sign, 0xF8);
                const __m512i level = _mm512_maskz_permutexvar_epi16(mask, node, levels);
                products[r] = add_products<kIsBf16>(products[r], m, level);
                squares[r] = add_products<kIsBf16>(squares[r], level, level);
            }
            residuals[i] = _mm512_packus_epi16(residual[0], residual[1]);
            const __m512i eight = _mm512_packus_epi16(nibble[0], nibble[1]);
            pairs[i] = _mm512_or_si512(eight, _mm512_srli_epi64(eight, 28));  // column j + 4 above column j
        }
        __m512i packed[4];
        for (int i = 0; i < 4; ++i) {
            packed[i] = _mm512_castps_si512(
                _mm512_shuffle_ps(_mm512_castsi512_ps(pairs[2 * i]), _mm512_castsi512_ps(pairs[2 * i + 1]), 0x88));
        }
        transpose(packed);
        transpose(residuals);
        transpose(residuals + 4);
        for (int tile = 0; tile < 4; ++tile) {
            store(out.codes + (block * 4 + tile) * 64, packed[tile]);
            store(out.residual_low + (block * 4 + tile) * 128, residuals[tile]);
            store(out.residual_low + (block * 4 + tile) * 128 + 64, residuals[4 + tile]);
        }
        for (int plane = 0; plane < kPlanes; ++plane) {
            alignas(64) uint8_t bits[64];
            store(bits, bits_by_tile(planes[plane]));
            for (int tile = 0; tile < 4; ++tile) {
                std::memcpy(out.residual_high + ((block * 4 + tile) * kPlanes + plane) * 16, bits + 16 * tile, 16);
            }
        }
        alignas(64) uint64_t words[8];
        store(words, bits_by_tile(escapes));
        for (int tile = 0; tile < 4; ++tile) {
            const auto* high = reinterpret_cast<const uint8_t*>(first + block * kBlock + tile * kTileColumns) + 1;
            const int64_t count =
                list_escapes(words + 2 * tile, high, 2 * columns, left >= kBlock, positions, high_bytes);
            out.escape_counts[block * 4 + tile] = static_cast<uint8_t>(count);
            positions += count;
            high_bytes += count;
        }
        if (block % 4 == 3 || block == blocks - 1) {
            group_scales(rows, segments, tables.has_levels, row_tile, block / 4, row_totals(products),
                         row_totals(squares), out.scales + block / 4 * kTileRows);
        }
    }
    return positions - out.escape_positions;
}

int64_t encode_bsfp_avx512(const Rows& rows, const Segments& segments, int64_t row_tile, const BsfpTile& out) {
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
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
    for (int64_t row = first; row < last; ++row) {
        const uint16_t* patterns = patterns_of(rows, row);
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int64_t column = 0; column < rows.columns; column += 64) {
            for (int half = 0; half < 2; ++half) {
                const int64_t left = rows.columns - column - 32 * half;
                const __mmask32 mask = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : (__mmask32{1} << left) - 1;
                const __m512i m =
                    _mm512_and_si512(_mm512_maskz_loadu_epi16(mask, patterns + column + 32 * half), magnitude);
                sum[half] = add_products<kIsBf16>(sum[half], m, m);
            }
        }
        sums[row - first] = _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
    }
}

void squares_nearly_avx512(const Rows& rows, int64_t first, int64_t last, float* sums) {
    if (rows.format == WeightFormat::kBf16) return squares_nearly<true>(rows, first, last, sums);
    squares_nearly<false>(rows, first, last, sums);
}
