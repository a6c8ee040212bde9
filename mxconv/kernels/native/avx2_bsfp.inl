// BSFP tiles into scratch for AVX2: look up the starts' bytes, add the residuals, patch the escapes. Two tiles at once, one a
// 128-bit lane, so that a register ends as 16 columns of one row.

constexpr int64_t kPlanesAhead = 24;  // tiles of each plane that are asked for before they are needed, into level 1

// The starts of two rows as tables of bytes. High bytes are one too large: what is added next is -1 where there is no
// carry. Where all rows have the same starts both halves do, the second with the sign, so that a nibble is the index.
struct StartTables {
    __m128i low[8], high[8];

    StartTables(const Matrix& matrix, int64_t row_tile) {
        const uint16_t* starts = matrix.starts + row_tile * kTileRows * 8;
        const __m128i byte = _mm_set1_epi16(0xFF);
        const __m128i sign = _mm_set_epi64x(static_cast<int64_t>(0x8080808080808080), 0);
        for (int pair = 0; pair < 8; ++pair) {
            const __m128i first = load_half(starts + pair * 16), second = load_half(starts + pair * 16 + 8);
            low[pair] = _mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte));
            high[pair] = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
            if (matrix.shared_starts) high[pair] = _mm_or_si128(high[pair], sign);
            high[pair] = _mm_sub_epi8(high[pair], _mm_set1_epi8(-1));
        }
    }
};

// Rebuilds pairs of tiles of one row tile, all but their escapes.
template <bool kShared, int kPlanes>
struct Rebuilder {
    const uint8_t* codes;
    const uint8_t* low;
    const uint8_t* planes;
    StartTables starts;

    Rebuilder(const Matrix& matrix, int64_t row_tile) : starts(matrix, row_tile) {
        const int64_t index = row_tile * matrix.column_tiles();
        codes = matrix.codes + index * 64;
        low = matrix.residual_low + index * 128;
        planes = matrix.residual_high + index * kPlanes * 16;
    }

    // Two rows, a byte a weight: nibbles n and the tiles' bit planes to 16-bit patterns.
    template <int kPair>
    [[gnu::always_inline]] void two_rows(__m256i n, const __m256i* bits, int64_t tile, uint16_t* to) const {
        const __m256i code = _mm256_set1_epi8(0x07);
        const __m256i second_row = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0808080808080808, 0));
        const __m256i start = kShared ? n : _mm256_or_si256(_mm256_and_si256(n, code), second_row);
        const __m256i low_table = _mm256_broadcastsi128_si256(starts.low[kShared ? 0 : kPair]);
        const __m256i high_table = _mm256_broadcastsi128_si256(starts.high[kShared ? 0 : kPair]);
        const __m256i residual = load_halves(low + tile * 128 + 16 * kPair, low + (tile + 1) * 128 + 16 * kPair);
        const __m256i low_byte = _mm256_add_epi8(_mm256_shuffle_epi8(low_table, start), residual);
        const __m256i no_carry = _mm256_cmpeq_epi8(_mm256_max_epu8(low_byte, residual), low_byte);
        __m256i high_byte = _mm256_add_epi8(_mm256_shuffle_epi8(high_table, start), no_carry);
        each<kPlanes>([&](auto plane) kInlined {
            const __m256i rows = _mm256_broadcastsi128_si256(
                _mm_set_epi64x(0x0101010101010101 * (2 * kPair + 1), 0x0101010101010101 * (2 * kPair)));
            const __m256i column = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
            const __m256i spread = _mm256_shuffle_epi8(bits[plane], rows);
            const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, column), column);
            if constexpr (plane == 0) {
                high_byte = _mm256_sub_epi8(high_byte, is_set);
            } else {
                const __m256i worth = _mm256_set1_epi8(static_cast<char>(1 << plane));
                high_byte = _mm256_add_epi8(high_byte, _mm256_and_si256(is_set, worth));
            }
        });
        if (!kShared) {
            const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
            high_byte = _mm256_or_si256(high_byte, _mm256_and_si256(_mm256_slli_epi16(n, 4), sign));
        }
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_unpacklo_epi8(low_byte, high_byte));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 16), _mm256_unpackhi_epi8(low_byte, high_byte));
    }

    template <int kQuarter>
    [[gnu::always_inline]] void four_rows(const __m256i* bits, int64_t tile, uint16_t* to) const {
        const __m256i nibble = _mm256_set1_epi8(0x0F);
        const __m256i packed = load_halves(codes + tile * 64 + 16 * kQuarter, codes + (tile + 1) * 64 + 16 * kQuarter);
        const __m256i first_columns = _mm256_and_si256(packed, nibble);
        const __m256i last_columns = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
        two_rows<2 * kQuarter>(_mm256_unpacklo_epi32(first_columns, last_columns), bits, tile, to + 64 * kQuarter);
        two_rows<2 * kQuarter + 1>(_mm256_unpackhi_epi32(first_columns, last_columns), bits, tile,
                                   to + 64 * kQuarter + 32);
    }

    // Ask for the planes of tiles that come later.
    [[gnu::always_inline]] void ask(int64_t tile) const {
        ask_page(codes + tile * 64, 128);
        ask_page(low + tile * 128, 256);
        if (kPlanes > 0) ask_page(planes + tile * kPlanes * 16, kPlanes * 32);
        const int64_t soon = tile + kPlanesAhead;
        for (int64_t line = 0; line < 128; line += 64) {
            ask_level1(codes + soon * 64 + line);
        }
        for (int64_t line = 0; line < 256; line += 64) {
            ask_level1(low + soon * 128 + line);
        }
    }

    // Tiles `tile`, an even one, and `tile` + 1.
    [[gnu::always_inline]] void operator()(int64_t tile, uint16_t* to) const {
        ask(tile);
        __m256i bits[kPlanes + 1];
        each<kPlanes>([&](auto plane) kInlined {
            const uint8_t* first = planes + (tile * kPlanes + plane) * 16;
            bits[plane] = load_halves(first, first + kPlanes * 16);
        });
        each<4>([&](auto quarter) kInlined { four_rows<quarter>(bits, tile, to); });
    }
};

