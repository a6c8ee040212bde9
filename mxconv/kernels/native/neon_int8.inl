// 4 and 8 bits x int8 for NEON: `tbl` makes levels of nibbles, four rows a register; `sdot` takes them with a token's four
// columns, `smmla` with eight columns of two tokens. Both are signed, so nothing is biased, and both give the same integers.
//
// An integer sum d begins at the bits of 1.5 * 2^23, so that read as a float it is 1.5 * 2^23 + d, exactly, and a subtraction
// leaves d: Neoverse cores subtract four times as fast as they convert.

inline int32x4_t no_dots() { return vdupq_n_s32(0x4B400000); }

inline float32x4_t dot_values(int32x4_t dots) { return vsubq_f32(vreinterpretq_f32_s32(dots), vdupq_n_f32(0x1.8p23f)); }

template <bool kE8m0>
struct BlockScales {
    float32x4_t of_rows[4];

    // The scales of 16 rows in one block, or group of four. E8M0's 0 stands for 2^-127, which is subnormal: its blocks are
    // zeros, or weights that no activation makes matter.
    explicit BlockScales(const void* scales, int64_t index) {
        uint16x8_t halves[2];
        if (kE8m0) {
            const uint8x16_t bytes = vld1q_u8(static_cast<const uint8_t*>(scales) + index * kTileRows);
            halves[0] = vshll_n_u8(vget_low_u8(bytes), 7);
            halves[1] = vshll_high_n_u8(bytes, 7);
        } else {
            const uint16_t* words = static_cast<const uint16_t*>(scales) + index * kTileRows;
            halves[0] = vld1q_u16(words);
            halves[1] = vld1q_u16(words + 8);
        }
        for (int half = 0; half < 2; ++half) {
            of_rows[2 * half] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves[half]), 16));
            of_rows[2 * half + 1] = vreinterpretq_f32_u32(vshll_high_n_u16(halves[half], 16));
        }
    }
};

// Weights of four rows: columns 0..3 and 4..7 of a tile.
struct FourRows {
    int8x16_t first, last;
};

// Codes of 4 bits, whose levels are looked up.
struct CodedWeights {
    static constexpr int kTileBytes = 64;
    int8x16_t levels;

    explicit CodedWeights(const Matrix& matrix) : levels(vld1q_s8(matrix.levels)) {}

    FourRows operator()(const uint8_t* codes, int tile) const {
        const uint8x16_t packed = vld1q_u8(codes + kTileBytes * tile);
        return {vqtbl1q_s8(levels, vandq_u8(packed, vdupq_n_u8(0x0F))), vqtbl1q_s8(levels, vshrq_n_u8(packed, 4))};
    }
};

// Elements of 8 bits, which are what they are.
struct StoredWeights {
    static constexpr int kTileBytes = 128;

    explicit StoredWeights(const Matrix&) {}

    FourRows operator()(const uint8_t* elements, int tile) const {
        const uint8_t* at = elements + kTileBytes * tile;
        return {vreinterpretq_s8_u8(vld1q_u8(at)), vreinterpretq_s8_u8(vld1q_u8(at + 64))};
    }
};

// Four columns of four rows times those of each token from kToken on; x is (8, kTokens) fours, four of them a register.
template <int kTokens, int kFour, int kToken = 0>
[[gnu::always_inline]] inline void dot_tokens(int8x16_t weights, const int8x16_t* x, int32x4_t* dots) {
    constexpr int kAt = kFour * kTokens + kToken;
    dots[kToken] = vdotq_laneq_s32(dots[kToken], weights, x[kAt / 4], kAt % 4);
    if constexpr (kToken + 1 < kTokens) dot_tokens<kTokens, kFour, kToken + 1>(weights, x, dots);
}

template <int kTokens, int kTile = 0, class Weights>
[[gnu::always_inline]] inline void dot_tiles(const Weights& weights, const uint8_t* codes, const int8x16_t* x,
                                             int32x4_t* dots) {
    const FourRows rows = weights(codes, kTile);
    dot_tokens<kTokens, 2 * kTile>(rows.first, x, dots);
    dot_tokens<kTokens, 2 * kTile + 1>(rows.last, x, dots);
    if constexpr (kTile < 3) dot_tiles<kTokens, kTile + 1>(weights, codes, x, dots);
}

