// How encoders with vectors write escapes down. Included inside an anonymous namespace.

// Append the escapes of one tile, whose bits 8 * row + column are set; `high` points to the high byte of its first weight.
inline int64_t list_escapes(const uint64_t words[2], const uint8_t* high, int64_t row_bytes, bool is_whole,
                            uint8_t* positions, uint8_t* high_bytes) {
    int64_t count = 0;
    for (int half = 0; half < 2; ++half) {
        uint64_t word = words[half];
        const int64_t in_word = __builtin_popcountll(word);
        const uint8_t* from = high + 8 * half * row_bytes;
        const auto put = [&](int64_t i) {
            const int p = __builtin_ctzll(word | uint64_t{1} << 63);
            positions[count + i] = static_cast<uint8_t>(64 * half + p);
            high_bytes[count + i] = from[(p >> 3) * row_bytes + (p & 7) * 2];
            word &= word - 1;
        };
        int64_t i = 0;
        if (is_whole) {  // four whether there are so many or not: a loop of an unknown length costs more
            for (; i < 4; ++i) put(i);
        }
        for (; i < in_word; ++i) put(i);
        count += in_word;
    }
    return count;
}
