// MXFP4 with NEON, straight from 16-bit patterns: a tile's row a register, a block of 16 rows at a time. Places on a grid of
// quarter octaves, as in encode_mxfp4_avx2.inl. Included inside an anonymous namespace, after encode_mxfp4.inl.

// By quarter octaves from half the scale on: 1 begins 0.625, 4 begins 1, 8 begins 2, 12 begins 4.
alignas(16) constexpr uint8_t kCodeByPlace[16] = {0, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7};

constexpr int64_t kWeightsAhead = 1024;  // bytes of each row that are asked for before they are needed

inline uint16x8_t magnitudes_of(uint16x8_t patterns) { return vandq_u16(patterns, vdupq_n_u16(0x7FFF)); }

// The largest magnitudes of eight rows' 32 columns, in the order of rows.
inline uint16x8_t row_maxima(const uint16_t* first, int64_t stride) {
    uint16x8_t rows[8];
    for (int r = 0; r < 8; ++r) {
        const uint16_t* from = first + r * stride;
        uint16x8_t m[4];
        for (int i = 0; i < 4; ++i) m[i] = magnitudes_of(vld1q_u16(from + 8 * i));
        rows[r] = vmaxq_u16(vmaxq_u16(m[0], m[1]), vmaxq_u16(m[2], m[3]));
    }
    uint16x8_t fours[2];
    for (int i = 0; i < 2; ++i) {
        fours[i] = vpmaxq_u16(vpmaxq_u16(rows[4 * i], rows[4 * i + 1]), vpmaxq_u16(rows[4 * i + 2], rows[4 * i + 3]));
    }
    return vpmaxq_u16(fours[0], fours[1]);
}

// Codes without signs of 16 patterns. `quarter` is the pattern of a quarter of the scale, `half` that of half of it, and one.
template <int kMantissaBits, bool kTiesToZero>
inline uint8x16_t magnitude_codes(const uint16x8_t patterns[2], uint16x8_t quarter, uint16x8_t half) {
    uint16x8_t places[2], is_some[2];
    for (int h = 0; h < 2; ++h) {
        const uint16x8_t m = magnitudes_of(patterns[h]);
        is_some[h] = vcgtq_u16(m, quarter);
        const uint16x8_t raised = kTiesToZero ? m : vsraq_n_u16(m, vshlq_n_u16(m, 16 - kMantissaBits), 15);
        places[h] = vqsubq_u16(raised, half);
    }
    const uint8x16_t place = vshrn_high_n_u16(vshrn_n_u16(places[0], kMantissaBits - 2), places[1], kMantissaBits - 2);
    const uint8x16_t some = vuzp1q_u8(vreinterpretq_u8_u16(is_some[0]), vreinterpretq_u8_u16(is_some[1]));
    return vmaxq_u8(vqtbl1q_u8(vld1q_u8(kCodeByPlace), place), vandq_u8(some, vdupq_n_u8(1)));
}

// The signs of 16 patterns as bit 3 of bytes.
inline uint8x16_t signs_of(const uint16x8_t patterns[2]) {
    const uint8x16_t high = vuzp2q_u8(vreinterpretq_u8_u16(patterns[0]), vreinterpretq_u8_u16(patterns[1]));
    return vandq_u8(vshrq_n_u8(high, 4), vdupq_n_u8(8));
}

// Nibbles of four rows, a byte each, into a quarter of two tiles: column j + 4 above column j.
inline void store_nibbles(const uint8x16_t rows[4], uint8_t* codes) {
    uint32x4_t pairs[2];
    for (int i = 0; i < 2; ++i) {
        const uint32x4_t a = vreinterpretq_u32_u8(rows[2 * i]), b = vreinterpretq_u32_u8(rows[2 * i + 1]);
        const uint8x16_t low = vreinterpretq_u8_u32(vuzp1q_u32(a, b)), high = vreinterpretq_u8_u32(vuzp2q_u32(a, b));
        pairs[i] = vreinterpretq_u32_u8(vsliq_n_u8(low, high, 4));
    }
    vst1q_u8(codes, vreinterpretq_u8_u32(vuzp1q_u32(pairs[0], pairs[1])));
    vst1q_u8(codes + 64, vreinterpretq_u8_u32(vuzp2q_u32(pairs[0], pairs[1])));
}

