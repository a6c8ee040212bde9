// AVX2: 8 rows are 8 lanes of 32 bits, and a row's 8 columns are 8 lanes of a float register. Included by avx2.cpp and,
// with the dot-product instruction, by avxvnni.cpp.

// ---- 16 bits: lanes are the eight columns of a tile, as in the portable implementation ----

constexpr int64_t kBf16Lanes = 8;
constexpr int64_t kF16Lanes = 8;

inline __m128i load_row(const uint16_t* patterns) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(patterns));
}

inline __m256 bf16_values(const uint16_t* patterns) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_row(patterns)), 16));
}

inline __m256 f16_values(const uint16_t* patterns) { return _mm256_cvtph_ps(load_row(patterns)); }
inline __m256 activations(const uint16_t* x) { return bf16_values(x); }
inline __m256 activations(const float* x) { return _mm256_loadu_ps(x); }

// Rows [first, first + kRows) of every tile times kTokens rows of activations.
template <int kTokens, int kRows, class Element>
void row_block(const uint16_t* scratch, int64_t count, int first, const Element* x, int64_t width, float* sums) {
    __m256 sum[kTokens][kRows];
    for (int t = 0; t < kTokens; ++t)
        for (int r = 0; r < kRows; ++r) sum[t][r] = _mm256_loadu_ps(sums + t * 128 + 8 * (first + r));
    for (int64_t tile = 0; tile < count; ++tile) {
        __m256 weights[kRows];
        for (int r = 0; r < kRows; ++r) {
            const uint16_t* row = scratch + tile * 128 + 8 * (first + r);
            weights[r] = sizeof(Element) == 2 ? bf16_values(row) : f16_values(row);
        }
        for (int t = 0; t < kTokens; ++t) {
            const __m256 values = activations(x + (tile * width + t) * 8);
            for (int r = 0; r < kRows; ++r) sum[t][r] = _mm256_fmadd_ps(weights[r], values, sum[t][r]);
        }
    }
    for (int t = 0; t < kTokens; ++t)
        for (int r = 0; r < kRows; ++r) _mm256_storeu_ps(sums + t * 128 + 8 * (first + r), sum[t][r]);
}

template <int kTokens, int kRows, class Element>
void row_blocks(const uint16_t* scratch, int64_t count, const Element* x, int64_t width, float* sums) {
    for (int r = 0; r < 16; r += kRows) row_block<kTokens, kRows>(scratch, count, r, x, width, sums);
}

template <class Element>
void product(const uint16_t* scratch, int64_t count, const Element* x, int64_t width, float* sums) {
    int64_t left = width;
    for (; left >= 4; left -= 4, x += 4 * 8, sums += 4 * 128) {  // 8 sums, 2 rows of weights, one of activations
        row_blocks<4, 2>(scratch, count, x, width, sums);
    }
    if (left == 3) row_blocks<3, 4>(scratch, count, x, width, sums);
    if (left == 2) row_blocks<2, 4>(scratch, count, x, width, sums);
    if (left == 1) row_blocks<1, 8>(scratch, count, x, width, sums);
}

void bf16_product(const uint16_t* scratch, int64_t count, const uint16_t* x, int64_t width, float* sums) {
    product(scratch, count, x, width, sums);
}

void f16_product(const uint16_t* scratch, int64_t count, const float* x, int64_t width, float* sums) {
    product(scratch, count, x, width, sums);
}

