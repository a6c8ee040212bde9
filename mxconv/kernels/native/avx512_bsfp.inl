// BSFP tiles into scratch for AVX-512: look up the starts' bytes, add the residuals, patch the escapes.

// The starts, split into low and high bytes: one 16-byte table a 128-bit lane. Where all rows have the same starts its
// second half has the sign bit set, so that a nibble is the index; else it holds the starts of the lane's second row.
struct StartTables {
    __m512i low[2];  // rows 0..7, rows 8..15
    __m512i high[2];
};

inline __m512i low_bytes(__m512i first, __m512i second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(first)), _mm512_cvtepi16_epi8(second), 1);
}

template <bool kShared>
StartTables start_tables(const Matrix& matrix, int64_t row_tile) {
    const uint16_t* starts = matrix.starts + row_tile * kTileRows * 8;
    StartTables tables;
    for (int half = 0; half < 2; ++half) {
        __m512i first = load(starts + half * 64), second = load(starts + half * 64 + 32);
        if (kShared) {
            const __m512i all = _mm512_broadcast_i32x4(_mm512_castsi512_si128(first));
            const __m512i signs = _mm512_broadcast_i64x4(_mm256_set_epi64x(-1, -1, 0, 0));
            first = second =
                _mm512_or_si512(all, _mm512_and_si512(signs, _mm512_set1_epi16(static_cast<int16_t>(0x8000))));
        }
        tables.low[half] = low_bytes(first, second);
        tables.high[half] = low_bytes(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
    }
    return tables;
}

constexpr int64_t kEscapesAhead = 384;  // bytes of each list that are asked for before they are needed
constexpr int64_t kTilesAhead = 12;     // of each plane that are asked for before they are needed
constexpr int64_t kTilesFarAhead = 64;

// Rebuilds tiles of one row tile, all but their escapes.
template <bool kShared>
struct Rebuilder {
    const uint8_t* codes;
    const uint8_t* low;
    const uint8_t* planes;
    int64_t num_planes;
    StartTables starts;
    // rows 0 1 | 8 9 || 2 3 | 10 11 || ...: unpacking then leaves rows 0..7 in one register and 8..15 in the other
    __m512i row_pairs = _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    __m512i nibble = _mm512_set1_epi8(0x0F);
    __m512i code = _mm512_set1_epi8(0x07);
    __m512i second_row = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0808080808080808, 0));
    __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));

    Rebuilder(const Matrix& matrix, int64_t row_tile) : starts(start_tables<kShared>(matrix, row_tile)) {
        const int64_t index = row_tile * matrix.column_tiles();
        num_planes = matrix.residual_planes;
        codes = matrix.codes + index * 64;
        low = matrix.residual_low + index * 128;
        planes = matrix.residual_high + index * num_planes * 16;
    }

    // Eight rows, a byte a weight: nibbles n to 16-bit patterns.
    [[gnu::always_inline]] void eight_rows(int half, __m512i n, int64_t tile, uint16_t* to) const {
        // without shared starts (n & 7) | 8 in the lane's second row
        const __m512i start = kShared ? n : _mm512_ternarylogic_epi32(n, code, second_row, 0xEA);
        const __m512i residual = load(low + tile * 128 + 64 * half);
        const __m512i low_byte = _mm512_add_epi8(_mm512_shuffle_epi8(starts.low[half], start), residual);
        const __mmask64 carry = _mm512_cmplt_epu8_mask(low_byte, residual);
        __m512i high_byte = _mm512_shuffle_epi8(starts.high[half], start);
        high_byte = _mm512_mask_sub_epi8(high_byte, carry, high_byte, _mm512_set1_epi8(-1));
        for (int64_t plane = 0; plane < num_planes; ++plane) {
            uint64_t bits;
            std::memcpy(&bits, planes + (tile * num_planes + plane) * 16 + half * 8, sizeof bits);
            high_byte = _mm512_mask_add_epi8(high_byte, _cvtu64_mask64(bits), high_byte,
                                             _mm512_set1_epi8(static_cast<char>(1 << plane)));
        }
        if (!kShared) {  // high_byte | (n << 4 & 128)
            high_byte = _mm512_ternarylogic_epi32(high_byte, _mm512_slli_epi16(n, 4), sign, 0xF8);
        }
        store(to, _mm512_unpacklo_epi8(low_byte, high_byte));
        store(to + 32, _mm512_unpackhi_epi8(low_byte, high_byte));
    }

    // Ask for the planes of tiles that come later.
    [[gnu::always_inline]] void ask(int64_t tile) const {
        ask_page(codes + tile * 64, 64);
        ask_page(low + tile * 128, 128);
        ask_page(planes + tile * num_planes * 16, num_planes * 16);
        const int64_t later = tile + kTilesFarAhead, soon = tile + kTilesAhead;
        ask_level2(codes + later * 64);
        ask_level2(low + later * 128);
        ask_level2(low + later * 128 + 64);
        ask_level1(codes + soon * 64);
        ask_level1(low + soon * 128);
        ask_level1(low + soon * 128 + 64);
    }

    [[gnu::always_inline]] void operator()(int64_t tile, uint16_t* to) const {
        ask(tile);
        const __m512i packed = _mm512_permutexvar_epi32(row_pairs, load(codes + tile * 64));
        const __m512i first_columns = _mm512_and_si512(packed, nibble);
        const __m512i last_columns = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
        eight_rows(0, _mm512_unpacklo_epi32(first_columns, last_columns), tile, to);
        eight_rows(1, _mm512_unpackhi_epi32(first_columns, last_columns), tile, to + 64);
    }
};

