// 4 and 8 bits times int8 for AVX-512: a byte table makes levels unsigned by adding 128, as flipping the first bit does with
// elements of 8 bits; the sum starts at -128 x the activations.
//
// An integer sum d begins at the bits of 1.5 * 2^23, so that read as a float it is 1.5 * 2^23 + d, exactly. A power of
// two as a scale is then an addition to the exponent, and subtracting leaves d times the scale: the multipliers, which
// the dot products need, have one thing less to do.

// Four int8 activations a token, as one lane.
using Four = int32_t __attribute__((may_alias));

// Levels + 128 of a column tile, 16 rows x 4 columns a register, looked up for every panel of tokens.
struct CodedLevels {
    const uint8_t* codes;  // of the row tile
    __m512i levels;
    __m512i nibble = _mm512_set1_epi8(0x0F);

    CodedLevels(const Matrix& matrix, int64_t row_tile) : codes(matrix.codes + row_tile * matrix.column_tiles() * 64) {
        alignas(16) uint8_t biased[16];
        for (int i = 0; i < 16; ++i) biased[i] = static_cast<uint8_t>(matrix.levels[i] + kBias);
        levels = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(biased)));
    }

    void ask(int64_t tile) const { ask_codes(codes + 64 * tile, 4); }

    void get(int64_t tile, __m512i& first, __m512i& last) const {
        const __m512i packed = load(codes + 64 * tile);
        first = _mm512_shuffle_epi8(levels, _mm512_and_si512(packed, nibble));
        last = _mm512_shuffle_epi8(levels, _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble));
    }
};

// The same, looked up once for all panels: 16 KB at most, from the first column tile of a chunk on.
struct KnownLevels {
    const uint8_t* bytes;
    int64_t first_tile;

    void ask(int64_t) const {}

    void get(int64_t tile, __m512i& first, __m512i& last) const {
        first = load(bytes + 128 * (tile - first_tile));
        last = load(bytes + 128 * (tile - first_tile) + 64);
    }
};

// Elements of 8 bits, and 128 more.
struct StoredElements {
    const uint8_t* bytes;  // of the row tile

    StoredElements(const Matrix& matrix, int64_t row_tile)
        : bytes(matrix.codes + row_tile * matrix.column_tiles() * 128) {}

    void ask(int64_t tile) const { ask_codes(bytes + 128 * tile, 8); }

    void get(int64_t tile, __m512i& first, __m512i& last) const {
        const __m512i sign = _mm512_set1_epi8(-kBias);
        first = _mm512_xor_si512(load(bytes + 128 * tile), sign);
        last = _mm512_xor_si512(load(bytes + 128 * tile + 64), sign);
    }
};

// The activations of a panel.
template <int kTokens>
struct Int8Panel {
    const Four* x;  // (padded / 4, kTokens)
    const float* scales;
    const int32_t* offsets;

    Int8Panel(const Activations& a, int64_t token)
        : x(reinterpret_cast<const Four*>(a.codes + token * a.padded)),
          scales(a.scales + token * (a.padded / kBlock)),
          offsets(a.offsets + token * (a.padded / kBlock)) {}
};

// Integer dot products of one block, 16 rows x kTokens.
template <int kTokens, class Levels>
inline void block_dots(const Levels& levels, const Int8Panel<kTokens>& panel, int64_t block, __m512i dots[kTokens]) {
    const Four* x = panel.x + block * 8 * kTokens;
    for (int t = 0; t < kTokens; ++t) dots[t] = _mm512_set1_epi32(panel.offsets[block * kTokens + t]);
    levels.ask(4 * block);
    for (int tile = 0; tile < 4; ++tile, x += 2 * kTokens) {
        __m512i first, last;
        levels.get(4 * block + tile, first, last);
        for (int t = 0; t < kTokens; ++t) dots[t] = _mm512_dpbusd_epi32(dots[t], first, _mm512_set1_epi32(x[t]));
        for (int t = 0; t < kTokens; ++t)
            dots[t] = _mm512_dpbusd_epi32(dots[t], last, _mm512_set1_epi32(x[kTokens + t]));
    }
}

// Blocks [begin, end) of a matrix with a power of two a block, added to sums, 16 rows a token, which begin with block 0.
// They stay in registers: an array of this function's own.
template <int kTokens, class Levels>
inline void add_e8m0(const Matrix& matrix, int64_t row_tile, const Levels& levels, int64_t begin, int64_t end,
                     const Int8Panel<kTokens>& panel, float* all_sums) {
    const uint8_t* scales =
        static_cast<const uint8_t*>(matrix.scales) + row_tile * (matrix.column_tiles() / 4) * kTileRows;
    int32_t factor;
    std::memcpy(&factor, &matrix.scale_factor, sizeof factor);
    const __m512i factor_exponent = _mm512_set1_epi32(factor - (254 << 23));  // of scale factor and E8M0's bias
    const __m512i largest = _mm512_set1_epi32(231);  // 2^104, beyond which exponents would wrap
    __m512 sums[kTokens];
    for (int t = 0; t < kTokens; ++t)
        sums[t] = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(all_sums + t * kTileRows);
    for (int64_t block = begin; block < end; ++block) {
        __m512i dots[kTokens];
        block_dots<kTokens>(levels, panel, block, dots);
        const auto* at = reinterpret_cast<const __m128i*>(scales + block * kTileRows);
        const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(at));
        const __m512i exponents =
            _mm512_add_epi32(_mm512_slli_epi32(_mm512_min_epi32(bytes, largest), 23), factor_exponent);
        const __m512 base = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_set1_epi32(kOffsetBase), exponents));
        for (int t = 0; t < kTokens; ++t) {
            const __m512 scaled = _mm512_castsi512_ps(_mm512_add_epi32(dots[t], exponents));
            const __m512 x_scale = _mm512_set1_ps(panel.scales[block * kTokens + t]);
            sums[t] = _mm512_fmadd_ps(_mm512_sub_ps(scaled, base), x_scale, sums[t]);
        }
    }
    for (int t = 0; t < kTokens; ++t) _mm512_store_ps(all_sums + t * kTileRows, sums[t]);
}

