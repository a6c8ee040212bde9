// AVX-512 with VNNI: 16 rows are 16 lanes. Included by avx512vnni.cpp and, with BF16 instructions, by avx512bf16.cpp.
//
// Scratch keeps a tile as four registers of four rows x 8 columns: even rows 0..6, odd rows 1..7, 8..14, 9..15. That is
// the order in which byte-wise rebuilding of BSFP ends up, and a dense matrix gets there by a 4 x 4 transpose.

constexpr int kSlotOfRow[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};

inline int64_t place_of(int64_t tile, int64_t row) { return (tile * kTileRows + kSlotOfRow[row]) * kTileColumns; }

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

constexpr int kQuarterRows[4][4] = {{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}};
// Rows top + kQuarterRows[quarter] of 32 columns, as four tiles' quarters; `inside` has a bit a column that exists.
inline void load_quarter(const Matrix& matrix, int64_t top, int quarter, int64_t column, __mmask32 inside,
                         __m512i tiles[4]) {
    for (int i = 0; i < 4; ++i) {
        const int64_t row = top + kQuarterRows[quarter][i];
        const uint16_t* from = matrix.patterns + (row < matrix.rows ? row : 0) * matrix.columns + column;
        tiles[i] = _mm512_maskz_loadu_epi16(row < matrix.rows ? inside : 0, from);
    }
    transpose(tiles);
}

inline __mmask32 columns_inside(const Matrix& matrix, int64_t column) {
    const int64_t left = matrix.columns - column;
    return left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
}

void dense_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, uint16_t* scratch) {
    for (int64_t tile = 0; tile < count; tile += 4) {
        const int64_t column = (first + tile) * kTileColumns;
        for (int quarter = 0; quarter < 4; ++quarter) {
            __m512i tiles[4];
            load_quarter(matrix, row_tile * kTileRows, quarter, column, columns_inside(matrix, column), tiles);
            for (int t = 0; t < 4; ++t) store(scratch + ((tile + t) * 4 + quarter) * 32, tiles[t]);
        }
    }
}

// ---- BF16: lanes are four rows x four pairs of columns, and each lane adds pair after pair ----

constexpr int64_t kBf16Lanes = 4;

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

// What a quarter's weights and a token's eight columns are multiplied as. Without BF16 arithmetic both are split into
// odd and even columns before the products: weights once for all tokens, activations when they are rounded.
#ifdef __AVX512BF16__
using Bf16Element = uint16_t;
using Bf16Weights = __m512i;
using Bf16Row = __m512i;

inline const Bf16Element* bf16_panel(const Activations& a, int64_t token) { return a.bf16 + token * a.padded; }
inline Bf16Weights bf16_weights(__m512i patterns) { return patterns; }
inline Bf16Row bf16_row(const Bf16Element* x) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
inline __m512 add_row(__m512 sum, Bf16Weights weights, Bf16Row row) { return add_pairs(sum, weights, row); }
#else
struct Bf16Halves {
    __m512 odd, even;
};
using Bf16Element = float;
using Bf16Weights = Bf16Halves;
using Bf16Row = Bf16Halves;

inline const Bf16Element* bf16_panel(const Activations& a, int64_t token) { return a.split + token * a.padded; }
inline Bf16Weights bf16_weights(__m512i patterns) {
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
    return {_mm512_castsi512_ps(_mm512_and_si512(patterns, odd)), _mm512_castsi512_ps(_mm512_slli_epi32(patterns, 16))};
}
inline Bf16Row bf16_row(const Bf16Element* x) {
    return {_mm512_broadcast_f32x4(_mm_loadu_ps(x)), _mm512_broadcast_f32x4(_mm_loadu_ps(x + 4))};
}
inline __m512 add_row(__m512 sum, const Bf16Weights& weights, const Bf16Row& row) {
    return _mm512_fmadd_ps(weights.even, row.even, _mm512_fmadd_ps(weights.odd, row.odd, sum));
}
#endif

template <int kTokens, int kQuarters>
void bf16_block(const uint16_t* scratch, int64_t count, const Bf16Element* x, float* sums) {
    __m512 sum[kTokens][kQuarters];
    for (int t = 0; t < kTokens; ++t)
        for (int q = 0; q < kQuarters; ++q) sum[t][q] = _mm512_load_ps(sums + t * 64 + q * 16);
    for (int64_t tile = 0; tile < count; ++tile, scratch += 128, x += kTokens * 8) {
        Bf16Weights weights[kQuarters];
        for (int q = 0; q < kQuarters; ++q) weights[q] = bf16_weights(load(scratch + q * 32));
        for (int t = 0; t < kTokens; ++t) {
            const Bf16Row row = bf16_row(x + t * 8);
            for (int q = 0; q < kQuarters; ++q) sum[t][q] = add_row(sum[t][q], weights[q], row);
        }
    }
    for (int t = 0; t < kTokens; ++t)
        for (int q = 0; q < kQuarters; ++q) _mm512_store_ps(sums + t * 64 + q * 16, sum[t][q]);
}

void bf16_product(const uint16_t* scratch, int64_t count, const Bf16Element* x, int64_t width, float* sums) {
    with_width(width, [&](auto tokens) {
        constexpr int kQuarters = tokens <= 4 ? 4 : 2;
        for (int quarter = 0; quarter < 4; quarter += kQuarters) {
            bf16_block<tokens, kQuarters>(scratch + 32 * quarter, count, x, sums + 16 * quarter);
        }
    });
}

