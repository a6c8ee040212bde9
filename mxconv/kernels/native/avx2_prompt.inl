// 16-bit weights times many tokens for AVX2. The sums of a row are eight lanes, as in avx2_rows.inl; where tokens are many, one
// lane at a time is a product of two matrices, with sixteen rows in two registers and an activation of each of six tokens beside
// them: twelve sums wait for nothing. Each lane adds what it adds elsewhere, in that order, so the bits are the same.

constexpr int64_t kFewestTokens = 64;  // from which this pays
constexpr int64_t kLaneTiles = 32;     // column tiles in scratch by lanes: 16 KB of floats, half of a level-1 cache
constexpr int64_t kLaneFloats = kLaneTiles * kTileRows;  // a lane has a column of each eight
constexpr int64_t kLaneTokens = 72;   // whose sums are kept meanwhile: 144 KB, as stacks of threads may be 512 KB
constexpr int64_t kLaneRowTiles = 4;  // that one reading of their activations serves

// Rows 0 to 7 of eight registers become their lanes; a row of the result goes to every kLaneFloats.
inline void store_turned(const __m256 rows[8], float* to) {
    __m256 pairs[8], fours[8];
    each<4>([&](auto i) kInlined {
        pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    });
    each<2>([&](auto i) kInlined {
        each<2>([&](auto k) kInlined {
            fours[4 * i + 2 * k] = _mm256_shuffle_ps(pairs[4 * i + k], pairs[4 * i + 2 + k], 0x44);
            fours[4 * i + 2 * k + 1] = _mm256_shuffle_ps(pairs[4 * i + k], pairs[4 * i + 2 + k], 0xEE);
        });
    });
    each<4>([&](auto i) kInlined {
        _mm256_store_ps(to + i * kLaneFloats, _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x20));
        _mm256_store_ps(to + (4 + i) * kLaneFloats, _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x31));
    });
}

// Patterns of 16 rows, as floats by lane, column and row.
template <class Format>
void turn(RowsAt rows, int64_t groups, float* lanes) {
    for (int64_t group = 0; group < groups; ++group, rows.at += rows.step, lanes += 2 * kTileRows) {
        each<2>([&](auto half) kInlined {
            const uint16_t* at = rows.at + 8 * half * rows.row;
            __m256 values[8];
            each<8>([&](auto r) kInlined { values[r] = Format::first(at + r * rows.row); });
            store_turned(values, lanes + 8 * half);
            each<8>([&](auto r) kInlined { values[r] = Format::second(at + r * rows.row); });
            store_turned(values, lanes + kTileRows + 8 * half);
        });
    }
}

// The same columns of 16 rows, by lanes, times kFirst tokens of a panel and kSecond of the one after it, added to sums of
// (tokens, 8 lanes, 16 rows). Meanwhile the panel at `soon` is asked for. Inlined, GCC 12 would keep the sums in memory.
template <class Format, int kFirst, int kSecond = 0>
[[gnu::noinline]] void multiply_lanes(const float* lanes, int64_t groups, const float* x, const float* next,
                                      int64_t width, const float* soon, float* sums) {
    constexpr int kTokens = kFirst + kSecond;
    for (int lane = 0; lane < 8; ++lane, lanes += kLaneFloats, sums += kTileRows, ++x, ++next) {
        const float* to_ask = soon + lane * Format::kStep;
        __m256 sum[kTokens][2];
        each<kTokens>([&](auto t) kInlined {
            each<2>([&](auto half) kInlined { sum[t][half] = _mm256_load_ps(sums + t * 128 + 8 * half); });
        });
        const float *weights_at = lanes, *first = x, *second = next;
        for (int64_t group = 0; group < groups; ++group) {
            each<2>([&](auto column) kInlined {
                const int64_t to_column = column ? Format::to_second(width) : 0;
                __m256 weights[2];
                each<2>([&](auto half) kInlined {
                    weights[half] = _mm256_load_ps(weights_at + 8 * half);
                    hold(weights[half]);
                });
                each<kTokens>([&](auto t) kInlined {
                    const float* at = t < kFirst ? first + t * Format::kStep : second + (t - kFirst) * Format::kStep;
                    __m256 value = _mm256_broadcast_ss(at + to_column);
                    hold(value);
                    each<2>([&](auto half) kInlined {
                        sum[t][half] = _mm256_fmadd_ps(weights[half], value, sum[t][half]);
                        hold(sum[t][half]);
                    });
                });
                weights_at += kTileRows;
            });
            ask_level2(to_ask);
            to_ask += 16 * width;
            first += 16 * width;
            second += 16 * width;
        }
        each<kTokens>([&](auto t) kInlined {
            each<2>([&](auto half) kInlined { _mm256_store_ps(sums + t * 128 + 8 * half, sum[t][half]); });
        });
    }
}

