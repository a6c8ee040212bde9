// BF16 with bfmmla: two tokens x four columns times two rows x four columns, added to 2 x 2 sums. Each of the four is the
// same function of its own row and token, so a token alone, which comes as a pair of itself, has the bits that it has among
// others. A row has two partial sums: columns 0..3 and 4..7 of its tiles. Sums of a token are (2, 16 rows).

struct Bf16 {
    using Element = uint16_t;
    static constexpr int64_t kFloats = 32;
    static const Element* panel(const Activations& a, int64_t token) { return a.bf16 + token * a.padded; }
};

// Eight columns of two rows as two operands: columns 0..3 of both, columns 4..7 of both.
struct Bf16Pair {
    bfloat16x8_t halves[2];

    Bf16Pair(const uint16_t* first, const uint16_t* second) {
        const uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(first)), b = vreinterpretq_u64_u16(vld1q_u16(second));
        halves[0] = vreinterpretq_bf16_u64(vzip1q_u64(a, b));
        halves[1] = vreinterpretq_bf16_u64(vzip2q_u64(a, b));
    }
};

inline float32x4_t two_and_two(const float* first, const float* second) {
    return vcombine_f32(vld1_f32(first), vld1_f32(second));
}

// Rows [first, first + 2 kRowPairs) of some tiles times kPairs pairs of tokens, or one token.
template <int kPairs, int kRowPairs, bool kAlone>
void pair_block(const Tiles& tiles, int64_t count, int first, const uint16_t* x, int64_t width, float* sums) {
    constexpr int kStep = kAlone ? 0 : 1;  // from a token to its partner
    float32x4_t sum[kPairs][kRowPairs][2];
    const auto at = [&](int p, int r, int half) { return sums + 2 * p * 32 + half * 16 + first + 2 * r; };
    for (int p = 0; p < kPairs; ++p)
        for (int r = 0; r < kRowPairs; ++r)
            for (int half = 0; half < 2; ++half)
                sum[p][r][half] = two_and_two(at(p, r, half), at(p, r, half) + kStep * 32);
    const uint16_t* tile = tiles.patterns + first * tiles.row_stride;
    for (int64_t i = 0; i < count; ++i, tile += tiles.tile_stride, x += 8 * width) {
        ask_rows<2 * kRowPairs>(tile, tiles.row_stride, i);
        bfloat16x8_t values[kPairs][2];
        for (int p = 0; p < kPairs; ++p) {
            const Bf16Pair pair(x + 16 * p, x + 16 * p + 8 * kStep);
            for (int half = 0; half < 2; ++half) values[p][half] = pair.halves[half];
        }
        for (int r = 0; r < kRowPairs; ++r) {
            const uint16_t* row = tile + 2 * r * tiles.row_stride;
            const Bf16Pair weights(row, row + tiles.row_stride);
            for (int p = 0; p < kPairs; ++p)
                for (int half = 0; half < 2; ++half)
                    sum[p][r][half] = vbfmmlaq_f32(sum[p][r][half], values[p][half], weights.halves[half]);
        }
    }
    for (int p = 0; p < kPairs; ++p) {
        for (int r = 0; r < kRowPairs; ++r) {
            for (int half = 0; half < 2; ++half) {
                vst1_f32(at(p, r, half), vget_low_f32(sum[p][r][half]));
                if (!kAlone) vst1_f32(at(p, r, half) + 32, vget_high_f32(sum[p][r][half]));
            }
        }
    }
}

template <>
void multiply<Bf16>(const Tiles& tiles, int64_t count, const uint16_t* x, int64_t width, float* sums) {
    int64_t left = width;
    for (; left >= 4; left -= 4, x += 4 * 8, sums += 4 * 32) {  // 16 sums
        pair_block<2, 4, false>(tiles, count, 0, x, width, sums);
        pair_block<2, 4, false>(tiles, count, 8, x, width, sums);
    }
    if (left >= 2) {
        pair_block<1, 8, false>(tiles, count, 0, x, width, sums);
        left -= 2, x += 2 * 8, sums += 2 * 32;
    }
    if (left == 1) pair_block<1, 8, true>(tiles, count, 0, x, width, sums);
}

template <>
void total<Bf16>(const float* sums, float* out) {
    for (int r = 0; r < 16; r += 4) vst1q_f32(out + r, vaddq_f32(vld1q_f32(sums + r), vld1q_f32(sums + 16 + r)));
}
