// MXFP4 in plain C++, for both formats of weights and every scale rule: formats/mxfp4.md, with scales by integer
// arithmetic on float32 patterns. Included inside an anonymous namespace, after numbers.inl.

// A finite F16 pattern: the exponent bias differs by 112, and a product with a power of two is exact for subnormals too.
inline float finite_f16(uint16_t pattern) {
    const float magnitude = float_of(static_cast<uint32_t>(pattern & 0x7FFF) << 13) * 0x1p112f;
    return float_of(float_bits(magnitude) | static_cast<uint32_t>(pattern & 0x8000) << 16);
}

// Columns [32 block, 32 block + 32) of a row, padded with zeros. False where one is not finite.
inline bool load_block(const Rows& rows, int64_t row, int64_t block, float values[32]) {
    const int64_t count = least(kBlock, rows.columns - block * kBlock);
    uint16_t padded[32] = {}, largest = 0;
    std::memcpy(padded, rows.patterns + row * rows.columns + block * kBlock,
                static_cast<size_t>(count) * sizeof(uint16_t));
    for (int i = 0; i < 32; ++i) {
        const uint16_t magnitude = padded[i] & 0x7FFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (rows.format == FloatFormat::kBf16) {
        for (int i = 0; i < 32; ++i) values[i] = bf16_value(padded[i]);
    } else {
        for (int i = 0; i < 32; ++i) values[i] = finite_f16(padded[i]);
    }
    return largest < rows.infinity();
}

constexpr int kMaxExponent = 125;  // of a scale; the least is -127

inline int clamp_exponent(int exponent) {
    return exponent > kMaxExponent ? kMaxExponent : exponent < -127 ? -127 : exponent;
}

// The exponent that a rule selects for a block's largest magnitude, a float32 pattern above 0; not yet clamped.
inline int block_exponent(uint32_t amax, ScaleRule rule) {
    int field = static_cast<int>(amax >> 23);
    if (field == 0) {  // subnormal: move the leading bit to where normal numbers have it
        const int shift = __builtin_clz(amax) - 8;
        amax <<= shift;
        field = 1 - shift;
    }
    const uint32_t mantissa = amax & 0x7FFFFF;
    const bool is_up = rule == ScaleRule::kEven   ? mantissa >= 0x600000  // 1.75
                       : rule == ScaleRule::kCeil ? mantissa > 0x400000   // 1.5
                                                  : false;
    return field - 127 - 2 + (is_up ? 1 : 0);
}

// Codes of a block at a scale, and the values over that scale.
inline void encode_at(const float values[32], int exponent, ScaleRule rule, uint8_t codes[32], float scaled[32]) {
    const float factor = float_of(static_cast<uint32_t>(127 - exponent) << 23);
    if (rule == ScaleRule::kGgml) {
        for (int i = 0; i < 32; ++i) {
            scaled[i] = values[i] * factor;
            const float a = __builtin_fabsf(scaled[i]);
            const int code =
                (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f);
            const int sign = static_cast<int>(float_bits(values[i]) >> 28 & 8);
            codes[i] = static_cast<uint8_t>(code | (code > 0 ? sign : 0));
        }
        return;
    }
    for (int i = 0; i < 32; ++i) {
        scaled[i] = values[i] * factor;
        const float a = __builtin_fabsf(scaled[i]);
        const int code =
            (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
        codes[i] = static_cast<uint8_t>(code | static_cast<int>(float_bits(values[i]) >> 28 & 8));
    }
}

// The fold of n numbers, n a power of two: the upper half is added onto the lower one.
template <int n>
inline double fold(double* numbers) {
    for (int half = n / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) numbers[i] += numbers[half + i];
    }
    return numbers[0];
}

// Squared error of codes in units of the scale, in binary64.
inline double squared_error(const float scaled[32], const uint8_t codes[32]) {
    constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double squares[32];
    for (int i = 0; i < 32; ++i) {
        const double difference = static_cast<double>(__builtin_fabsf(scaled[i])) - kMagnitudes[codes[i] & 7];
        squares[i] = difference * difference;
    }
    return fold<32>(squares);
}

// One row's block: its codes, and its scale byte.
inline uint8_t encode_block(const float values[32], ScaleRule rule, uint8_t codes[32]) {
    uint32_t amax = 0;
    for (int i = 0; i < 32; ++i) {
        const uint32_t magnitude = float_bits(values[i]) & 0x7FFFFFFF;
        amax = magnitude > amax ? magnitude : amax;
    }
    if (amax == 0) {
        std::memset(codes, 0, 32);
        return 0;
    }
    const int wanted = block_exponent(amax, rule);
    int exponent = clamp_exponent(wanted);
    float scaled[32];
    encode_at(values, exponent, rule, codes, scaled);
    if (rule == ScaleRule::kMse) {
        const int wider = clamp_exponent(wanted + 1);
        uint8_t wider_codes[32];
        float wider_scaled[32];
        encode_at(values, wider, rule, wider_codes, wider_scaled);
        if (4.0 * squared_error(wider_scaled, wider_codes) < squared_error(scaled, codes)) {
            std::memcpy(codes, wider_codes, 32);
            exponent = wider;
        }
    }
    return static_cast<uint8_t>(exponent + 127);
}

// One block of 16 rows, in the order of vnni8: codes has 4 tiles of 64 bytes, scales 16 bytes.
bool mxfp4_block(const Rows& rows, ScaleRule rule, int64_t row_tile, int64_t block, uint8_t* codes, uint8_t* scales) {
    bool is_finite = true;
    for (int r = 0; r < kTileRows; ++r) {
        uint8_t row_codes[32] = {};
        uint8_t scale = 0;
        const int64_t row = row_tile * kTileRows + r;
        if (row < rows.rows) {
            float values[32];
            is_finite = load_block(rows, row, block, values) && is_finite;
            scale = encode_block(values, rule, row_codes);
        }
        scales[r] = scale;
        for (int tile = 0; tile < 4; ++tile) {
            for (int j = 0; j < 4; ++j) {
                codes[64 * tile + 4 * r + j] =
                    static_cast<uint8_t>(row_codes[8 * tile + j] | row_codes[8 * tile + j + 4] << 4);
            }
        }
    }
    return is_finite;
}

bool encode_mxfp4_plainly(const Rows& rows, ScaleRule rule, int64_t row_tile, uint8_t* codes, uint8_t* scales) {
    bool is_finite = true;
    for (int64_t block = 0; block < rows.blocks(); ++block) {
        is_finite =
            mxfp4_block(rows, rule, row_tile, block, codes + 256 * block, scales + kTileRows * block) && is_finite;
    }
    return is_finite;
}
