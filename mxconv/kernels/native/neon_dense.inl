// 16-bit products for NEON. A tile's row of eight columns is two registers of floats; a row has eight partial sums, a lane
// each. Rows lie in scratch or, for a dense matrix, in memory: the same products in the same order from either.

inline int64_t place_of(int64_t tile, int64_t row) { return (tile * kTileRows + row) * kTileColumns; }

// Where tiles lie, in patterns.
struct Tiles {
    const uint16_t* patterns;
    int64_t row_stride;   // from a row to the next
    int64_t tile_stride;  // from a tile to the next
};

inline Tiles in_scratch(const uint16_t* scratch) { return {scratch, kTileColumns, kTileRows * kTileColumns}; }

constexpr int64_t kRowsAhead = 256;  // weights of a row that are asked for before they are needed

// Rows further on, once a line of memory; scratch is in level 1.
template <int kRows>
[[gnu::always_inline]] inline void ask_rows(const uint16_t* tile, int64_t row_stride, int64_t index) {
    constexpr int64_t kTilesALine = 64 / (2 * kTileColumns);
    if (row_stride == kTileColumns || index % kTilesALine != 0) return;
    for (int r = 0; r < kRows; ++r) ask_level1(tile + r * row_stride + kRowsAhead);
}

struct Halves {
    float32x4_t first, second;
};

inline Halves load_halves(const float* values) { return {vld1q_f32(values), vld1q_f32(values + 4)}; }

// Columns 0..3 and 4..7.
inline Halves f16_halves(uint16x8_t patterns) {
    const float16x8_t values = vreinterpretq_f16_u16(patterns);
    return {vcvt_f32_f16(vget_low_f16(values)), vcvt_high_f32_f16(values)};
}

// Columns 1 3 5 7 and 0 2 4 6, as activations are split.
inline Halves bf16_halves(uint16x8_t patterns) {
    const uint32x4_t pairs = vreinterpretq_u32_u16(patterns);
    return {vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xFFFF0000))),
            vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16))};
}

// Rows [first, first + kRows) of some tiles times kTokens rows of activations. Each sum is read and written once.
template <Halves (*kWiden)(uint16x8_t), int kTokens, int kRows>
void row_block(const Tiles& tiles, int64_t count, int first, const float* x, int64_t width, float* sums) {
    float32x4_t sum[kTokens][kRows][2];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half)
                sum[t][r][half] = vld1q_f32(sums + t * 128 + 8 * (first + r) + 4 * half);
    const uint16_t* tile = tiles.patterns + first * tiles.row_stride;
    for (int64_t i = 0; i < count; ++i, tile += tiles.tile_stride, x += 8 * width) {
        ask_rows<kRows>(tile, tiles.row_stride, i);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const Halves weights = kWiden(vld1q_u16(tile + r * tiles.row_stride));
#pragma GCC unroll 4
            for (int t = 0; t < kTokens; ++t) {
                sum[t][r][0] = vfmaq_f32(sum[t][r][0], weights.first, vld1q_f32(x + 8 * t));
                sum[t][r][1] = vfmaq_f32(sum[t][r][1], weights.second, vld1q_f32(x + 8 * t + 4));
            }
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half)
                vst1q_f32(sums + t * 128 + 8 * (first + r) + 4 * half, sum[t][r][half]);
}

template <Halves (*kWiden)(uint16x8_t), int kTokens, int kRows>
void row_blocks(const Tiles& tiles, int64_t count, const float* x, int64_t width, float* sums) {
    for (int r = 0; r < 16; r += kRows) row_block<kWiden, kTokens, kRows>(tiles, count, r, x, width, sums);
}

template <Halves (*kWiden)(uint16x8_t)>
void float_product(const Tiles& tiles, int64_t count, const float* x, int64_t width, float* sums) {
    int64_t left = width;
    for (; left >= 4; left -= 4, x += 4 * 8, sums += 4 * 128) {  // 16 sums, 8 registers of activations, 2 of weights
        row_blocks<kWiden, 4, 2>(tiles, count, x, width, sums);
    }
    if (left == 3) row_blocks<kWiden, 3, 2>(tiles, count, x, width, sums);
    if (left == 2) row_blocks<kWiden, 2, 4>(tiles, count, x, width, sums);
    if (left == 1) row_blocks<kWiden, 1, 8>(tiles, count, x, width, sums);
}

// The total of each row's eight partial sums.
inline void total_of_eight(const float* sums, float* out) {
    for (int r = 0; r < 16; r += 4, sums += 32) {
        float32x4_t four[4];
        for (int i = 0; i < 4; ++i) four[i] = vaddq_f32(vld1q_f32(sums + 8 * i), vld1q_f32(sums + 8 * i + 4));
        vst1q_f32(out + r, vpaddq_f32(vpaddq_f32(four[0], four[1]), vpaddq_f32(four[2], four[3])));
    }
}