// Blocks [begin, end), from the first of a group on, of a matrix with a BF16 scale a group of four.
template <int kTokens, class Levels>
inline void add_bf16(const Matrix& matrix, int64_t row_tile, const Levels& levels, int64_t begin, int64_t end,
                     const Int8Panel<kTokens>& panel, float* all_sums) {
    const int64_t groups = (matrix.column_tiles() / 4 + 3) / 4;
    const auto* scales = static_cast<const uint16_t*>(matrix.scales) + row_tile * groups * kTileRows;
    const __m512 factor = _mm512_set1_ps(matrix.scale_factor);
    const __m512 base = _mm512_castsi512_ps(_mm512_set1_epi32(kOffsetBase));
    __m512 sums[kTokens];
    for (int t = 0; t < kTokens; ++t)
        sums[t] = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(all_sums + t * kTileRows);
    for (int64_t group = begin; group < end; group += 4) {
        __m512 in_group[kTokens];
        for (int t = 0; t < kTokens; ++t) in_group[t] = _mm512_setzero_ps();
        for (int64_t block = group; block < least(group + 4, end); ++block) {
            __m512i dots[kTokens];
            block_dots<kTokens>(levels, panel, block, dots);
            for (int t = 0; t < kTokens; ++t) {
                in_group[t] = _mm512_fmadd_ps(_mm512_sub_ps(_mm512_castsi512_ps(dots[t]), base),
                                              _mm512_set1_ps(panel.scales[block * kTokens + t]), in_group[t]);
            }
        }
        const auto* at = reinterpret_cast<const __m256i*>(scales + group / 4 * kTileRows);
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at));
        const __m512 scale = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)), factor);
        for (int t = 0; t < kTokens; ++t) sums[t] = _mm512_fmadd_ps(in_group[t], scale, sums[t]);
    }
    for (int t = 0; t < kTokens; ++t) _mm512_store_ps(all_sums + t * kTileRows, sums[t]);
}

template <int kTokens, class Levels>
inline void add_blocks(const Matrix& matrix, int64_t row_tile, const Levels& levels, int64_t begin, int64_t end,
                       const Int8Panel<kTokens>& panel, float* sums) {
    if (matrix.scale_format == ScaleFormat::kE8m0) return add_e8m0(matrix, row_tile, levels, begin, end, panel, sums);
    return add_bf16(matrix, row_tile, levels, begin, end, panel, sums);
}

void four_bit_int8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, int64_t num_tokens,
                   float* out) {
    const CodedLevels levels(matrix, row_tile);
    with_width(num_tokens, [&](auto width) {
        add_blocks(matrix, row_tile, levels, 0, a.padded / kBlock, Int8Panel<width>(a, token), out);
    });
}

void mxint8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, int64_t num_tokens,
            float* out) {
    const StoredElements elements(matrix, row_tile);
    with_width(num_tokens, [&](auto width) {
        add_e8m0(matrix, row_tile, elements, 0, a.padded / kBlock, Int8Panel<width>(a, token), out);
    });
}

constexpr int64_t kKnownBlocks = 32;           // 16 KB of levels, half of a level-1 cache
constexpr int64_t kFewestKnown = 3 * kWidest;  // tokens from which that pays

// More tokens than a panel: levels are looked up once, some blocks at a time, and multiplied with all panels.
bool many_int8(const Matrix& matrix, int64_t row_tile, const Activations& a, int64_t token, int64_t num_tokens,
               float* out) {
    if (num_tokens < kFewestKnown) return false;
    alignas(64) uint8_t known[kKnownBlocks * 4 * 128];
    const CodedLevels coded(matrix, row_tile);
    const int64_t blocks = a.padded / kBlock;
    for (int64_t begin = 0; begin < blocks; begin += kKnownBlocks) {
        const int64_t end = least(begin + kKnownBlocks, blocks);
        for (int64_t tile = 0; tile < 4 * (end - begin); ++tile) {
            if (tile % 4 == 0) coded.ask(4 * begin + tile);
            __m512i first, last;
            coded.get(4 * begin + tile, first, last);
            store(known + 128 * tile, first);
            store(known + 128 * tile + 64, last);
        }
        for (int64_t first = 0; first < num_tokens; first += kWidest) {
            with_width(least(kWidest, num_tokens - first), [&](auto width) {
                add_blocks(matrix, row_tile, KnownLevels{known, 4 * begin}, begin, end,
                           Int8Panel<width>(a, token + first), out + first * kTileRows);
            });
        }
    }
    return true;
}
