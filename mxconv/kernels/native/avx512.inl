// AVX-512 with VNNI: 16 rows are 16 lanes. Included by avx512vnni.cpp and, with BF16 instructions, by avx512bf16.cpp.
//
// Scratch keeps a tile as four registers of eight rows x four columns: columns 0..3 of rows 0..7 and of 8..15, then columns
// 4..7. A broadcast of four activations is but a load there, where one of eight takes a shuffle on Zen 4.

inline int64_t place_of(int64_t tile, int64_t row, int64_t column = 0) {
    return tile * kTileRows * kTileColumns + column / 4 * 64 + row * 4 + column % 4;
}

inline __m512i load(const void* bytes) { return _mm512_loadu_si512(bytes); }
inline void store(void* bytes, __m512i value) { _mm512_storeu_si512(bytes, value); }

// Four rows of 32 columns become four tiles' quarters: register t holds columns 8t..8t+7 of all four rows.
inline void transpose(__m512i rows[4]) {
    const __m512i a = _mm512_shuffle_i32x4(rows[0], rows[1], 0x44);  // 0: t0 t1, 1: t0 t1
    const __m512i b = _mm512_shuffle_i32x4(rows[0], rows[1], 0xEE);  // 0: t2 t3, 1: t2 t3
    const __m512i c = _mm512_shuffle_i32x4(rows[2], rows[3], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(rows[2], rows[3], 0xEE);
    rows[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    rows[1] = _mm512_shuffle_i32x4(a, c, 0xDD);
    rows[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    rows[3] = _mm512_shuffle_i32x4(b, d, 0xDD);
}

inline __mmask32 columns_inside(const Matrix& matrix, int64_t column) {
    const int64_t left = matrix.columns - column;
    return left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
}

// Four tiles at a time: eight rows of 32 columns.
void dense_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, uint16_t* scratch) {
    for (int64_t tile = 0; tile < count; tile += 4) {
        const int64_t column = (first + tile) * kTileColumns;
        for (int half = 0; half < 2; ++half) {
            __m512i rows[8];
            for (int r = 0; r < 8; ++r) {
                const int64_t row = row_tile * kTileRows + 8 * half + r;
                const uint16_t* from = matrix.patterns + (row < matrix.rows ? row : 0) * matrix.columns + column;
                rows[r] = _mm512_maskz_loadu_epi16(row < matrix.rows ? columns_inside(matrix, column) : 0, from);
            }
            for (int last_columns = 0; last_columns < 2; ++last_columns) {
                __m512i tiles[4];
                for (int i = 0; i < 4; ++i) {
                    tiles[i] = last_columns ? _mm512_unpackhi_epi64(rows[2 * i], rows[2 * i + 1])
                                            : _mm512_unpacklo_epi64(rows[2 * i], rows[2 * i + 1]);
                }
                transpose(tiles);
                for (int t = 0; t < 4; ++t) store(scratch + place_of(tile + t, 8 * half, 4 * last_columns), tiles[t]);
            }
        }
    }
}

// ---- 16-bit formats: how weights and activations are multiplied ----

inline __m512 add_pairs(__m512 sum, __m512i weights, __m512i x) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(x));
#else
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(weights, odd)),
                          _mm512_castsi512_ps(_mm512_and_si512(x, odd)), sum);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(weights, 16)),
                           _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), sum);
#endif
}

// Lanes are four rows x four pairs of columns, or eight x two, and each lane adds pair after pair. Without BF16 arithmetic
// both sides are split into odd and even columns before the products: weights once for all tokens, activations when they are
// rounded.
struct Bf16 {
    static constexpr int kSums = 1;         // registers a quarter and token
    static constexpr int kRows = 4;         // a register of eight columns
    static constexpr int64_t kFloats = 64;  // partial sums a token
#ifdef __AVX512BF16__
    using Element = uint16_t;
    using Weights = __m512i;
    using Row = __m512i;
    static const Element* panel(const Activations& a, int64_t token) { return a.bf16 + token * a.padded; }
    static Weights widen(__m512i patterns) { return patterns; }
    static Row broadcast(const Element* x) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    }
    static constexpr int kHalf = 4;  // from a token's first four columns to its last four
    static Row broadcast_half(const Element* x) {
        return _mm512_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)));
    }
    static void add(Weights weights, Row row, __m512 sum[1]) { sum[0] = add_pairs(sum[0], weights, row); }
