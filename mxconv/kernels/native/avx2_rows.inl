// 16-bit weights for AVX2: a register has 16 columns of one row, and so has scratch, where a row of tiles 2k and 2k + 1
// lies together. Every product, from memory or from scratch, adds the same lanes in the same order, whatever the width.

inline int64_t place_of(int64_t tile, int64_t row, int64_t column = 0) {
    return (tile / 2 * 32 + row * 2 + tile % 2) * kTileColumns + column;
}

#include "dense_tiles.inl"

// BF16 times BF16, as floats: eight lanes add pair after pair of columns, the odd one first.
struct Bf16 {
    using Element = float;
    static constexpr int64_t kFloats = 128;   // partial sums a token, eight a row
    static constexpr int64_t kStep = kSplit;  // from a token's activations to the next one's
    static const float* panel(const Activations& a, int64_t token) { return a.split + token * a.padded; }
    static __m256 first(const uint16_t* at) {
        return _mm256_castsi256_ps(_mm256_and_si256(load(at), _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
    }
    static __m256 second(const uint16_t* at) { return _mm256_castsi256_ps(_mm256_slli_epi32(load(at), 16)); }
    static constexpr int64_t to_second(int64_t) { return kSplit / 2; }  // from a token's first eight to its others
};

// F16 times float: eight lanes add tile after tile of eight columns.
struct F16 {
    using Element = float;
    static constexpr int64_t kFloats = 128;
    static constexpr int64_t kStep = kTileColumns;
    static const float* panel(const Activations& a, int64_t token) { return a.values + token * a.padded; }
    static __m256 first(const uint16_t* at) { return _mm256_cvtph_ps(load_half(at)); }
    static __m256 second(const uint16_t* at) { return _mm256_cvtph_ps(load_half(at + kTileColumns)); }
    static constexpr int64_t to_second(int64_t width) { return kTileColumns * width; }
};

constexpr int64_t kRowsAhead = 256;     // weights of a row that are asked for before they are needed, into level 1
constexpr int64_t kPieceValues = 5120;  // activations of a panel that are multiplied before the next ones
constexpr int64_t kNarrow = 2048;       // columns at most of a piece whose next rows are asked for one after another
constexpr int64_t kFarRows = 8;  // after these, asked for into level 2: where many tokens take long, memory goes on

// Some rows of weights, `row` elements apart, whose next 16 columns are `step` elements on.
struct RowsAt {
    const uint16_t* at;
    int64_t row, step;
    int64_t ahead;  // elements from a piece of a row to what is needed in its place next; 0 asks for nothing
};

// kRows rows times kTokens of a panel's `width` tokens, added to sums of (tokens, 16 rows, 8 lanes). Two groups of 16 columns
// a turn: a line of memory. What is needed next begins at `next`, rows too, and is asked for row after row, kLines a turn: as
// many short streams as rows would be read a fifth slower. Where it is null, rows are long, and each asks for its own.
template <class Format, int kTokens, int kRows, int kLines>
inline void multiply_rows(const RowsAt& rows, int64_t groups, const float* x, int64_t width, const uint16_t* next,
                          float* sums) {
    __m256 sum[kTokens][kRows];
    each<kTokens>([&](auto t) kInlined {
        each<kRows>([&](auto r) kInlined { sum[t][r] = _mm256_load_ps(sums + t * 128 + 8 * r); });
    });
    const uint16_t* at = rows.at;
    int64_t left = groups * 16;  // columns of a row to ask for
    for (int64_t group = 0; group < groups; group += 2) {
        if (next != nullptr) {
            each<kLines>([&](auto line) kInlined {
                ask_level1(next + 32 * line);
                ask_level2(next + kFarRows * rows.row + 32 * line);
            });
            next += 32 * kLines;
            left -= 32 * kLines;
            if (left <= 0) {
                next += rows.row - groups * 16;
                left += groups * 16;
            }
        } else if (rows.ahead != 0) {
            each<kRows>([&](auto r) kInlined {
                ask_level2(at + r * rows.row + rows.ahead);
                ask_level1(at + r * rows.row + kRowsAhead);
            });
        }
        each<4>([&](auto eight) kInlined {  // columns: first and second of both groups
            constexpr bool kSecond = eight % 2;
            __m256 weights[kRows];
            each<kRows>([&](auto r) kInlined {
                const uint16_t* from = at + r * rows.row;
                weights[r] = kSecond ? Format::second(from) : Format::first(from);
            });
            const float* values_at = x + (kSecond ? Format::to_second(width) : 0);
            each<kTokens>([&](auto t) kInlined {
                __m256 values = _mm256_loadu_ps(values_at + t * Format::kStep);
                if (kRows > 1) hold(values);
                each<kRows>([&](auto r) kInlined {
                    sum[t][r] = _mm256_fmadd_ps(weights[r], values, sum[t][r]);
                    hold(sum[t][r]);
                });
            });
            if (kSecond) {
                at += rows.step;
                x += 16 * width;
            }
        });
    }
    each<kTokens>([&](auto t) kInlined {
        each<kRows>([&](auto r) kInlined { _mm256_store_ps(sums + t * 128 + 8 * r, sum[t][r]); });
    });
}

// The 16 rows of a tile times a panel of kFirst + kSecond tokens, kRows at once: sixteen registers hold eight to twelve sums
// and what they are multiplied from.
template <class Format, int kRows, int kFirst, int kSecond = 0>
void multiply_panel(RowsAt rows, int64_t groups, const float* x, float* sums) {
    constexpr int kWidth = kFirst + kSecond, kLines = kSecond > 0 ? kRows / 2 : kRows;
    const bool is_narrow = rows.ahead != 0 && groups * 16 <= kNarrow;
    const uint16_t* after = rows.at + rows.ahead;
    for (int r = 0; r < kTileRows; r += kRows, rows.at += kRows * rows.row, sums += 8 * kRows) {
        const uint16_t* next = !is_narrow ? nullptr : r + kRows < kTileRows ? rows.at + kRows * rows.row : after;
        multiply_rows<Format, kFirst, kRows, kLines>(rows, groups, x, kWidth, next, sums);
        if constexpr (kSecond > 0) {
            if (is_narrow) next += kRows / 2 * rows.row;
            multiply_rows<Format, kSecond, kRows, kLines>(rows, groups, x + kFirst * Format::kStep, kWidth, next,
                                                          sums + kFirst * 128);
        }
    }
}

template <class Format>
void multiply_rows_of_tile(const RowsAt& rows, int64_t groups, const float* x, int64_t width, float* sums) {
    with_width(width, [&](auto tokens) {
        constexpr int kRows = tokens <= 3 ? 4 : 2, kFirst = tokens <= 6 ? tokens : 4;
        multiply_panel<Format, kRows, kFirst, tokens - kFirst>(rows, groups, x, sums);
    });
}

template <class Format>
void multiply_tiles(const uint16_t* scratch, int64_t count, const float* x, int64_t width, float* sums) {
    multiply_rows_of_tile<Format>({scratch, 16, 256, 0}, count / 2, x, width, sums);
}

// Of each row ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), by lanes.
template <class>
void total(const float* sums, float* out) {
    for (int r = 0; r < 16; r += 4) {
        __m256 pairs[2];
        for (int i = 0; i < 2; ++i) {
            const float* two = sums + 8 * (r + 2 * i);
            pairs[i] = _mm256_hadd_ps(_mm256_load_ps(two), _mm256_load_ps(two + 8));
        }
        const __m256 halves = _mm256_hadd_ps(pairs[0], pairs[1]);
        _mm_storeu_ps(out + r, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
    }
}

// A dense row tile straight from memory, in pieces of columns whose activations stay in the level-1 cache.
template <class Format>
void multiply_dense(const Matrix& matrix, int64_t row_tile, const Activations& a, float* out, int64_t stride) {
    alignas(64) float sums[kRoom * 128];
    const uint16_t* top = matrix.patterns + row_tile * kTileRows * matrix.columns;
    for (int64_t base = 0; base < a.num_tokens; base += kRoom) {
        const int64_t num_tokens = least(kRoom, a.num_tokens - base);
        std::memset(sums, 0, static_cast<size_t>(num_tokens * 128) * sizeof(float));
        const int64_t piece = kPieceValues / least(kWidest, num_tokens) / kBlock * kBlock;
        for (int64_t column = 0; column < matrix.columns; column += piece) {
            const int64_t count = least(piece, matrix.columns - column);
            const bool is_last = column + count == matrix.columns;
            RowsAt rows{top + column, matrix.columns, 16, is_last ? kTileRows * matrix.columns - column : piece};
            for (int64_t token = 0; token < num_tokens; token += kWidest, rows.ahead = 0) {
                const int64_t width = least(kWidest, num_tokens - token);
                const float* x = Format::panel(a, base + token) + column * width;
                multiply_rows_of_tile<Format>(rows, count / 16, x, width, sums + token * 128);
            }
        }
        for (int64_t t = 0; t < num_tokens; ++t)
            total<Format>(sums + t * 128, out + (base + t) * stride + row_tile * kTileRows);
    }
}
