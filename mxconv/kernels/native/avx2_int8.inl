// 4 and 8 bits x int8 for AVX2: 8 rows are 8 lanes of 32 bits. Some tokens at once, for each a register of sums or two.
//
// Without a dot-product instruction, vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16 bits, where it
// saturates. A block's 16 products a lane fit into 16 bits where levels do not exceed 15: then sums may wrap around on the
// way, and 16 is added to levels to make them unsigned. Larger levels are 16 a + b, a in -8..7 and b in 0..15, with a sum
// each. The sums (of a too) start from -16 times the activations, see offset_of. Elements of 8 bits are multiplied as
// magnitudes, by activations that take their signs: two products fit into 16 bits, and become 32 bits at once.

inline __m256i four_bytes(const int8_t* x) {
    int32_t bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

#if defined(MXCONV_AVXVNNIINT8)
// One dot-product instruction of signed bytes: levels are what they are. GCC 12 has no name for it, but its assembler has.
struct Dots {
    static constexpr int kTables = 1, kHalves = 2;
    static uint8_t entry(int level, int) { return static_cast<uint8_t>(level); }
    static __m256i stored(__m256i elements) { return elements; }
    static __m256i start(int32_t, int) { return _mm256_setzero_si256(); }
    static __m256i add(__m256i sum, __m256i weights, __m256i x) {
        asm("vpdpbssd %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(x));
        return sum;
    }
    static __m256i total(const __m256i sums[1]) { return sums[0]; }
};
#elif defined(__AVXVNNI__)
// One dot-product instruction: levels are raised by 128.
struct Dots {
    static constexpr int kTables = 1, kHalves = 2;
    static uint8_t entry(int level, int) { return static_cast<uint8_t>(level + kBias); }
    static __m256i stored(__m256i elements) { return _mm256_xor_si256(elements, _mm256_set1_epi8(-kBias)); }
    static __m256i start(int32_t offset, int) { return _mm256_set1_epi32(offset); }
    static __m256i add(__m256i sum, __m256i weights, __m256i x) { return _mm256_dpbusd_avx_epi32(sum, weights, x); }
    static __m256i total(const __m256i sums[1]) { return sums[0]; }
};
#endif
#if defined(MXCONV_AVXVNNIINT8) || defined(__AVXVNNI__)
using ElementDots = Dots;
#else
constexpr int kMostNarrow = 15;

inline __m256i add_pairs(__m256i sum, __m256i weights, __m256i x) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, x));
}

struct NarrowDots {
    static constexpr int kTables = 1, kHalves = 2;
    static uint8_t entry(int level, int) { return static_cast<uint8_t>(level + kNarrowBias); }
    static __m256i start(int32_t offset, int) { return _mm256_set1_epi32(offset); }
    static __m256i add(__m256i sum, __m256i weights, __m256i x) { return add_pairs(sum, weights, x); }
    static __m256i total(const __m256i sums[1]) { return _mm256_madd_epi16(sums[0], _mm256_set1_epi16(1)); }
};

struct SplitDots {
    static constexpr int kTables = 2, kHalves = 1;
    static uint8_t entry(int level, int table) {
        return static_cast<uint8_t>(table == 0 ? (level >> 4) + kNarrowBias : level & 15);
    }
    static __m256i start(int32_t offset, int table) { return _mm256_set1_epi32(table == 0 ? offset : 0); }
    static __m256i add(__m256i sum, __m256i weights, __m256i x) { return add_pairs(sum, weights, x); }
    static __m256i total(const __m256i sums[2]) {
        return _mm256_add_epi32(_mm256_madd_epi16(sums[0], _mm256_set1_epi16(16)),
                                _mm256_madd_epi16(sums[1], _mm256_set1_epi16(1)));
    }
};

struct ElementDots {
    static constexpr int kTables = 1, kHalves = 2;
    static __m256i stored(__m256i elements) { return elements; }
    static __m256i start(int32_t, int) { return _mm256_setzero_si256(); }
    static __m256i add(__m256i sum, __m256i weights, __m256i x) {
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static __m256i total(const __m256i sums[1]) { return sums[0]; }
};

inline bool is_narrow(const Matrix& matrix) {
    for (int8_t level : matrix.levels) {
        if (level > kMostNarrow || level < -kMostNarrow) return false;
    }
    return true;
}
#endif

// Codes of 4 bits, whose levels are looked up; as all weights here, 8 rows x 4 columns a register.
template <class Kind>
struct CodedWeights {
    using Dots = Kind;
    static constexpr int kBlockBytes = 256;  // of 16 rows
    __m256i tables[Kind::kTables];

