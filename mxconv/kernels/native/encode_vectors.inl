// The vectors that encoders are written in: one register of words, bytes or floats of an instruction set. A block of a row
// is kPairs pairs of registers of words, each of which becomes one of bytes.

#if defined(MXCONV_NEON)
constexpr int kVectorBytes = 16;
#else
constexpr int kVectorBytes = 32;
#endif
constexpr int kLanes = kVectorBytes / 2, kPairs = kBlock / kVectorBytes;

typedef uint16_t Words __attribute__((vector_size(kVectorBytes)));
typedef int16_t Signed __attribute__((vector_size(kVectorBytes)));
typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes)));
typedef float Floats __attribute__((vector_size(kVectorBytes)));

constexpr uint16_t kMagnitude = 0x7FFF;

inline Words load_words(const uint16_t* from) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    return words;
}

template <class Vector, class Number>
inline void store_vector(Number* to, const Vector& vector) {
    std::memcpy(to, &vector, sizeof vector);
}

inline Words all_words(int word) { return Words{} + static_cast<uint16_t>(word); }

// Whether a > b, as signed numbers.
inline Words above(Words a, Words b) {
    return reinterpret_cast<Words>(reinterpret_cast<Signed>(a) > reinterpret_cast<Signed>(b));
}

#if defined(MXCONV_NEON)
#include "encode_vectors_neon.inl"
#else
#include "encode_vectors_avx2.inl"
#endif

// The signs of a pair's patterns as bit 3 of bytes.
inline Bytes signs_of(const Words patterns[2]) {
    return reinterpret_cast<Bytes>(reinterpret_cast<Words>(narrow_signs(patterns[0], patterns[1])) >> 4) & 8;
}
