#include "sight.hpp"

#include <algorithm>

namespace mxconv {

// The branches of a tree, and after them sinks.
int64_t Sight::most_others(int64_t most_visible) const { return kTreeTokens + std::min(sink, most_visible); }

Visible Sight::of(const Token& token, int32_t* others) const {
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
    const int64_t old = recent ? std::max<int64_t>(0, total - recent) : 0;
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

}  // namespace mxconv
