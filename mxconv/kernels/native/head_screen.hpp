// An output head of which few rows are read: a smaller matrix puts the tokens in an order, and those that it puts first get
// the logits that the head itself gives them; formats/package.md, "Head screen". For drafts.
#pragma once

#include <cstdint>

#include "parts.hpp"

namespace mxconv {

struct Step;

struct HeadScreen {
    Projection projection;   // (rank, hidden_size), or none: normed rows are scored as they are
    Projection scores;       // (vocabulary, rank)
    int64_t num_candidates;  // tiles of 16 tokens whose highest scores bound the candidates'

    bool exists() const { return scores.exists(); }
    int forms() const { return (projection.exists() ? projection : scores).form(); }  // of normed rows

    // Lay out what `predict` needs for as many tokens.
    void lay_out(Room& room, const Matrix& head, int64_t num_tokens) const { memory(room, head, num_tokens); }

    // On every thread: logits (predicted tokens, vocabulary) of the slice's rows, normed by `norm`.
    void predict(Step& step, const Norm& norm, const Matrix& head) const;

  private:
    struct Memory {
        float* projected;    // (tokens, rank)
        float* highest;      // (tokens, row tiles): of the scores of a tile
        float* least;        // (tokens): a candidate's score at least
        Activations taken;   // projected rows, if they are, as `scores` takes them
        Activations row;     // a normed one, as the head takes it
        uint16_t* patterns;  // a row tile of candidates
        float* order;        // (row tiles)
    };

    Memory memory(Room& room, const Matrix& head, int64_t num_tokens) const;
    float least_score(const float* highest, int64_t count, float* order) const;
    void rescore(Step& step, const Matrix& head, const Memory& m, int64_t token, int64_t first, int64_t last) const;
};

}  // namespace mxconv
