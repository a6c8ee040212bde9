// MXFP4 with AVX-512, straight from 16-bit patterns: 32 weights a register, a block of 16 rows at a time.
//
// A magnitude's pattern grows with its value, so the block's largest pattern has the largest value, and adding to it
// before the mantissa is cut off rounds the exponent as the rule wants. Relative to the scale, the boundaries between
// codes lie on a grid of quarter octaves. Hence (pattern - base) >> (mantissa bits - 2) is a place in a table of 32, and
// only weights exactly on the grid need a second table, which knows where ties go.
//
// Included inside an anonymous namespace, after avx512.inl and encode_mxfp4.inl.

// By place: 0 is below a quarter of the scale; 1 begins at 0.25, 5 at 0.5, 9 at 1, 13 at 2, 17 at 4.
alignas(64) constexpr uint16_t kInside[32] = {0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7};
alignas(64) constexpr uint16_t kTiesToEven[32] = {0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 4, 4, 5, 6, 6, 6, 7, 7};
alignas(64) constexpr uint16_t kTiesToZero[32] = {0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7};

constexpr int64_t kWeightsAhead = 1024;  // bytes of each row that are asked for before they are needed

// The largest of each row's 32 words, as 32-bit lanes in the order of rows.
inline __m512i row_maxima(const __m512i rows[16]) {
    __m512i quarters[4];
    for (int i = 0; i < 4; ++i) {
        __m512i halves[2];
        for (int h = 0; h < 2; ++h) {
            const __m512i a = rows[4 * i + 2 * h], b = rows[4 * i + 2 * h + 1];
            halves[h] = _mm512_max_epu16(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xEE));
        }
        quarters[i] = _mm512_max_epu16(_mm512_shuffle_i64x2(halves[0], halves[1], 0x88),
                                       _mm512_shuffle_i64x2(halves[0], halves[1], 0xDD));  // a row a 128-bit lane
    }
    const __m512i low = _mm512_max_epu16(_mm512_unpacklo_epi64(quarters[0], quarters[1]),
                                         _mm512_unpackhi_epi64(quarters[0], quarters[1]));
    const __m512i high = _mm512_max_epu16(_mm512_unpacklo_epi64(quarters[2], quarters[3]),
                                          _mm512_unpackhi_epi64(quarters[2], quarters[3]));
    const __m512 a = _mm512_castsi512_ps(low), b = _mm512_castsi512_ps(high);
    const __m512i pairs = _mm512_max_epu16(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                           _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD)));
    const __m512i each =
        _mm512_and_si512(_mm512_max_epu16(pairs, _mm512_srli_epi32(pairs, 16)), _mm512_set1_epi32(0xFFFF));
    // lane 4 i + k holds row 4 k + i
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), each);
}

// Codes without signs of 32 patterns; `base` is the pattern of a quarter of the scale, less one step of the grid.
template <int kGrid>
inline __m512i magnitude_codes(__m512i patterns, int32_t base, __m512i inside, __m512i on_grid) {
    const __m512i magnitudes = _mm512_and_si512(patterns, _mm512_set1_epi16(0x7FFF));
    const __m512i place = _mm512_srli_epi16(_mm512_subs_epu16(magnitudes, _mm512_set1_epi32(base)), kGrid);
    const __mmask32 is_on_grid = _mm512_testn_epi16_mask(patterns, _mm512_set1_epi16((1 << kGrid) - 1));
    const __m512i code = _mm512_permutexvar_epi16(place, inside);
    return _mm512_mask_permutexvar_epi16(code, is_on_grid, place, on_grid);
}

// That base for each of 16 rows, in both halves of a lane; 0 for a row of zeros. `field` is amax's exponent field.
template <int kMantissaBits>
inline __m512i bases_of(__m512i field, __mmask16 some) {
    const __m512i quarter = _mm512_slli_epi32(_mm512_sub_epi32(field, _mm512_set1_epi32(4)), kMantissaBits);
    const __m512i step_less = _mm512_maskz_sub_epi32(some, quarter, _mm512_set1_epi32(1 << (kMantissaBits - 2)));
    return _mm512_or_si512(step_less, _mm512_slli_epi32(step_less, 16));
}