    explicit CodedWeights(const Matrix& matrix) {
        for (int table = 0; table < Kind::kTables; ++table) {
            uint8_t bytes[16];
            for (int i = 0; i < 16; ++i) bytes[i] = Kind::entry(matrix.levels[i], table);
            tables[table] = byte_table(bytes);
        }
    }

    [[gnu::always_inline]] void get(const uint8_t* codes, int four, __m256i weights[Kind::kTables]) const {
        const __m256i packed = load(codes + 64 * (four / 2));
        const __m256i low = four % 2 ? _mm256_srli_epi16(packed, 4) : packed;
        const __m256i nibbles = _mm256_and_si256(low, _mm256_set1_epi8(0x0F));
        each<Kind::kTables>([&](auto table) kInlined { weights[table] = _mm256_shuffle_epi8(tables[table], nibbles); });
    }
};

// Elements of 8 bits, which are what they are.
template <class Kind>
struct StoredWeights {
    using Dots = Kind;
    static constexpr int kBlockBytes = 512;

    explicit StoredWeights(const Matrix&) {}

    [[gnu::always_inline]] void get(const uint8_t* elements, int four, __m256i weights[1]) const {
        weights[0] = Kind::stored(load(elements + 64 * four));
    }
};

// Integer dot products of one block: kHalves times 8 rows (32 bytes of each 64 a half) x kTokens.
template <class Weights, int kTokens, int kHalves>
[[gnu::always_inline]] inline void block_dots(const Weights& stored, const uint8_t* codes, const int8_t* x,
                                              const int32_t* offsets, int64_t width, __m256i dots[kHalves][kTokens]) {
    using Kind = typename Weights::Dots;
    constexpr int kTables = Kind::kTables;
    __m256i sums[kTokens][kHalves][kTables];
    each<kTokens>([&](auto t) kInlined {
        each<kHalves>([&](auto half) kInlined {
            each<kTables>([&](auto table) kInlined { sums[t][half][table] = Kind::start(offsets[t], table); });
        });
    });
    each<8>([&](auto four) kInlined {  // columns
        __m256i weights[kHalves][kTables];
        each<kHalves>([&](auto half) kInlined { stored.get(codes + 32 * half, four, weights[half]); });
        each<kTokens>([&](auto t) kInlined {
            __m256i values = four_bytes(x + 4 * t);
            hold(values);
            each<kHalves>([&](auto half) kInlined {
                each<kTables>([&](auto table) kInlined {
                    sums[t][half][table] = Kind::add(sums[t][half][table], weights[half][table], values);
                    hold(sums[t][half][table]);
                });
            });
        });
        x += 4 * width;
    });
    each<kHalves>([&](auto half) kInlined {
        each<kTokens>([&](auto t) kInlined { dots[half][t] = Kind::total(sums[t][half]); });
    });
}

// The scales of 8 rows in one block, or group of four.
inline __m256 e8m0_scales(const uint8_t* scales, __m256 factor) {
    // 0 stands for 2^-127, which is subnormal; its blocks are zeros, or weights that no activation makes matter
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 23)), factor);
}

