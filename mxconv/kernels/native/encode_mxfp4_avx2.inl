// MXFP4 with AVX2, straight from 16-bit patterns: a row's block in two registers, a block of 16 rows at a time.
//
// A magnitude's pattern grows with its value, so the block's largest pattern has the largest value, and adding to it
// before the mantissa is cut off rounds the exponent as the rule wants. Relative to the scale, the boundaries between
// codes lie on a grid of quarter octaves, and from half the scale on there are sixteen of those: a table of bytes. What
// lies on a boundary belongs below it, so one is taken off first; but not where the mantissa is .5 or more, since there
// the even code lies above. Below half the scale one comparison tells 0 from 1.
//
// Included inside an anonymous namespace, after avx2_rows.inl and encode_mxfp4.inl.

// By quarter octaves from half the scale on: 1 begins 0.625, 4 begins 1, 8 begins 2, 12 begins 4.
alignas(16) constexpr uint8_t kCodeByPlace[16] = {0, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7};

constexpr int64_t kWeightsAhead = 1024;  // bytes of each row that are asked for before they are needed

// A block of 16 rows.
struct RowsOfBlock {
    const uint16_t* first;
    int64_t stride;  // patterns from a row to the next

    __m256i operator()(int row, int half) const { return load(first + row * stride + 16 * half); }
};

inline void store(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }

inline void store_half(void* to, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(to), v); }

inline __m256i magnitudes_of(__m256i patterns) { return _mm256_and_si256(patterns, _mm256_set1_epi16(0x7FFF)); }

// The largest of each row's 32 magnitudes, in the order of rows.
inline __m256i row_maxima(const RowsOfBlock& rows) {
    __m256i eight[2];  // rows 0..7 and 8..15, a row a 32-bit lane
    each<2>([&](auto part) kInlined {
        __m256i four[2];
        each<2>([&](auto i) kInlined {
            __m256i two[2];  // rows a and a + 4, a 128-bit lane each
            each<2>([&](auto k) kInlined {
                const int a = 8 * part + 2 * i + k, b = a + 4;
                const __m256i first = _mm256_max_epu16(magnitudes_of(rows(a, 0)), magnitudes_of(rows(a, 1)));
                const __m256i second = _mm256_max_epu16(magnitudes_of(rows(b, 0)), magnitudes_of(rows(b, 1)));
                two[k] = _mm256_max_epu16(_mm256_permute2x128_si256(first, second, 0x20),
                                          _mm256_permute2x128_si256(first, second, 0x31));
            });
            four[i] = _mm256_max_epu16(_mm256_unpacklo_epi64(two[0], two[1]), _mm256_unpackhi_epi64(two[0], two[1]));
        });
        const __m256 a = _mm256_castsi256_ps(four[0]), b = _mm256_castsi256_ps(four[1]);
        const __m256i pairs = _mm256_max_epu16(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                                               _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD)));
        eight[part] =
            _mm256_and_si256(_mm256_max_epu16(pairs, _mm256_srli_epi32(pairs, 16)), _mm256_set1_epi32(0xFFFF));
    });
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(eight[0], eight[1]), 0xD8);
}

// What codes are found by, for 16 rows, each in both halves of a lane.
struct Boundaries {
    alignas(32) uint32_t quarter[16];  // the pattern of a quarter of the scale
    alignas(32) uint32_t half[16];     // of half the scale, and one more

    // `field` is the exponent field of 4 times the scale.
    Boundaries(__m256i field, int mantissa_bits) {
        const __m256i at_quarter = _mm256_slli_epi16(_mm256_sub_epi16(field, _mm256_set1_epi16(4)), mantissa_bits);
        const auto above = static_cast<int16_t>((1 << mantissa_bits) + 1);
        put(at_quarter, quarter);
        put(_mm256_add_epi16(at_quarter, _mm256_set1_epi16(above)), half);
    }

