// What encoders do with vectors, in AVX2: registers of 16 words. A pair of registers makes one of bytes, in the order of
// columns 0..7, 16..23, 8..15, 24..31.

inline __m256i vector(Words v) { return reinterpret_cast<__m256i>(v); }
inline __m256i vector(Bytes v) { return reinterpret_cast<__m256i>(v); }
inline __m256 vector(Floats v) { return reinterpret_cast<__m256>(v); }
inline __m128i low_half(__m256i v) { return _mm256_castsi256_si128(v); }
inline __m128i high_half(__m256i v) { return _mm256_extracti128_si256(v, 1); }
inline void store_half(void* to, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(to), v); }

inline Words larger(Words a, Words b) { return reinterpret_cast<Words>(_mm256_max_epi16(vector(a), vector(b))); }
inline Bytes larger(Bytes a, Bytes b) { return reinterpret_cast<Bytes>(_mm256_max_epu8(vector(a), vector(b))); }
inline Words smaller(Words a, Words b) { return reinterpret_cast<Words>(_mm256_min_epi16(vector(a), vector(b))); }
inline Words at_least(Words a, Words b) {  // without signs
    return reinterpret_cast<Words>(_mm256_cmpeq_epi16(_mm256_max_epu16(vector(a), vector(b)), vector(a)));
}
inline Words minus_saturated(Words a, Words b) {
    return reinterpret_cast<Words>(_mm256_subs_epu16(vector(a), vector(b)));
}
inline bool is_any(Words mask) { return _mm256_testz_si256(vector(mask), vector(mask)) == 0; }
inline Bytes narrow(Words a, Words b) { return reinterpret_cast<Bytes>(_mm256_packus_epi16(vector(a), vector(b))); }
inline Bytes narrow_signs(Words a, Words b) {
    return reinterpret_cast<Bytes>(_mm256_packs_epi16(vector(a), vector(b)));
}
inline Bytes look_up(const void* table, Bytes index) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(table));
    return reinterpret_cast<Bytes>(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), vector(index)));
}
inline Floats fused(Floats a, Floats b, Floats c) {
    return reinterpret_cast<Floats>(_mm256_fmadd_ps(vector(a), vector(b), vector(c)));
}

