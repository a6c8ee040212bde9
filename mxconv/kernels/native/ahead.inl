// Asking memory in time. Weights come from memory once a pass, and a core that only asks for what it needs next waits for
// three things: the translation of each page's address, the way of a line into its level-2 cache, and the way from there
// into level 1. A page is asked for once, when the stream enters the page four before it; a line 8 KB ahead, into level 2; and
// again shortly before it is needed. docs/research/log.md says what each of these brings.
//
// An address beyond the end of an array does no harm: what is not mapped is not fetched.

constexpr int64_t kPage = 4096;
constexpr int64_t kLineWeights = 32;        // of 16 bits, in a line
constexpr int64_t kPageAhead = 4 * kPage;   // bytes
constexpr int64_t kFarAhead = 2 * kPage;    // into level 2
constexpr int64_t kCodesAhead = kPage / 2;  // into level 1

// GCC takes a function that does nothing but ask for one without effects, and drops its calls; an empty volatile
// statement is an effect.
inline void ask_level1(const void* at) {
    __builtin_prefetch(at, 0, 3);
    asm volatile("");
}

inline void ask_level2(const void* at) {
    __builtin_prefetch(at, 0, 2);
    asm volatile("");
}

// A page further on in a stream that is read `step` bytes at a time, once a page.
inline void ask_page(const void* at, int64_t step) {
    if (reinterpret_cast<uintptr_t>(at) % kPage < static_cast<uintptr_t>(step)) {
        ask_level1(static_cast<const char*>(at) + kPageAhead);
    }
}

// Codes further on, where column tiles of 64 bytes are read `num_tiles` at a time.
inline void ask_codes(const uint8_t* codes, int64_t num_tiles) {
    ask_page(codes, 64 * num_tiles);
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
        ask_level2(codes + kFarAhead + 64 * tile);
        ask_level1(codes + kCodesAhead + 64 * tile);
    }
}
