// What caches hold of keys and values, widened as it is loaded. Included by rowwise.inl.

struct KeptBf16 {
    uint16_t pattern;
};

struct KeptF16 {
    uint16_t pattern;
};

inline Floats load_floats(const KeptBf16* from) {
    typedef uint16_t Patterns __attribute__((vector_size(kVector * sizeof(uint16_t))));
    Patterns patterns;
    std::memcpy(&patterns, from, sizeof patterns);
    return with_bits<Floats>(__builtin_convertvector(patterns, Words) << 16);
}

inline Floats load_floats(const KeptF16* from) {
#if defined(__AVX512F__)
    return static_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__)
    return static_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(MXCONV_NEON)
    const uint16x4_t patterns = vld1_u16(reinterpret_cast<const uint16_t*>(from));
    return static_cast<Floats>(vcvt_f32_f16(vreinterpret_f16_u16(patterns)));
#else
    Floats vector{};
    for (int64_t i = 0; i < kVector; ++i) vector[i] = f16_value(from[i].pattern);
    return vector;
#endif
}

// The first `count`, zeros after them.
template <class Element>
inline Floats load_floats(const Element* from, int64_t count) {
    Element padded[kVector] = {};
    for (int64_t i = 0; i < count; ++i) padded[i] = from[i];
    return load_floats(padded);
}

// The keys, or the values, of a head.
template <class Element>
struct HeadRows {
    const CachePage* pages;
    int64_t run, stride;

    const Element* at(int64_t position) const {
        const auto place = static_cast<uint64_t>(position);
        const CachePage& page = pages[place / kPagePositions];
        return static_cast<const Element*>(page.first) + run * page.step +
               static_cast<int64_t>(place % kPagePositions) * stride;
    }

    // Those of the visible positions from the begin-th on.
    void find(const Visible& visible, int64_t begin, int64_t end, const Element** rows) const {
        int64_t i = begin;
        while (i < least(end, visible.num_run)) {
            const int64_t position = visible.start + i, left_in_page = kPagePositions - position % kPagePositions;
            const int64_t stop = least(i + left_in_page, least(end, visible.num_run));
            for (const Element* row = at(position); i < stop; ++i, row += stride) *rows++ = row;
        }
        for (; i < end; ++i) *rows++ = at(visible.others[i - visible.num_run]);
    }
};
