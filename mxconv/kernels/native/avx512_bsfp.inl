// BSFP tiles into scratch for AVX-512: look up the starts' bytes, add the residuals, patch the escapes.

// The starts, split into low and high bytes: one 16-byte table a 128-bit lane. Where all rows have the same starts its
// second half has the sign bit set, so that a nibble is the index; else it holds the starts of the lane's second row.
struct StartTables {
    __m512i low[2];  // rows 0..7, rows 8..15
    __m512i high[2];
};

template <bool kShared>
StartTables start_tables(const Matrix& matrix, int64_t row_tile) {
    const uint16_t* starts = matrix.starts + row_tile * kTileRows * 8;
    StartTables tables;
    for (int half = 0; half < 2; ++half) {
        alignas(64) uint8_t low[64], high[64];
        for (int i = 0; i < 64; ++i) {
            const int start = kShared ? starts[i % 8] | (i & 8) << 12 : starts[half * 64 + i];
            low[i] = static_cast<uint8_t>(start);
            high[i] = static_cast<uint8_t>(start >> 8);
        }
        tables.low[half] = load(low);
        tables.high[half] = load(high);
    }
    return tables;
}

constexpr int64_t kBsfpAhead = 24;  // tiles of each plane that are asked for before they are needed

template <int kPlanes, bool kShared>
void rebuild_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, uint16_t* scratch) {
    const StartTables starts = start_tables<kShared>(matrix, row_tile);
    // rows 0 1 | 8 9 || 2 3 | 10 11 || ...: unpacking then leaves rows 0..7 in one register and 8..15 in the other
    const __m512i row_pairs = _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i nibble = _mm512_set1_epi8(0x0F);
    const __m512i code = _mm512_set1_epi8(0x07);
    const __m512i second_row = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0808080808080808, 0));
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const int64_t index = row_tile * matrix.column_tiles() + first;
    const uint8_t* codes = matrix.codes + index * 64;
    const uint8_t* low = matrix.residual_low + index * 128;
    const uint8_t* planes = matrix.residual_high + index * kPlanes * 16;
    for (int64_t tile = 0; tile < count; ++tile, codes += 64, low += 128, planes += kPlanes * 16, scratch += 128) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + kBsfpAhead * 64), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(low + kBsfpAhead * 128), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(low + kBsfpAhead * 128 + 64), _MM_HINT_T0);
        const __m512i packed = _mm512_permutexvar_epi32(row_pairs, load(codes));
        const __m512i first_columns = _mm512_and_si512(packed, nibble);
        const __m512i last_columns = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
        const __m512i nibbles[2] = {_mm512_unpacklo_epi32(first_columns, last_columns),
                                    _mm512_unpackhi_epi32(first_columns, last_columns)};
        for (int half = 0; half < 2; ++half) {  // 8 rows, a byte a weight
            const __m512i n = nibbles[half];
            // without shared starts (n & 7) | 8 in the lane's second row
            const __m512i start = kShared ? n : _mm512_ternarylogic_epi32(n, code, second_row, 0xEA);
            const __m512i residual = load(low + 64 * half);
            const __m512i low_byte = _mm512_add_epi8(_mm512_shuffle_epi8(starts.low[half], start), residual);
            const __mmask64 carry = _mm512_cmplt_epu8_mask(low_byte, residual);
            __m512i high_byte = _mm512_shuffle_epi8(starts.high[half], start);
            high_byte = _mm512_mask_sub_epi8(high_byte, carry, high_byte, _mm512_set1_epi8(-1));
            for (int plane = 0; plane < kPlanes; ++plane) {
                uint64_t bits;
                std::memcpy(&bits, planes + plane * 16 + half * 8, sizeof bits);
                high_byte = _mm512_mask_add_epi8(high_byte, _cvtu64_mask64(bits), high_byte,
                                                 _mm512_set1_epi8(static_cast<char>(1 << plane)));
            }
            if (!kShared) {  // high_byte | (n << 4 & 128)
                high_byte = _mm512_ternarylogic_epi32(high_byte, _mm512_slli_epi16(n, 4), sign, 0xF8);
            }
            store(scratch + half * 64, _mm512_unpacklo_epi8(low_byte, high_byte));
            store(scratch + half * 64 + 32, _mm512_unpackhi_epi8(low_byte, high_byte));
        }
    }
}

