// What one call evaluates: tokens of some sequences, and the arrays that they come with.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels.hpp"
#include "walk.hpp"

namespace mxconv {

constexpr int64_t kTokensAtOnce = 256;  // more go through in slices
constexpr int64_t kTreeTokens = 64;     // whose masks are words of so many bits

// To nearest, ties to even: patterns, or for kFp32 a copy.
void round_into(CacheDtype dtype, const float* values, int64_t count, void* to);

// The keys and values of one sequence: pages of runs by (layers, 2, num_heads), keys before values, of
// (kPagePositions, head_dim) each.
struct CachePages {
    CacheDtype dtype;
    std::vector<CachePage> pages;
    int64_t num_heads, head_dim;

    // Which of a page's runs has a head's keys or values.
    int64_t run(int64_t layer, bool is_value, int64_t head) const {
        return (2 * layer + (is_value ? 1 : 0)) * num_heads + head;
    }

    KeysAndValues of(int64_t layer, int64_t head) const {
        return {pages.data(), run(layer, false, head), pages.data(), run(layer, true, head), head_dim};
    }

    // Round numbers into the place of a position.
    void write(int64_t layer, bool is_value, int64_t head, int64_t position, const float* values, int64_t count) const;
};

// The greatest and the least of each number of a page's keys: (layers, heads, 2, head_dim, room).
struct KeyRanges {
    float* values;      // null: nobody retrieves
    int64_t room;       // pages
    int64_t num_known;  // of the first pages, before a pass

    float* of(const CachePages& cache, int64_t layer, int64_t head) const {
        return values + (layer * cache.num_heads + head) * 2 * cache.head_dim * room;
    }
};

// The tokens of one sequence in a pass, and the cache that they continue.
struct SequenceTokens {
    int64_t num_tokens;
    int64_t num_logits;  // of how many tokens, the last ones
    CachePages cache;
    int64_t length;  // positions that hold the tokens before; the new ones are written after them

    int64_t num_left_out;  // positions of the text before these that are in no place

    // Null, or for each token the positions it sees beside those before mask_start: bit b is mask_start + b.
    const uint64_t* masks;
    int64_t mask_start;

    // Which states are copied: x before layer i for i up to the number of layers, after the last; one more is that
    // after the final norm.
    std::vector<int64_t> stages;
    float* states;  // (stages, num_tokens, hidden_size)

    std::optional<Walk> walk;  // through states of mixers
    KeyRanges key_ranges;
};

// By what pairs of a head's values rotate.
struct Rotations {
    const float* cosines;  // (tokens, num_pairs), as are the sines
    const float* sines;
    int64_t num_pairs;
};

// One call: where the tokens come from and where their logits go, those of a sequence after those of the one before.
struct Pass {
    std::vector<SequenceTokens> sequences;  // no two of one cache
    int64_t num_tokens;
    float* x;                          // (tokens, hidden_size) embeddings; overwritten
    std::vector<Rotations> rotations;  // of which layers choose one
    std::vector<const float*>
        temperatures;           // (tokens) each: what queries are multiplied by, of which layers choose one
    const float* layer_inputs;  // (layers, tokens, layer_input_size), or null
    float* logits;              // (sum of num_logits, vocabulary)
};

struct Token {
    const SequenceTokens* sequence;
    int64_t place;  // in its cache
};

// Which positions a token sees.
struct AttentionPattern {
    int64_t window;        // how many positions, itself included; 0 is all
    int64_t sink, recent;  // a draft's: the first and the last so many; recent 0 is all
    bool is_chunked;       // windows lie side by side: what is seen begins at the last multiple of `window`
    int64_t pages;         // that are retrieved between `sink` and `recent`, all three in whole pages; 0: none

    // `others` has room for `most_others`.
    Visible of(const Token& token, int32_t* others) const;

    int64_t most_others(int64_t most_visible) const;
};

// The tokens of a pass that go through the layers together.
struct Slice {
    const Pass* pass;
    int64_t first;  // of its tokens, in the pass
    int64_t num_tokens;
    const Token* tokens;
    float* x;                        // (num_tokens, hidden_size)
    std::vector<int64_t> predicted;  // which tokens want logits
    float* logits;                   // (predicted, vocabulary)
    bool copies_states;              // of any token
    int64_t most_visible;            // positions that any token sees at most
    std::vector<SliceWalk> walks;    // of the sequences that have one
};

}  // namespace mxconv
