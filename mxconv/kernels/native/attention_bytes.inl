// Attention over pages in bytes: sums of integers in place of those of attention.inl. Included by it.

// sum + the products of four bytes a lane; those of `small` are from 0 to 127.
inline Ints add_fours(Ints sum, Ints small, Ints other) {
#if defined(__AVX512VNNI__)
    return with_bits<Ints>(
        _mm512_dpbusd_epi32(with_bits<__m512i>(sum), with_bits<__m512i>(small), with_bits<__m512i>(other)));
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16(with_bits<__m256i>(small), with_bits<__m256i>(other));
    return sum + with_bits<Ints>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(MXCONV_NEON)
    return with_bits<Ints>(
        vdotq_s32(with_bits<int32x4_t>(sum), with_bits<int8x16_t>(small), with_bits<int8x16_t>(other)));
#else
    int8_t a[4 * kVector], b[4 * kVector];
    std::memcpy(a, &small, sizeof a);
    std::memcpy(b, &other, sizeof b);
    for (int64_t i = 0; i < 4 * kVector; ++i) sum[i / 4] += a[i] * b[i];
    return sum;
#endif
}

inline Ints load_ints(const void* from) {
    Ints vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

// Round numbers, in whole vectors, to bytes from -127 to 127; returns their step. Numbers that are not finite become arbitrary.
inline float put_bytes(const float* values, int64_t count, int8_t* bytes) {
    alignas(64) int32_t whole[kMostByteColumns];
    Floats sizes = {};
    for (int64_t i = 0; i < count; i += kVector) {
        const Floats size = magnitude(load_floats(values + i));
        sizes = size > sizes ? size : sizes;
    }
    float lanes[kVector];
    store_floats(lanes, sizes);
    for (int64_t half = kVector / 2; half > 0; half /= 2) {
        for (int64_t k = 0; k < half; ++k) lanes[k] = lanes[k + half] > lanes[k] ? lanes[k + half] : lanes[k];
    }
    const float largest = lanes[0], factor = largest > 1e-30f ? 127.0f / largest : 0.0f;
    for (int64_t i = 0; i < count; i += kVector) {
        const Floats rounded = load_floats(values + i) * factor + 0x1.8p23f;  // whose lowest bits are the whole number
        std::memcpy(whole + i, &rounded, sizeof rounded);
    }
    for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<int8_t>(whole[i]);
    return largest > 1e-30f ? largest / 127.0f : 0.0f;
}

// Those of the next page.
inline void ask_floats(const BytePage& page) {
    for (int64_t i = 0; i < page.num_floats(); i += 16) ask_level1(page.after(1).steps() + i);
}

constexpr int kSums = 4;  // vectors of them, a row

// Sums for each row over `num_fours` fours of bytes: those of rows are in all lanes. kLeft: they are small. The next page
// lies `ahead`, and a page begins and ends within the system's: its lines are asked for one by one.
template <int kRows, bool kLeft>
inline void sum_fours(const int8_t* const* fours, const int8_t* from, int64_t step, int64_t num_fours, int64_t ahead,
                      Ints sums[kRows][kSums]) {
    for (int64_t g = 0; g < num_fours; ++g, from += step) {
        Ints parts[kSums];
        for (int64_t at = 0; at < 4 * kSums * kVector; at += 64) ask_level1(from + ahead + at);
        each<kSums>([&](auto k) kInlined { parts[k] = load_ints(from + k * kVector * 4); });
        each<kRows>([&](auto r) kInlined {
            int32_t four;
            std::memcpy(&four, fours[r] + 4 * g, sizeof four);
            const Ints own = Ints{} + four;
            each<kSums>([&](auto k) kInlined {
                sums[r][k] = kLeft ? add_fours(sums[r][k], own, parts[k]) : add_fours(sums[r][k], parts[k], own);
            });
        });
    }
}

// Scores of a page's positions. Ranges of keys go into queries, so that these are rounded anew for every page.
template <int kRows>
inline void score_page(const QueryRow* rows, const BytePage& page, int64_t position, int64_t head_dim) {
    alignas(64) int8_t queries[kRows][kMostByteColumns];
    const int8_t* fours[kRows];
    float steps[kRows], least[kRows];
    ask_floats(page);
    for (int r = 0; r < kRows; ++r) {
        alignas(64) float scaled[kMostByteColumns];
        Floats sum = {};
        for (int64_t i = page.columns - kByteColumns; i < page.columns; i += kVector)
            store_floats(scaled + i, Floats{});
        each_vector(head_dim, [&](int64_t i, const auto& load, const auto& store) kInlined {
            const Floats query = load(rows[r].query + i);
            sum = fused(query, load(page.least() + i), sum);
            store(scaled + i, query * load(page.steps() + i));
        });
        least[r] = lane_sum(sum);
        steps[r] = put_bytes(scaled, page.columns, queries[r]);
        fours[r] = queries[r];
    }
    for (int64_t at = 0; at < kPagePositions; at += kSums * kVector) {
        Ints sums[kRows][kSums] = {};
        sum_fours<kRows, false>(fours, page.bytes() + 4 * at, 4 * kPagePositions, page.columns / 4, page.num_bytes(),
                                sums);
        each<kRows>([&](auto r) kInlined {
            each<kSums>([&](auto k) kInlined {
                const Floats score = __builtin_convertvector(sums[r][k], Floats) * steps[r] + least[r];
                store_floats(rows[r].shares + position + at + k * kVector, score);
            });
        });
    }
}

// Add shares times values of a page. Steps of values go into shares.
template <int kRows>
inline void mix_page(const QueryRow* rows, const BytePage& page, int64_t position, int64_t head_dim) {
    alignas(64) int8_t shares[kRows][kPagePositions];
    alignas(64) float mixed[kRows][kMostByteColumns];
    const int8_t* fours[kRows];
    float steps[kRows];
    ask_floats(page);
    for (int r = 0; r < kRows; ++r) {
        alignas(64) float scaled[kPagePositions];
        for (int64_t i = 0; i < kPagePositions; i += kVector) {
            store_floats(scaled + i, load_floats(rows[r].shares + position + i) * load_floats(page.steps() + i));
        }
        steps[r] = put_bytes(scaled, kPagePositions, shares[r]);
        fours[r] = shares[r];
    }
    for (int64_t at = 0; at < page.columns; at += kSums * kVector) {
        Ints sums[kRows][kSums] = {};
        sum_fours<kRows, true>(fours, page.bytes() + 4 * at, 4 * page.columns, kPagePositions / 4, page.num_bytes(),
                               sums);
        each<kRows>([&](auto r) kInlined {
            each<kSums>([&](auto k) kInlined {
                store_floats(mixed[r] + at + k * kVector, __builtin_convertvector(sums[r][k], Floats) * steps[r]);
            });
        });
    }
    for (int r = 0; r < kRows; ++r) {
        each_vector(head_dim, [&](int64_t i, const auto& load, const auto& store)
                                  kInlined { store(rows[r].out + i, load(rows[r].out + i) + load(mixed[r] + i)); });
    }
}

// Whole pages of the runs of rows, which do not become shorter from row to row, each page for all rows that see it:
// work(count, rows, page, position) with as many rows as registers hold.
template <class Work>
inline void each_byte_page(const QueryRow* rows, int64_t num_rows, BytePage page, const Work& work) {
    if (page.first == nullptr) return;
    for (int64_t stop = kPagePositions, r = 0;; stop += kPagePositions, page = page.after(1)) {
        while (r < num_rows && rows[r].visible->num_run < stop) ++r;
        if (r == num_rows) return;
        for (int64_t first = r, count; first < num_rows; first += count) {
            count = least(kTogether, num_rows - first);
            with_index<1, kTogether>(count,
                                     [&](auto n) kInlined { work(n, rows + first, page, stop - kPagePositions); });
        }
    }
}
