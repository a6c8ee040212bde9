// Softmax attention of rows of queries that share keys and values: heads of a token, and tokens. Included by rowwise.inl.
//
// A row's scores are `dot`s, its sums go over whole chunks of kAttentionChunk positions, then over chunks, so that its bits
// follow from its own query and positions. Some rows are taken together, so that a key or a value is loaded for all of them.

template <class Element>
inline float dot(const float* x, const Element* y, int64_t length) {
    Floats sum = {};
    int64_t i = 0;
    for (; i + kVector <= length; i += kVector) sum = fused(load_floats(x + i), load_floats(y + i), sum);
    if (i < length) sum = fused(load_floats(x + i, length - i), load_floats(y + i, length - i), sum);
    return lane_sum(sum);
}

// The lane sums of four vectors, one after another.
inline void four_sums(const Floats sums[4], float* out) {
#if defined(__AVX2__)
    __m128 fours[4];
    for (int k = 0; k < 4; ++k) fours[k] = half_sum(sums[k]);
    const __m128 first = _mm_add_ps(_mm_unpacklo_ps(fours[0], fours[1]), _mm_unpackhi_ps(fours[0], fours[1]));
    const __m128 second = _mm_add_ps(_mm_unpacklo_ps(fours[2], fours[3]), _mm_unpackhi_ps(fours[2], fours[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(first, second), _mm_movehl_ps(second, first)));
#elif defined(MXCONV_NEON)
    float32x4_t fours[4];
    for (int k = 0; k < 4; ++k) fours[k] = static_cast<float32x4_t>(sums[k]);
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(fours[0], fours[1]), vpaddq_f32(fours[2], fours[3])));
#else
    for (int k = 0; k < 4; ++k) out[k] = lane_sum(sums[k]);
#endif
}

