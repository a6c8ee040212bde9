#include "pass.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace mxconv {

// The branches of a tree, and after them sinks.
int64_t AttentionPattern::most_others(int64_t most_visible) const { return kTreeTokens + std::min(sink, most_visible); }

Visible AttentionPattern::of(const Token& token, int32_t* others) const {
    const SequenceTokens& sequence = *token.sequence;
    Visible seen{0, token.place + 1, others, 0};
    if (sequence.masks != nullptr) {
        seen.num_run = sequence.mask_start;
        for (uint64_t mask = sequence.masks[token.place - sequence.length]; mask != 0; mask &= mask - 1) {
            others[seen.num_others++] = static_cast<int32_t>(sequence.mask_start + __builtin_ctzll(mask));
        }
    }
    const int64_t run = seen.num_run, total = run + seen.num_others;
    const int64_t near = is_chunked ? (total - 1 + sequence.num_left_out) % window + 1 : window;
    int64_t hidden = near ? std::max<int64_t>(0, total - near) : 0;
    const int64_t old = recent && pages == 0 ? std::max<int64_t>(0, total - recent) : 0;
    if (old > std::max(sink, hidden)) {  // there is something between the sinks and what is recent
        for (int64_t i = hidden; i < sink; ++i) {
            others[seen.num_others++] = static_cast<int32_t>(i < run ? i : others[i - run]);
        }
        hidden = old;
    }
    const int64_t hidden_others = std::max<int64_t>(0, hidden - run);
    seen.start = hidden - hidden_others;
    seen.num_run -= hidden - hidden_others;
    seen.others += hidden_others;
    seen.num_others -= hidden_others;
    return seen;
}

// ---- numbers on their way into a cache: rounded as mxconv/codecs/float16.py rounds them; a NaN stays one ----

namespace {

#include "numbers.inl"

uint16_t bf16_of(float value) {
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7FC0);
    return round_to_bf16(value);
}

uint16_t f16_of(float value) {
    const uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) {
        magnitude = 0x7E00 | (magnitude >> 13 & 0x3FF);
    } else if (magnitude >= 0x477FF000) {  // 65520 and above
        magnitude = 0x7C00;
    } else if (magnitude < 0x38800000) {  // below 2^-14: the last place of 0.5 is that of what is subnormal here
        magnitude = float_bits((value < 0.0f ? -value : value) + 0.5f) - 0x3F000000;
    } else {
        magnitude = (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    }
    return static_cast<uint16_t>(sign | magnitude);
}

}  // namespace

void round_into(CacheDtype dtype, const float* values, int64_t count, void* to) {
    auto* patterns = static_cast<uint16_t*>(to);
    switch (dtype) {
        case CacheDtype::kFp32: std::memcpy(to, values, static_cast<size_t>(count) * sizeof(float)); break;
        case CacheDtype::kBf16:
            for (int64_t i = 0; i < count; ++i) patterns[i] = bf16_of(values[i]);
            break;
        case CacheDtype::kFp16:
            for (int64_t i = 0; i < count; ++i) patterns[i] = f16_of(values[i]);
            break;
    }
}

void CachePages::write(int64_t layer, bool is_value, int64_t head, int64_t position, const float* values,
                       int64_t count) const {
    const CachePage& page = pages[static_cast<size_t>(position / kPagePositions)];
    const int64_t at = run(layer, is_value, head) * page.step + position % kPagePositions * head_dim;
    const auto num_bytes = static_cast<int64_t>(dtype == CacheDtype::kFp32 ? sizeof(float) : sizeof(uint16_t));
    round_into(dtype, values, count, static_cast<std::byte*>(page.first) + at * num_bytes);
}

}  // namespace mxconv