void f16_sum(const float* sums, float* out) {
    for (int r = 0; r < 16; ++r) {
        const float* s = sums + 8 * r;
        out[r] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
}

void bf16_sum(const float* sums, float* out) { f16_sum(sums, out); }

// ---- 4 bits x int8 ----
//
// Without a dot-product instruction, vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16 bits, where it
// saturates. Levels up to 16 (MXFP4's doubled ones reach 12) are biased by 16: four pairs of 2 * 32 * 127 stay below
// 2^15, so they are added before widening. Larger levels go as magnitudes, with their signs moved to the activations:
// one pair, 2 * 127 * 127, just fits.

constexpr int kNarrowBias = 16;

inline __m256i load(const void* bytes) { return _mm256_loadu_si256(static_cast<const __m256i*>(bytes)); }

inline __m256i byte_table(const uint8_t bytes[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

inline __m256i four_bytes(const int8_t* x) {
    int32_t bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

#ifdef __AVXVNNI__
enum class Dot { kBiased };
#else
enum class Dot { kNarrow, kSigned };
inline Dot dot_of(const Matrix& matrix) {
    for (int8_t level : matrix.levels) {
        if (level > kNarrowBias || level < -kNarrowBias) return Dot::kSigned;
    }
    return Dot::kNarrow;
}
#endif

template <Dot kDot>
struct Tables {
    __m256i levels, magnitudes;

    explicit Tables(const Matrix& matrix) {
        uint8_t first[16], second[16];
        for (int i = 0; i < 16; ++i) {
            const int level = matrix.levels[i];
#ifdef __AVXVNNI__
            first[i] = static_cast<uint8_t>(level + kBias);
#else
            first[i] = static_cast<uint8_t>(kDot == Dot::kNarrow ? level + kNarrowBias : level);
#endif
            second[i] = static_cast<uint8_t>(level < 0 ? -level : level);
        }
        levels = byte_table(first);
        magnitudes = byte_table(second);
    }
};

// Integer dot products of one block: 8 rows (bytes 32 * half of each tile) x kTokens.
template <int kTokens, Dot kDot>
inline void block_dots(const Tables<kDot>& tables, const uint8_t* codes, int half, const int8_t* x,
                       const int32_t* offsets, int64_t width, __m256i dots[kTokens]) {
    const __m256i nibble = _mm256_set1_epi8(0x0F);
#ifdef __AVXVNNI__
    for (int t = 0; t < kTokens; ++t) dots[t] = _mm256_set1_epi32(offsets[t]);
    for (int tile = 0; tile < 4; ++tile) {
        const __m256i packed = load(codes + 64 * tile + 32 * half);
        const __m256i first = _mm256_shuffle_epi8(tables.levels, _mm256_and_si256(packed, nibble));
        const __m256i last = _mm256_shuffle_epi8(tables.levels, _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble));
        for (int t = 0; t < kTokens; ++t) {
            const int8_t* row = x + (2 * tile * width + t) * 4;
            dots[t] = _mm256_dpbusd_avx_epi32(dots[t], first, four_bytes(row));
            dots[t] = _mm256_dpbusd_avx_epi32(dots[t], last, four_bytes(row + 4 * width));
        }
    }
#else
    const __m256i ones = _mm256_set1_epi16(1);
    for (int t = 0; t < kTokens; ++t) {
        const int32_t offset = kDot == Dot::kNarrow ? offsets[t] / (kBias / kNarrowBias) : 0;
        dots[t] = _mm256_set1_epi32(offset);
    }
    for (int pair = 0; pair < 2; ++pair) {  // of tiles
        __m256i in_pair[kTokens];
        for (int tile = 0; tile < 2; ++tile) {
            const __m256i packed = load(codes + 64 * (2 * pair + tile) + 32 * half);
            const __m256i first_nibbles = _mm256_and_si256(packed, nibble);
            const __m256i last_nibbles = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
            const __m256i first = _mm256_shuffle_epi8(tables.levels, first_nibbles);
            const __m256i last = _mm256_shuffle_epi8(tables.levels, last_nibbles);
            for (int t = 0; t < kTokens; ++t) {
                const int8_t* row = x + (2 * (2 * pair + tile) * width + t) * 4;
                const __m256i a = four_bytes(row), b = four_bytes(row + 4 * width);
                if (kDot == Dot::kNarrow) {
                    const __m256i products =
                        _mm256_add_epi16(_mm256_maddubs_epi16(first, a), _mm256_maddubs_epi16(last, b));
                    in_pair[t] = tile == 0 ? products : _mm256_add_epi16(in_pair[t], products);
                } else {
                    const __m256i c = _mm256_maddubs_epi16(_mm256_shuffle_epi8(tables.magnitudes, first_nibbles),
                                                           _mm256_sign_epi8(a, first));
                    const __m256i d = _mm256_maddubs_epi16(_mm256_shuffle_epi8(tables.magnitudes, last_nibbles),
                                                           _mm256_sign_epi8(b, last));
                    dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(c, ones));
                    dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(d, ones));
                }
            }
        }
        if (kDot == Dot::kNarrow) {
            for (int t = 0; t < kTokens; ++t) dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(in_pair[t], ones));
        }
    }
#endif
}

// The scales of 8 rows in one block, or group of four.
inline __m256 e8m0_scales(const uint8_t* scales, __m256 factor) {
    // 0 stands for 2^-127, which is subnormal; its blocks are zeros, or weights that no activation makes matter
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 23)), factor);
}