// Where in scratch the high byte of an escape lies: position r3 r2 r1 r0 c2 c1 c0 is byte r3 r0 r2 r1 c2 c1 c0 1 of its
// tile's 256.
inline __m512i places_of(__m512i tiles, __m512i positions) {
    const __m512i stay = _mm512_and_si512(positions, _mm512_set1_epi16(0x47));
    const __m512i odd_row = _mm512_slli_epi16(_mm512_and_si512(positions, _mm512_set1_epi16(0x08)), 2);
    const __m512i row_pair = _mm512_srli_epi16(_mm512_and_si512(positions, _mm512_set1_epi16(0x30)), 1);
    const __m512i slot = _mm512_slli_epi16(_mm512_or_si512(_mm512_or_si512(stay, odd_row), row_pair), 1);
    return _mm512_or_si512(_mm512_or_si512(_mm512_slli_epi16(tiles, 8), slot), _mm512_set1_epi16(1));
}

// The escapes of some tiles, ready to be patched by one plain loop: a loop a tile would end at a number that nobody can
// predict. Where the work is shared out, a share is the same for every tile, and what is left over goes nowhere.
struct PatchList {
    static constexpr int64_t kMost = kChunk * kTileRows * kTileColumns;
    alignas(64) uint16_t places[kMost + 64];
    alignas(64) uint8_t high[kMost + 64];
    int64_t share;  // escapes a tile, rounded up

    // Take the escapes of tiles index .. index + count - 1 from the lists. `nowhere` is a byte of scratch that no tile has.
    void take(const Matrix& matrix, int64_t index, int64_t count, EscapeCursor& escapes, int64_t nowhere) {
        uint8_t* const tile_of = high;  // overwritten by the bytes themselves, after where it is read
        const uint8_t* counts = matrix.escape_counts + index;
        int64_t num_escapes = 0;
        __m128i number = _mm_setzero_si128();
        for (int64_t tile = 0; tile < count; ++tile, number = _mm_add_epi8(number, _mm_set1_epi8(1))) {
            uint8_t* to = tile_of + num_escapes;
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to), number);
            for (int done = 16; done < counts[tile]; done += 16) {
                _mm_storeu_si128(reinterpret_cast<__m128i*>(to + done), number);
            }
            num_escapes += counts[tile];
        }
        share = count > 0 ? (num_escapes + count - 1) / count : 0;
        for (int64_t i = 0; i < share * count; i += 32) {
            const int64_t left = num_escapes - i;
            const __mmask32 mask = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : (__mmask32{1} << left) - 1;
            const __m512i tiles =
                _mm512_cvtepu8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(tile_of + i)));
            const __m512i positions = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, escapes.positions + i));
            const __m512i nowhere_places = _mm512_set1_epi16(static_cast<int16_t>(nowhere));
            store(places + i, _mm512_mask_mov_epi16(nowhere_places, mask, places_of(tiles, positions)));
            _mm256_store_si256(reinterpret_cast<__m256i*>(high + i), _mm256_maskz_loadu_epi8(mask, escapes.high + i));
        }
        escapes.positions += num_escapes;
        escapes.high += num_escapes;
        // these lists are read in bursts, which the processor does not foresee
        ask_level1(counts + 2 * kChunk);
        ask_page(escapes.positions, num_escapes);
        ask_page(escapes.high, num_escapes);
        for (int64_t line = 64; line < kEscapesAhead; line += 64) {
            ask_level1(escapes.positions + line);
            ask_level1(escapes.high + line);
        }
    }

    // Patch the share of the tile with this number.
    [[gnu::always_inline]] void patch(int64_t tile, uint16_t* scratch) const {
        auto* bytes = reinterpret_cast<uint8_t*>(scratch);
        for (int64_t i = tile * share; i < (tile + 1) * share; ++i) bytes[places[i]] = high[i];
    }
};

template <bool kShared>
void rebuild_chunk(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, uint16_t* scratch) {
    const Rebuilder<kShared> rebuild(matrix, row_tile);
    for (int64_t tile = 0; tile < count; ++tile) rebuild(first + tile, scratch + tile * 128);
}

void bsfp_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, EscapeCursor& escapes,
                uint16_t* scratch) {
    if (matrix.shared_starts) {
        rebuild_chunk<true>(matrix, row_tile, first, count, scratch);
    } else {
        rebuild_chunk<false>(matrix, row_tile, first, count, scratch);
    }
    PatchList patches;
    patches.take(matrix, row_tile * matrix.column_tiles() + first, count, escapes, kNowhere);
    for (int64_t tile = 0; tile < count; ++tile) patches.patch(tile, scratch);
}
