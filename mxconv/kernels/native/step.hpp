// What a thread has in hand while a slice goes through the layers, and what parts do alike.
//
// Threads stay together: between barriers they take pieces of weight rows, or heads of attention, from one counter an
// operator; whatever a result needs beside its own piece (the norm of a token's row) every thread computes for itself.
// No result depends on who computed it or on what other tokens there are, of its own sequence or of others.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "engine.hpp"
#include "parts.hpp"
#include "pass.hpp"
#include "plane_reader.hpp"

namespace mxconv {

inline int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows that a matrix multiplies, and where what it makes of them goes: (tokens, stride).
struct Product {
    const Projection* projection;  // of which there may be none
    const Activations* taken;
    float* out;
    int64_t stride;
    int64_t multiple = 1;  // of row tiles that belong together
};

// How heads of attention are taken together: `most` of them where that leaves every thread enough to do, or else `fewest`.
struct HeadUnits {
    int64_t num_heads, fewest, most;
};

// How queries and keys follow from their positions.
struct HeadRotation {
    int64_t table;      // which of the pass's rotations; -1: none
    int64_t num_pairs;  // the values after these stay
    bool is_interleaved;

    // Rotate a head of `size` values by its token's position, and multiply all of them.
    void apply(const Step& step, int64_t token, float factor, int64_t size, float* values) const;
};

// Heads [first, last) of tokens [token, end).
struct HeadsAndTokens {
    int64_t first, last, token, end;
};

// What a thread has to itself.
struct Workspace {
    explicit Workspace(int number) : thread(number) {}

    const int thread;
    ActivationBuffer taken_buffer, beside_buffer;
    Activations taken{};   // what a branch takes in
    Activations beside{};  // what the branch beside it does
    Lines<float> row;      // of hidden_size, or of a head where that is larger
    ScratchMemory memory;  // of parts
    int operators = 0;     // that it has had its share of, in this slice
};

struct Step {
    const Slice& slice;
    const int64_t hidden_size;
    const Kernels& kernels;
    Team& team;
    Pieces* const pieces;   // of two operators in turn
    ScratchMemory& memory;  // of parts, for all threads

    // Of the rows that parts prepare for each other, by token. One that loses its flag gets NaNs from the product that
    // asked for it, and is NaN from there on: flags are set before a slice and never again.
    uint8_t* const finite;

    Workspace& own;
    PlaneReader* const planes = nullptr;  // null: all weights are in memory

    int num_threads() const { return team.size(); }
    Room room() const { return {memory.scratch(), own.memory.scratch()}; }
    void barrier() { team.barrier(); }

    // This thread's share of an operator's pieces: work(i) for each. Between two operators there is a barrier.
    template <class Work>
    void take(int64_t count, Work work) {
        Pieces& left = pieces[own.operators % 2];
        // nobody takes of the operator before, after whose barrier we are, nor yet of the one that comes
        if (own.thread == 0) pieces[(own.operators + 1) % 2].reset();
        ++own.operators;
        for (int64_t i; (i = left.take(count, own.thread)) >= 0;) work(i);
    }

    // The same, and wait for the others.
    template <class Work>
    void share(int64_t count, Work work) {
        take(count, work);
        barrier();
    }

    // Tokens in turn by thread: what is done to rows by themselves needs a barrier before and after it.
    template <class Work>
    void each_token(Work work) const {
        for (int64_t token = own.thread; token < slice.num_tokens; token += num_threads()) work(token);
    }

    // Attention as one operator: work(heads and tokens of one sequence whose positions begin together, what each token sees). Keys and
    // values are read once for them; together(heads) is how many tokens that may be. `others` is room for what they see.
    template <class Together, class Work>
    void attend(const AttentionPattern& pattern, const HeadUnits& heads, int32_t* others, Together together,
                Work work) {
        const int64_t num_tokens = slice.num_tokens;
        const bool has_enough = ceil_divide(heads.num_heads, heads.most) * num_tokens >= num_threads();
        const int64_t unit = has_enough ? heads.most : heads.fewest, units = ceil_divide(heads.num_heads, unit);
        const int64_t a_piece = num_tokens * units / (4 * num_threads());
        const int64_t at_once = std::max<int64_t>(1, std::min(together(unit), a_piece));
        const int64_t tiles = ceil_divide(num_tokens, at_once), most_others = pattern.most_others(slice.most_visible);
        share(units * tiles, [&](int64_t i) {
            const int64_t first = i / tiles * unit, last = std::min(first + unit, heads.num_heads);
            const int64_t end = std::min((i % tiles + 1) * at_once, num_tokens);
            for (int64_t token = i % tiles * at_once, next; token < end; token = next) {
                Visible seen[kAttentionRows];
                for (next = token; next < end && slice.tokens[next].sequence == slice.tokens[token].sequence; ++next) {
                    seen[next - token] = pattern.of(slice.tokens[next], others + (next - token) * most_others);
                    if (seen[next - token].start != seen[0].start) break;
                }
                work(HeadsAndTokens{first, last, token, next}, seen);
            }
        });
    }

    // How many row tiles of a matrix a thread takes, a multiple of `multiple`, where an operator multiplies by `row_tiles`.
    int64_t tiles_at_once(const Matrix& matrix, int64_t row_tiles, int64_t multiple) const;

    // Products as one operator: done(which, token, row, count, values) gets rows [row, row + count) of each, biased.
    template <class Done>
    void multiply(std::initializer_list<Product> products, const Done& done) {
        const auto at_once = [&](const Product& p) {
            const Matrix& matrix = *p.projection->matrix;
            return tiles_at_once(matrix, matrix.row_tiles(), p.multiple);
        };
        const auto pieces = [&](const Product& p) {
            return p.projection->exists() ? ceil_divide(p.projection->matrix->row_tiles(), at_once(p)) : 0;
        };
        int64_t total = 0;
        for (const Product& p : products) total += pieces(p);
        share(total, [&](int64_t i) {
            const Product* p = products.begin();
            for (; i >= pieces(*p); ++p) i -= pieces(*p);
            const Matrix& matrix = *p->projection->matrix;
            const int64_t first = i * at_once(*p), last = std::min(first + at_once(*p), matrix.row_tiles());
            const int64_t row = first * kTileRows, count = std::min(last * kTileRows, matrix.rows) - row;
            kernels.linear(matrix, *p->taken, first, last, p->out, p->stride);
            for (int64_t token = 0; token < p->taken->num_tokens; ++token) {
                float* values = p->out + token * p->stride + row;
                if (p->projection->bias != nullptr) kernels.rowwise.add(p->projection->bias + row, count, values);
                done(p - products.begin(), token, row, count, values);
            }
        });
    }

    // The same, where nothing is done to what comes out.
    void multiply(std::initializer_list<Product> products) {
        multiply(products, [](auto...) {});
    }

    // All rows, or those given, normed and in the forms that the next matrices take.
    void take_in(const Norm& norm, int forms, Activations& to, const std::vector<int64_t>* tokens = nullptr);

    // Add to the slice's rows what a matrix makes of others, over `products` (tokens, hidden_size).
    void add_product(const Projection& projection, const Activations& inputs, const Sum& sum, float* products);

    // Add `products`, after a barrier; ends with one. For what is not complete before all pieces are.
    void add_rows(const float* products, const Sum& sum);

  private:
    // A row of hidden_size in the workspace after a norm; the row itself where there is none.
    const float* normed(const Norm& norm, const float* row) const;

    // Columns [first, first + count) of a token.
    void add_row(const float* product, const Sum& sum, int64_t token, int64_t first, int64_t count) const;
};

}  // namespace mxconv