inline __m256 bf16_scales(const uint16_t* scales, __m256 factor) { return _mm256_mul_ps(bf16_values(scales), factor); }

template <int kTokens, Dot kDot>
void int8_rows(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width, int64_t lane,
               float* out) {
    const Tables<kDot> tables(matrix);
    const __m256 factor = _mm256_set1_ps(matrix.scale_factor);
    const int64_t blocks = a.padded / kBlock;
    const bool is_e8m0 = matrix.scale_format == ScaleFormat::kE8m0;
    const int64_t blocks_a_scale = is_e8m0 ? 1 : 4;
    const int64_t num_scales = (blocks + blocks_a_scale - 1) / blocks_a_scale;
    const uint8_t* codes = matrix.codes + row_tile * blocks * 256;
    const auto* bytes = static_cast<const uint8_t*>(matrix.scales) + row_tile * num_scales * kTileRows;
    const auto* words = static_cast<const uint16_t*>(matrix.scales) + row_tile * num_scales * kTileRows;
    const int8_t* x = a.codes + panel * a.padded + lane * 4;
    const float* x_scales = a.scales + panel * blocks + lane;
    const int32_t* offsets = a.offsets + panel * blocks + lane;
    __m256 sums[2][kTokens];
    for (int t = 0; t < kTokens; ++t) sums[0][t] = sums[1][t] = _mm256_setzero_ps();
    for (int64_t i = 0; i < num_scales; ++i) {
        const int64_t end = least((i + 1) * blocks_a_scale, blocks);
        __m256 scales[2];
        for (int half = 0; half < 2; ++half) {
            const int64_t at = i * kTileRows + 8 * half;
            scales[half] = is_e8m0 ? e8m0_scales(bytes + at, factor) : bf16_scales(words + at, factor);
        }
        for (int64_t block = i * blocks_a_scale; block < end; ++block) {
            ask_codes(codes + block * 256, 4);
            for (int half = 0; half < 2; ++half) {
                __m256i dots[kTokens];
                block_dots<kTokens, kDot>(tables, codes + block * 256, half, x + block * kBlock * width,
                                          offsets + block * width, width, dots);
                for (int t = 0; t < kTokens; ++t) {
                    const __m256 scale = _mm256_mul_ps(scales[half], _mm256_set1_ps(x_scales[block * width + t]));
                    sums[half][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[t]), scale, sums[half][t]);
                }
            }
        }
    }
    for (int t = 0; t < kTokens; ++t)
        for (int half = 0; half < 2; ++half) _mm256_storeu_ps(out + t * kTileRows + 8 * half, sums[half][t]);
}

template <Dot kDot>
void int8_panel(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                float* out) {
    int64_t lane = 0;
    for (; width - lane >= 2; lane += 2) {  // 16 registers hold no more
        int8_rows<2, kDot>(matrix, row_tile, a, panel, width, lane, out + lane * kTileRows);
    }
    out += lane * kTileRows;
    if (width - lane == 1) int8_rows<1, kDot>(matrix, row_tile, a, panel, width, lane, out);
}

void four_bit_int8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                   float* out) {
#ifdef __AVXVNNI__
    int8_panel<Dot::kBiased>(matrix, row_tile, a, panel, width, out);
#else
    if (dot_of(matrix) == Dot::kNarrow) {
        int8_panel<Dot::kNarrow>(matrix, row_tile, a, panel, width, out);
    } else {
        int8_panel<Dot::kSigned>(matrix, row_tile, a, panel, width, out);
    }
#endif
}

// ---- 4 bits x float: 8 rows a register, a look-up of 8 magnitudes and the sign ----

