// The implementation that always exists: C++17 without intrinsics, for the compiler's own choice of instructions.
#include <cstring>

#include "encoders.hpp"
#include "kernels.hpp"

namespace mxconv {
namespace {

#include "numbers.inl"
#include "generic.inl"

// Tiles lie in scratch with their rows in order, eight columns each.
inline int64_t place_of(int64_t tile, int64_t row, int64_t column = 0) {
    return (tile * kTileRows + row) * kTileColumns + column;
}

#include "dense_tiles.inl"

void bsfp_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, EscapeCursor& escapes,
                uint16_t* scratch) {
    const int64_t planes = matrix.residual_planes;
    for (int64_t tile = 0; tile < count; ++tile) {
        const int64_t index = row_tile * matrix.column_tiles() + first + tile;
        const uint8_t* codes = matrix.codes + index * 64;
        const uint8_t* low = matrix.residual_low + index * 128;
        const uint8_t* high = matrix.residual_high + index * planes * 16;
        uint16_t* to = scratch + tile * kTileRows * kTileColumns;
        for (int64_t r = 0; r < kTileRows; ++r) {
            const uint16_t* starts = matrix.starts + (row_tile * kTileRows + r) * 8;
            for (int64_t c = 0; c < kTileColumns; ++c) {
                const int nibble = codes[4 * r + c % 4] >> (c < 4 ? 0 : 4) & 0xF;
                int pattern = starts[nibble & 7] + low[8 * r + c];
                for (int64_t plane = 0; plane < planes; ++plane)
                    pattern += (high[16 * plane + r] >> c & 1) << (8 + plane);
                to[8 * r + c] = static_cast<uint16_t>(pattern | (nibble & 8) << 12);
            }
        }
        for (int escape = 0; escape < matrix.escape_counts[index]; ++escape) {
            uint16_t& pattern = to[*escapes.positions++ & 127];
            pattern = static_cast<uint16_t>(*escapes.high++ << 8 | (pattern & 0xFF));
        }
    }
}

int64_t whole_tiles(const Matrix&, int64_t, int64_t, const Activations&, float*, int64_t) { return 0; }

// Eight partial sums a row, one a column of the tile: the same for both 16-bit formats.
struct Bf16 {
    using Element = uint16_t;
    static constexpr int64_t kFloats = 128;
    static const Element* panel(const Activations& a, int64_t token) { return a.bf16 + token * a.padded; }
    static float weight(uint16_t pattern) { return bf16_value(pattern); }
    static float value(Element x) { return bf16_value(x); }
};

struct F16 {
    using Element = float;
    static constexpr int64_t kFloats = 128;
    static const Element* panel(const Activations& a, int64_t token) { return a.values + token * a.padded; }
    static float weight(uint16_t pattern) { return f16_value(pattern); }
    static float value(Element x) { return x; }
};

template <class Format>
void multiply_tiles(const uint16_t* scratch, int64_t count, const typename Format::Element* x, int64_t width,
                    float* sums) {
    for (int64_t tile = 0; tile < count; ++tile) {
        float weights[128];
        for (int i = 0; i < 128; ++i) weights[i] = Format::weight(scratch[tile * 128 + i]);
        for (int64_t t = 0; t < width; ++t) {
            float values[8];
            for (int c = 0; c < 8; ++c) values[c] = Format::value(x[(tile * width + t) * 8 + c]);
            for (int i = 0; i < 128; ++i) sums[t * 128 + i] += weights[i] * values[i % 8];
        }
    }
}

template <class>
void total(const float* sums, float* out) {
    for (int r = 0; r < 16; ++r) {
        const float* s = sums + 8 * r;
        out[r] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
}

// weight_at(block of the matrix, row of the tile, column of the block) is an integer.
template <class WeightAt>
void int8_rows(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, int64_t num_tokens,
               float* out, const WeightAt& weight_at) {
    const int64_t blocks = a.padded / kBlock;
    for (int64_t i = 0; i < num_tokens * kTileRows; ++i) out[i] = 0.0f;
    for (int64_t block = 0; block < blocks; ++block) {
        int8_t weights[16][32];
        float scales[16];
        for (int r = 0; r < 16; ++r) {
            scales[r] = scale_value(matrix, row_tile, block, r);
            for (int c = 0; c < 32; ++c) weights[r][c] = weight_at(row_tile * blocks + block, r, c);
        }
        for (int64_t t = 0; t < num_tokens; ++t) {
            const int8_t* x = a.codes + token * a.padded + block * kBlock * num_tokens + t * 4;
            const float x_scale = a.scales[token * blocks + block * num_tokens + t];
            for (int r = 0; r < 16; ++r) {
                int32_t dot = 0;
                for (int c = 0; c < 32; ++c) dot += weights[r][c] * x[c / 4 * 4 * num_tokens + c % 4];
                out[t * kTileRows + r] += static_cast<float>(dot) * x_scale * scales[r];
            }
        }
    }
}

void four_bit_int8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, int64_t num_tokens,
                   float* out) {
    int8_rows(matrix, row_tile, a, token, num_tokens, out, [&](int64_t block, int r, int c) {
        const uint8_t byte = matrix.codes[block * 256 + c / 8 * 64 + 4 * r + c % 4];
        return matrix.levels[byte >> (c % 8 < 4 ? 0 : 4) & 0xF];
    });
}

void mxint8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, int64_t num_tokens,
            float* out) {
    int8_rows(matrix, row_tile, a, token, num_tokens, out, [&](int64_t block, int r, int c) {
        return static_cast<int8_t>(matrix.codes[block * 512 + c / 4 * 64 + 4 * r + c % 4]);
    });
}