// 16-bit floats as floats, eight in each register, in an order that is the same for all.
template <bool kIsBf16>
inline void widen(Words v, Floats out[2]) {
    if (kIsBf16) {
        out[0] = reinterpret_cast<Floats>(_mm256_slli_epi32(vector(v), 16));
        out[1] = reinterpret_cast<Floats>(_mm256_and_si256(vector(v), _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
    } else {
        out[0] = reinterpret_cast<Floats>(_mm256_cvtph_ps(low_half(vector(v))));
        out[1] = reinterpret_cast<Floats>(_mm256_cvtph_ps(high_half(vector(v))));
    }
}

inline uint16_t round_to_f16(float value) { return static_cast<uint16_t>(_cvtss_sh(value, 0)); }

// The largest of each of 16 rows' 32 magnitudes.
inline void row_maxima(const uint16_t* first, int64_t stride, uint16_t maxima[16]) {
    const auto row_maximum = [&](int r) kInlined {
        const uint16_t* from = first + r * stride;
        return vector(larger(load_words(from) & kMagnitude, load_words(from + 16) & kMagnitude));
    };
    __m256i eight[2];  // rows 0..7 and 8..15, a row a 32-bit lane
    each<2>([&](auto part) kInlined {
        __m256i four[2];
        each<2>([&](auto i) kInlined {
            __m256i two[2];  // rows a and a + 4, a 128-bit lane each
            each<2>([&](auto k) kInlined {
                const int a = 8 * part + 2 * i + k;
                const __m256i first = row_maximum(a), second = row_maximum(a + 4);
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
    const __m256i all = _mm256_permute4x64_epi64(_mm256_packus_epi32(eight[0], eight[1]), 0xD8);
    std::memcpy(maxima, &all, sizeof all);
}

// The squared error of a row's block in units of the scale: the fold of 32 squares. `factor` is the inverse of the scale.
template <bool kIsBf16>
inline double block_error(const uint16_t* from, float factor, const Bytes codes[1]) {
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5, 1, 1.5, 2, 3, 4, 6);
    const __m128i halves[2] = {low_half(vector(codes[0])), high_half(vector(codes[0]))};
    __m256d squares[4][2];
    each<4>([&](auto i) kInlined {  // columns 0..7, 16..23, 8..15, 24..31
        const uint16_t* eight = from + i % 2 * 16 + i / 2 * 8;
        const __m128i m =
            _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(eight)), _mm_set1_epi16(0x7FFF));
        const __m256 value =
            kIsBf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(m), 16)) : _mm256_cvtph_ps(m);
        const __m256i index = _mm256_cvtepu8_epi32(i % 2 ? _mm_srli_si128(halves[i / 2], 8) : halves[i / 2]);
        // exact in binary32: a difference has no more bits than a 16-bit float has above the smallest difference of codes
        const __m256 difference =
            _mm256_sub_ps(_mm256_mul_ps(value, _mm256_set1_ps(factor)), _mm256_permutevar8x32_ps(magnitudes, index));
        const __m256d wide[2] = {_mm256_cvtps_pd(_mm256_castps256_ps128(difference)),
                                 _mm256_cvtps_pd(_mm256_extractf128_ps(difference, 1))};
        for (int h = 0; h < 2; ++h) squares[i][h] = _mm256_mul_pd(wide[h], wide[h]);
    });
    __m256d eight[2];
    for (int h = 0; h < 2; ++h) {
        eight[h] =
            _mm256_add_pd(_mm256_add_pd(squares[0][h], squares[1][h]), _mm256_add_pd(squares[2][h], squares[3][h]));
    }
    const __m256d four = _mm256_add_pd(eight[0], eight[1]);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// A register of 16 bytes for each of four tiles.
inline void store_tiles(__m256i even, __m256i odd, int64_t tile_bytes, uint8_t* to) {
    store_half(to, low_half(even));
    store_half(to + tile_bytes, high_half(even));
    store_half(to + 2 * tile_bytes, low_half(odd));
    store_half(to + 3 * tile_bytes, high_half(odd));
}

// Nibbles of four rows, a byte each, into a quarter of four tiles: column j + 4 above column j.
inline void store_nibbles(const Bytes rows[4][1], uint8_t* codes) {
    __m256 pairs[2];
    each<2>([&](auto i) kInlined {
        const __m256 a = _mm256_castsi256_ps(vector(rows[2 * i][0])),
                     b = _mm256_castsi256_ps(vector(rows[2 * i + 1][0]));
        const __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
        const __m256i high = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
        pairs[i] = _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32(high, 4)));
    });
    store_tiles(_mm256_castps_si256(_mm256_shuffle_ps(pairs[0], pairs[1], 0x88)),
                _mm256_castps_si256(_mm256_shuffle_ps(pairs[0], pairs[1], 0xDD)), 64, codes);
}

// Bytes of two rows, into an eighth of four tiles.
inline void store_residuals(const Bytes a[1], const Bytes b[1], uint8_t* to) {
    store_tiles(_mm256_unpacklo_epi64(vector(a[0]), vector(b[0])), _mm256_unpackhi_epi64(vector(a[0]), vector(b[0])),
                128, to);
}

// The signs of a row's bytes as bits, a byte a tile; and those of 16 rows as 16 bytes for each of four tiles.
inline void store_bits(const Bytes signs[1], uint8_t* to) {
    const int bits = _mm256_movemask_epi8(vector(signs[0]));
    std::memcpy(to, &bits, sizeof bits);
}

inline void bits_by_tile(const uint8_t rows[64], uint8_t tiles[4][16]) {
    const __m128i bytes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i four[4];
    for (int i = 0; i < 4; ++i) {
        four[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + 16 * i)), bytes);
    }
    const __m128i low[2] = {_mm_unpacklo_epi32(four[0], four[1]), _mm_unpacklo_epi32(four[2], four[3])};
    const __m128i high[2] = {_mm_unpackhi_epi32(four[0], four[1]), _mm_unpackhi_epi32(four[2], four[3])};
    store_half(tiles[0], _mm_unpacklo_epi64(low[0], low[1]));
    store_half(tiles[2], _mm_unpackhi_epi64(low[0], low[1]));
    store_half(tiles[1], _mm_unpacklo_epi64(high[0], high[1]));
    store_half(tiles[3], _mm_unpackhi_epi64(high[0], high[1]));
}