// Which lane of folded sums is each row's: rows lie in the order of scratch, or one after another.
template <int kTogether, bool kInOrder>
struct LaneOfRow {
    alignas(64) int32_t of[kTileRows];
    constexpr LaneOfRow() : of() {
        for (int r = 0; r < kTileRows; ++r) {
            const int slot = kInOrder ? r : kSlotOfRow[r];
            of[r] = slot % kTogether * (16 / kTogether) + slot / kTogether;
        }
    }
};

// The totals of the 16 rows of a tile, in their order: kTogether rows a register have 16 / kTogether sums each, which are
// added by pairs, and pairs by pairs.
template <int kTogether, bool kInOrder>
inline void fold_rows(const float* sums, float* out) {
    static constexpr LaneOfRow<kTogether, kInOrder> kLanes;
    constexpr int kRegisters = 16 / kTogether;
    constexpr unsigned kEvery = kTogether == 4 ? 0x1111 : 0x0101;
    __m512 all{};
    each<kRegisters>([&](auto i) kInlined {
        __m512 s = _mm512_load_ps(sums + 16 * i);
        s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xB1));
        s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4E));
        if constexpr (kTogether == 2) s = _mm512_add_ps(s, _mm512_shuffle_f32x4(s, s, 0xB1));
        all = _mm512_mask_mov_ps(all, static_cast<__mmask16>(kEvery << i), s);
    });
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(_mm512_load_si512(kLanes.of), all));
}

void bf16_sum(const float* sums, float* out) { fold_rows<4, false>(sums, out); }

// ---- F16: lanes are two rows x eight columns ----

constexpr int64_t kF16Lanes = 8;

template <int kTokens, int kPairs>
void f16_block(const uint16_t* scratch, int64_t count, const float* x, float* sums) {
    __m512 sum[kTokens][kPairs];
    for (int t = 0; t < kTokens; ++t)
        for (int p = 0; p < kPairs; ++p) sum[t][p] = _mm512_load_ps(sums + t * 128 + p * 16);
    for (int64_t tile = 0; tile < count; ++tile) {
        __m512 weights[kPairs];
        for (int p = 0; p < kPairs; ++p) {
            const auto* rows = reinterpret_cast<const __m256i*>(scratch + tile * 128 + p * 16);
            weights[p] = _mm512_cvtph_ps(_mm256_load_si256(rows));
        }
        for (int t = 0; t < kTokens; ++t) {
            const __m512 broadcast = _mm512_broadcast_f32x8(_mm256_loadu_ps(x + (tile * kTokens + t) * 8));
            for (int p = 0; p < kPairs; ++p) sum[t][p] = _mm512_fmadd_ps(weights[p], broadcast, sum[t][p]);
        }
    }
    for (int t = 0; t < kTokens; ++t)
        for (int p = 0; p < kPairs; ++p) _mm512_store_ps(sums + t * 128 + p * 16, sum[t][p]);
}

template <int kTokens, int kPairs>
void f16_blocks(const uint16_t* scratch, int64_t count, const float* x, float* sums) {
    for (int pair = 0; pair < 8; pair += kPairs) {
        f16_block<kTokens, kPairs>(scratch + pair * 16, count, x, sums + pair * 16);
    }
}

void f16_product(const uint16_t* scratch, int64_t count, const float* x, int64_t width, float* sums) {
    with_width(width, [&](auto tokens) {
        f16_blocks<tokens, tokens <= 2 ? 8 : tokens <= 6 ? 4 : 2>(scratch, count, x, sums);
    });
}

void f16_sum(const float* sums, float* out) { fold_rows<2, false>(sums, out); }

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

// ---- machine rates ----

uint64_t read_bytes(const uint8_t* bytes, int64_t num_bytes) {
    __m512i sums[4] = {};
    for (int64_t i = 0; i + 256 <= num_bytes; i += 256) {
        for (int k = 0; k < 4; ++k) {
            ask_level1(bytes + i + kPage + 64 * k);
            sums[k] = _mm512_xor_si512(sums[k], load(bytes + i + 64 * k));
        }
    }
    const __m512i all = _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
    return static_cast<uint64_t>(_mm512_reduce_add_epi64(all));
}

int64_t multiply_adds(Form form, int64_t iterations) {
    constexpr int kChains = 16;
    __m512i sums[kChains] = {};
    __m512i weights = _mm512_set1_epi32(0x01010101), x = _mm512_set1_epi32(0x01010101);
    for (int k = 0; k < kChains; ++k) asm volatile("" : "+v"(sums[k]));  // chains that are not known to be equal
    for (int64_t i = 0; i < iterations; ++i) {
        asm volatile("" : "+v"(weights), "+v"(x));  // no product is known beforehand
#pragma GCC unroll 16
        for (int k = 0; k < kChains; ++k) {
            if (form == kInt8) {
                sums[k] = _mm512_dpbusd_epi32(sums[k], weights, x);
            } else if (form == kRoundedBf16) {
                sums[k] = _mm512_castps_si512(add_pairs(_mm512_castsi512_ps(sums[k]), weights, x));
            } else {
                sums[k] = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(weights), _mm512_castsi512_ps(x),
                                                              _mm512_castsi512_ps(sums[k])));
            }
        }
    }
    __m512i all = sums[0];
    for (int k = 1; k < kChains; ++k) all = _mm512_xor_si512(all, sums[k]);
    asm volatile("" : : "v"(all));
    return iterations * kChains * (form == kInt8 ? 64 : form == kRoundedBf16 ? 32 : 16);
}