// kHalves times 8 rows from row 8 * first_half on, times tokens lane .. lane + kTokens - 1 of a panel.
template <class Weights, int kTokens, int kHalves>
void int8_rows(const Matrix& matrix, int64_t row_tile, int first_half, const Activations& a, int64_t panel,
               int64_t width, int64_t lane, float* out) {
    constexpr int kBlockBytes = Weights::kBlockBytes;
    const Weights weights(matrix);
    const __m256 factor = _mm256_set1_ps(matrix.scale_factor);
    const int64_t blocks = a.padded / kBlock;
    const bool is_e8m0 = matrix.scale_format == ScaleFormat::kE8m0;
    const int64_t blocks_a_scale = is_e8m0 ? 1 : 4;
    const int64_t num_scales = (blocks + blocks_a_scale - 1) / blocks_a_scale;
    const uint8_t* codes = matrix.codes + row_tile * blocks * kBlockBytes + 32 * first_half;
    const int64_t scales_at = row_tile * num_scales * kTileRows + 8 * first_half;
    const auto* bytes = static_cast<const uint8_t*>(matrix.scales) + scales_at;
    const auto* words = static_cast<const uint16_t*>(matrix.scales) + scales_at;
    const int8_t* x = a.codes + panel * a.padded + lane * 4;
    const float* x_scales = a.scales + panel * blocks + lane;
    const int32_t* offsets = a.offsets + panel * blocks + lane;
    __m256 sums[kHalves][kTokens];
    for (int half = 0; half < kHalves; ++half)
        for (int t = 0; t < kTokens; ++t) sums[half][t] = _mm256_setzero_ps();
    for (int64_t i = 0; i < num_scales; ++i, bytes += kTileRows, words += kTileRows) {
        const int64_t end = least((i + 1) * blocks_a_scale, blocks);
        __m256 scales[kHalves];
        for (int half = 0; half < kHalves; ++half) {
            scales[half] = is_e8m0 ? e8m0_scales(bytes + 8 * half, factor) : bf16_scales(words + 8 * half, factor);
        }
        for (int64_t block = i * blocks_a_scale; block < end; ++block, codes += kBlockBytes, x += kBlock * width) {
            ask_codes(codes, kBlockBytes / 64);
            __m256i dots[kHalves][kTokens];
            block_dots<Weights, kTokens, kHalves>(weights, codes, x, offsets + block * width, width, dots);
            each<kTokens>([&](auto t) kInlined {
                const __m256 x_scale = _mm256_set1_ps(x_scales[block * width + t]);
                each<kHalves>([&](auto half) kInlined {
                    sums[half][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[half][t]),
                                                    _mm256_mul_ps(scales[half], x_scale), sums[half][t]);
                });
            });
        }
    }
    for (int half = 0; half < kHalves; ++half)
        for (int t = 0; t < kTokens; ++t)
            _mm256_storeu_ps(out + t * kTileRows + 8 * (first_half + half), sums[half][t]);
}

// Sixteen registers hold eight sums beside what they are added from: four tokens at once.
template <class Weights, int kTokens>
void int8_tokens(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                 int64_t lane, float* out) {
    constexpr int kHalves = kTokens == 1 ? 2 : Weights::Dots::kHalves;
    for (int half = 0; half < 2; half += kHalves) {
        int8_rows<Weights, kTokens, kHalves>(matrix, row_tile, half, a, panel, width, lane, out + lane * kTileRows);
    }
}

template <class Weights>
void int8_panel(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                float* out) {
    int64_t lane = 0;
    for (int64_t left = width; left > 0; left = width - lane) {
        // five are three and two, six are twice three
        const int64_t count = left > 4 && left < 7 ? 3 : least(left, 4);
        with_index<1, 4>(
            count, [&](auto tokens) { int8_tokens<Weights, tokens>(matrix, row_tile, a, panel, width, lane, out); });
        lane += count;
    }
}

#if !defined(MXCONV_AVXVNNIINT8) && !defined(__AVXVNNI__)
using Dots = NarrowDots;
#endif

void four_bit_int8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width,
                   float* out) {
#if !defined(MXCONV_AVXVNNIINT8) && !defined(__AVXVNNI__)
    if (!is_narrow(matrix)) {
        return int8_panel<CodedWeights<SplitDots>>(matrix, row_tile, a, panel, width, out);
    }
#endif
    int8_panel<CodedWeights<Dots>>(matrix, row_tile, a, panel, width, out);
}

void mxint8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t panel, int64_t width, float* out) {
    int8_panel<StoredWeights<ElementDots>>(matrix, row_tile, a, panel, width, out);
}

constexpr auto many_int8 = no_many;

// ---- for rates.inl: a multiply-add of bytes is one dot product, or vpmaddubsw with the addition that it needs at least ----

using Register = __m256i;
constexpr int kChains = 12;
template <Form kForm>
constexpr int64_t kProducts = kForm == kInt8 ? 32 : 8;

template <Form kForm>
inline __m256i multiply_add(__m256i sum, __m256i weights, __m256i x) {
    if constexpr (kForm != kInt8) {
        return _mm256_castps_si256(
            _mm256_fmadd_ps(_mm256_castsi256_ps(weights), _mm256_castsi256_ps(x), _mm256_castsi256_ps(sum)));
    }
#if defined(MXCONV_AVXVNNIINT8) || defined(__AVXVNNI__)
    return Dots::add(sum, weights, x);
#else
    __m256i products = _mm256_maddubs_epi16(weights, x);
    asm volatile("" : "+x"(products));  // not the same for all chains
    return _mm256_add_epi16(sum, products);
#endif
}
