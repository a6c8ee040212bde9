// Products of a 16-bit matrix with few tokens, for AVX-512: the same products in the same order as over scratch, but a
// dense matrix goes straight from memory to sums, and BSFP's next tiles are rebuilt while this one's are multiplied.

// Weights of each row that are asked for before they are needed, into level 1 and level 2; and how many are a page.
constexpr int64_t kDenseAhead = 256, kDenseFarAhead = 1024, kPageOfWeights = kPage / 2;

// Weights of narrow rows that are multiplied at once: the next ones are asked for meanwhile, four rows into level 1, eight
// into level 2 and shortly before they are needed into level 1.
constexpr int64_t kNarrowWeights = 8192, kNearAhead = 128;

// Four rows after another, some times four of a row tile, times kTokens tokens, and kMore of the panel after theirs.
template <class Format, int kTokens, int kMore, int kQuarters>
void dense_quarters(const Matrix& matrix, int64_t row_tile, int first, const typename Format::Element* x,
                    const typename Format::Element* more, float* sums) {
    constexpr int kRows = 4 * kQuarters, kAll = kTokens + kMore;
    const uint16_t* const top = matrix.patterns + (row_tile * kTileRows + 4 * first) * matrix.columns;
    __m512 sum[kQuarters][kAll][Format::kSums];
    const auto each_sum = [&](auto work) kInlined {
        each<kQuarters>([&](auto q) kInlined {
            each<kAll>([&](auto t) kInlined {
                each<Format::kSums>([&](auto k) kInlined {
                    float* to = sums + t * Format::kFloats + ((first + q) * Format::kSums + k) * 16;
                    work(sum[q][t][k], to);
                });
            });
        });
    };
    each_sum([](__m512& s, float*) kInlined { s = _mm512_setzero_ps(); });
    // The rows that come next begin where these end: ask for them in time, short ones in the order of memory.
    const bool is_narrow = kRows * matrix.columns <= kNarrowWeights;
    const uint16_t* next = top + kRows * matrix.columns;
    const auto place = [&](int64_t column) {
        return column < matrix.columns ? column : column + (kRows - 1) * matrix.columns;
    };
    const int64_t page_ahead = least(2 * kPageOfWeights, matrix.columns);
    const int64_t whole = matrix.columns / 32 * 32;
    int64_t column = 0;
    // Sums that leave no registers for all that is transposed: it is kept in memory.
    constexpr bool kKeeps = kQuarters * kAll * Format::kSums > 16;
    alignas(64) uint16_t kept[kQuarters][4][32];
    const auto multiply = [&](__m512i tiles[kQuarters][4]) kInlined {
        for (int q = 0; q < kQuarters; ++q) transpose(tiles[q]);
        if constexpr (kKeeps) {
            each<4 * kQuarters>([&](auto i) kInlined { store(kept[i / 4][i % 4], tiles[i / 4][i % 4]); });
            asm("" : "+m"(kept));
        }
        each<4>([&](auto tile) kInlined {
            typename Format::Weights weights[kQuarters];
            each<kQuarters>(
                [&](auto q) kInlined { weights[q] = Format::widen(kKeeps ? load(kept[q][tile]) : tiles[q][tile]); });
            each<kAll>([&](auto t) kInlined {
                const auto row = t < kTokens ? Format::broadcast(x + (tile * kTokens + t) * 8)
                                             : Format::broadcast(more + (tile * kMore + t - kTokens) * 8);
                each<kQuarters>([&](auto q) kInlined { Format::add(weights[q], row, sum[q][t]); });
            });
        });
    };
    for (; column < whole; column += 32, x += kTokens * 32, more += kMore * 32) {
        __m512i tiles[kQuarters][4];
        if (is_narrow) {
            each<kRows>([&](auto line) kInlined {
                if (kQuarters == 1) {
                    ask_level1(next + 32 * line);
                } else {
                    ask_level2(next + 32 * line);
                    ask_level1(top + line * matrix.columns + place(column + kNearAhead));
                }
            });
            next += 32 * kRows;
        } else {
            const int64_t soon = place(column + kDenseAhead), later = place(column + kDenseFarAhead);
            each<kRows>([&](auto r) kInlined {
                const uint16_t* row = top + r * matrix.columns;
                ask_level1(row + soon);
                ask_level2(row + later);
                if (column % kPageOfWeights == 0) ask_level1(row + place(column + page_ahead));
            });
        }
        for (int r = 0; r < kRows; ++r) tiles[r / 4][r % 4] = load(top + r * matrix.columns + column);
        multiply(tiles);
    }
    if (column < matrix.columns) {
        __m512i tiles[kQuarters][4];
        for (int r = 0; r < kRows; ++r) {
            const uint16_t* from = top + r * matrix.columns + column;
            tiles[r / 4][r % 4] = _mm512_maskz_loadu_epi16(columns_inside(matrix, column), from);
        }
        multiply(tiles);
    }
    each_sum([](const __m512& s, float* to) kInlined { _mm512_store_ps(to, s); });
}