void four_bit_float(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, int64_t num_tokens,
                    float* out) {
    const int64_t blocks = a.padded / kBlock;
    for (int64_t i = 0; i < num_tokens * kTileRows; ++i) out[i] = 0.0f;
    for (int64_t block = 0; block < blocks; ++block) {
        const uint8_t* codes = matrix.codes + (row_tile * blocks + block) * 256;
        for (int r = 0; r < 16; ++r) {
            const float scale = scale_value(matrix, row_tile, block, r);
            float weights[32];
            for (int c = 0; c < 32; ++c) {
                const uint8_t byte = codes[c / 8 * 64 + 4 * r + c % 4];
                weights[c] = matrix.float_levels[byte >> (c % 8 < 4 ? 0 : 4) & 0xF];
            }
            for (int64_t t = 0; t < num_tokens; ++t) {
                const float* x = a.values + token * a.padded + block * kBlock * num_tokens + t * 8;
                float dot = 0;
                for (int c = 0; c < 32; ++c) dot += weights[c] * x[c / 8 * 8 * num_tokens + c % 8];
                out[t * kTileRows + r] += dot * scale;
            }
        }
    }
}

template <class Number, class Total>
int64_t multiply_add_chains(int64_t iterations) {
    constexpr int kLanes = 64;
    Total sums[kLanes] = {};
    Number weights[kLanes], x[kLanes];
    for (int k = 0; k < kLanes; ++k) weights[k] = x[k] = 1;
    for (int64_t i = 0; i < iterations; ++i) {
        asm volatile("" : : "r"(weights), "r"(x) : "memory");
        for (int k = 0; k < kLanes; ++k) sums[k] += weights[k] * x[k];
    }
    asm volatile("" : : "r"(sums) : "memory");
    return iterations * kLanes;
}

int64_t multiply_adds(Form form, int64_t iterations) {
    return (form == kInt8 ? multiply_add_chains<int16_t, int32_t> : multiply_add_chains<float, float>)(iterations);
}

#include "draft_linear.inl"

constexpr auto many_int8 = no_many;

#include "fill.inl"
#include "linear.inl"
#include "integers.inl"
#include "encode_mxfp4.inl"
#include "encode_bsfp.inl"
#include "fit_cuts.inl"
#include "rowwise.inl"

}  // namespace

const Encoders kEncodersPlain{
    encode_mxfp4_plainly, encode_bsfp_plainly, sum_of_squares_plainly, nullptr, count_patterns, fit_cuts, draft_values};

static const Family kFamily{linear_of_floats, patterns, read_bytes, kRowwise, kEncodersPlain};

const Kernels kPortable{"portable", prepare, linear_of_integers, multiply_adds, kFamily, kRowwise};

}  // namespace mxconv
