// Activations in the forms that matrices ask for, in plain C++. Included after numbers.inl.

// Where a token's row lies in its panel.
struct Lane {
    int64_t panel;  // first token of the panel
    int64_t width;
    int64_t index;

    Lane(const Activations& a, int64_t token)
        : panel(token / kWidest * kWidest), width(least(kWidest, a.num_tokens - panel)), index(token - panel) {}
};

struct Int8Block {
    alignas(64) int8_t codes[kBlock];
    float scale;
    int32_t sums[2];  // of the codes in columns 0, 1, 4, 5, ... and 2, 3, 6, 7, ...
    bool finite;
};

// formats/vnni8.md, "Activations beside it": scale = max|a| / 127, codes to nearest even.
inline Int8Block quantize_block(const float values[kBlock]) {
    int32_t largest = 0;  // magnitudes as integers: infinities and NaNs come out on top
    for (int64_t i = 0; i < kBlock; ++i) {
        const int32_t bits = with_bits<int32_t>(values[i]) & 0x7FFFFFFF;
        largest = bits > largest ? bits : largest;
    }
    const auto amax = with_bits<float>(largest);
    Int8Block block;
    block.finite = largest < 0x7F800000;
    const float scale = amax / 127.0f;
    const bool usable = block.finite && scale >= 0x1p-126f;
    block.scale = usable ? scale : 0.0f;
    block.sums[0] = block.sums[1] = 0;
    if (!usable) {
        std::memset(block.codes, 0, sizeof block.codes);
        return block;
    }
    const float inverse = 1.0f / scale;
    int32_t sum = 0, second = 0;  // as a loop that compilers take 8 or 16 columns at a time: no sums chosen by i % 4
    for (int64_t i = 0; i < kBlock; ++i) {
        // adding 1.5 * 2^23 leaves the nearest integer in the low bits, ties to even; at most 127.0001 comes in
        int32_t code = with_bits<int32_t>(values[i] * inverse + 12582912.0f) - 0x4B400000;
        code = code > 127 ? 127 : code;
        code = code < -127 ? -127 : code;
        block.codes[i] = static_cast<int8_t>(code);
        sum += code;
        second += code & -static_cast<int32_t>(i / 2 % 2);
    }
    block.sums[0] = sum - second;
    block.sums[1] = second;
    return block;
}

#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
// What 16-bit sums of levels raised by kNarrowBias start from, one a half of every four columns.
constexpr int32_t kNarrowBias = 16;

inline int32_t offset_of(const Int8Block& block) {
    const uint32_t low = static_cast<uint32_t>(-kNarrowBias * block.sums[0]) & 0xFFFF;
    return static_cast<int32_t>(static_cast<uint32_t>(-kNarrowBias * block.sums[1]) << 16 | low);
}
#else
#if defined(__AVX512F__)
constexpr int32_t kOffsetBase = 0x4B400000;  // the bits of 1.5 * 2^23: sums are floats as they are, see avx512_int8.inl
#else
constexpr int32_t kOffsetBase = 0;
#endif

inline int32_t offset_of(const Int8Block& block) { return kOffsetBase - kBias * (block.sums[0] + block.sums[1]); }
#endif

void prepare(const float* x, int64_t token, int64_t first, int64_t count, int forms, const Activations& a) {
    const Lane lane(a, token);
    const int64_t w = lane.width;
    for (int64_t begin = first; begin < first + count; begin += kBlock, x += kBlock) {
        alignas(64) float padded[kBlock];
        const float* values = x;
        const int64_t valid = least(kBlock, first + count - begin);
        if (valid < kBlock) {
            std::memset(padded, 0, sizeof padded);
            std::memcpy(padded, x, static_cast<size_t>(valid) * sizeof(float));
            values = padded;
        }
        if (forms & kFloat) {
            float* to = a.values + lane.panel * a.padded + begin * w + lane.index * 8;
            for (int64_t i = 0; i < kBlock; i += 8) std::memcpy(to + i * w, values + i, 8 * sizeof(float));
        }
        if (forms & kRoundedBf16) {
            alignas(64) uint16_t rounded[kBlock];
            for (int64_t i = 0; i < kBlock; ++i) rounded[i] = round_to_bf16(values[i]);
            if (kSplit > 0) {
                constexpr int64_t kHalf = kSplit > 0 ? kSplit / 2 : 1;
                float* to = a.split + lane.panel * a.padded + begin * w + lane.index * kSplit;
                for (int64_t i = 0; i < kBlock; ++i) {
                    const int64_t first = i / (2 * kHalf) * kSplit * w + (i % 2 == 0 ? kHalf : 0);
                    to[first + i % (2 * kHalf) / 2] = bf16_value(rounded[i]);
                }
            } else {
                uint16_t* to = a.bf16 + lane.panel * a.padded + begin * w + lane.index * 8;
                for (int64_t i = 0; i < kBlock; i += 8) std::memcpy(to + i * w, rounded + i, 8 * sizeof(uint16_t));
            }
        }
        if (forms & kInt8) {
            const Int8Block block = quantize_block(values);
            int8_t* to = a.codes + lane.panel * a.padded + begin * w + lane.index * 4;
            for (int64_t i = 0; i < kBlock; i += 4) std::memcpy(to + i * w, block.codes + i, 4);
            const int64_t at = (lane.panel * a.padded + begin * w) / kBlock + lane.index;
            a.scales[at] = block.scale;
            a.offsets[at] = offset_of(block);
            if (!block.finite) __atomic_store_n(a.finite + token, uint8_t{0}, __ATOMIC_RELAXED);
        }
    }
}
