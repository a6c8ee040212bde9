// Loops that are gone before a compiler looks for arrays that could be registers: its own unrolling comes after that.
//
//     each<4>([&](auto i) kInlined { sum[i] = ...; });

template <int kIndex>
struct Index {
    constexpr operator int() const { return kIndex; }
};

template <int kCount, int kFirst = 0, class Work>
[[gnu::always_inline]] inline void each(const Work& work) {
    if constexpr (kFirst < kCount) {
        work(Index<kFirst>{});
        each<kCount, kFirst + 1>(work);
    }
}

#define kInlined __attribute__((always_inline))

// Call work(Index<number>{}): a number from kFirst to kLast is known when the work is compiled.
template <int kFirst, int kLast, class Work>
inline void with_index(int64_t number, const Work& work) {
    if constexpr (kFirst < kLast) {
        if (number != kFirst) return with_index<kFirst + 1, kLast>(number, work);
    }
    work(Index<kFirst>{});
}

// The same of a panel's tokens.
template <class Work>
inline void with_width(int64_t width, const Work& work) {
    with_index<1, 8>(width, work);
}
