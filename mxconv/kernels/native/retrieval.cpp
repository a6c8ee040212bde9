#include "retrieval.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace mxconv {

namespace {

#include "numbers.inl"

template <class Element, class Value>
void put_range(const Element* keys, int64_t head_dim, int64_t room, const Value& value, float* greatest) {
    constexpr int64_t kAtOnce = 16;  // numbers of a key, in registers
    float* const smallest = greatest + head_dim * room;
    for (int64_t first = 0; first < head_dim; first += kAtOnce) {
        const int64_t count = least(kAtOnce, head_dim - first);
        float high[kAtOnce], low[kAtOnce];
        for (int64_t i = 0; i < count; ++i) high[i] = low[i] = value(keys[first + i]);
        for (int64_t position = 1; position < kPagePositions; ++position) {
            const Element* key = keys + position * head_dim + first;
            for (int64_t i = 0; i < count; ++i) {
                const float number = value(key[i]);
                high[i] = number > high[i] ? number : high[i];
                low[i] = number < low[i] ? number : low[i];
            }
        }
        for (int64_t i = 0; i < count; ++i) {
            greatest[(first + i) * room] = high[i];
            smallest[(first + i) * room] = low[i];
        }
    }
}

int64_t page_after(int64_t positions) { return (positions + kPagePositions - 1) / kPagePositions; }

// Write the range of a page's keys, of one head.
void put_key_range(const SequenceTokens& sequence, int64_t layer, int64_t head, int64_t page) {
    const CachePages& cache = sequence.cache;
    const KeyRanges& ranges = sequence.key_ranges;
    const CachePage& place = cache.pages[static_cast<size_t>(page)];
    const int64_t at = cache.run(layer, false, head) * place.step;
    float* to = ranges.of(cache, layer, head) + page;
    const auto put = [&](const auto* keys, const auto& value) {
        put_range(keys + at, cache.head_dim, ranges.room, value, to);
    };
    switch (cache.dtype) {
        case CacheDtype::kFp32: put(static_cast<const float*>(place.first), [](float x) { return x; }); break;
        case CacheDtype::kBf16: put(static_cast<const uint16_t*>(place.first), bf16_value); break;
        case CacheDtype::kFp16: put(static_cast<const uint16_t*>(place.first), f16_value); break;
    }
}

}  // namespace

void put_key_ranges(Step& step, int64_t layer, int64_t num_heads) {
    const Slice& slice = step.slice;
    for (int64_t token = 0, next; token < slice.num_tokens; token = next) {
        const auto& [sequence, place] = slice.tokens[token];
        for (next = token; next < slice.num_tokens && slice.tokens[next].sequence == sequence;) ++next;
        const int64_t first = place == sequence->length ? sequence->key_ranges.num_known : place / kPagePositions;
        const int64_t last = (slice.tokens[next - 1].place + 1) / kPagePositions;
        if (first >= last) continue;
        const SequenceTokens& of = *sequence;
        step.share((last - first) * num_heads,
                   [&](int64_t i) { put_key_range(of, layer, i % num_heads, first + i / num_heads); });
    }
}

Retrieval Retrieval::take(Scratch& own, int64_t head_dim, int64_t most_visible) {
    const int64_t pages = page_after(most_visible);
    Retrieval r{};
    r.raised = own.take<float>(head_dim);
    r.lowered = own.take<float>(head_dim);
    r.scores = own.take<float>(pages);
    r.numbers = own.take<int32_t>(pages);
    r.pages = own.take<CachePage>(pages);
    r.others = own.take<int32_t>(kTreeTokens);
    return r;
}

Visible Retrieval::choose(const Step& step, int64_t token, const AttentionPattern& pattern, int64_t layer, int64_t head,
                          const HeadQueries& queries, const Visible& seen) const {
    const SequenceTokens& sequence = *step.slice.tokens[token].sequence;
    std::fill_n(raised, queries.head_dim, 0.0f);
    std::fill_n(lowered, queries.head_dim, 0.0f);
    for (int64_t number = 0; number < queries.count; ++number) {
        const float* query = queries.values + number * queries.stride;
        for (int64_t i = 0; i < queries.head_dim; ++i) {
            raised[i] += std::max(query[i], 0.0f);
            lowered[i] += std::min(query[i], 0.0f);
        }
    }
    const std::vector<CachePage>& all = sequence.cache.pages;
    const int64_t total = seen.num_run + seen.num_others, first = page_after(std::min(pattern.sink, total));
    const int64_t last = std::max(std::max<int64_t>(0, total - pattern.recent) / kPagePositions, first);
    const int64_t end = page_after(seen.num_others > 0 ? seen.others[seen.num_others - 1] + 1 : seen.num_run);
    const int64_t hidden = last - first - pattern.pages, count = last - first;
    if (hidden <= 0) {
        std::copy(all.begin(), all.begin() + end, pages);
        return seen;
    }
    std::fill(scores, scores + count, 0.0f);
    const KeyRanges& ranges = sequence.key_ranges;
    const float* range = ranges.of(sequence.cache, layer, head) + first;
    for (const float* query : {raised, lowered}) {
        for (int64_t i = 0; i < queries.head_dim; ++i)
            step.kernels.rowwise.add_scaled(range + i * ranges.room, query[i], count, scores);
        range += sequence.cache.head_dim * ranges.room;
    }
    for (int64_t page = 0; page < count; ++page) {
        if (!(scores[page] == scores[page])) scores[page] = -std::numeric_limits<float>::infinity();
    }
    std::iota(numbers, numbers + count, 0);
    std::nth_element(numbers, numbers + pattern.pages, numbers + count,
                     [&](int32_t a, int32_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); });
    std::sort(numbers, numbers + pattern.pages);
    CachePage* to = std::copy(all.begin(), all.begin() + first, pages);
    for (int64_t i = 0; i < pattern.pages; ++i) *to++ = all[static_cast<size_t>(first + numbers[i])];
    std::copy(all.begin() + last, all.begin() + end, to);
    const auto moved = static_cast<int32_t>(hidden * kPagePositions);
    for (int64_t i = 0; i < seen.num_others; ++i) others[i] = seen.others[i] - moved;
    return {0, seen.num_run - moved, others, seen.num_others};
}

}  // namespace mxconv