constexpr int64_t kF16Lanes = 8;

void f16_tiles(const Tiles& tiles, int64_t count, const float* x, int64_t width, float* sums) {
    float_product<f16_halves>(tiles, count, x, width, sums);
}

void f16_product(const uint16_t* scratch, int64_t count, const float* x, int64_t width, float* sums) {
    f16_tiles(in_scratch(scratch), count, x, width, sums);
}

void f16_sum(const float* sums, float* out) { total_of_eight(sums, out); }

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#include "neon_bfmmla.inl"
#else
using Bf16Element = float;
constexpr int64_t kBf16Lanes = 8;

inline const Bf16Element* bf16_panel(const Activations& a, int64_t token) { return a.split + token * a.padded; }

void bf16_tiles(const Tiles& tiles, int64_t count, const float* x, int64_t width, float* sums) {
    float_product<bf16_halves>(tiles, count, x, width, sums);
}

void bf16_sum(const float* sums, float* out) { total_of_eight(sums, out); }
#endif

void bf16_product(const uint16_t* scratch, int64_t count, const Bf16Element* x, int64_t width, float* sums) {
    bf16_tiles(in_scratch(scratch), count, x, width, sums);
}

void dense_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, uint16_t* scratch) {
    for (int64_t r = 0; r < kTileRows; ++r) {
        const int64_t row = row_tile * kTileRows + r;
        for (int64_t tile = 0; tile < count; ++tile) {
            uint16_t* to = scratch + (tile * kTileRows + r) * kTileColumns;
            const int64_t column = (first + tile) * kTileColumns;
            const int64_t columns = row < matrix.rows ? least(kTileColumns, matrix.columns - column) : 0;
            if (columns == kTileColumns) {
                vst1q_u16(to, vld1q_u16(matrix.patterns + row * matrix.columns + column));
            } else {
                vst1q_u16(to, vdupq_n_u16(0));
                for (int64_t c = 0; c < columns; ++c) to[c] = matrix.patterns[row * matrix.columns + column + c];
            }
        }
    }
}

// A row tile of a dense matrix from where it lies; the end of its rows goes over scratch.
template <int64_t kLanes, class Element>
void dense_row_tile(const Matrix& matrix, int64_t row_tile, int64_t width, const Element* x, float* out, int64_t stride,
                    void (*multiply)(const Tiles&, int64_t, const Element*, int64_t, float*),
                    void (*total)(const float*, float*)) {
    const int64_t whole = matrix.columns / kTileColumns, rest = matrix.column_tiles() - whole;
    alignas(64) float sums[kWidest * kTileRows * kLanes] = {};
    const Tiles tiles{matrix.patterns + row_tile * kTileRows * matrix.columns, matrix.columns, kTileColumns};
    multiply(tiles, whole, x, width, sums);
    if (rest > 0) {
        alignas(64) uint16_t scratch[kBlock / kTileColumns * kTileRows * kTileColumns];
        dense_tiles(matrix, row_tile, whole, rest, scratch);
        multiply(in_scratch(scratch), rest, x + whole * kTileColumns * width, width, sums);
    }
    for (int64_t t = 0; t < width; ++t) total(sums + t * kTileRows * kLanes, out + t * stride + row_tile * kTileRows);
}

bool whole_tile(const Matrix& matrix, int64_t row_tile, const Activations& a, float* out, int64_t stride) {
    if (matrix.kind != MatrixKind::kDense || (row_tile + 1) * kTileRows > matrix.rows) return false;
    for (int64_t token = 0; token < a.num_tokens; token += kWidest) {
        const int64_t width = least(kWidest, a.num_tokens - token);
        float* const to = out + token * stride;
        if (matrix.format == FloatFormat::kBf16) {
            dense_row_tile<kBf16Lanes>(matrix, row_tile, width, bf16_panel(a, token), to, stride, bf16_tiles, bf16_sum);
        } else {
            dense_row_tile<kF16Lanes>(matrix, row_tile, width, a.values + token * a.padded, to, stride, f16_tiles,
                                      f16_sum);
        }
    }
    return true;
}

uint64_t read_bytes(const uint8_t* bytes, int64_t num_bytes) {
    uint8x16_t sums[8];
    for (uint8x16_t& sum : sums) sum = vdupq_n_u8(0);
    for (int64_t i = 0; i + 128 <= num_bytes; i += 128) {
        for (int line = 0; line < 128; line += 64) ask_level1(bytes + i + kPage + line);
        for (int k = 0; k < 8; ++k) sums[k] = veorq_u8(sums[k], vld1q_u8(bytes + i + 16 * k));
    }
    for (int k = 1; k < 8; ++k) sums[0] = veorq_u8(sums[0], sums[k]);
    const uint64x2_t words = vreinterpretq_u64_u8(sums[0]);
    return vgetq_lane_u64(words, 0) ^ vgetq_lane_u64(words, 1);
}