// Sums of two quarters' tokens that registers hold, beside what they are added from.
constexpr int kMostShared = kSplit == 0 ? 12 : 8;

template <class Format, int kTokens, int kMore = 0>
void dense_panel(const Matrix& matrix, int64_t row_tile, const typename Format::Element* x, float* out, int64_t stride,
                 const typename Format::Element* more = nullptr) {
    constexpr int kAll = kTokens + kMore, kSums = kAll * Format::kSums;
    // Eight rows at once share the activations that they load, as long as registers hold their sums. With one or two
    // sums there is little to share, and memory delivers four rows faster than eight.
    constexpr bool kShares = kSums > 2 && kSums <= kMostShared;
    // One instruction for two products leaves so little to do that some processors gain nothing by sharing.
    static const bool shares = !(Format::kSums == 1 && kSplit == 0 && cpu_features().few_streams);
    alignas(64) float sums[kAll * Format::kFloats];
    if (kShares && shares) {
        for (int first = 0; first < 4; first += 2) {
            dense_quarters<Format, kTokens, kMore, kShares ? 2 : 1>(matrix, row_tile, first, x, more, sums);
        }
    } else {
        for (int first = 0; first < 4; ++first) {
            dense_quarters<Format, kTokens, kMore, 1>(matrix, row_tile, first, x, more, sums);
        }
    }
    for (int t = 0; t < kAll; ++t)
        fold_rows<Format::kRows, false>(sums + t * Format::kFloats, out + t * stride + row_tile * kTileRows);
}

constexpr int64_t kPanelChunk = 16;  // tiles in one of three scratches of 4 KB

// Row tiles [first, last), without a stop between them.
template <class Format, bool kShared, int kTokens, int kMore>
void bsfp_panel(const Matrix& matrix, int64_t first_row, int64_t last_row, const typename Format::Element* x,
                const typename Format::Element* more, float* out, int64_t stride) {
    constexpr int kAll = kTokens + kMore, kSums = kAll * Format::kSums;
    constexpr int kQuarters = kSums <= 4 ? 4 : kSums <= kMostShared ? 2 : 1;
    // Three chunks are under way: one is multiplied, the next one's patches settle in the cache, and the one after it is
    // rebuilt. The buffers lie apart by what keeps their stores and loads from looking alike.
    constexpr int64_t kApart = kPanelChunk * 128 + 512;
    alignas(64) uint16_t scratch[3 * kApart];
    alignas(64) float sums[kAll * Format::kFloats];
    const int64_t tiles = matrix.column_tiles();
    struct Chunk {
        int64_t row, first, count;  // of a row tile, some tiles; beyond the last row none
    };
    const auto chunk_at = [&](int64_t row, int64_t tile) {
        return Chunk{row, tile, row < last_row ? least(kPanelChunk, tiles - tile) : 0};
    };
    const auto after = [&](const Chunk& c) {
        return c.first + kPanelChunk < tiles ? chunk_at(c.row, c.first + kPanelChunk) : chunk_at(c.row + 1, 0);
    };
    Rebuilder<kShared> rebuild(matrix, first_row);
    EscapeCursor escapes = escapes_of(matrix, first_row);
    PatchList patches;
    Chunk now = chunk_at(first_row, 0), next = after(now);
    uint16_t *at = scratch, *next_at = scratch + kApart, *later_at = scratch + 2 * kApart;
    const auto take_patches = [&](const Chunk& c) {
        patches.take(matrix, c.row * tiles + c.first, c.count, escapes, kPanelChunk * 256);
    };
    const auto begin_row = [&](const Chunk& c) {
        if (c.first == 0 && c.count > 0) rebuild = Rebuilder<kShared>(matrix, c.row);
    };
    for (int64_t i = 0; i < now.count; ++i) rebuild(now.first + i, at + i * 128);
    begin_row(next);
    for (int64_t i = 0; i < next.count; ++i) rebuild(next.first + i, next_at + i * 128);
    take_patches(now);
    for (int64_t i = 0; i < now.count; ++i) patches.patch(i, at);
    while (now.count > 0) {
        take_patches(next);
        const Chunk later = after(next);
        begin_row(later);
        const auto work = [&](int64_t i) kInlined {
            if (i < later.count) rebuild(later.first + i, later_at + i * 128);
            if (i < next.count) patches.patch(i, next_at);
        };
        if (now.first == 0) std::memset(sums, 0, sizeof sums);
        for (int first = 0; first < 4; first += kQuarters) {
            const auto* x_at = x + now.first * 8 * kTokens;
            const auto* more_at = kMore > 0 ? more + now.first * 8 * kMore : nullptr;
            multiply_quarters<Format, kTokens, kMore, kQuarters>(at, now.count, first, x_at, more_at, sums, work);
        }
        for (int64_t i = now.count; i < kPanelChunk; ++i) work(i);  // what a short chunk left undone
        if (next.row > now.row) {
            for (int t = 0; t < kAll; ++t) {
                alignas(64) float rows[kTileRows];
                total<Format>(sums + t * Format::kFloats, rows);
                store_rows(rows, matrix, now.row, out + t * stride);
            }
        }
        uint16_t* const done = at;
        at = next_at, next_at = later_at, later_at = done;
        now = next, next = later;
    }
}