#else
    struct Halves {
        __m512 odd, even;
    };
    using Element = float;
    using Weights = Halves;
    using Row = Halves;
    static const Element* panel(const Activations& a, int64_t token) { return a.split + token * a.padded; }
    static Weights widen(__m512i patterns) {
        const __m512i odd = _mm512_and_si512(patterns, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)));
        return {_mm512_castsi512_ps(odd), _mm512_castsi512_ps(_mm512_slli_epi32(patterns, 16))};
    }
    static Row broadcast(const Element* x) {
        return {_mm512_broadcast_f32x4(_mm_loadu_ps(x)), _mm512_broadcast_f32x4(_mm_loadu_ps(x + 4))};
    }
    static constexpr int kHalf = 2;
    static __m512 broadcast_two(const float* x) {
        return _mm512_castpd_ps(_mm512_broadcastsd_pd(_mm_load_sd(reinterpret_cast<const double*>(x))));
    }
    static Row broadcast_half(const Element* x) { return {broadcast_two(x), broadcast_two(x + 4)}; }
    static void add(const Weights& weights, const Row& row, __m512 sum[1]) {
        sum[0] = _mm512_fmadd_ps(weights.even, row.even, _mm512_fmadd_ps(weights.odd, row.odd, sum[0]));
    }
#endif
    static Weights load_quarter(const uint16_t* scratch) { return widen(load(scratch)); }
};

// Lanes are two rows x eight columns, or four x four.
struct F16 {
    static constexpr int kSums = 2;
    static constexpr int kRows = 2;
    static constexpr int64_t kFloats = 128;
    struct Weights {
        __m512 pairs[2];
    };
    using Element = float;
    static const Element* panel(const Activations& a, int64_t token) { return a.values + token * a.padded; }
    static Weights widen(__m512i patterns) {
        return {{_mm512_cvtph_ps(_mm512_castsi512_si256(patterns)),
                 _mm512_cvtph_ps(_mm512_extracti64x4_epi64(patterns, 1))}};
    }
    static Weights load_quarter(const uint16_t* scratch) {
        const auto* pairs = reinterpret_cast<const __m256i*>(scratch);
        return {{_mm512_cvtph_ps(_mm256_load_si256(pairs)), _mm512_cvtph_ps(_mm256_load_si256(pairs + 1))}};
    }
    static __m512 broadcast(const Element* x) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(x)); }
    static constexpr int kHalf = 4;
    static __m512 broadcast_half(const Element* x) { return _mm512_broadcast_f32x4(_mm_loadu_ps(x)); }
    static void add(const Weights& weights, __m512 row, __m512 sum[2]) {
        sum[0] = _mm512_fmadd_ps(weights.pairs[0], row, sum[0]);
        sum[1] = _mm512_fmadd_ps(weights.pairs[1], row, sum[1]);
    }
};

// Tiles in scratch times kTokens rows and kMore of the panel after theirs, kQuarters of each tile from `first` on; between two
// products, `meanwhile` is called once for each tile in turn by the calls for all quarters.
template <class Format, int kTokens, int kMore, int kQuarters, class Meanwhile>
[[gnu::always_inline]] inline void multiply_quarters(const uint16_t* scratch, int64_t count, int first,
                                                     const typename Format::Element* x,
                                                     const typename Format::Element* more, float* sums,
                                                     const Meanwhile& meanwhile) {
    constexpr int kPasses = 4 / kQuarters, kAll = kTokens + kMore;
    constexpr int kHalves = kQuarters == 4 ? 2 : 1, kSharing = kQuarters / kHalves;  // quarters of the same columns
    __m512 sum[kQuarters][kAll][Format::kSums];
    const auto each_sum = [&](auto work) kInlined {
        each<kQuarters>([&](auto q) kInlined {
            each<kAll>([&](auto t) kInlined {
                each<Format::kSums>([&](auto k) kInlined {
                    float* at = sums + t * Format::kFloats + ((first + q) * Format::kSums + k) * 16;
                    work(sum[q][t][k], at);
                });
            });
        });
    };
    each_sum([](__m512& s, float* at) kInlined { s = _mm512_load_ps(at); });
    const auto multiply = [&](int64_t tile) kInlined {
        typename Format::Weights weights[kQuarters];
        for (int q = 0; q < kQuarters; ++q) weights[q] = Format::load_quarter(scratch + tile * 128 + (first + q) * 32);
        each<kAll>([&](auto t) kInlined {
            each<kHalves>([&](auto half) kInlined {
                const auto* at = t < kTokens ? x + (tile * kTokens + t) * 8 : more + (tile * kMore + t - kTokens) * 8;
                const auto row = Format::broadcast_half(at + half * Format::kHalf);
                each<kSharing>([&](auto i) kInlined {
                    constexpr int q = half * kSharing + i;
                    Format::add(weights[q], row, sum[q][t]);
                });
            });
        });
    };
    x += first / 2 * Format::kHalf;
    if (kMore > 0) more += first / 2 * Format::kHalf;
    for (int64_t tile = 0; tile < count; tile += kPasses) {  // count is a multiple of four
        meanwhile(tile + first / kQuarters);
#pragma GCC unroll 4
        for (int64_t i = 0; i < kPasses; ++i) multiply(tile + i);
    }
    each_sum([](const __m512& s, float* at) kInlined { _mm512_store_ps(at, s); });
}