// A block of a whole row tile, all of it columns of the matrix. False where a weight is not finite.
template <int kMantissaBits, bool kTiesToZero>
inline bool mxfp4_whole_block(const Rows& rows, ScaleRule rule, int64_t row_tile, int64_t block, uint8_t* codes,
                              uint8_t* scales) {
    constexpr bool kIsBf16 = kMantissaBits == 7;
    // a scale of 2^e has the byte e + 127; amax lies two octaves above it, at exponent field e + 2 + bias
    constexpr int kByteOffset = kIsBf16 ? -2 : 127 - 15 - 2;
    constexpr int kLeastField = 5;  // below it, a quarter of the scale is no normal number
    const int round_up = rule == ScaleRule::kEven   ? 1 << (kMantissaBits - 2)        // from mantissa 1.75
                         : rule == ScaleRule::kCeil ? (1 << (kMantissaBits - 1)) - 1  // above mantissa 1.5
                                                    : 0;
    const int64_t columns = rows.columns;
    const auto* first = static_cast<const uint16_t*>(rows.values) + row_tile * kTileRows * columns + block * kBlock;
    alignas(16) uint16_t quarter[16], half[16];
    bool is_finite = true;
    for (int part = 0; part < 16; part += 8) {
        const uint16_t* from = first + part * columns;
        for (int r = 0; r < 8; ++r) ask_level1(reinterpret_cast<const char*>(from + r * columns) + kWeightsAhead);
        const uint16x8_t amax = row_maxima(from, columns);
        const uint16x8_t raised = vaddq_u16(amax, vdupq_n_u16(static_cast<uint16_t>(round_up)));
        const uint16x8_t field = vminq_u16(vshrq_n_u16(raised, kMantissaBits), vdupq_n_u16(254));
        if (vminvq_u16(field) < kLeastField) [[unlikely]] {
            return mxfp4_block(rows, rule, row_tile, block, codes, scales);
        }
        is_finite = is_finite && vmaxvq_u16(amax) < (kIsBf16 ? 0x7F80 : 0x7C00);
        vst1_u8(scales + part, vmovn_u16(vaddq_u16(field, vdupq_n_u16(static_cast<uint16_t>(kByteOffset)))));
        const uint16x8_t at_quarter = vshlq_n_u16(vsubq_u16(field, vdupq_n_u16(4)), kMantissaBits);
        vst1q_u16(quarter + part, at_quarter);
        vst1q_u16(half + part, vaddq_u16(at_quarter, vdupq_n_u16((1 << kMantissaBits) + 1)));
    }
    for (int r = 0; r < 16; r += 4) {
        uint8x16_t nibbles[2][4];  // of tiles 0 and 1, 2 and 3
        for (int k = 0; k < 4; ++k) {
            const uint16x8_t at_quarter = vld1q_dup_u16(quarter + r + k), at_half = vld1q_dup_u16(half + r + k);
            for (int pair = 0; pair < 2; ++pair) {
                const uint16_t* from = first + (r + k) * columns + 16 * pair;
                const uint16x8_t patterns[2] = {vld1q_u16(from), vld1q_u16(from + 8)};
                const uint8x16_t code = magnitude_codes<kMantissaBits, kTiesToZero>(patterns, at_quarter, at_half);
                uint8x16_t sign = signs_of(patterns);
                if (kTiesToZero) sign = vandq_u8(sign, vtstq_u8(code, code));  // under ggml zero has none
                nibbles[pair][k] = vorrq_u8(code, sign);
            }
        }
        for (int pair = 0; pair < 2; ++pair) store_nibbles(nibbles[pair], codes + 128 * pair + 4 * r);
    }
    return is_finite;
}

template <int kMantissaBits, bool kTiesToZero>
bool mxfp4_whole_tile(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
    bool is_finite = true;
    int64_t block = 0;
    for (; block < rows.columns / kBlock; ++block, codes += 256, scales += kTileRows) {
        is_finite =
            mxfp4_whole_block<kMantissaBits, kTiesToZero>(rows, rule, row_tile, block, codes, scales) && is_finite;
    }
    if (block < rows.blocks()) is_finite = mxfp4_block(rows, rule, row_tile, block, codes, scales) && is_finite;
    return is_finite;
}

bool encode_mxfp4_neon(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
    const bool is_whole = (row_tile + 1) * kTileRows <= rows.rows;
    if (!is_whole || rows.format == WeightFormat::kF32 || rule == ScaleRule::kMse) {
        return encode_mxfp4_plainly(rows, rule, row_tile, codes, scales);
    }
    const bool is_bf16 = rows.format == WeightFormat::kBf16;
    if (rule == ScaleRule::kGgml) {
        return is_bf16 ? mxfp4_whole_tile<7, true>(rows, rule, row_tile, codes, scales)
                       : mxfp4_whole_tile<10, true>(rows, rule, row_tile, codes, scales);
    }
    return is_bf16 ? mxfp4_whole_tile<7, false>(rows, rule, row_tile, codes, scales)
                   : mxfp4_whole_tile<10, false>(rows, rule, row_tile, codes, scales);
}
