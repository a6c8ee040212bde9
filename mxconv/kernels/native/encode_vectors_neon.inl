// What encoders do with vectors, in NEON: registers of eight words. A pair of registers makes one of bytes, in the order of
// columns; a row's block has two of them.

inline Words larger(Words a, Words b) { return vmaxq_u16(a, b); }
inline Bytes larger(Bytes a, Bytes b) { return vmaxq_u8(a, b); }
inline Words smaller(Words a, Words b) { return vminq_u16(a, b); }
inline Words at_least(Words a, Words b) { return vcgeq_u16(a, b); }
inline Words minus_saturated(Words a, Words b) { return vqsubq_u16(a, b); }
inline bool is_any(Words mask) { return vmaxvq_u16(mask) != 0; }
inline Bytes narrow(Words a, Words b) { return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)); }
inline Bytes narrow_signs(Words a, Words b) { return vuzp2q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)); }
inline Bytes look_up(const void* table, Bytes index) {
    return vqtbl1q_u8(vld1q_u8(static_cast<const uint8_t*>(table)), index);
}
inline Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }

// 16-bit floats as floats, four in each register.
template <bool kIsBf16>
inline void widen(Words v, Floats out[2]) {
    if (kIsBf16) {
        out[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16));
        out[1] = vreinterpretq_f32_u32(vshll_high_n_u16(v, 16));
    } else {
        const float16x8_t halves = vreinterpretq_f16_u16(v);
        out[0] = vcvt_f32_f16(vget_low_f16(halves));
        out[1] = vcvt_high_f32_f16(halves);
    }
}

inline uint16_t round_to_f16(float value) {
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(value))), 0);
}

// The largest of each of 16 rows' 32 magnitudes.
inline void row_maxima(const uint16_t* first, int64_t stride, uint16_t maxima[16]) {
    Words rows[16];
    for (int r = 0; r < 16; ++r) {
        Words m[4];
        for (int i = 0; i < 4; ++i) m[i] = load_words(first + r * stride + 8 * i) & kMagnitude;
        rows[r] = vmaxq_u16(vmaxq_u16(m[0], m[1]), vmaxq_u16(m[2], m[3]));
    }
    for (int count = 8; count > 1; count /= 2)
        for (int i = 0; i < count; ++i) rows[i] = vpmaxq_u16(rows[2 * i], rows[2 * i + 1]);
    vst1q_u16(maxima, rows[0]);
    vst1q_u16(maxima + 8, rows[1]);
}

// The squared error of a row's block in units of the scale. `factor` is the inverse of the scale.
template <bool kIsBf16>
inline double block_error(const uint16_t* from, float factor, const Bytes codes[2]) {
    float scaled[32];
    uint8_t bytes[32];
    std::memcpy(bytes, codes, sizeof bytes);
    for (int i = 0; i < 4; ++i) {
        Floats values[2];
        widen<kIsBf16>(load_words(from + 8 * i) & kMagnitude, values);
        for (int h = 0; h < 2; ++h) vst1q_f32(scaled + 8 * i + 4 * h, vmulq_n_f32(values[h], factor));
    }
    return squared_error(scaled, bytes);
}

// Nibbles of four rows, a byte each, into a quarter of four tiles: column j + 4 above column j.
inline void store_nibbles(const Bytes rows[4][2], uint8_t* codes) {
    for (int pair = 0; pair < 2; ++pair) {
        uint32x4_t pairs[2];
        for (int i = 0; i < 2; ++i) {
            const uint32x4_t a = vreinterpretq_u32_u8(rows[2 * i][pair]),
                             b = vreinterpretq_u32_u8(rows[2 * i + 1][pair]);
            const Bytes low = vreinterpretq_u8_u32(vuzp1q_u32(a, b)), high = vreinterpretq_u8_u32(vuzp2q_u32(a, b));
            pairs[i] = vreinterpretq_u32_u8(vsliq_n_u8(low, high, 4));
        }
        vst1q_u8(codes + 128 * pair, vreinterpretq_u8_u32(vuzp1q_u32(pairs[0], pairs[1])));
        vst1q_u8(codes + 128 * pair + 64, vreinterpretq_u8_u32(vuzp2q_u32(pairs[0], pairs[1])));
    }
}

// Bytes of two rows, into an eighth of four tiles.
inline void store_residuals(const Bytes a[2], const Bytes b[2], uint8_t* to) {
    for (int pair = 0; pair < 2; ++pair) {
        const uint64x2_t first = vreinterpretq_u64_u8(a[pair]), second = vreinterpretq_u64_u8(b[pair]);
        vst1q_u8(to + 256 * pair, vreinterpretq_u8_u64(vzip1q_u64(first, second)));
        vst1q_u8(to + 256 * pair + 128, vreinterpretq_u8_u64(vzip2q_u64(first, second)));
    }
}

// The signs of a row's bytes as bits, a byte a tile; and those of 16 rows as 16 bytes for each of four tiles.
inline void store_bits(const Bytes signs[2], uint8_t* to) {
    const Bytes column = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    Bytes bits[2];
    for (int pair = 0; pair < 2; ++pair) {
        const Bytes marks = vreinterpretq_u8_s8(vshrq_n_s8(vreinterpretq_s8_u8(signs[pair]), 7));
        bits[pair] = vandq_u8(marks, column);
    }
    Bytes sums = vpaddq_u8(bits[0], bits[1]);
    for (int i = 0; i < 2; ++i) sums = vpaddq_u8(sums, sums);
    std::memcpy(to, &sums, 4);
}

inline void bits_by_tile(const uint8_t rows[64], uint8_t tiles[4][16]) {
    const uint8x16x4_t all = vld4q_u8(rows);
    for (int t = 0; t < 4; ++t) vst1q_u8(tiles[t], all.val[t]);
}