template <int kTokens>
void float_rows(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                int64_t lane, float* out) {
    const __m256 levels[2] = {_mm256_loadu_ps(matrix.float_levels), _mm256_loadu_ps(matrix.float_levels + 8)};
    const int64_t blocks = a.padded / kBlock;
    __m256 sums[2][kTokens];
    for (int t = 0; t < kTokens; ++t) sums[0][t] = sums[1][t] = _mm256_setzero_ps();
    for (int64_t block = 0; block < blocks; ++block) {
        const uint8_t* codes = matrix.codes + (row_tile * blocks + block) * 256;
        for (int half = 0; half < 2; ++half) {
            __m256 in_block[kTokens];
            for (int t = 0; t < kTokens; ++t) in_block[t] = _mm256_setzero_ps();
            for (int column = 0; column < kBlock; ++column) {
                const __m256i packed = load(codes + 64 * (column / 8) + 32 * half);
                const int shift = 8 * (column % 4) + (column % 8 < 4 ? 0 : 4);
                const __m256i nibbles = _mm256_srli_epi32(packed, shift);  // a look-up takes the low three bits
                const __m256 weights = _mm256_blendv_ps(_mm256_permutevar8x32_ps(levels[0], nibbles),
                                                        _mm256_permutevar8x32_ps(levels[1], nibbles),
                                                        _mm256_castsi256_ps(_mm256_slli_epi32(nibbles, 28)));
                for (int t = 0; t < kTokens; ++t) {
                    const float* x =
                        a.values + panel * a.padded + (block * kBlock + column / 8 * 8) * width + (lane + t) * 8;
                    in_block[t] = _mm256_fmadd_ps(weights, _mm256_set1_ps(x[column % 8]), in_block[t]);
                }
            }
            float scale[8];
            for (int64_t r = 0; r < 8; ++r) scale[r] = scale_value(matrix, row_tile, block, 8 * half + r);
            for (int t = 0; t < kTokens; ++t) {
                sums[half][t] = _mm256_fmadd_ps(in_block[t], _mm256_loadu_ps(scale), sums[half][t]);
            }
        }
    }
    for (int t = 0; t < kTokens; ++t)
        for (int half = 0; half < 2; ++half) _mm256_storeu_ps(out + t * kTileRows + 8 * half, sums[half][t]);
}

void four_bit_float(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                    float* out) {
    int64_t lane = 0;
    for (; width - lane >= 4; lane += 4) float_rows<4>(matrix, row_tile, a, panel, width, lane, out + lane * kTileRows);
    out += lane * kTileRows;
    if (width - lane == 3) float_rows<3>(matrix, row_tile, a, panel, width, lane, out);
    if (width - lane == 2) float_rows<2>(matrix, row_tile, a, panel, width, lane, out);
    if (width - lane == 1) float_rows<1>(matrix, row_tile, a, panel, width, lane, out);
}

// ---- machine rates ----

uint64_t read_bytes(const uint8_t* bytes, int64_t num_bytes) {
    __m256i sums[8] = {};
    for (int64_t i = 0; i + 256 <= num_bytes; i += 256) {
        for (int line = 0; line < 4; ++line) {
            ask_level1(bytes + i + kPage + 64 * line);
        }
        for (int k = 0; k < 8; ++k) sums[k] = _mm256_xor_si256(sums[k], load(bytes + i + 32 * k));
    }
    for (int k = 1; k < 8; ++k) sums[0] = _mm256_xor_si256(sums[0], sums[k]);
    uint64_t words[4];
    std::memcpy(words, sums, sizeof words);
    return words[0] ^ words[1] ^ words[2] ^ words[3];
}

// A multiply-add of bytes is one vpdpbusd, or vpmaddubsw with the addition that it needs at least.
int64_t multiply_adds(Form form, int64_t iterations) {
    constexpr int kChains = 12;
    __m256i sums[kChains] = {};
    __m256i weights = _mm256_set1_epi32(0x01010101), x = _mm256_set1_epi32(0x01010101);
    for (int k = 0; k < kChains; ++k) asm volatile("" : "+x"(sums[k]));  // chains that are not known to be equal
    for (int64_t i = 0; i < iterations; ++i) {
        asm volatile("" : "+x"(weights), "+x"(x));  // no product is known beforehand
#pragma GCC unroll 12
        for (int k = 0; k < kChains; ++k) {
            if (form == kInt8) {
#ifdef __AVXVNNI__
                sums[k] = _mm256_dpbusd_avx_epi32(sums[k], weights, x);
#else
                __m256i products = _mm256_maddubs_epi16(weights, x);
                asm volatile("" : "+x"(products));
                sums[k] = _mm256_add_epi16(sums[k], products);
#endif
            } else {
                sums[k] = _mm256_castps_si256(_mm256_fmadd_ps(_mm256_castsi256_ps(weights), _mm256_castsi256_ps(x),
                                                              _mm256_castsi256_ps(sums[k])));
            }
        }
    }
    for (int k = 0; k < kChains; ++k) asm volatile("" : : "x"(sums[k]));
    return iterations * kChains * (form == kInt8 ? 32 : 8);
}