template <bool kShared>
void rebuild(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, uint16_t* scratch) {
    switch (matrix.residual_planes) {
        case 0: return rebuild_tiles<0, kShared>(matrix, row_tile, first, count, scratch);
        case 1: return rebuild_tiles<1, kShared>(matrix, row_tile, first, count, scratch);
        case 2: return rebuild_tiles<2, kShared>(matrix, row_tile, first, count, scratch);
        case 3: return rebuild_tiles<3, kShared>(matrix, row_tile, first, count, scratch);
        default: return rebuild_tiles<4, kShared>(matrix, row_tile, first, count, scratch);
    }
}

// Where in scratch the high byte of an escape lies: position r3 r2 r1 r0 c2 c1 c0 is byte r3 r0 r2 r1 c2 c1 c0 1 of its
// tile's 256.
inline __m512i places_of(__m512i tiles, __m512i positions) {
    const __m512i stay = _mm512_and_si512(positions, _mm512_set1_epi16(0x47));
    const __m512i odd_row = _mm512_slli_epi16(_mm512_and_si512(positions, _mm512_set1_epi16(0x08)), 2);
    const __m512i row_pair = _mm512_srli_epi16(_mm512_and_si512(positions, _mm512_set1_epi16(0x30)), 1);
    const __m512i slot = _mm512_slli_epi16(_mm512_or_si512(_mm512_or_si512(stay, odd_row), row_pair), 1);
    return _mm512_or_si512(_mm512_or_si512(_mm512_slli_epi16(tiles, 8), slot), _mm512_set1_epi16(1));
}

// Patch the escapes of tiles in scratch. First note which tile each one belongs to, then where it goes, then one plain
// loop: a loop a tile would end at a number that nobody can predict.
void patch(const Matrix& matrix, int64_t index, int64_t count, EscapeCursor& escapes, uint16_t* scratch) {
    uint8_t tile_of[kChunk * 128 + 64];
    const uint8_t* counts = matrix.escape_counts + index;
    int64_t num_escapes = 0;
    for (int64_t tile = 0; tile < count; ++tile) {
        const __m128i number = _mm_set1_epi8(static_cast<char>(tile));
        uint8_t* to = tile_of + num_escapes;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), number);
        for (int done = 16; done < counts[tile]; done += 16) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + done), number);
        }
        num_escapes += counts[tile];
    }
    alignas(64) uint16_t places[kChunk * 128 + 64];
    for (int64_t i = 0; i < num_escapes; i += 32) {
        const __mmask32 mask = num_escapes - i >= 32 ? ~__mmask32{0} : (__mmask32{1} << (num_escapes - i)) - 1;
        const __m512i positions = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, escapes.positions + i));
        const __m512i tiles = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile_of + i)));
        store(places + i, places_of(tiles, positions));
    }
    const uint8_t* __restrict high = escapes.high;
    uint8_t* __restrict bytes = reinterpret_cast<uint8_t*>(scratch);
#pragma GCC unroll 4
    for (int64_t i = 0; i < num_escapes; ++i) bytes[places[i]] = high[i];
    escapes.positions += num_escapes;
    escapes.high += num_escapes;
}

void bsfp_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, EscapeCursor& escapes,
                uint16_t* scratch) {
    if (matrix.shared_starts) {
        rebuild<true>(matrix, row_tile, first, count, scratch);
    } else {
        rebuild<false>(matrix, row_tile, first, count, scratch);
    }
    patch(matrix, row_tile * matrix.column_tiles() + first, count, escapes, scratch);
}