// Tokens of panels `step` floats apart, from a column on: of three whole panels four times six.
template <class Format>
void multiply_tokens(const float* lanes, int64_t groups, const float* panel, int64_t step, int64_t column,
                     int64_t num_tokens, NextColumns next, float* sums) {
    const int64_t num_times = num_tokens / (3 * kWidest) + 1;
    int64_t token = 0;
    for (; token + 3 * kWidest <= num_tokens; token += 3 * kWidest, panel += 3 * step, sums += 3 * kWidest * 128) {
        const float *first = panel + column * kWidest, *second = first + step, *third = second + step;
        multiply_lanes<Format, 6>(lanes, groups, first, first, kWidest, second, sums);
        multiply_lanes<Format, 2, 4>(lanes, groups, first + 6 * Format::kStep, second, kWidest, third, sums + 6 * 128);
        multiply_lanes<Format, 4, 2>(lanes, groups, second + 4 * Format::kStep, third, kWidest, third + step,
                                     sums + 12 * 128);
        multiply_lanes<Format, 6>(lanes, groups, third + 2 * Format::kStep, third, kWidest, third + step,
                                  sums + 18 * 128);
        next.ask(num_times);
    }
    for (int64_t width; token < num_tokens; token += width, panel += step) {
        width = least(kWidest, num_tokens - token);
        for (int64_t lane = 0, count; lane < width; lane += count, sums += count * 128) {
            count = least(4, width - lane);
            const float* x = panel + column * width + lane * Format::kStep;
            with_index<1, 4>(count, [&](auto tokens) {
                multiply_lanes<Format, tokens>(lanes, groups, x, x, width, x + step, sums);
            });
        }
    }
}

// As `total`, of sums by lane and row.
inline void total_of_lanes(const float* sums, float* out) {
    each<2>([&](auto half) kInlined {
        __m256 lane[8];
        each<8>([&](auto i) kInlined { lane[i] = _mm256_load_ps(sums + i * kTileRows + 8 * half); });
        const __m256 low = _mm256_add_ps(_mm256_add_ps(lane[0], lane[1]), _mm256_add_ps(lane[2], lane[3]));
        const __m256 high = _mm256_add_ps(_mm256_add_ps(lane[4], lane[5]), _mm256_add_ps(lane[6], lane[7]));
        _mm256_storeu_ps(out + 8 * half, _mm256_add_ps(low, high));
    });
}

// Whether a row tile can be read where it lies.
inline bool is_whole(const Matrix& matrix, int64_t row_tile) {
    return matrix.kind == MatrixKind::kDense && (row_tile + 1) * kTileRows <= matrix.rows &&
           matrix.columns % kBlock == 0;
}

template <class Format>
void multiply_many(const Matrix& matrix, int64_t row_tile, int64_t together, const Activations& a, float* out,
                   int64_t stride) {
    constexpr int64_t kSums = kLaneTokens * 128;
    alignas(64) uint16_t scratch[kScratch];
    alignas(64) float lanes[8 * kLaneFloats], sums[kLaneRowTiles * kSums], rows[kTileRows];
    const int64_t column_tiles = matrix.column_tiles();
    for (int64_t base = 0; base < a.num_tokens; base += kLaneTokens) {
        const int64_t num_tokens = least(kLaneTokens, a.num_tokens - base);
        EscapeCursor escapes[kLaneRowTiles];
        for (int64_t i = 0; i < together; ++i) escapes[i] = escapes_of(matrix, row_tile + i);
        std::memset(sums, 0, sizeof sums);
        for (int64_t tile = 0; tile < column_tiles; tile += kLaneTiles) {
            const int64_t count = least(kLaneTiles, column_tiles - tile);
            for (int64_t i = 0; i < together; ++i) {
                RowsAt from{scratch, 16, 256, 0};
                if (is_whole(matrix, row_tile + i)) {
                    from = {matrix.patterns + (row_tile + i) * kTileRows * matrix.columns + tile * kTileColumns,
                            matrix.columns, 16, 0};
                } else {
                    fill(matrix, row_tile + i, tile, count, escapes[i], scratch);
                }
                turn<Format>(from, count / 2, lanes);
                const int64_t next_row = (i + 1) % together, next_tile = next_row == 0 ? tile + kLaneTiles : tile;
                multiply_tokens<Format>(
                    lanes, count / 2, Format::panel(a, base), kWidest * a.padded, tile * kTileColumns, num_tokens,
                    NextColumns(matrix, row_tile + next_row, next_tile, kLaneTiles), sums + i * kSums);
            }
        }
        for (int64_t i = 0; i < together; ++i) {
            for (int64_t t = 0; t < num_tokens; ++t) {
                total_of_lanes(sums + i * kSums + t * 128, rows);
                store_rows(rows, matrix, row_tile + i, out + (base + t) * stride);
            }
        }
    }
}

// How many of the first row tiles were multiplied here: by lanes, or a dense one with whole rows and whole blocks of columns.
int64_t whole_tiles(const Matrix& matrix, int64_t row_tile, int64_t last, const Activations& a, float* out,
                    int64_t stride) {
    const bool is_bf16 = matrix.format == FloatFormat::kBf16;
    if (a.num_tokens >= kFewestTokens) {
        const int64_t together = least(kLaneRowTiles, last - row_tile);
        if (is_bf16) {
            multiply_many<Bf16>(matrix, row_tile, together, a, out, stride);
        } else {
            multiply_many<F16>(matrix, row_tile, together, a, out, stride);
        }
        return together;
    }
    if (!is_whole(matrix, row_tile)) return 0;
    if (is_bf16) {
        multiply_dense<Bf16>(matrix, row_tile, a, out, stride);
    } else {
        multiply_dense<F16>(matrix, row_tile, a, out, stride);
    }
    return 1;
}