template <class Format, int kTokens, int kMore = 0>
void panel(const Matrix& matrix, int64_t first, int64_t last, const typename Format::Element* x, float* out,
           int64_t stride, const typename Format::Element* more = nullptr) {
    if (matrix.kind == MatrixKind::kBsfp) {
        if (matrix.shared_starts) {
            return bsfp_panel<Format, true, kTokens, kMore>(matrix, first, last, x, more, out, stride);
        }
        return bsfp_panel<Format, false, kTokens, kMore>(matrix, first, last, x, more, out, stride);
    }
    for (int64_t row_tile = first; row_tile < last; ++row_tile) {
        dense_panel<Format, kTokens, kMore>(matrix, row_tile, x, out, stride, more);
    }
}

// Tokens of a BF16 matrix that two panels multiply together: they share what a row tile's weights become. By FP32, dense
// matrices alone.
constexpr int64_t kMostInPair = kSplit == 0 ? kMostShared : 2 * kWidest;

template <class Format>
void row_tile_panels(const Matrix& matrix, int64_t first, int64_t last, const Activations& a, float* out,
                     int64_t stride) {
    if constexpr (Format::kSums == 1) {
        if (a.num_tokens > kWidest && a.num_tokens <= kMostInPair) {
            return with_index<1, kMostInPair - kWidest>(a.num_tokens - kWidest, [&](auto width) {
                const auto *x = Format::panel(a, 0), *more = Format::panel(a, kWidest);
                panel<Format, kWidest, width>(matrix, first, last, x, out, stride, more);
            });
        }
    }
    for (int64_t token = 0; token < a.num_tokens; token += kWidest) {
        with_width(least(kWidest, a.num_tokens - token), [&](auto width) {
            panel<Format, width>(matrix, first, last, Format::panel(a, token), out + token * stride, stride);
        });
    }
}

constexpr int64_t kDirectBsfp = kSplit == 0 ? kMostInPair : kWidest;
constexpr int64_t kDirectTokens = 16;  // beyond which transposing each panel's weights takes longer than scratch does

// How many row tiles of [first, last) were multiplied here: a dense one of 16 rows, or all of BSFP for one panel. Others go
// over scratch, where a tile that is transposed or rebuilt once serves all tokens.
int64_t whole_tiles(const Matrix& matrix, int64_t first, int64_t last, const Activations& a, float* out,
                    int64_t stride) {
    const bool is_whole = (first + 1) * kTileRows <= matrix.rows;
    const bool is_dense = matrix.kind == MatrixKind::kDense;
    if (is_dense ? !is_whole || a.num_tokens > kDirectTokens : a.num_tokens > kDirectBsfp) return 0;
    if (is_dense) last = first + 1;
    if (matrix.format == FloatFormat::kBf16) {
        row_tile_panels<Bf16>(matrix, first, last, a, out, stride);
    } else {
        row_tile_panels<F16>(matrix, first, last, a, out, stride);
    }
    return last - first;
}