// `four_sums` of four rows.
inline void sixteen_sums(const Floats sums[4][4], float* const out[4]) {
#if defined(__AVX512F__)
    // the additions of four_sums for all rows at once: lanes 8 apart, 4 apart, then of what is left the first and third
    __m512 fours[4];
    for (int r = 0; r < 4; ++r) {
        __m512 eights[2];
        for (int k = 0; k < 2; ++k) {
            const auto a = static_cast<__m512>(sums[r][2 * k]), b = static_cast<__m512>(sums[r][2 * k + 1]);
            eights[k] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
        }
        fours[r] = _mm512_add_ps(_mm512_shuffle_f32x4(eights[0], eights[1], 0x88),
                                 _mm512_shuffle_f32x4(eights[0], eights[1], 0xDD));
    }
    __m512 twos[2];
    for (int k = 0; k < 2; ++k) {
        twos[k] = _mm512_add_ps(_mm512_unpacklo_ps(fours[2 * k], fours[2 * k + 1]),
                                _mm512_unpackhi_ps(fours[2 * k], fours[2 * k + 1]));
    }
    const __m512 by_key =
        _mm512_add_ps(_mm512_shuffle_ps(twos[0], twos[1], 0x44), _mm512_shuffle_ps(twos[0], twos[1], 0xEE));
    const __m512i to_rows = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512 by_row = _mm512_permutexvar_ps(to_rows, by_key);
    _mm_storeu_ps(out[0], _mm512_castps512_ps128(by_row));
    _mm_storeu_ps(out[1], _mm512_extractf32x4_ps(by_row, 1));
    _mm_storeu_ps(out[2], _mm512_extractf32x4_ps(by_row, 2));
    _mm_storeu_ps(out[3], _mm512_extractf32x4_ps(by_row, 3));
#else
    for (int r = 0; r < 4; ++r) four_sums(sums[r], out[r]);
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kTogether = 2;  // rows whose products with four keys registers hold
#else
constexpr int kTogether = 4;
#endif
constexpr int64_t kKeysAtOnce = 32;  // keys that are scored for all of them: they stay in the level-1 cache
constexpr int kMixed = kVector < 8 ? 8 : 64 / kVector;  // vectors of a value's columns that are mixed at once

// One query: of one token and head.
struct QueryRow {
    const float* query;
    float* out;
    float* shares;  // of positions in the order of `visible`, whole chunks
    const Visible* visible;
    int64_t count;  // positions
    float sink;     // a score without a value; -infinity is none
};

// kRows queries times four keys: `dot` of each.
template <int kRows, class Element>
inline void score_four(const QueryRow* rows, const Element* const keys[4], int64_t head_dim, int64_t position) {
    Floats sums[kRows][4] = {};
    const auto add = [&](const auto& load) kInlined {
        Floats key[4];
        each<4>([&](auto k) kInlined { key[k] = load(keys[k]); });
        each<kRows>([&](auto r) kInlined {
            const Floats part = load(rows[r].query);
            each<4>([&](auto k) kInlined { sums[r][k] = fused(part, key[k], sums[r][k]); });
        });
    };
    int64_t i = 0;
    for (; i + kVector <= head_dim; i += kVector) add([&](const auto* from) kInlined { return load_floats(from + i); });
    if (i < head_dim) add([&](const auto* from) kInlined { return load_floats(from + i, head_dim - i); });
    if constexpr (kRows == 4) {
        float* const out[4] = {rows[0].shares + position, rows[1].shares + position, rows[2].shares + position,
                               rows[3].shares + position};
        sixteen_sums(sums, out);
    } else {
        for (int r = 0; r < kRows; ++r) four_sums(sums[r], rows[r].shares + position);
    }
}

// Scores of positions [begin, end) of the run that all rows see; a multiple of four.
template <class Element>
inline void score_run(const QueryRow* rows, int64_t num_rows, const HeadRows<Element>& keys, int64_t head_dim,
                      int64_t begin, int64_t end) {
    const Element* key[kKeysAtOnce];
    keys.find(*rows->visible, begin, end, key);
    for (int64_t r = 0, together; r < num_rows; r += together) {
        together = least(kTogether, num_rows - r);
        with_index<1, kTogether>(together, [&](auto count) kInlined {
            for (int64_t i = begin; i < end; i += 4) score_four<count>(rows + r, key + (i - begin), head_dim, i);
        });
    }
}

// Scores, padded with -infinity to whole chunks, become e^(score - largest); returns their sum, with a sink's share.
inline float exponentials(int64_t padded, float sink, float* scores) {
    Floats largest_in_lane = all_lanes(-__builtin_inff());
    for (int64_t i = 0; i < padded; i += kVector) {  // a NaN is left out here and comes back in the sum
        const Floats part = load_floats(scores + i);
        largest_in_lane = part > largest_in_lane ? part : largest_in_lane;
    }
    float largest = sink > largest_in_lane[0] ? sink : largest_in_lane[0];
    for (int64_t k = 1; k < kVector; ++k) largest = largest_in_lane[k] > largest ? largest_in_lane[k] : largest;
    float total = exponential(all_lanes(sink - largest))[0];
    for (int64_t begin = 0; begin < padded; begin += kAttentionChunk) {
        Floats in_chunk = {};
        for (int64_t i = begin; i < begin + kAttentionChunk; i += kVector) {
            const Floats share = exponential(load_floats(scores + i) - largest);
            store_floats(scores + i, share);
            in_chunk = in_chunk + share;
        }
        total += lane_sum(in_chunk);
    }
    return total;
}

// Add shares times values of one chunk to some columns of kRows heads: kCount whole vectors, or one that ends at `width`.
template <int kRows, int kCount, bool kWhole, class Element>
inline void mix(const QueryRow* rows, const Element* const* values, int64_t begin, int64_t end, int64_t width,
                int64_t at) {
    Floats in_chunk[kRows][kCount] = {};
    for (int64_t i = begin; i < end; ++i) {
        const Element* value = values[i - begin] + at;
        Floats parts[kCount];
        each<kCount>(
            [&](auto k) kInlined { parts[k] = kWhole ? load_floats(value + k * kVector) : load_floats(value, width); });
        each<kRows>([&](auto r) kInlined {
            const Floats share = all_lanes(rows[r].shares[i]);
            each<kCount>([&](auto k) kInlined { in_chunk[r][k] = fused(share, parts[k], in_chunk[r][k]); });
        });
    }
    each<kRows>([&](auto r) kInlined {
        float* out = rows[r].out + at;
        each<kCount>([&](auto k) kInlined {
            if (kWhole) {
                store_floats(out + k * kVector, load_floats(out + k * kVector) + in_chunk[r][k]);
            } else {
                store_floats(out, load_floats(out, width) + in_chunk[r][k], width);
            }
        });
    });
}

// All columns of kRows heads.
template <int kRows, class Element>
inline void mix_rows(const QueryRow* rows, const Element* const* values, int64_t begin, int64_t end, int64_t head_dim) {
    constexpr int kCount = kRows == 1 ? kMixed : 4;
    int64_t at = 0;
    for (; at + kCount * kVector <= head_dim; at += kCount * kVector)
        mix<kRows, kCount, true>(rows, values, begin, end, 0, at);
    for (; at + kVector <= head_dim; at += kVector) mix<kRows, 1, true>(rows, values, begin, end, 0, at);
    if (at < head_dim) mix<kRows, 1, false>(rows, values, begin, end, head_dim - at, at);
}

inline int64_t whole_chunks(int64_t count) { return (count + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk; }

// At most kAttentionRows rows, whose runs of positions begin together.
template <class Element>
void attend_at_once(const QueryRow* rows, int64_t num_rows, const KeysAndValues& seen, int64_t head_dim, float cap) {
    const HeadRows<Element> keys{seen.key_pages, seen.key_run, seen.stride};
    const HeadRows<Element> values{seen.value_pages, seen.value_run, seen.stride};
    int64_t shared = rows->visible->num_run, most = 0;  // positions that all rows see in a run, and that any row sees
    for (int64_t r = 0; r < num_rows; ++r) {
        shared = least(shared, rows[r].visible->num_run);
        most = most < rows[r].count ? rows[r].count : most;
    }
    const int64_t scored = shared / 4 * 4;
    for (int64_t begin = 0; begin < scored; begin += kKeysAtOnce) {
        score_run(rows, num_rows, keys, head_dim, begin, least(begin + kKeysAtOnce, scored));
    }
    float totals[kAttentionRows];
    for (int64_t r = 0; r < num_rows; ++r) {
        const QueryRow& row = rows[r];
        const int64_t padded = whole_chunks(row.count);
        for (int64_t i = scored; i < row.count; ++i)
            row.shares[i] = dot(row.query, keys.at(position_of(*row.visible, i)), head_dim);
        if (cap != 0.0f) put_cap(cap, row.count, row.shares);
        for (int64_t i = row.count; i < padded; ++i) row.shares[i] = -__builtin_inff();
        totals[r] = exponentials(padded, row.sink, row.shares);
        for (int64_t i = 0; i < head_dim; ++i) row.out[i] = 0.0f;
    }
    const Element* value[kAttentionChunk];
    for (int64_t begin = 0; begin < most; begin += kAttentionChunk) {
        // rows that see the same positions of this chunk are mixed together: those of one token have one `visible`
        const bool see_all = begin + kAttentionChunk <= shared;
        const Visible* found = nullptr;  // whose values those are
        for (int64_t r = 0, next; r < num_rows; r = next) {
            const int64_t end = least(begin + kAttentionChunk, rows[r].count);
            next = r + 1;
            while (next < least(r + kTogether, num_rows) && (see_all || rows[next].visible == rows[r].visible)) ++next;
            if (begin >= end) continue;
            if (found == nullptr || !(see_all || found == rows[r].visible)) {
                values.find(*rows[r].visible, begin, end, value);
                found = rows[r].visible;
            }
            with_index<1, kTogether>(
                next - r, [&](auto alike) kInlined { mix_rows<alike>(rows + r, value, begin, end, head_dim); });
        }
    }
    for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t i = 0; i < head_dim; ++i) rows[r].out[i] /= totals[r];
    }
}

template <class Element>
void attend(const AttentionQueries& queries, const KeysAndValues& seen, int64_t head_dim, float cap,
            const Visible* visible, float* shares, float* out) {
    const int64_t num_rows = queries.num_tokens * queries.num_heads;
    int64_t most = 0;
    for (int64_t t = 0; t < queries.num_tokens; ++t) {
        const int64_t count = visible[t].num_run + visible[t].num_others;
        most = most < count ? count : most;
    }
    for (int64_t first = 0; first < num_rows; first += kAttentionRows) {
        QueryRow rows[kAttentionRows] = {};
        const int64_t count = least(kAttentionRows, num_rows - first);
        for (int64_t r = 0; r < count; ++r) {
            const int64_t token = (first + r) / queries.num_heads, head = (first + r) % queries.num_heads;
            rows[r] = {queries.values + token * queries.stride + head * queries.head_stride,
                       out + token * queries.out_stride + head * head_dim,
                       shares + r * whole_chunks(most),
                       visible + token,
                       visible[token].num_run + visible[token].num_others,
                       queries.sinks != nullptr ? queries.sinks[head] : -__builtin_inff()};
        }
        attend_at_once<Element>(rows, count, seen, head_dim, cap);
    }
}
