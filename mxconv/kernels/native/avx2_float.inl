// 4 bits x float for AVX2: 8 rows a register, a look-up of 8 magnitudes and the sign.

template <int kTokens>
void float_rows(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                int64_t lane, float* out) {
    const __m256 levels[2] = {_mm256_loadu_ps(matrix.float_levels), _mm256_loadu_ps(matrix.float_levels + 8)};
    const int64_t blocks = a.padded / kBlock;
    __m256 sums[2][kTokens];
    for (int t = 0; t < kTokens; ++t) sums[0][t] = sums[1][t] = _mm256_setzero_ps();
    for (int64_t block = 0; block < blocks; ++block) {
        const uint8_t* codes = matrix.codes + (row_tile * blocks + block) * 256;
        for (int half = 0; half < 2; ++half) {
            __m256 in_block[kTokens];
            for (int t = 0; t < kTokens; ++t) in_block[t] = _mm256_setzero_ps();
            for (int column = 0; column < kBlock; ++column) {
                const __m256i packed = load(codes + 64 * (column / 8) + 32 * half);
                const int shift = 8 * (column % 4) + (column % 8 < 4 ? 0 : 4);
                const __m256i nibbles = _mm256_srli_epi32(packed, shift);  // a look-up takes the low three bits
                const __m256 weights = _mm256_blendv_ps(_mm256_permutevar8x32_ps(levels[0], nibbles),
                                                        _mm256_permutevar8x32_ps(levels[1], nibbles),
                                                        _mm256_castsi256_ps(_mm256_slli_epi32(nibbles, 28)));
                for (int t = 0; t < kTokens; ++t) {
                    const float* x =
                        a.values + panel * a.padded + (block * kBlock + column / 8 * 8) * width + (lane + t) * 8;
                    in_block[t] = _mm256_fmadd_ps(weights, _mm256_set1_ps(x[column % 8]), in_block[t]);
                }
            }
            float scale[8];
            for (int64_t r = 0; r < 8; ++r) scale[r] = scale_value(matrix, row_tile, block, 8 * half + r);
            for (int t = 0; t < kTokens; ++t) {
                sums[half][t] = _mm256_fmadd_ps(in_block[t], _mm256_loadu_ps(scale), sums[half][t]);
            }
        }
    }
    for (int t = 0; t < kTokens; ++t)
        for (int half = 0; half < 2; ++half) _mm256_storeu_ps(out + t * kTileRows + 8 * half, sums[half][t]);
}

void four_bit_float(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                    float* out) {
    int64_t lane = 0;
    for (; width - lane >= 4; lane += 4) float_rows<4>(matrix, row_tile, a, panel, width, lane, out + lane * kTileRows);
    out += lane * kTileRows;
    if (width - lane == 3) float_rows<3>(matrix, row_tile, a, panel, width, lane, out);
    if (width - lane == 2) float_rows<2>(matrix, row_tile, a, panel, width, lane, out);
    if (width - lane == 1) float_rows<1>(matrix, row_tile, a, panel, width, lane, out);
}
