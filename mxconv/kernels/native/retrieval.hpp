// Which pages of a cache a draft attends to in place of all: those whose keys its queries may weigh most.
//
// A page is known by the greatest and the least of each number of its keys, which bound every score with one of them: Quest
// (arXiv 2406.10774). Kept pages are put one after another, so that attention reads them as a shorter text.
#pragma once

#include "step.hpp"

namespace mxconv {

// As an operator, write the ranges of pages that are whole now, a page's for each head of keys; those before the pass were
// put by passes before it.
void put_key_ranges(Step& step, int64_t layer, int64_t num_heads);

// All queries of a token that share a head of keys.
struct HeadQueries {
    const float* values;
    int64_t count, stride;  // from one to the next
    int64_t head_dim;
};

// Room of one thread for what a token retrieves with a head's keys.
struct Retrieval {
    // For tokens that see `most_visible` positions at most.
    static Retrieval take(Scratch& own, int64_t head_dim, int64_t most_visible);

    float* raised;     // (head_dim): the sums of what is above zero in the queries of the key head
    float* lowered;    // (head_dim): and of what is below it
    float* scores;     // (pages)
    int32_t* numbers;  // (pages)
    CachePage* pages;  // that are kept, in the order of their positions
    int32_t* others;   // places of a tree's branches among these

    // Fill `pages`; returns what the token sees in them of what it sees of all. All queries of a head of keys choose together,
    // so that no token's pages depend on how heads are shared among threads.
    Visible choose(const Step& step, int64_t token, const AttentionPattern& pattern, int64_t layer, int64_t head,
                   const HeadQueries& queries, const Visible& seen) const;
};

}  // namespace mxconv
