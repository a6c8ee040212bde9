// BSFP tiles into scratch for NEON: `tbl` looks up the bytes of the starts of two rows at once, the residuals are added
// while their bytes widen, the escapes are patched at the end.

// Starts of a pair of rows by nibble: the first row's in bytes 0..15, the second row's in bytes 16..31, signs included.
struct PairStarts {
    uint8x16x2_t low, high;
};

inline uint8x16_t by_nibble(uint8x8_t magnitudes, uint8_t sign) {
    return vcombine_u8(magnitudes, vorr_u8(magnitudes, vdup_n_u8(sign)));
}

inline PairStarts pair_starts(const uint16_t* starts) {  // (2, 8)
    PairStarts tables;
    for (int row = 0; row < 2; ++row) {
        const uint16x8_t magnitudes = vld1q_u16(starts + 8 * row);
        tables.low.val[row] = by_nibble(vmovn_u16(magnitudes), 0);
        tables.high.val[row] = by_nibble(vshrn_n_u16(magnitudes, 8), 0x80);
    }
    return tables;
}

// Rebuilds tiles of one row tile, all but their escapes. Where all rows have the same starts, so has every pair, and one
// table of 16 serves. kPlanes is R - 8.
template <bool kShared, int kPlanes>
struct Rebuilder {
    const uint8_t* codes;
    const uint8_t* low;
    const uint8_t* planes;
    PairStarts starts[kShared ? 1 : 8];
    uint8x16_t rows_of_first_pair = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
    uint8x16_t bit_of_column = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));

    Rebuilder(const Matrix& matrix, int64_t row_tile) {
        const int64_t index = row_tile * matrix.column_tiles();
        codes = matrix.codes + index * 64;
        low = matrix.residual_low + index * 128;
        planes = matrix.residual_high + index * kPlanes * 16;
        const uint16_t* first = matrix.starts + row_tile * kTileRows * 8;
        for (int pair = 0; pair < (kShared ? 1 : 8); ++pair) starts[pair] = pair_starts(first + pair * 16);
    }

    // Two rows of a tile from their 16 nibbles.
    [[gnu::always_inline]] void two_rows(int pair, uint8x16_t nibbles, int64_t tile, uint16_t* to) const {
        uint8x16_t low_bytes, high_bytes;
        if (kShared) {
            low_bytes = vqtbl1q_u8(starts[0].low.val[0], nibbles);
            high_bytes = vqtbl1q_u8(starts[0].high.val[0], nibbles);
        } else {
            const uint8x16_t index = vorrq_u8(nibbles, vcombine_u8(vdup_n_u8(0), vdup_n_u8(16)));
            low_bytes = vqtbl2q_u8(starts[pair].low, index);
            high_bytes = vqtbl2q_u8(starts[pair].high, index);
        }
        for (int plane = 0; plane < kPlanes; ++plane) {
            const uint8x16_t rows = vaddq_u8(rows_of_first_pair, vdupq_n_u8(static_cast<uint8_t>(2 * pair)));
            const uint8x16_t bits = vqtbl1q_u8(vld1q_u8(planes + (tile * kPlanes + plane) * 16), rows);
            const uint8x16_t worth = vdupq_n_u8(static_cast<uint8_t>(1 << plane));
            high_bytes = vaddq_u8(high_bytes, vandq_u8(vtstq_u8(bits, bit_of_column), worth));
        }
        const uint8x16_t residuals = vld1q_u8(low + tile * 128 + 16 * pair);
        const uint16x8_t first = vreinterpretq_u16_u8(vzip1q_u8(low_bytes, high_bytes));
        const uint16x8_t second = vreinterpretq_u16_u8(vzip2q_u8(low_bytes, high_bytes));
        vst1q_u16(to + 16 * pair, vaddw_u8(first, vget_low_u8(residuals)));
        vst1q_u16(to + 16 * pair + 8, vaddw_high_u8(second, residuals));
    }

    // Ask for the planes of tiles that come later.
    [[gnu::always_inline]] void ask(int64_t tile) const {
        ask_codes(codes + tile * 64, 1);
        ask_page(low + tile * 128, 128);
        if (kPlanes > 0) ask_page(planes + tile * kPlanes * 16, kPlanes * 16);
        for (int64_t line = 0; line < 128; line += 64) {
            ask_level2(low + tile * 128 + kFarAhead + line);
            ask_level1(low + tile * 128 + kCodesAhead + line);
        }
    }

    [[gnu::always_inline]] void operator()(int64_t tile, uint16_t* to) const {
        ask(tile);
#pragma GCC unroll 4
        for (int four = 0; four < 4; ++four) {  // rows
            const uint8x16_t packed = vld1q_u8(codes + tile * 64 + 16 * four);
            const uint32x4_t first_columns = vreinterpretq_u32_u8(vandq_u8(packed, vdupq_n_u8(0x0F)));
            const uint32x4_t last_columns = vreinterpretq_u32_u8(vshrq_n_u8(packed, 4));
            two_rows(2 * four, vreinterpretq_u8_u32(vzip1q_u32(first_columns, last_columns)), tile, to);
            two_rows(2 * four + 1, vreinterpretq_u8_u32(vzip2q_u32(first_columns, last_columns)), tile, to);
        }
    }
};

template <bool kShared>
void rebuild_chunk(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, uint16_t* scratch) {
    with_index<0, 4>(matrix.residual_planes, [&](auto planes) {
        const Rebuilder<kShared, planes> rebuild(matrix, row_tile);
        for (int64_t tile = 0; tile < count; ++tile) rebuild(first + tile, scratch + tile * 128);
    });
}

constexpr int kUsualEscapes = 4;  // a tile; patched without a branch on how many there are

void bsfp_tiles(const Matrix& matrix, int64_t row_tile, int64_t first, int64_t count, EscapeCursor& escapes,
                uint16_t* scratch) {
    if (matrix.shared_starts) {
        rebuild_chunk<true>(matrix, row_tile, first, count, scratch);
    } else {
        rebuild_chunk<false>(matrix, row_tile, first, count, scratch);
    }
    const uint8_t nothing = 0;
    const uint8_t* counts = matrix.escape_counts + row_tile * matrix.column_tiles() + first;
    auto* const bytes = reinterpret_cast<uint8_t*>(scratch);
    for (int64_t tile = 0; tile < count; ++tile) {
        const int num_escapes = counts[tile];
        for (int i = 0; i < kUsualEscapes; ++i) {
            const bool is_one = i < num_escapes;  // what is none is read and written where it does no harm
            const uint8_t* position = is_one ? escapes.positions + i : &nothing;
            const uint8_t* high = is_one ? escapes.high + i : &nothing;
            bytes[is_one ? tile * 256 + 2 * (*position & 127) + 1 : kNowhere] = *high;
        }
        for (int i = kUsualEscapes; i < num_escapes; ++i) {
            bytes[tile * 256 + 2 * (escapes.positions[i] & 127) + 1] = escapes.high[i];
        }
        escapes.positions += num_escapes;
        escapes.high += num_escapes;
    }
}