inline __m512d lower_doubles(__m512 v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
inline __m512d upper_doubles(__m512 v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }

// Eight lanes whose fold is the squared error of a row's block: squares of 32 differences, in units of the scale.
inline __m512d squared_errors(__m512 low, __m512 high, __m512 factor, __m512i codes) {
    const __m512 magnitudes = _mm512_setr_ps(0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i low_codes = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(codes));
    const __m512i high_codes = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(codes, 1));
    // exact in binary32: a difference has no more bits than a 16-bit float has above the smallest difference of codes
    low = _mm512_sub_ps(_mm512_mul_ps(low, factor), _mm512_permutexvar_ps(low_codes, magnitudes));
    high = _mm512_sub_ps(_mm512_mul_ps(high, factor), _mm512_permutexvar_ps(high_codes, magnitudes));
    __m512d parts[4] = {lower_doubles(low), upper_doubles(low), lower_doubles(high), upper_doubles(high)};
    for (__m512d& part : parts) part = _mm512_mul_pd(part, part);
    return _mm512_add_pd(_mm512_add_pd(parts[0], parts[2]), _mm512_add_pd(parts[1], parts[3]));
}

// The folds of eight registers of eight lanes, in the order of the registers.
inline __m512d folds(const __m512d v[8]) {
    const auto halves = [](__m512d a, __m512d b) {
        return _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x44), _mm512_shuffle_f64x2(a, b, 0xEE));
    };
    const auto quarters = [](__m512d a, __m512d b) {
        return _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xDD));
    };
    const __m512d even = quarters(halves(v[0], v[2]), halves(v[4], v[6]));
    const __m512d odd = quarters(halves(v[1], v[3]), halves(v[5], v[7]));
    return _mm512_add_pd(_mm512_unpacklo_pd(even, odd), _mm512_unpackhi_pd(even, odd));
}

// The rows whose squared error is smaller at twice the scale. `scales` are the bytes of the smaller one.
template <int kMantissaBits>
__mmask16 rows_of_wider_scale(const __m512i patterns[16], __m512i field, __mmask16 some, __m512i scales) {
    const __m512i inside = load(kInside), on_grid = load(kTiesToEven);
    const __m512i one = _mm512_set1_epi32(1);
    alignas(64) int32_t base[16], wider_base[16], factor[16];  // a factor is the inverse of the scale, as binary32
    _mm512_store_si512(base, bases_of<kMantissaBits>(field, some));
    _mm512_store_si512(wider_base, bases_of<kMantissaBits>(_mm512_add_epi32(field, one), some));
    _mm512_store_si512(factor, _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(254), scales), 23));
    unsigned wider = 0;
    for (int first = 0; first < 16; first += 8) {
        __m512d errors[8], wider_errors[8];
        for (int i = 0; i < 8; ++i) {
            const int r = first + i;
            const __m512i magnitudes = _mm512_and_si512(patterns[r], _mm512_set1_epi16(0x7FFF));
            const __m256i halves[2] = {_mm512_castsi512_si256(magnitudes), _mm512_extracti64x4_epi64(magnitudes, 1)};
            __m512 values[2];
            for (int h = 0; h < 2; ++h) {
                values[h] = kMantissaBits == 7
                                ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves[h]), 16))
                                : _mm512_cvtph_ps(halves[h]);
            }
            const __m512 scale = _mm512_castsi512_ps(_mm512_set1_epi32(factor[r]));
            const __m512 wider_scale = _mm512_castsi512_ps(_mm512_set1_epi32(factor[r] - (1 << 23)));
            constexpr int kGrid = kMantissaBits - 2;
            errors[i] = squared_errors(values[0], values[1], scale,
                                       magnitude_codes<kGrid>(patterns[r], base[r], inside, on_grid));
            wider_errors[i] = squared_errors(values[0], values[1], wider_scale,
                                             magnitude_codes<kGrid>(patterns[r], wider_base[r], inside, on_grid));
        }
        const __m512d scaled = _mm512_mul_pd(_mm512_set1_pd(4), folds(wider_errors));
        wider |= static_cast<unsigned>(_mm512_cmp_pd_mask(scaled, folds(errors), _CMP_LT_OQ)) << first;
    }
    return static_cast<__mmask16>(wider);
}