template <bool kShared>
void rebuild_chunk(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, uint16_t* scratch) {
    with_index<0, 4>(matrix.residual_planes, [&](auto planes) {
        const Rebuilder<kShared, planes> rebuild(matrix, row_tile);
        for (int64_t tile = 0; tile < count; tile += 2) rebuild(first + tile, scratch + tile * 128);
    });
}

// Replace the high bytes of the escapes of `count` tiles. One loop over all of them: a loop a tile would end at a number
// that nobody can predict.
void patch_escapes(const uint8_t* counts, int64_t count, EscapeCursor& escapes, uint16_t* scratch) {
    constexpr int64_t kMost = kChunk * kTileRows * kTileColumns;
    alignas(32) uint16_t bases[kMost + 16];  // where the tile of each escape begins in scratch
    int64_t num_escapes = 0;
    for (int64_t tile = 0; tile < count; ++tile) {
        const __m256i base = _mm256_set1_epi16(static_cast<int16_t>(place_of(tile, 0)));
        uint16_t* to = bases + num_escapes;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), base);
        for (int done = 16; done < counts[tile]; done += 16) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + done), base);
        }
        num_escapes += counts[tile];
    }
    auto* bytes = reinterpret_cast<uint8_t*>(scratch);
    for (int64_t i = 0; i < num_escapes; ++i) {
        const int64_t position = escapes.positions[i], place = bases[i] + (position & 0x78) * 2 + (position & 7);
        bytes[2 * place + 1] = escapes.high[i];
    }
    escapes.positions += num_escapes;
    escapes.high += num_escapes;
    ask_level1(counts + 2 * kChunk);
    for (int64_t line = 0; line < 384; line += 64) {
        ask_level1(escapes.positions + line);
        ask_level1(escapes.high + line);
    }
}

void bsfp_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, EscapeCursor& escapes,
                uint16_t* scratch) {
    if (matrix.shared_starts) {
        rebuild_chunk<true>(matrix, row_tile, first, count, scratch);
    } else {
        rebuild_chunk<false>(matrix, row_tile, first, count, scratch);
    }
    patch_escapes(matrix.escape_counts + row_tile * matrix.column_tiles() + first, count, escapes, scratch);
}