// A block's activations, and integer dot products of four rows with each token.
template <int kTokens>
struct BlockByDots {
    int8x16_t x[2 * kTokens];

    explicit BlockByDots(const int8_t* codes) {
        for (int i = 0; i < 2 * kTokens; ++i) x[i] = vld1q_s8(codes + 16 * i);
    }

    template <class Weights>
    [[gnu::always_inline]] void operator()(const Weights& weights, const uint8_t* codes,
                                           int32x4_t dots[kTokens]) const {
        if (kTokens > 4) asm volatile("" : : "r"(x) : "memory");  // x stays in memory, registers hold sums
        for (int t = 0; t < kTokens; ++t) dots[t] = no_dots();
        dot_tiles<kTokens>(weights, codes, x, dots);
    }
};

#ifdef __ARM_FEATURE_MATMUL_INT8
inline int32x4_t four_codes(const int8_t* x) {
    int32_t bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    return vsetq_lane_s32(bytes, vdupq_n_s32(0), 0);
}

inline int32x4_t eight_codes(const int8_t* x) { return vreinterpretq_s32_s8(vcombine_s8(vld1_s8(x), vdup_n_s8(0))); }

template <int kTokens>
struct BlockByMatrices {
    static constexpr int kPairs = (kTokens + 1) / 2;  // of tokens; an odd one is paired with zeros
    int8x16_t x[4][kPairs];

    explicit BlockByMatrices(const int8_t* codes) {
        for (int tile = 0; tile < 4; ++tile) {
            for (int p = 0; p < kPairs; ++p) {
                const int8_t* first = codes + (2 * tile * kTokens + 2 * p) * 4;
                const int8_t* last = first + 4 * kTokens;
                const bool is_pair = 2 * p + 1 < kTokens;
                x[tile][p] = vreinterpretq_s8_s32(is_pair ? vzip1q_s32(eight_codes(first), eight_codes(last))
                                                          : vzip1q_s32(four_codes(first), four_codes(last)));
            }
        }
    }

    template <class Weights>
    [[gnu::always_inline]] void operator()(const Weights& stored, const uint8_t* codes, int32x4_t dots[kTokens]) const {
        if (kTokens > 4) asm volatile("" : : "r"(x) : "memory");  // as above
        int32x4_t sums[kPairs][2];                                // two tokens x two rows; rows 0 1 and 2 3
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) sums[p][0] = sums[p][1] = no_dots();
#pragma GCC unroll 4
        for (int tile = 0; tile < 4; ++tile) {
            const FourRows weights = stored(codes, tile);
            const int32x4_t first = vreinterpretq_s32_s8(weights.first), last = vreinterpretq_s32_s8(weights.last);
            const int8x16_t rows[2] = {vreinterpretq_s8_s32(vzip1q_s32(first, last)),
                                       vreinterpretq_s8_s32(vzip2q_s32(first, last))};
#pragma GCC unroll 4
            for (int p = 0; p < kPairs; ++p) {
                sums[p][0] = vmmlaq_s32(sums[p][0], x[tile][p], rows[0]);
                sums[p][1] = vmmlaq_s32(sums[p][1], x[tile][p], rows[1]);
            }
        }
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
            const int64x2_t a = vreinterpretq_s64_s32(sums[p][0]), b = vreinterpretq_s64_s32(sums[p][1]);
            dots[2 * p] = vreinterpretq_s32_s64(vzip1q_s64(a, b));
            if (2 * p + 1 < kTokens) dots[2 * p + 1] = vreinterpretq_s32_s64(vzip2q_s64(a, b));
        }
    }
};

template <int kTokens>
struct BlockOf {
    using Type = BlockByMatrices<kTokens>;
};
template <>
struct BlockOf<1> {
    using Type = BlockByDots<1>;
};
#else
template <int kTokens>
struct BlockOf {
    using Type = BlockByDots<kTokens>;
};
#endif

