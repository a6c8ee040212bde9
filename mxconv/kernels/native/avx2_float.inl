// 4 bits x float for AVX2: 8 rows are 8 lanes. Levels are looked up byte by byte, four columns at once; most have zeros in
// their lower half.

struct FloatLevels {
    __m256i bytes[4];  // byte k of each level
    bool is_short;     // all of them are BF16 numbers: bytes 0 and 1 are zeros

    explicit FloatLevels(const Matrix& matrix) {
        uint8_t stored[16][4], table[16];
        std::memcpy(stored, matrix.float_levels, sizeof stored);
        is_short = true;
        for (int k = 0; k < 4; ++k) {
            for (int i = 0; i < 16; ++i) table[i] = stored[i][k];
            for (int i = 0; i < 16; ++i) is_short = is_short && (k > 1 || table[i] == 0);
            bytes[k] = byte_table(table);
        }
    }

    // Byte k and the next one of 8 rows' levels at columns 0 and 1, and at columns 2 and 3.
    template <int k>
    [[gnu::always_inline]] void words(__m256i nibbles, __m256i out[2]) const {
        const __m256i first = _mm256_shuffle_epi8(bytes[k], nibbles);
        const __m256i second = _mm256_shuffle_epi8(bytes[k + 1], nibbles);
        const __m256 low = _mm256_castsi256_ps(_mm256_unpacklo_epi8(first, second));   // rows 0 1 and 4 5
        const __m256 high = _mm256_castsi256_ps(_mm256_unpackhi_epi8(first, second));  // rows 2 3 and 6 7
        out[0] = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88));
        out[1] = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xDD));
    }
};

// The levels of 8 rows at one of four columns, from the halves of their words.
template <bool kShort, int kColumn>
[[gnu::always_inline]] inline __m256 levels_at(const __m256i high[2], const __m256i low[2]) {
    constexpr int kPair = kColumn / 2;
    __m256i bits = kColumn % 2 ? _mm256_and_si256(high[kPair], _mm256_set1_epi32(static_cast<int>(0xFFFF0000)))
                               : _mm256_slli_epi32(high[kPair], 16);
    if constexpr (!kShort) {
        bits = _mm256_blend_epi16(kColumn % 2 ? _mm256_srli_epi32(low[kPair], 16) : low[kPair], bits, 0xAA);
    }
    return _mm256_castsi256_ps(bits);
}

// The scales of 8 rows in one block.
inline __m256 float_scales(const Matrix& matrix, int64_t row_tile, int64_t blocks, int64_t block, int first_row) {
    const __m256 factor = _mm256_set1_ps(matrix.scale_factor);
    if (matrix.scale_format == ScaleFormat::kBf16) {
        const int64_t at = (row_tile * ((blocks + 3) / 4) + block / 4) * kTileRows + first_row;
        return bf16_scales(static_cast<const uint16_t*>(matrix.scales) + at, factor);
    }
    const auto* scales =
        static_cast<const uint8_t*>(matrix.scales) + (row_tile * blocks + block) * kTileRows + first_row;
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
    // 0 stands for 2^-127, a subnormal number
    const __m256i bits = _mm256_max_epi32(_mm256_slli_epi32(wide, 23), _mm256_set1_epi32(1 << 22));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), factor);
}

// Adds kBlocks blocks to the sums of a row tile and some tokens, whose activations of the first block begin at `x`. A block
// has one sum a row and token, in the order of columns: two blocks beside each other keep multipliers busy where tokens are
// too few.
template <bool kShort, int kTokens, int kBlocks>
[[gnu::always_inline]] inline void add_blocks(const Matrix& matrix, int64_t row_tile, int64_t blocks, int64_t block,
                                              const FloatLevels& levels, const float* x, int64_t width,
                                              __m256 sums[2][kTokens]) {
    const uint8_t* codes = matrix.codes + (row_tile * blocks + block) * 256;
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    __m256 in_block[kBlocks][2][kTokens];
    each<kBlocks>([&](auto b) kInlined {
        ask_codes(codes + 256 * b, 4);
        each<kTokens>([&](auto t) kInlined { in_block[b][0][t] = in_block[b][1][t] = _mm256_setzero_ps(); });
    });
    for (int tile = 0; tile < 4; ++tile) {
        each<2 * kBlocks>([&](auto part) kInlined {  // columns 0..3 of each block, then 4..7
            constexpr int b = part % kBlocks, high = part / kBlocks;
            __m256i high_words[2][2], low_words[2][2];
            each<2>([&](auto half) kInlined {
                const __m256i packed = load(codes + 256 * b + 64 * tile + 32 * half);
                const __m256i nibbles = _mm256_and_si256(high ? _mm256_srli_epi16(packed, 4) : packed, nibble);
                levels.words<2>(nibbles, high_words[half]);
                if constexpr (!kShort) levels.words<0>(nibbles, low_words[half]);
            });
            const float* from = x + (kBlock * b + 8 * tile) * width + 4 * high;
            each<4>([&](auto column) kInlined {
                __m256 weights[2];
                each<2>([&](auto half)
                            kInlined { weights[half] = levels_at<kShort, column>(high_words[half], low_words[half]); });
                each<kTokens>([&](auto t) kInlined {
                    __m256 value = _mm256_broadcast_ss(from + 8 * t + column);
                    hold(value);
                    each<2>([&](auto half) kInlined {
                        __m256& sum = in_block[b][half][t];
                        sum = _mm256_fmadd_ps(weights[half], value, sum);
                        hold(sum);
                    });
                });
            });
        });
    }
    each<kBlocks>([&](auto b) kInlined {
        each<2>([&](auto half) kInlined {
            const __m256 scales = float_scales(matrix, row_tile, blocks, block + b, 8 * half);
            each<kTokens>(
                [&](auto t) kInlined { sums[half][t] = _mm256_fmadd_ps(in_block[b][half][t], scales, sums[half][t]); });
        });
    });
}

template <bool kShort, int kTokens>
void float_rows(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                int64_t lane, const FloatLevels& levels, float* out) {
    constexpr int kTogether = kTokens > 2 ? 1 : 2;  // eight sums at most
    const int64_t blocks = a.padded / kBlock;
    const float* x = a.values + panel * a.padded + lane * 8;
    __m256 sums[2][kTokens];
    for (int t = 0; t < kTokens; ++t) sums[0][t] = sums[1][t] = _mm256_setzero_ps();
    int64_t block = 0;
    for (; block + kTogether <= blocks; block += kTogether, x += kTogether * kBlock * width) {
        add_blocks<kShort, kTokens, kTogether>(matrix, row_tile, blocks, block, levels, x, width, sums);
    }
    if (block < blocks) add_blocks<kShort, kTokens, 1>(matrix, row_tile, blocks, block, levels, x, width, sums);
    for (int t = 0; t < kTokens; ++t)
        for (int half = 0; half < 2; ++half) _mm256_storeu_ps(out + t * kTileRows + 8 * half, sums[half][t]);
}

#include "float_panels.inl"