template <int kMantissaBits, bool kSignlessZero, bool kIsMse = false>
bool mxfp4_whole_tile(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
    constexpr bool kIsBf16 = kMantissaBits == 7;
    constexpr int kGrid = kMantissaBits - 2;  // a quarter of an octave is 2^kGrid patterns
    // a scale of 2^e has the byte e + 127; amax lies two octaves above it, at exponent field e + 2 + bias
    constexpr int kByteOffset = kIsBf16 ? -2 : 127 - 15 - 2;
    constexpr int kLeastField = 5;  // below it, a quarter of the scale is no normal number
    const int round_up = rule == ScaleRule::kEven   ? 1 << kGrid                      // from mantissa 1.75
                         : rule == ScaleRule::kCeil ? (1 << (kMantissaBits - 1)) - 1  // above mantissa 1.5
                                                    : 0;
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
    const __m512i sign = _mm512_set1_epi16(8);
    const __m512i inside = load(kInside);
    const __m512i on_grid = load(kSignlessZero ? kTiesToZero : kTiesToEven);
    const int64_t columns = rows.columns;
    const auto* first = static_cast<const uint16_t*>(rows.values) + row_tile * kTileRows * columns;
    bool is_finite = true;
    for (int64_t block = 0; block < rows.blocks(); ++block, codes += 256, scales += kTileRows) {
        const int64_t left = columns - block * kBlock;
        const __mmask32 mask = left >= kBlock ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
        __m512i patterns[16], magnitudes[16];
        for (int r = 0; r < 16; ++r) {
            const uint16_t* from = first + r * columns + block * kBlock;
            _mm_prefetch(reinterpret_cast<const char*>(from) + kWeightsAhead, _MM_HINT_T0);
            patterns[r] = _mm512_maskz_loadu_epi16(mask, from);
            magnitudes[r] = _mm512_and_si512(patterns[r], magnitude);
        }
        const __m512i amax = row_maxima(magnitudes);
        is_finite = is_finite && _mm512_cmpge_epi32_mask(amax, _mm512_set1_epi32(kIsBf16 ? 0x7F80 : 0x7C00)) == 0;
        __m512i field =
            _mm512_min_epi32(_mm512_srli_epi32(_mm512_add_epi32(amax, _mm512_set1_epi32(round_up)), kMantissaBits),
                             _mm512_set1_epi32(254));
        const __mmask16 some = _mm512_test_epi32_mask(amax, amax);
        // nor is there a wider scale for mse than the largest one
        if (_mm512_mask_cmplt_epi32_mask(some, field, _mm512_set1_epi32(kLeastField)) ||
            (kIsMse && _mm512_cmpeq_epi32_mask(field, _mm512_set1_epi32(254)))) [[unlikely]] {
            is_finite = mxfp4_block(rows, rule, row_tile, block, codes, scales) && is_finite;
            continue;
        }
        if (some != 0xFFFF) [[unlikely]] {  // in a block of zeros they lose their signs
            for (int r = 0; r < 16; ++r) {
                patterns[r] = _mm512_maskz_mov_epi16(some >> r & 1 ? ~__mmask32{0} : __mmask32{0}, patterns[r]);
            }
        }
        __m512i bytes = _mm512_maskz_add_epi32(some, field, _mm512_set1_epi32(kByteOffset));
        if (kIsMse) {
            const __mmask16 wider = rows_of_wider_scale<kMantissaBits>(patterns, field, some, bytes);
            field = _mm512_mask_add_epi32(field, wider, field, _mm512_set1_epi32(1));
            bytes = _mm512_mask_add_epi32(bytes, wider, bytes, _mm512_set1_epi32(1));
        }
        _mm_storeu_si128(reinterpret_cast<__m128i*>(scales), _mm512_cvtepi32_epi8(bytes));
        alignas(64) int32_t base[16];
        _mm512_store_si512(base, bases_of<kMantissaBits>(field, some));
        __m512i packed[4];  // a tile a 128-bit lane, four rows of four bytes
        for (int i = 0; i < 4; ++i) {
            __m512i pairs[2];
            for (int h = 0; h < 2; ++h) {
                __m512i nibbles[2];
                for (int k = 0; k < 2; ++k) {
                    const int r = 4 * i + 2 * h + k;
                    const __m512i code = magnitude_codes<kGrid>(patterns[r], base[r], inside, on_grid);
                    const __m512i high = _mm512_srli_epi16(patterns[r], 12);
                    if (kSignlessZero) {
                        nibbles[k] = _mm512_mask_ternarylogic_epi32(
                            code, 0xFFFF, high, _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(code, code), sign), 0xF8);
                    } else {
                        nibbles[k] = _mm512_ternarylogic_epi32(code, high, sign, 0xF8);  // code | (high & sign)
                    }
                }
                const __m512i eight = _mm512_packus_epi16(nibbles[0], nibbles[1]);  // a byte a nibble
                pairs[h] = _mm512_or_si512(eight, _mm512_srli_epi64(eight, 28));    // column j + 4 above column j
            }
            packed[i] = _mm512_castps_si512(
                _mm512_shuffle_ps(_mm512_castsi512_ps(pairs[0]), _mm512_castsi512_ps(pairs[1]), 0x88));
        }
        transpose(packed);
        for (int tile = 0; tile < 4; ++tile) store(codes + 64 * tile, packed[tile]);
    }
    return is_finite;
}

bool encode_mxfp4_avx512(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
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
