// MXFP4 straight from 16-bit patterns, a block of 16 rows at a time, by the vectors of an instruction set.
//
// A magnitude's pattern grows with its value, so the block's largest pattern has the largest value, and adding to it
// before the mantissa is cut off rounds the exponent as the rule wants. Relative to the scale, the boundaries between
// codes lie on a grid of quarter octaves, and from half the scale on there are sixteen of those: a table of bytes. What
// lies on a boundary belongs below it, so one is taken off first; but not where the mantissa is .5 or more, since there
// the even code lies above. Below half the scale one comparison tells 0 from 1.

// By quarter octaves from half the scale on: 1 begins 0.625, 4 begins 1, 8 begins 2, 12 begins 4.
alignas(16) constexpr uint8_t kCodeByPlace[16] = {0, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7};

constexpr int64_t kWeightsAhead = 1024;  // bytes of each row that are asked for before they are needed

// Codes without signs of a pair's patterns. `quarter` is the pattern of a quarter of the scale.
template <int kMantissaBits, bool kTiesToZero>
[[gnu::always_inline]] inline Bytes magnitude_codes(const Words patterns[2], Words quarter) {
    const Words half = quarter + all_words((1 << kMantissaBits) + 1);  // of half the scale, and one more
    Words places[2], is_some[2];
    each<2>([&](auto h) kInlined {
        const Words m = patterns[h] & kMagnitude;
        is_some[h] = above(m, quarter);
        const Words raised = kTiesToZero ? m : m + (m >> (kMantissaBits - 1) & 1);
        places[h] = minus_saturated(raised, half) >> (kMantissaBits - 2);
    });
    const Bytes code = look_up(kCodeByPlace, narrow(places[0], places[1]));
    return larger(code, narrow_signs(is_some[0], is_some[1]) & 1);
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
    const int64_t columns = rows.columns;
    const auto* first = rows.patterns + row_tile * kTileRows * columns + block * kBlock;
    for (int r = 0; r < 16; ++r) ask_level1(reinterpret_cast<const char*>(first + r * columns) + kWeightsAhead);
    alignas(32) uint16_t amax[16], quarters[16], bytes[16];
    row_maxima(first, columns, amax);
    const auto quarter_of = [](Words field) { return (field - 4) << kMantissaBits; };
    const auto patterns_of = [&](int r, int pair, Words patterns[2]) kInlined {
        for (int h = 0; h < 2; ++h) patterns[h] = load_words(first + r * columns + (2 * pair + h) * kLanes);
    };
    bool is_finite = true, is_usual = true;
    for (int r = 0; r < 16; r += kLanes) {
        const Words largest = load_words(amax + r), raised = largest + static_cast<uint16_t>(round_up);
        const Words field = smaller(raised >> kMantissaBits, all_words(254));
        is_usual = is_usual && !is_any(above(all_words(kLeastField), field) | above(field, all_words(kMostField)));
        is_finite = is_finite && !is_any(above(largest, all_words((kIsBf16 ? 0x7F80 : 0x7C00) - 1)));
        store_vector(quarters + r, quarter_of(field));
        store_vector(bytes + r, field + static_cast<uint16_t>(kByteOffset));
    }
    if (!is_usual) [[unlikely]]
        return mxfp4_block(rows, rule, row_tile, block, codes, scales);
    if (kIsMse) {  // which rows have a smaller squared error at twice the scale
        for (int r = 0; r < 16; ++r) {
            constexpr auto kOctave = static_cast<uint16_t>(1 << kMantissaBits);
            Bytes narrow_codes[kPairs], wide_codes[kPairs];
            each<kPairs>([&](auto pair) kInlined {
                Words patterns[2];
                patterns_of(r, pair, patterns);
                const Words quarter = all_words(quarters[r]);
                narrow_codes[pair] = magnitude_codes<kMantissaBits, false>(patterns, quarter);
                wide_codes[pair] = magnitude_codes<kMantissaBits, false>(patterns, quarter + kOctave);
            });
            const auto error = [&](int scale, const Bytes* at) {
                return block_error<kIsBf16>(first + r * columns, float_of(static_cast<uint32_t>(254 - scale) << 23),
                                            at);
            };
            const bool is_wider = 4.0 * error(bytes[r] + 1, wide_codes) < error(bytes[r], narrow_codes);
            bytes[r] = static_cast<uint16_t>(bytes[r] + is_wider);
            quarters[r] = static_cast<uint16_t>(quarters[r] + (is_wider ? kOctave : 0));
        }
    }
    for (int r = 0; r < 16; ++r) scales[r] = static_cast<uint8_t>(bytes[r]);
    for (int r = 0; r < 16; r += 4) {
        Bytes nibbles[4][kPairs];
        each<4>([&](auto k) kInlined {
            each<kPairs>([&](auto pair) kInlined {
                Words patterns[2];
                patterns_of(r + k, pair, patterns);
                const Bytes code = magnitude_codes<kMantissaBits, kTiesToZero>(patterns, all_words(quarters[r + k]));
                Bytes sign = signs_of(patterns);
                if (kTiesToZero) sign &= reinterpret_cast<Bytes>(code != 0);  // under ggml zero has none
                nibbles[k][pair] = code | sign;
            });
        });
        store_nibbles(nibbles, codes + 4 * r);
    }
    return is_finite;
}

template <int kMantissaBits, bool kTiesToZero, bool kIsMse = false>
bool mxfp4_whole_tile(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
    bool is_finite = true;
    int64_t block = 0;
    for (; block < rows.columns / kBlock; ++block, codes += 256, scales += kTileRows) {
        is_finite &= mxfp4_whole_block<kMantissaBits, kTiesToZero, kIsMse>(rows, rule, row_tile, block, codes, scales);
    }
    if (block < rows.blocks()) is_finite &= mxfp4_block(rows, rule, row_tile, block, codes, scales);
    return is_finite;
}

template <int kMantissaBits>
bool mxfp4_by_rule(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
    switch (rule) {
        case ScaleRule::kGgml: return mxfp4_whole_tile<kMantissaBits, true>(rows, rule, row_tile, codes, scales);
        case ScaleRule::kMse: return mxfp4_whole_tile<kMantissaBits, false, true>(rows, rule, row_tile, codes, scales);
        default: return mxfp4_whole_tile<kMantissaBits, false>(rows, rule, row_tile, codes, scales);
    }
}

bool encode_mxfp4(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
    const bool is_whole = (row_tile + 1) * kTileRows <= rows.rows;
    if (!is_whole) return encode_mxfp4_plainly(rows, rule, row_tile, codes, scales);
    if (rows.format == FloatFormat::kBf16) return mxfp4_by_rule<7>(rows, rule, row_tile, codes, scales);
    return mxfp4_by_rule<10>(rows, rule, row_tile, codes, scales);
}
