// 16-bit products for NEON. A tile's row of eight columns is two registers of floats; a row has eight partial sums, a lane
// each. Rows lie in scratch or, for a dense matrix, in memory: the same products in the same order from either.

inline int64_t place_of(int64_t tile, int64_t row, int64_t column = 0) {
    return (tile * kTileRows + row) * kTileColumns + column;
}

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

struct F16 {
    using Element = float;
    static constexpr int64_t kFloats = 128;  // partial sums a token
    static const Element* panel(const Activations& a, int64_t token) { return a.values + token * a.padded; }
    static Halves widen(uint16x8_t patterns) {  // columns 0..3 and 4..7
        const float16x8_t values = vreinterpretq_f16_u16(patterns);
        return {vcvt_f32_f16(vget_low_f16(values)), vcvt_high_f32_f16(values)};
    }
};

// Rows [first, first + kRows) of some tiles times kTokens rows of activations. Each sum is read and written once.
template <class Format, int kTokens, int kRows>
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
            const Halves weights = Format::widen(vld1q_u16(tile + r * tiles.row_stride));
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

template <class Format, int kTokens, int kRows>
void row_blocks(const Tiles& tiles, int64_t count, const float* x, int64_t width, float* sums) {
    for (int r = 0; r < 16; r += kRows) row_block<Format, kTokens, kRows>(tiles, count, r, x, width, sums);
}

template <class Format>
void multiply(const Tiles& tiles, int64_t count, const typename Format::Element* x, int64_t width, float* sums) {
    int64_t left = width;
    for (; left >= 4; left -= 4, x += 4 * 8, sums += 4 * 128) {  // 16 sums, 8 registers of activations, 2 of weights
        row_blocks<Format, 4, 2>(tiles, count, x, width, sums);
    }
    if (left == 3) row_blocks<Format, 3, 2>(tiles, count, x, width, sums);
    if (left == 2) row_blocks<Format, 2, 4>(tiles, count, x, width, sums);
    if (left == 1) row_blocks<Format, 1, 8>(tiles, count, x, width, sums);
}

// The total of each row's eight partial sums.
template <class Format>
void total(const float* sums, float* out) {
    for (int r = 0; r < 16; r += 4, sums += 32) {
        float32x4_t four[4];
        for (int i = 0; i < 4; ++i) four[i] = vaddq_f32(vld1q_f32(sums + 8 * i), vld1q_f32(sums + 8 * i + 4));
        vst1q_f32(out + r, vpaddq_f32(vpaddq_f32(four[0], four[1]), vpaddq_f32(four[2], four[3])));
    }
}

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#include "neon_bfmmla.inl"
#else
struct Bf16 {
    using Element = float;
    static constexpr int64_t kFloats = 128;
    static const Element* panel(const Activations& a, int64_t token) { return a.split + token * a.padded; }
    static Halves widen(uint16x8_t patterns) {  // columns 1 3 5 7 and 0 2 4 6, as activations are split
        const uint32x4_t pairs = vreinterpretq_u32_u16(patterns);
        return {vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xFFFF0000))),
                vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16))};
    }
};
#endif

template <class Format>
void multiply_tiles(const uint16_t* scratch, int64_t count, const typename Format::Element* x, int64_t width,
                    float* sums) {
    multiply<Format>(in_scratch(scratch), count, x, width, sums);
}

#include "dense_tiles.inl"

// A row tile of a dense matrix from where it lies; the end of its rows goes over scratch.
template <class Format>
void dense_row_tile(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, float* out,
                    int64_t stride) {
    const int64_t whole = matrix.columns / kTileColumns, rest = matrix.column_tiles() - whole;
    const int64_t width = least(kWidest, a.num_tokens - token);
    const auto* x = Format::panel(a, token);
    alignas(64) float sums[kWidest * Format::kFloats] = {};
    const Tiles tiles{matrix.patterns + row_tile * kTileRows * matrix.columns, matrix.columns, kTileColumns};
    multiply<Format>(tiles, whole, x, width, sums);
    if (rest > 0) {
        alignas(64) uint16_t scratch[kBlock / kTileColumns * kTileRows * kTileColumns];
        dense_tiles(matrix, row_tile, whole, rest, scratch);
        multiply_tiles<Format>(scratch, rest, x + whole * kTileColumns * width, width, sums);
    }
    for (int64_t t = 0; t < width; ++t) {
        total<Format>(sums + t * Format::kFloats, out + (token + t) * stride + row_tile * kTileRows);
    }
}

int64_t whole_tiles(const Matrix& matrix, int64_t row_tile, int64_t, const Activations& a, float* out, int64_t stride) {
    if (matrix.kind != MatrixKind::kDense || (row_tile + 1) * kTileRows > matrix.rows) return 0;
    for (int64_t token = 0; token < a.num_tokens; token += kWidest) {
        if (matrix.format == FloatFormat::kBf16) {
            dense_row_tile<Bf16>(matrix, row_tile, a, token, out, stride);
        } else {
            dense_row_tile<F16>(matrix, row_tile, a, token, out, stride);
        }
    }
    return 1;
}