    static void put(__m256i words, uint32_t* to) {
        const __m256i halves[2] = {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(words)),
                                   _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words, 1))};
        for (int h = 0; h < 2; ++h) store(to + 8 * h, _mm256_or_si256(halves[h], _mm256_slli_epi32(halves[h], 16)));
    }
};

// Codes without signs of 32 patterns, a byte each: columns 0..7 and 16..23, 8..15 and 24..31.
template <int kMantissaBits, bool kTiesToZero>
inline __m256i magnitude_codes(const __m256i patterns[2], uint32_t quarter, uint32_t half) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i places[2], is_some[2];
    each<2>([&](auto h) kInlined {
        const __m256i m = magnitudes_of(patterns[h]);
        is_some[h] = _mm256_cmpgt_epi16(m, _mm256_set1_epi32(static_cast<int32_t>(quarter)));
        const __m256i raised =
            kTiesToZero ? m : _mm256_add_epi16(m, _mm256_and_si256(_mm256_srli_epi16(m, kMantissaBits - 1), one));
        places[h] = _mm256_srli_epi16(_mm256_subs_epu16(raised, _mm256_set1_epi32(static_cast<int32_t>(half))),
                                      kMantissaBits - 2);
    });
    const __m256i table = _mm256_broadcastsi128_si256(load_half(kCodeByPlace));
    const __m256i code = _mm256_shuffle_epi8(table, _mm256_packus_epi16(places[0], places[1]));
    return _mm256_max_epu8(code, _mm256_and_si256(_mm256_packs_epi16(is_some[0], is_some[1]), _mm256_set1_epi8(1)));
}

// The signs of 32 patterns as bit 3 of bytes, in the same order.
inline __m256i signs_of(const __m256i patterns[2]) {
    const __m256i bytes = _mm256_packs_epi16(patterns[0], patterns[1]);  // saturates, which keeps the sign
    return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(8));
}

// Nibbles of four rows, a byte each in that order, into a quarter of four tiles: column j + 4 above column j.
inline void store_nibbles(const __m256i rows[4], uint8_t* codes) {
    __m256 pairs[2];
    each<2>([&](auto i) kInlined {
        const __m256 a = _mm256_castsi256_ps(rows[2 * i]), b = _mm256_castsi256_ps(rows[2 * i + 1]);
        const __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
        const __m256i high = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
        pairs[i] = _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32(high, 4)));
    });
    const __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(pairs[0], pairs[1], 0x88));  // tiles 0 and 1
    const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(pairs[0], pairs[1], 0xDD));   // tiles 2 and 3
    store_half(codes, _mm256_castsi256_si128(even));
    store_half(codes + 64, _mm256_extracti128_si256(even, 1));
    store_half(codes + 128, _mm256_castsi256_si128(odd));
    store_half(codes + 192, _mm256_extracti128_si256(odd, 1));
}

// Eight magnitudes as floats.
template <int kMantissaBits>
inline __m256 eight_values(__m128i magnitudes) {
    if (kMantissaBits == 7) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(magnitudes), 16));
    }
    return _mm256_cvtph_ps(magnitudes);
}

// The squared error of a row's block in units of the scale: the fold of 32 squares. `values` and codes are in the order of
// `magnitude_codes`, `factor` is the inverse of the scale.
inline double squared_error(const __m256 values[4], __m256 factor, __m256i codes) {
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5, 1, 1.5, 2, 3, 4, 6);
    const __m128i halves[2] = {_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)};
    __m256d squares[4][2];
    each<4>([&](auto i) kInlined {
        const __m256i index = _mm256_cvtepu8_epi32(i % 2 ? _mm_srli_si128(halves[i / 2], 8) : halves[i / 2]);
        // exact in binary32: a difference has no more bits than a 16-bit float has above the smallest difference of codes
        const __m256 difference =
            _mm256_sub_ps(_mm256_mul_ps(values[i], factor), _mm256_permutevar8x32_ps(magnitudes, index));
        const __m256d wide[2] = {_mm256_cvtps_pd(_mm256_castps256_ps128(difference)),
                                 _mm256_cvtps_pd(_mm256_extractf128_ps(difference, 1))};
        for (int h = 0; h < 2; ++h) squares[i][h] = _mm256_mul_pd(wide[h], wide[h]);
    });
    __m256d eight[2];  // columns 0..7 with 16..23, then those with 8..15 and 24..31
    for (int h = 0; h < 2; ++h) {
        eight[h] =
            _mm256_add_pd(_mm256_add_pd(squares[0][h], squares[1][h]), _mm256_add_pd(squares[2][h], squares[3][h]));
    }
    const __m256d four = _mm256_add_pd(eight[0], eight[1]);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// 1 in words of rows whose squared error is smaller at twice the scale. `bytes` are those of the smaller one.
