// What AVX2 files load and hold alike.

inline __m256i load(const void* bytes) { return _mm256_loadu_si256(static_cast<const __m256i*>(bytes)); }

inline __m128i load_half(const void* bytes) { return _mm_loadu_si128(static_cast<const __m128i*>(bytes)); }

// 16 bytes of one place beside 16 of another.
inline __m256i load_halves(const void* first, const void* second) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(first)), load_half(second), 1);
}

// The value is in a register here, and what is added to it next is added next: a compiler that collects products and adds
// them up later has sixteen registers too few.
inline void hold(__m256& value) { asm("" : "+x"(value)); }
inline void hold(__m256i& value) { asm("" : "+x"(value)); }

inline __m256i byte_table(const uint8_t bytes[16]) { return _mm256_broadcastsi128_si256(load_half(bytes)); }

// The scales of 8 rows in one group of four blocks.
inline __m256 bf16_scales(const uint16_t* scales, __m256 factor) {
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(scales)), 16);
    return _mm256_mul_ps(_mm256_castsi256_ps(wide), factor);
}
