// The rate of multiply-adds with AVX2, for benchmarks.

// A multiply-add of bytes is one vpdpbusd or vpdpbssd, or vpmaddubsw with the addition that it needs at least.
int64_t multiply_adds(Form form, int64_t iterations) {
    constexpr int kChains = 12;
    __m256i sums[kChains] = {};
    __m256i weights = _mm256_set1_epi32(0x01010101), x = _mm256_set1_epi32(0x01010101);
    for (int k = 0; k < kChains; ++k) asm volatile("" : "+x"(sums[k]));  // chains that are not known to be equal
    for (int64_t i = 0; i < iterations; ++i) {
        asm volatile("" : "+x"(weights), "+x"(x));  // no product is known beforehand
#pragma GCC unroll 12
        for (int k = 0; k < kChains; ++k) {
            if (form == kInt8) {
#if defined(MXCONV_AVXVNNIINT8) || defined(__AVXVNNI__)
                sums[k] = Dots::add(sums[k], weights, x);
#else
                __m256i products = _mm256_maddubs_epi16(weights, x);
                asm volatile("" : "+x"(products));
                sums[k] = _mm256_add_epi16(sums[k], products);
#endif
            } else {
                sums[k] = _mm256_castps_si256(_mm256_fmadd_ps(_mm256_castsi256_ps(weights), _mm256_castsi256_ps(x),
                                                              _mm256_castsi256_ps(sums[k])));
            }
        }
    }
    for (int k = 0; k < kChains; ++k) asm volatile("" : : "x"(sums[k]));
    return iterations * kChains * (form == kInt8 ? 32 : 8);
}