template <int kMantissaBits>
__m256i rows_of_wider_scale(const RowsOfBlock& rows, __m256i field, __m256i bytes) {
    const Boundaries narrow(field, kMantissaBits);
    const Boundaries wide(_mm256_add_epi16(field, _mm256_set1_epi16(1)), kMantissaBits);
    alignas(32) uint16_t scale[16], is_wider[16];
    store(scale, bytes);
    for (int r = 0; r < 16; ++r) {
        const __m256i patterns[2] = {rows(r, 0), rows(r, 1)};
        __m256 values[4];
        each<2>([&](auto h) kInlined {
            const __m256i m = magnitudes_of(patterns[h]);
            values[h] = eight_values<kMantissaBits>(_mm256_castsi256_si128(m));
            values[2 + h] = eight_values<kMantissaBits>(_mm256_extracti128_si256(m, 1));
        });
        const __m256 factor = _mm256_castsi256_ps(_mm256_set1_epi32((254 - scale[r]) << 23));
        const __m256 wider_factor = _mm256_castsi256_ps(_mm256_set1_epi32((253 - scale[r]) << 23));
        const __m256i codes = magnitude_codes<kMantissaBits, false>(patterns, narrow.quarter[r], narrow.half[r]);
        const __m256i wider_codes = magnitude_codes<kMantissaBits, false>(patterns, wide.quarter[r], wide.half[r]);
        const double wider_error = 4.0 * squared_error(values, wider_factor, wider_codes);
        is_wider[r] = wider_error < squared_error(values, factor, codes);
    }
    return load(is_wider);
}

