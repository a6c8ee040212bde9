// 4 bits x float for NEON: four rows a register. Levels are looked up byte by byte; most have zeros in their lower half.

struct FloatLevels {
    uint8x16_t bytes[4];  // byte k of each level
    bool is_short;        // all of them are BF16 numbers: bytes 0 and 1 are zeros

    explicit FloatLevels(const Matrix& matrix) {
        const uint8x16x4_t table = vld4q_u8(reinterpret_cast<const uint8_t*>(matrix.float_levels));
        for (int k = 0; k < 4; ++k) bytes[k] = table.val[k];
        is_short = vmaxvq_u8(vorrq_u8(bytes[0], bytes[1])) == 0;
    }
};

// Weights of four rows at four columns, from (4 columns, 4 rows) nibbles.
template <bool kShort>
inline void look_up(const FloatLevels& levels, uint8x16_t nibbles, float32x4_t weights[4]) {
    const uint8x16_t third = vqtbl1q_u8(levels.bytes[2], nibbles), fourth = vqtbl1q_u8(levels.bytes[3], nibbles);
    const uint16x8_t high[2] = {vreinterpretq_u16_u8(vzip1q_u8(third, fourth)),
                                vreinterpretq_u16_u8(vzip2q_u8(third, fourth))};
    uint16x8_t low[2] = {vdupq_n_u16(0), vdupq_n_u16(0)};
    if (!kShort) {
        const uint8x16_t first = vqtbl1q_u8(levels.bytes[0], nibbles), second = vqtbl1q_u8(levels.bytes[1], nibbles);
        low[0] = vreinterpretq_u16_u8(vzip1q_u8(first, second));
        low[1] = vreinterpretq_u16_u8(vzip2q_u8(first, second));
    }
    for (int i = 0; i < 2; ++i) {
        weights[2 * i] = vreinterpretq_f32_u16(vzip1q_u16(low[i], high[i]));
        weights[2 * i + 1] = vreinterpretq_f32_u16(vzip2q_u16(low[i], high[i]));
    }
}

template <bool kShort, int kTokens>
void float_rows(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                int64_t lane, const FloatLevels& levels, float* out) {
    static const uint8_t kTransposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const uint8x16_t transposed = vld1q_u8(kTransposed);
    const int64_t blocks = a.padded / kBlock;
    const uint8_t* codes = matrix.codes + row_tile * blocks * 256;
    const float* x = a.values + panel * a.padded + lane * 8;
    float32x4_t sums[4][kTokens];
    for (auto& four_rows : sums)
        for (float32x4_t& sum : four_rows) sum = vdupq_n_f32(0);
    for (int64_t block = 0; block < blocks; ++block, codes += 256, x += kBlock * width) {
        ask_codes(codes, 4);
        float scale[kTileRows];
        for (int64_t r = 0; r < kTileRows; ++r) scale[r] = scale_value(matrix, row_tile, block, r);
        for (int four = 0; four < 4; ++four) {
            float32x4_t in_block[kTokens][4];  // columns 0 4, 1 5, 2 6, 3 7 of the tiles
#pragma GCC unroll 4
            for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 4
                for (int c = 0; c < 4; ++c) in_block[t][c] = vdupq_n_f32(0);
            for (int tile = 0; tile < 4; ++tile) {
                const uint8x16_t packed = vqtbl1q_u8(vld1q_u8(codes + 64 * tile + 16 * four), transposed);
                const uint8x16_t nibbles[2] = {vandq_u8(packed, vdupq_n_u8(0x0F)), vshrq_n_u8(packed, 4)};
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    float32x4_t weights[4];
                    look_up<kShort>(levels, nibbles[half], weights);
#pragma GCC unroll 4
                    for (int t = 0; t < kTokens; ++t) {
                        const float32x4_t values = vld1q_f32(x + (tile * width + t) * 8 + 4 * half);
                        in_block[t][0] = vfmaq_laneq_f32(in_block[t][0], weights[0], values, 0);
                        in_block[t][1] = vfmaq_laneq_f32(in_block[t][1], weights[1], values, 1);
                        in_block[t][2] = vfmaq_laneq_f32(in_block[t][2], weights[2], values, 2);
                        in_block[t][3] = vfmaq_laneq_f32(in_block[t][3], weights[3], values, 3);
                    }
                }
            }
            const float32x4_t scales = vld1q_f32(scale + 4 * four);
#pragma GCC unroll 4
            for (int t = 0; t < kTokens; ++t) {
                const float32x4_t total =
                    vaddq_f32(vaddq_f32(in_block[t][0], in_block[t][1]), vaddq_f32(in_block[t][2], in_block[t][3]));
                sums[four][t] = vfmaq_f32(sums[four][t], total, scales);
            }
        }
    }
    for (int t = 0; t < kTokens; ++t)
        for (int four = 0; four < 4; ++four) vst1q_f32(out + t * kTileRows + 4 * four, sums[four][t]);
}

#include "float_panels.inl"
