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
