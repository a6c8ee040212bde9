// What every kernel sees: plain pointers into arrays that module.cpp has checked, and the table of functions that each
// instruction set fills in. One .cpp file an instruction set, and one for what a family of them shares, compiled with its
// flags and no others; nothing in this header may become code, or the linker could pick another instruction set's copy of it.
//
// Terms are those of formats/: a tile is 16 rows x 8 columns, a block 32 columns, a group 128.
#pragma once

#include <cstdint>

namespace mxconv {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileColumns = 8;
constexpr int64_t kBlock = 32;
constexpr int64_t kGroup = 128;
constexpr int32_t kBias = 128;  // what makes an int8 level unsigned

enum class FloatFormat { kBf16, kF16 };
enum class MatrixKind { kDense, kBsfp, kFourBitInt8, kFourBitFloat, kMxint8 };
enum class ScaleFormat { kE8m0, kBf16 };  // one a block of 32; one a group of 128

// A weight matrix (rows = out_features, columns = in_features). Which pointers are set depends on `kind`.
struct Matrix {
    MatrixKind kind;
    int64_t rows;
    int64_t columns;

    // dense and bsfp: how to read the 16-bit patterns
    FloatFormat format;
    const uint16_t* patterns;  // dense: (rows, columns)

    // bsfp, four-bit and mxint8; T row tiles, C = 4 ceil(columns / 32) column tiles
    const uint8_t* codes;  // (T, C, 64) nibbles; of kMxint8 (T, 2 C, 64) int8 elements

    // bsfp, see formats/bsfp.md
    int64_t residual_planes;          // R - 8
    bool shared_starts;               // all rows have the same starts
    const uint8_t* residual_low;      // (T, C, 128)
    const uint8_t* residual_high;     // (T, C, residual_planes, 16)
    const uint16_t* starts;           // (16 T, 8) magnitude patterns by row and code
    const uint8_t* escape_counts;     // (T, C)
    const int64_t* escape_offsets;    // (T + 1)
    const uint8_t* escape_positions;  // (escapes)
    const uint8_t* escape_high;       // (escapes)

    // four-bit, and mxint8, whose scales are E8M0
    ScaleFormat scale_format;
    const void* scales;      // (T, blocks, 16) E8M0 bytes, or (T, groups, 16) BF16 patterns
    int8_t levels[16];       // by nibble, of kFourBitInt8
    float float_levels[16];  // by nibble, of kFourBitFloat
    float scale_factor;      // of stored scales, of E8M0 a power of two: 0.5 where levels are doubled

    // dense and bsfp: where rows are looked up in place of what is mapped of it, or null
    const class PlaneFile* file;