template <class Format>
void multiply_tiles(const uint16_t* scratch, int64_t count, const typename Format::Element* x, int64_t width,
                    float* sums) {
    with_width(width, [&](auto tokens) {
        constexpr int kSums = tokens * Format::kSums, kQuarters = kSums <= 4 ? 4 : kSums <= 12 ? 2 : 1;
        for (int first = 0; first < 4; first += kQuarters) {
            multiply_quarters<Format, tokens, 0, kQuarters>(scratch, count, first, x, nullptr, sums,
                                                            [](int64_t) kInlined {});
        }
    });
}

// Which lane of folded sums is each row's.
template <int kTogether>
struct LaneOfRow {
    alignas(64) int32_t of[kTileRows];
    constexpr LaneOfRow() : of() {
        for (int r = 0; r < kTileRows; ++r) of[r] = r % kTogether * (16 / kTogether) + r / kTogether;
    }
};

// The totals of the 16 rows of a tile: kTogether rows a register have 16 / kTogether sums each, which are added by pairs, and
// pairs by pairs. With kHalves, those of a row's last four columns are in a second half of the registers.
template <int kTogether, bool kHalves>
inline void fold_rows(const float* sums, float* out) {
    static constexpr LaneOfRow<kTogether> kLanes;
    constexpr int kRegisters = 16 / kTogether;
    constexpr unsigned kEvery = kTogether == 8 ? 0x5555 : kTogether == 4 ? 0x1111 : 0x0101;
    const auto folded = [&](int i) kInlined {
        __m512 s = _mm512_load_ps(sums + 16 * i);
        s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xB1));
        if constexpr (kTogether <= 4) s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4E));
        if constexpr (kTogether == 2) s = _mm512_add_ps(s, _mm512_shuffle_f32x4(s, s, 0xB1));
        return s;
    };
    __m512 all{};
    each<kRegisters>([&](auto i) kInlined {
        const __m512 s = kHalves ? _mm512_add_ps(folded(i), folded(kRegisters + i)) : folded(i);
        all = _mm512_mask_mov_ps(all, static_cast<__mmask16>(kEvery << i), s);
    });
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(_mm512_load_si512(kLanes.of), all));
}

template <class Format>
void total(const float* sums, float* out) {
    fold_rows<2 * Format::kRows, true>(sums, out);
}

// ---- 4 bits x float ----

template <int kTokens>
void float_rows(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, float* out) {
    const __m512 levels = _mm512_loadu_ps(matrix.float_levels);
    const int64_t blocks = a.padded / kBlock;
    const uint8_t* codes = matrix.codes + row_tile * blocks * 256;
    const float* x = a.values + token * a.padded;
    __m512 sums[kTokens];
    for (int t = 0; t < kTokens; ++t) sums[t] = _mm512_setzero_ps();
    for (int64_t block = 0; block < blocks; ++block) {
        __m512 in_block[kTokens];
        for (int t = 0; t < kTokens; ++t) in_block[t] = _mm512_setzero_ps();
        for (int tile = 0; tile < 4; ++tile, codes += 64, x += 8 * kTokens) {
            const __m512i packed = load(codes);
            ask_codes(codes, 1);
            for (int column = 0; column < 8; ++column) {  // the look-up takes the low four bits of a lane
                const int shift = column < 4 ? 8 * column : 8 * (column - 4) + 4;
                const __m512 weights =
                    _mm512_permutexvar_ps(_mm512_srli_epi32(packed, static_cast<unsigned>(shift)), levels);
                for (int t = 0; t < kTokens; ++t) {
                    in_block[t] = _mm512_fmadd_ps(weights, _mm512_set1_ps(x[t * 8 + column]), in_block[t]);
                }
            }
        }
        alignas(64) float scale[kTileRows];
        for (int64_t r = 0; r < kTileRows; ++r) scale[r] = scale_value(matrix, row_tile, block, r);
        for (int t = 0; t < kTokens; ++t) sums[t] = _mm512_fmadd_ps(in_block[t], _mm512_load_ps(scale), sums[t]);
    }
    for (int t = 0; t < kTokens; ++t) _mm512_storeu_ps(out + t * kTileRows, sums[t]);
}

void four_bit_float(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, int64_t num_tokens,
                    float* out) {
    with_width(num_tokens, [&](auto tokens) { float_rows<tokens>(matrix, row_tile, a, token, out); });
}

// ---- for rates.inl ----

using Register = __m512i;
constexpr int kChains = 16;
template <Form kForm>
constexpr int64_t kProducts = kForm == kInt8          ? 64
                              : kForm == kRoundedBf16 ? 32
                                                      : 16;

template <Form kForm>
inline __m512i multiply_add(__m512i sum, __m512i weights, __m512i x) {
    if constexpr (kForm == kInt8) return _mm512_dpbusd_epi32(sum, weights, x);
    const __m512 floats = _mm512_castsi512_ps(sum);
    if constexpr (kForm == kRoundedBf16) return _mm512_castps_si512(add_pairs(floats, weights, x));
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(weights), _mm512_castsi512_ps(x), floats));
}
