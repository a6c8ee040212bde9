// Plain C++ for whatever an instruction set does not do in its own way. Included inside an anonymous namespace, so that
// each instruction set has its own copy, compiled with its flags.

constexpr int64_t kChunk = 64;  // column tiles in scratch: 16 KB of patterns, half of a level-1 cache
constexpr int64_t kWidest = 8;  // tokens that a product takes at once

// Not std::min: a template of the standard library that is not inlined would be shared with other instruction sets.
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Where the escapes of a BSFP row tile have been read up to.
struct EscapeCursor {
    const uint8_t* positions;
    const uint8_t* high;
};

inline float bf16_value(uint16_t pattern) {
    const uint32_t bits = static_cast<uint32_t>(pattern) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float e8m0_value(uint8_t code) {  // 2^(code - 127); code 0 is subnormal
    const uint32_t bits = code ? static_cast<uint32_t>(code) << 23 : uint32_t{1} << 22;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint16_t round_to_bf16(float value) {  // nearest even; a NaN stays one
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float f16_value(uint16_t pattern) {
    const uint32_t sign = static_cast<uint32_t>(pattern & 0x8000) << 16;
    const uint32_t magnitude = pattern & 0x7FFF;
    uint32_t bits;
    if (magnitude >= 0x7C00) {
        bits = 0x7F800000 | (magnitude & 0x3FF) << 13;
    } else if (magnitude >= 0x400) {
        bits = (magnitude << 13) + (uint32_t{112} << 23);
    } else {
        const float value = static_cast<float>(magnitude) * 0x1p-24f;  // exact
        std::memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
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

// formats/vnni8.md, "Activations beside it": scale = max|a| / 127, codes to nearest even.
void prepare(const float* x, int64_t token, int forms, const Activations& a) {
    const int64_t columns = a.columns, padded = a.padded;
    if (forms & kFloat) {
        float* values = a.values + token * padded;
        std::memcpy(values, x, static_cast<size_t>(columns) * sizeof(float));
        for (int64_t i = columns; i < padded; ++i) values[i] = 0.0f;
    }
    if (forms & kRoundedBf16) {
        uint16_t* rounded = a.bf16 + token * padded;
        for (int64_t i = 0; i < columns; ++i) rounded[i] = round_to_bf16(x[i]);
        for (int64_t i = columns; i < padded; ++i) rounded[i] = 0;
    }
    if (!(forms & kInt8)) return;
    bool finite = true;
    for (int64_t block = 0; block < padded / kBlock; ++block) {
        alignas(64) float values[kBlock] = {};
        const int64_t begin = block * kBlock;
        const int64_t count = least(kBlock, columns - begin);
        std::memcpy(values, x + begin, static_cast<size_t>(count) * sizeof(float));
        int32_t largest = 0;  // magnitudes as integers: infinities and NaNs come out on top
        for (int64_t i = 0; i < kBlock; ++i) {
            int32_t bits;
            std::memcpy(&bits, values + i, sizeof bits);
            bits &= 0x7FFFFFFF;
            largest = bits > largest ? bits : largest;
        }
        float amax;
        std::memcpy(&amax, &largest, sizeof amax);
        const bool usable_block = largest < 0x7F800000;
        finite = finite && usable_block;
        float scale = amax / 127.0f;
        const bool usable = usable_block && scale >= 0x1p-126f;
        scale = usable ? scale : 0.0f;
        const float inverse = usable ? 1.0f / scale : 0.0f;
        int8_t* codes = a.codes + token * padded + begin;
        int32_t sum = 0;
        for (int64_t i = 0; i < kBlock; ++i) {
            // adding 1.5 * 2^23 leaves the nearest integer in the low bits, ties to even; at most 127.0001 comes in
            const float shifted = (usable ? values[i] : 0.0f) * inverse + 12582912.0f;
            int32_t bits;
            std::memcpy(&bits, &shifted, sizeof bits);
            int32_t code = bits - 0x4B400000;
            code = code > 127 ? 127 : code < -127 ? -127 : code;
            codes[i] = static_cast<int8_t>(code);
            sum += code;
        }
        a.scales[token * (padded / kBlock) + block] = scale;
        a.offsets[token * (padded / kBlock) + block] = -kBias * sum;
    }
    a.finite[token] = finite;
}