// A block of a whole row tile, all of it columns of the matrix. False where a weight is not finite.
template <int kMantissaBits, bool kTiesToZero, bool kIsMse>
inline bool mxfp4_whole_block(const Rows& rows, ScaleRule rule, int64_t row_tile, int64_t block, uint8_t* codes,
                              uint8_t* scales) {
    constexpr bool kIsBf16 = kMantissaBits == 7;
    // a scale of 2^e has the byte e + 127; amax lies two octaves above it, at exponent field e + 2 + bias
    constexpr int kByteOffset = kIsBf16 ? -2 : 127 - 15 - 2;
    constexpr int kLeastField = 5;                      // below it, a quarter of the scale is no normal number
    constexpr int kMostField = 254 - (kIsMse ? 1 : 0);  // nor is there a wider scale for mse than the largest one
    const int round_up = rule == ScaleRule::kEven   ? 1 << (kMantissaBits - 2)        // from mantissa 1.75
                         : rule == ScaleRule::kCeil ? (1 << (kMantissaBits - 1)) - 1  // above mantissa 1.5
                                                    : 0;
    const RowsOfBlock patterns_of_rows{
        static_cast<const uint16_t*>(rows.values) + row_tile * kTileRows * rows.columns + block * kBlock, rows.columns};
    for (int r = 0; r < 16; ++r) {
        ask_level1(reinterpret_cast<const char*>(patterns_of_rows.first + r * rows.columns) + kWeightsAhead);
    }
    const __m256i amax = row_maxima(patterns_of_rows);
    const __m256i infinity = _mm256_set1_epi16(kIsBf16 ? 0x7F80 : 0x7C00);
    const __m256i raised = _mm256_add_epi16(amax, _mm256_set1_epi16(static_cast<int16_t>(round_up)));
    __m256i field = _mm256_min_epi16(_mm256_srli_epi16(raised, kMantissaBits), _mm256_set1_epi16(254));
    const __m256i is_odd = _mm256_or_si256(_mm256_cmpgt_epi16(_mm256_set1_epi16(kLeastField), field),
                                           _mm256_cmpgt_epi16(field, _mm256_set1_epi16(kMostField)));
    if (!_mm256_testz_si256(is_odd, is_odd)) [[unlikely]] {
        return mxfp4_block(rows, rule, row_tile, block, codes, scales);
    }
    __m256i bytes = _mm256_add_epi16(field, _mm256_set1_epi16(kByteOffset));
    if (kIsMse) {
        const __m256i wider = rows_of_wider_scale<kMantissaBits>(patterns_of_rows, field, bytes);
        field = _mm256_add_epi16(field, wider);
        bytes = _mm256_add_epi16(bytes, wider);
    }
    store_half(scales, _mm_packus_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
    const Boundaries boundaries(field, kMantissaBits);
    for (int quarter = 0; quarter < 4; ++quarter) {
        __m256i nibbles[4];
        each<4>([&](auto k) kInlined {
            const int r = 4 * quarter + k;
            const __m256i patterns[2] = {patterns_of_rows(r, 0), patterns_of_rows(r, 1)};
            const __m256i code =
                magnitude_codes<kMantissaBits, kTiesToZero>(patterns, boundaries.quarter[r], boundaries.half[r]);
            __m256i sign = signs_of(patterns);
            // under ggml zero has none
            if (kTiesToZero) sign = _mm256_andnot_si256(_mm256_cmpeq_epi8(code, _mm256_setzero_si256()), sign);
            nibbles[k] = _mm256_or_si256(code, sign);
        });
        store_nibbles(nibbles, codes + 16 * quarter);
    }
    const __m256i is_bad = _mm256_cmpgt_epi16(amax, _mm256_sub_epi16(infinity, _mm256_set1_epi16(1)));
    return _mm256_testz_si256(is_bad, is_bad) != 0;
}

template <int kMantissaBits, bool kTiesToZero, bool kIsMse = false>
bool mxfp4_whole_tile(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
    bool is_finite = true;
    int64_t block = 0;
    for (; block < rows.columns / kBlock; ++block, codes += 256, scales += kTileRows) {
        is_finite = mxfp4_whole_block<kMantissaBits, kTiesToZero, kIsMse>(rows, rule, row_tile, block, codes, scales) &&
                    is_finite;
    }
    if (block < rows.blocks()) is_finite = mxfp4_block(rows, rule, row_tile, block, codes, scales) && is_finite;
    return is_finite;
}

bool encode_mxfp4_avx2(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
    const bool is_whole = (row_tile + 1) * kTileRows <= rows.rows;
    if (!is_whole || rows.format == WeightFormat::kF32) {
        return encode_mxfp4_plainly(rows, rule, row_tile, codes, scales);
    }
    const bool is_bf16 = rows.format == WeightFormat::kBf16;
    switch (rule) {
        case ScaleRule::kGgml:
            return is_bf16 ? mxfp4_whole_tile<7, true>(rows, rule, row_tile, codes, scales)
                           : mxfp4_whole_tile<10, true>(rows, rule, row_tile, codes, scales);
        case ScaleRule::kMse:
            return is_bf16 ? mxfp4_whole_tile<7, false, true>(rows, rule, row_tile, codes, scales)
                           : mxfp4_whole_tile<10, false, true>(rows, rule, row_tile, codes, scales);
        default:
            return is_bf16 ? mxfp4_whole_tile<7, false>(rows, rule, row_tile, codes, scales)
                           : mxfp4_whole_tile<10, false>(rows, rule, row_tile, codes, scales);
    }
}
