// Which pages of a cache a draft attends to in place of all: those whose keys its queries may weigh most.
//
// A page is known by the greatest and the least of each number of its keys, which bound every score with one of them: Quest
// (arXiv 2406.10774). Kept pages are put one after another, so that attention reads them as a shorter text.
#pragma once

#include "pass.hpp"
#include "scratch.hpp"

namespace mxconv {

// Write the range of a page's keys, of one head.
void put_key_range(const SequenceTokens& sequence, int64_t layer, int64_t head, int64_t page);

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

    // Fill `pages`; returns what the token sees in them of what it sees of all.
    Visible choose(const Rowwise& rowwise, const SequenceTokens& sequence, const Sight& sight, int64_t layer,
                   int64_t head, int64_t head_dim, const Visible& seen) const;
};

}  // namespace mxconv
