// BSFP tiles into scratch for AVX-512: look up the starts, add the residuals, patch the escapes.

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
    __m512i starts[4];  // of four rows each; where all rows have the same, of both signs: a nibble is the index
    __m512i code = _mm512_set1_epi16(7);
    __m512i row = _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(0x0008000800080008));
    __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));

    Rebuilder(const Matrix& matrix, int64_t row_tile) {
        const int64_t index = row_tile * matrix.column_tiles();
        num_planes = matrix.residual_planes;
        codes = matrix.codes + index * 64;
        low = matrix.residual_low + index * 128;
        planes = matrix.residual_high + index * num_planes * 16;
        for (int i = 0; i < 4; ++i) starts[i] = load(matrix.starts + (row_tile * kTileRows + 4 * i) * 8);
        if (kShared) {
            const __m512i all = _mm512_broadcast_i32x4(_mm512_castsi512_si128(starts[0]));
            starts[0] = _mm512_mask_or_epi64(all, 0xCC, all, sign);
        }
    }

    // Four columns of eight rows: words whose low four bits are the nibbles, and residuals, to patterns.
    [[gnu::always_inline]] void four_columns(int half, __m512i nibbles, __m512i residual, uint16_t* to) const {
        if (kShared) {
            store(to, _mm512_add_epi16(_mm512_permutexvar_epi16(nibbles, starts[0]), residual));
            return;
        }
        const __m512i index = _mm512_ternarylogic_epi32(nibbles, code, row, 0xEA);  // nibbles & code | row
        const __m512i start = _mm512_permutex2var_epi16(starts[2 * half], index, starts[2 * half + 1]);
        const __m512i magnitude = _mm512_add_epi16(start, residual);
        store(to, _mm512_ternarylogic_epi32(magnitude, _mm512_slli_epi16(nibbles, 12), sign, 0xF8));
    }

    [[gnu::always_inline]] void eight_rows(int half, int64_t tile, uint16_t* to) const {
        __m512i high = _mm512_setzero_si512();
        for (int64_t plane = 0; plane < num_planes; ++plane) {
            uint64_t bits;
            std::memcpy(&bits, planes + (tile * num_planes + plane) * 16 + half * 8, sizeof bits);
            high =
                _mm512_mask_add_epi8(high, _cvtu64_mask64(bits), high, _mm512_set1_epi8(static_cast<char>(1 << plane)));
        }
        // two rows a lane: their first four columns, then their last four
        const __m512i residual = _mm512_shuffle_epi32(load(low + tile * 128 + half * 64), _MM_PERM_DBCA);
        high = _mm512_shuffle_epi32(high, _MM_PERM_DBCA);
        const __m512i nibbles =
            _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + tile * 64 + half * 32)));
        four_columns(half, nibbles, _mm512_unpacklo_epi8(residual, high), to + half * 32);
        four_columns(half, _mm512_srli_epi16(nibbles, 4), _mm512_unpackhi_epi8(residual, high), to + half * 32 + 64);
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
        eight_rows(0, tile, to);
        eight_rows(1, tile, to);
    }
};

// Where in scratch the high byte of an escape lies: position r3 r2 r1 r0 c2 c1 c0 is byte c2 r3 r2 r1 r0 c1 c0 1 of its
// tile's 256.
inline __m512i places_of(__m512i tiles, __m512i positions) {
    const __m512i rows = _mm512_and_si512(positions, _mm512_set1_epi16(0x78));
    const __m512i last_columns = _mm512_slli_epi16(_mm512_and_si512(positions, _mm512_set1_epi16(0x04)), 5);
    const __m512i column = _mm512_slli_epi16(_mm512_and_si512(positions, _mm512_set1_epi16(0x03)), 1);
    const __m512i byte = _mm512_or_si512(_mm512_or_si512(rows, last_columns), column);
    return _mm512_or_si512(_mm512_or_si512(_mm512_slli_epi16(tiles, 8), byte), _mm512_set1_epi16(1));
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
