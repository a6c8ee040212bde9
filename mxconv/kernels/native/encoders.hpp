// What the encoders see, and the table of functions that each instruction set fills in. An encoder works on one row
// tile (16 rows) at a time, on the thread that calls it: a conversion has a thread a tensor. Like kernels.hpp, nothing
// here may become code.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace mxconv {

enum class ScaleRule { kOcp, kEven, kCeil, kGgml, kMse };  // formats/mxfp4.md

// Rows of weights in C order.
struct Rows {
    FloatFormat format;
    const uint16_t* patterns;
    int64_t rows;
    int64_t columns;

    int64_t row_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
    int64_t blocks() const { return (columns + kBlock - 1) / kBlock; }
    uint16_t infinity() const { return format == FloatFormat::kBf16 ? 0x7F80 : 0x7C00; }
    int64_t groups() const { return (columns + kGroup - 1) / kGroup; }
};

// A BSFP segment table, see formats/bsfp.md.
struct Segments {
    const uint16_t* starts;  // (rows, 8) by row and code, or (1, 8) for all rows
    bool shared_starts;
    int residual_bits;
    uint8_t order[8];  // codes by ascending start
    float levels[8];   // draft magnitudes by code
};

// Where a row tile goes; C = 4 blocks.
struct BsfpTile {
    uint8_t* codes;             // (C, 64)
    uint8_t* residual_low;      // (C, 128)
    uint8_t* residual_high;     // (C, R - 8, 16)
    uint16_t* scales;           // (groups, 16) BF16 patterns
    uint8_t* escape_counts;     // (C)
    uint8_t* escape_positions;  // room for every weight of the tile, and kEscapeSlack more
    uint8_t* escape_high;
};
constexpr int64_t kEscapeSlack = 64;  // bytes that may be overwritten after a list

// What a BSFP segment costs between any two cuts, see `Cells` in mxconv/codecs/bsfp/fit.py.
struct Cells {
    int64_t num_cuts;       // n
    const double* weights;  // (n + 1)
    const double* mass;     // (n + 1)
    const double* first;    // (n + 1)
    const double* second;   // (n + 1)
    const double* reach;    // (n)
};

struct Encoders {
    // codes (C, 64) and scales (blocks, 16) of a row tile. False where a weight is not finite; the output then means
    // nothing.
    bool (*mxfp4)(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales);

    // A row tile of 16-bit patterns as BSFP; returns the number of escapes.
    int64_t (*bsfp)(const Rows& rows, const Segments& segments, int64_t row_tile, const BsfpTile& out);

    // The sum of the squares of each row, folded by groups in binary64 (formats/bsfp.md, "Row shifts"); 16-bit patterns.
    void (*sum_of_squares)(const Rows& rows, int64_t first, int64_t last, double* sums);

    // The same in binary32, at most columns / 16 + 64 roundings off; squares below 2^-126 may count as 0, above 2^127 as
    // infinite. Null where it would not be faster.
    void (*squares_nearly)(const Rows& rows, int64_t first, int64_t last, float* sums);

    // counts[pattern & 0x7FFF] += 1 for each pattern.
    void (*count)(const uint16_t* patterns, int64_t num_patterns, int64_t* counts);

    // The eight cuts of least cost, and the relative error that they leave. Room: row (n), best (8 n).
    double (*fit_cuts)(const Cells& cells, double price, double* row, double* best, int64_t* chosen);

    // Draft values of a row tile of a 4-bit matrix of float levels: level * scale, (16 rows, columns) float32.
    void (*values)(const Matrix& matrix, int64_t row_tile, float* out);
};

extern const Encoders kEncodersPlain;
extern const Encoders kEncodersAvx2;
extern const Encoders kEncodersNeon;

}  // namespace mxconv
