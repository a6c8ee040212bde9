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

// Call work(Index<width>{}): a panel's tokens are known when its loops are compiled.
template <class Work>
inline void with_width(int64_t width, const Work& work) {
    switch (width) {
        case 1: return work(Index<1>{});
        case 2: return work(Index<2>{});
        case 3: return work(Index<3>{});
        case 4: return work(Index<4>{});
        case 5: return work(Index<5>{});
        case 6: return work(Index<6>{});
        case 7: return work(Index<7>{});
        default: return work(Index<8>{});
    }
}