template <class Weights, int kTokens, bool kE8m0>
void int8_rows(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, float* out) {
    constexpr int kBlockBytes = 4 * Weights::kTileBytes;
    const Weights weights(matrix);
    const int64_t blocks = a.padded / kBlock, blocks_a_scale = kE8m0 ? 1 : 4;
    const int64_t num_scales = (blocks + blocks_a_scale - 1) / blocks_a_scale;
    const uint8_t* codes = matrix.codes + row_tile * blocks * kBlockBytes;
    const int8_t* x = a.codes + panel * a.padded;
    const float* x_scales = a.scales + panel * blocks;
    float32x4_t sums[4][kTokens];
    for (auto& four_rows : sums)
        for (float32x4_t& sum : four_rows) sum = vdupq_n_f32(0);
    for (int64_t i = 0; i < num_scales; ++i) {
        const BlockScales<kE8m0> scales(matrix.scales, row_tile * num_scales + i);
        const int64_t end = least((i + 1) * blocks_a_scale, blocks);
        for (int64_t block = i * blocks_a_scale; block < end; ++block, codes += kBlockBytes, x += kBlock * kTokens) {
            ask_codes(codes, kBlockBytes / 64);
            const typename BlockOf<kTokens>::Type dots_of(x);
#pragma GCC unroll 4
            for (int four = 0; four < 4; ++four) {
                int32x4_t dots[kTokens];
                dots_of(weights, codes + 16 * four, dots);
#pragma GCC unroll 8
                for (int t = 0; t < kTokens; ++t) {
                    const float32x4_t scale = vmulq_n_f32(scales.of_rows[four], x_scales[block * kTokens + t]);
                    sums[four][t] = vfmaq_f32(sums[four][t], dot_values(dots[t]), scale);
                }
            }
        }
    }
    for (int t = 0; t < kTokens; ++t)
        for (int four = 0; four < 4; ++four)
            vst1q_f32(out + t * kTileRows + 4 * four, vmulq_n_f32(sums[four][t], matrix.scale_factor));
}

template <class Weights, bool kE8m0>
void int8_panel(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                float* out) {
    with_width(width, [&](auto tokens) { int8_rows<Weights, tokens, kE8m0>(matrix, row_tile, a, panel, out); });
}

void four_bit_int8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                   float* out) {
    if (matrix.scale_format == ScaleFormat::kE8m0) {
        return int8_panel<CodedWeights, true>(matrix, row_tile, a, panel, width, out);
    }
    return int8_panel<CodedWeights, false>(matrix, row_tile, a, panel, width, out);
}

void mxint8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width, float* out) {
    int8_panel<StoredWeights, true>(matrix, row_tile, a, panel, width, out);
}

constexpr auto many_int8 = no_many;

// ---- for rates.inl: in the widest way that this instruction set has for a form ----

using Register = int32x4_t;
constexpr int kChains = 16;

#if defined(__ARM_FEATURE_MATMUL_INT8)
template <Form kForm>
constexpr int64_t kProducts = kForm == kInt8                         ? 32
                              : kForm == kRoundedBf16 && kSplit == 0 ? 16
                                                                     : 4;
#else
template <Form kForm>
constexpr int64_t kProducts = kForm == kInt8 ? 16 : 4;
#endif

template <Form kForm>
inline int32x4_t multiply_add(int32x4_t sum, int32x4_t weights, int32x4_t x) {
    if constexpr (kForm == kInt8) {
#ifdef __ARM_FEATURE_MATMUL_INT8
        return vmmlaq_s32(sum, vreinterpretq_s8_s32(weights), vreinterpretq_s8_s32(x));
#else
        return vdotq_s32(sum, vreinterpretq_s8_s32(weights), vreinterpretq_s8_s32(x));
#endif
    }
    const float32x4_t floats = vreinterpretq_f32_s32(sum);
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    if constexpr (kForm == kRoundedBf16) {
        return vreinterpretq_s32_f32(vbfmmlaq_f32(floats, vreinterpretq_bf16_s32(weights), vreinterpretq_bf16_s32(x)));
    }
#endif
    return vreinterpretq_s32_f32(vfmaq_f32(floats, vreinterpretq_f32_s32(weights), vreinterpretq_f32_s32(x)));
}