    int64_t row_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
    int64_t column_tiles() const { return (columns + kBlock - 1) / kBlock * (kBlock / kTileColumns); }
};

// The forms of an activation row that matrices ask for. All rows are zero-padded to a multiple of 32.
enum Form : int { kFloat = 1, kRoundedBf16 = 2, kInt8 = 4 };

constexpr int64_t kWidest = 8;  // tokens that a product takes at once

// Activation rows, in panels of up to kWidest tokens: tokens 8p .. 8p + w - 1 lie side by side, w = min(8, num_tokens - 8p),
// so that a product walks one pointer through all of them. Panel p begins at 8p times the length of a row. In a panel
//
//     values, bf16   (padded / 8, w, 8)
//     split          (padded / 8, w, 8), or (padded / 16, w, 16) for AVX2
//     codes          (padded / 4, w, 4)
//     scales, offsets   (padded / 32, w)
struct Activations {
    int64_t num_tokens;
    int64_t columns;
    int64_t padded;    // columns, rounded up to 32
    float* values;     // kFloat
    uint16_t* bf16;    // kRoundedBf16: nearest even
    float* split;      // kRoundedBf16 without BF16 arithmetic: the same, of 8 or 16 columns the odd ones first
    int8_t* codes;     // kInt8: see formats/vnni8.md
    float* scales;     // kInt8
    int32_t* offsets;  // kInt8: what integer sums start from: -128 times the sum of the block's codes, and kOffsetBase;
                       // for AVX2 two 16-bit numbers, see avx2_int8.inl
    uint8_t* finite;   // kInt8: (num_tokens); a row with an infinity or a NaN gets NaNs from a draft
};

// The form that a matrix multiplies.
inline constexpr Form form_of(MatrixKind kind, FloatFormat format) {
    switch (kind) {
        case MatrixKind::kFourBitInt8:
        case MatrixKind::kMxint8: return kInt8;
        case MatrixKind::kFourBitFloat: return kFloat;
        default: return format == FloatFormat::kBf16 ? kRoundedBf16 : kFloat;
    }
}

constexpr int64_t kAttentionChunk = 64;  // positions that are added up together; chunks are added one after another

// The positions that a token attends to, in order: a run of them, then some others (branches of a tree of drafts).
// Results depend on the keys and values in this order alone, so a branch gets the bits it would have in a text.
struct Visible {
    int64_t start;
    int64_t num_run;  // start, start + 1, ...
    const int32_t* others;
    int64_t num_others;
};

// The i-th of them.
inline constexpr int64_t position_of(const Visible& visible, int64_t i) {
    return i < visible.num_run ? visible.start + i : visible.others[i - visible.num_run];
}

constexpr int64_t kAttentionRows = 32;  // of queries whose shares are kept at once

// Scaled queries of some heads of some tokens.
struct AttentionQueries {
    const float* values;
    int64_t num_tokens, num_heads;
    int64_t stride;       // from a token's queries to the next one's
    int64_t head_stride;  // from a head's query to the next one's
    int64_t out_stride;   // from a token's results to the next one's; those of its heads lie side by side
    const float* sinks;   // (num_heads): scores that take a share and give nothing, or null
};

constexpr int64_t kPagePositions = 64;  // of a page of a cache

// What a cache holds of a key or a value: all its numbers, or these rounded to nearest, ties to even.
enum class CacheDtype : int { kFp32, kBf16, kFp16 };
constexpr int kNumCacheDtypes = 3;

// A page of a cache: runs of kPagePositions keys or values, a run for each head. Steps and strides count numbers.
struct CachePage {
    void* first;   // of the first run
    int64_t step;  // from one run to the next
};

// Keys and values of one head, by position.
struct KeysAndValues {
    const CachePage* key_pages;
    int64_t key_run;  // which of a page's is the head's
    const CachePage* value_pages;
    int64_t value_run;
    int64_t stride;  // from one position's to the next one's, within a run
};

// What stands between the matrices of an MLP, and what gates the heads of attention.
enum class Activation : int { kSilu, kGelu, kGeluTanh, kRelu2, kSigmoid };
constexpr int kNumActivations = 5;

// Of a causal convolution a channel.
struct ConvolutionTaps {
    const float* weights;  // (kernel_size, num_channels), the oldest row's first
    const float* bias;     // (num_channels), or null
    int64_t kernel_size, num_channels;
};

// A memory (rows, columns), read from one place and written to another, which may be the same.
struct MemoryStep {
    int64_t rows, columns;
    const float* from;
    float* to;
};

// What a row brings to a head of gated DeltaNet, whose memory S is (keys, values): S <- exp(rate * softplus(decay)) * S, then
// S <- S + key (sigmoid(beta) * (value - S' key)).
struct DeltaRow {
    const float* query;
    const float* key;
    const float* value;
    float decay, rate, beta;
};

// What a row brings to a head of Mamba-2, whose memory S is (x, state): dt = softplus(step), kept between its limits; S <-
// exp(dt * rate) * S + (dt * x) b'.
struct SpaceRow {
    const float* x;
    const float* b;
    const float* c;
    float step, least_step, most_step, rate, skip;
};

// What a forward pass does beside its matrices, on one row or head. NaNs and infinities flow as IEEE says.
struct Rowwise {
    // out = x / sqrt(mean(x^2) + eps) * weight, each (length); out may be x
    void (*rms_norm)(const float* x, const float* weight, int64_t length, float eps, float* out);

    // The same of x - mean(x), with a bias added, if there is one
    void (*layer_norm)(const float* x, const float* weight, const float* bias, int64_t length, float eps, float* out);

    // out += x
    void (*add)(const float* x, int64_t length, float* out);

    // out += factor * x
    void (*add_scaled)(const float* x, float factor, int64_t length, float* out);

    // x *= factor
    void (*scale)(float factor, int64_t length, float* x);

    // x = cap * tanh(x / cap)
    void (*cap)(float cap, int64_t length, float* x);

