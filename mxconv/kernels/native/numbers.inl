// Numbers of all formats in plain C++, and what all products share. Included inside an anonymous namespace, so that
// each instruction set has its own copy, compiled with its flags.

#include "ahead.inl"
#include "unrolled.inl"

// Floats of the widest register.
#if defined(__AVX512F__)
constexpr int64_t kVector = 16;
#elif defined(__AVX2__)
constexpr int64_t kVector = 8;
#else
constexpr int64_t kVector = 4;
#endif

constexpr int64_t kChunk = 64;  // column tiles in scratch: 16 KB of patterns, half of a level-1 cache
constexpr int64_t kScratch = kChunk * kTileRows * kTileColumns + 32;  // with a byte to spare
constexpr int64_t kNowhere = kChunk * kTileRows * kTileColumns * 2;   // the byte to spare

constexpr int64_t kRoom = 64;  // tokens whose partial sums are kept while one row tile streams by

// Not std::min: a template of the standard library that is not inlined would be shared with other instruction sets.
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Where the escapes of a BSFP row tile have been read up to.
struct EscapeCursor {
    const uint8_t* positions;
    const uint8_t* high;
};

inline EscapeCursor escapes_of(const Matrix& matrix, int64_t row_tile) {
    if (matrix.kind != MatrixKind::kBsfp) return {nullptr, nullptr};
    const int64_t first = matrix.escape_offsets[row_tile];
    return {matrix.escape_positions + first, matrix.escape_high + first};
}

inline void store_rows(const float* values, const Matrix& matrix, int64_t row_tile, float* out) {
    const int64_t rows = least(kTileRows, matrix.rows - row_tile * kTileRows);
    std::memcpy(out + row_tile * kTileRows, values, static_cast<size_t>(rows) * sizeof(float));
}

// A number or vector of another type with these bits.
template <class To, class From>
inline To with_bits(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline uint32_t float_bits(float value) { return with_bits<uint32_t>(value); }
inline float float_of(uint32_t bits) { return with_bits<float>(bits); }
inline float bf16_value(uint16_t pattern) { return float_of(static_cast<uint32_t>(pattern) << 16); }

inline float e8m0_value(uint8_t code) {  // 2^(code - 127); code 0 is subnormal
    return float_of(code ? static_cast<uint32_t>(code) << 23 : uint32_t{1} << 22);
}

inline uint16_t round_to_bf16(float value) {  // nearest even; a NaN stays one
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float f16_value(uint16_t pattern) {
    const uint32_t sign = static_cast<uint32_t>(pattern & 0x8000) << 16;
    const uint32_t magnitude = pattern & 0x7FFF;
    if (magnitude >= 0x7C00) return float_of(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
    if (magnitude >= 0x400) return float_of(sign | ((magnitude << 13) + (uint32_t{112} << 23)));
    return float_of(sign | float_bits(static_cast<float>(magnitude) * 0x1p-24f));  // exact
}

// The stored scale of row r in block b of a row tile, as a float.
inline float scale_value(const Matrix& matrix, int64_t row_tile, int64_t block, int64_t r) {
    const int64_t blocks = matrix.column_tiles() * kTileColumns / kBlock;
    if (matrix.scale_format == ScaleFormat::kE8m0) {
        const auto* scales = static_cast<const uint8_t*>(matrix.scales);
        return e8m0_value(scales[(row_tile * blocks + block) * kTileRows + r]) * matrix.scale_factor;
    }
    const int64_t groups = (blocks + 3) / 4;
    const auto* scales = static_cast<const uint16_t*>(matrix.scales);
    return bf16_value(scales[(row_tile * groups + block / 4) * kTileRows + r]) * matrix.scale_factor;
}

// BF16 activations without BF16 arithmetic are floats, of some columns the odd ones before the even ones; 0: they stay BF16.
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr int64_t kSplit = 0;
#elif defined(__AVX512F__) || defined(MXCONV_NEON)
constexpr int64_t kSplit = 8;
#elif defined(__AVX2__)
constexpr int64_t kSplit = 16;
#else
constexpr int64_t kSplit = 0;
#endif