    // Rotate pairs (i, i + half) of a head by angles given as (half) cosines and sines, then scale, in place.
    void (*rotate)(const float* cosines, const float* sines, int64_t half, float factor, float* head);

    // The same of pairs (2 i, 2 i + 1).
    void (*rotate_neighbours)(const float* cosines, const float* sines, int64_t half, float factor, float* head);

    // The sum of products
    float (*dot)(const float* x, const float* y, int64_t length);

    // By activation: out = activated(x) * y, each (length); without y (null) it is not multiplied
    void (*activate[kNumActivations])(const float* x, const float* y, int64_t length, float* out);

    // By (y + 1) * x * sigmoid(slope * x), x at most `limit` and y within it: out, each (length)
    void (*clamped_gates)(const float* x, const float* y, float slope, float limit, int64_t length, float* out);

    // x is kept within `limit`
    void (*clip)(float limit, int64_t length, float* x);

    // Softmax-weighted means of values for rows of queries that share them: the heads of some tokens. A token sees its own
    // `visible` positions, at least one; where there are several tokens, all runs begin together. Results depend on a row's
    // own query and positions alone. A cap other than 0 is put on scores. `shares` is room for kAttentionRows times whole
    // chunks of the most visible positions. By the dtype of what is seen.
    void (*attend[kNumCacheDtypes])(const AttentionQueries& queries, const KeysAndValues& seen, int64_t head_dim,
                                    float cap, const Visible* visible, float* shares, float* out);

    // Channels [first, first + count) of what the newest of kernel_size rows becomes; out is (count)
    void (*convolve)(const float* const* rows, const ConvolutionTaps& taps, int64_t first, int64_t count, float* out);

    // The delta rule; then out = S' query, (columns)
    void (*correct)(const DeltaRow& row, const MemoryStep& memory, float* out);

    // Then out = S c + skip * x, (rows)
    void (*go_through_space)(const SpaceRow& row, const MemoryStep& memory, float* out);
};

struct Encoders;  // encoders.hpp

// Rows of tiles [first, last): out[token * stride + row], for all tokens. A row's result depends on that row and token alone,
// bit for bit, whatever the number of tokens.
using Linear = void(const Matrix& matrix, const Activations& activations, int64_t first, int64_t last, float* out,
                    int64_t stride);

// What instruction sets may have in common, compiled once for all of them.
struct Family {
    Linear* linear_of_floats;  // by matrices of 16-bit patterns, or of float levels

    // The 16-bit patterns of row tiles [first, last) of a dense or BSFP matrix: (rows of them, columns).
    void (*patterns)(const Matrix& matrix, int64_t first, int64_t last, uint16_t* out);

    // For benchmarks: read bytes; a checksum comes back.
    uint64_t (*read)(const uint8_t* bytes, int64_t num_bytes);

    const Rowwise& rowwise;
    const Encoders& encoders;
};

struct Kernels {
    const char* name;

    // Fill the wanted forms of columns [first, first + count) of one token's row; x is (count). Both are multiples of
    // 32, but for the end of the row, which is padded. Clears finite[token] where it must; set it before. Threads may
    // fill parts of one row.
    void (*prepare)(const float* x, int64_t token, int64_t first, int64_t count, int forms,
                    const Activations& activations);

    Linear* linear_of_integers;

    // For benchmarks: multiply-add as fast as registers allow; how many were done comes back.
    int64_t (*multiply_adds)(Form form, int64_t iterations);

    const Family& family;
    const Rowwise& rowwise;  // the family's; named again, so that no code runs before the processor is known

    // By whichever product the matrix has.
    void linear(const Matrix& matrix, const Activations& activations, int64_t first, int64_t last, float* out,
                int64_t stride) const;
};

extern const Rowwise kRowwiseAvx2;
extern const Rowwise kRowwiseAvx512;
extern const Rowwise kRowwiseNeon;
extern const Family kFamilyAvx2;
extern const Family kFamilyNeon;

extern const Kernels kPortable;
extern const Kernels kAvx2;
extern const Kernels kAvxVnni;
extern const Kernels kAvxVnniInt8;
extern const Kernels kAvx512Vnni;
extern const Kernels kAvx512Bf16;
extern const Kernels kNeon;
extern const Kernels kNeonI8mm;
extern const Kernels kNeonBf16;

}  // namespace mxconv
