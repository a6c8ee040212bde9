// The attention of a layer: from rows to what it adds to them, over keys and values that caches hold.
#pragma once

#include "parts.hpp"
#include "pass.hpp"
#include "retrieval.hpp"

namespace mxconv {

// How queries and keys follow from their positions.
struct HeadRotation {
    int64_t table;      // which of the pass's rotations; -1: none
    int64_t num_pairs;  // the values after these stay
    bool is_interleaved;

    // Rotate a head of `size` values by its token's position, and multiply all of them.
    void apply(const Step& step, int64_t token, float factor, int64_t size, float* values) const;
};

// Of queries, keys and values; each may be none.
struct HeadNorms {
    Norm query, key, value;
    bool span_rows;   // queries and keys: all heads of a row together
    bool are_behind;  // queries and keys: after their rotation
    float clip;       // which queries, keys and values are kept within before they rotate; 0: none
};

// How one matrix holds queries, keys and values: "blocks" of them, or a query, a key and a value a head.
enum class Fused { kNone, kBlocks, kHeads };

struct Attention final : Part {
    int64_t layer;   // of the cache that it writes
    int64_t source;  // and reads: its own, or that of a layer before, when it has neither keys nor values
    int64_t num_heads, num_key_value_heads, head_dim;
    Projection query;       // or all three
    Projection key, value;  // none where they are fused or another layer's, values too where they are the keys
    Projection output;
    Fused fused;
    float scale;  // of a query times a key
    Sight sight;
    HeadNorms norms;
    HeadRotation rotation;
    int64_t temperature;  // which of the pass's, that multiply queries; -1: none
    float logit_cap;      // 0: none
    const float* sinks;   // (num_heads): see AttentionQueries; or null
    bool is_gated;        // a gate lies after each query, whose sigmoid multiplies what the head gives

    // From one query to the next.
    int64_t query_dim() const { return is_gated ? 2 * head_dim : head_dim; }
    int64_t head_stride() const { return fused == Fused::kHeads ? 3 * head_dim : query_dim(); }

    Demands demands() const override;
    int forms() const override { return query.form() | key.form() | value.form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override;

  private:
    enum class Role { kQuery, kKey, kValue };

    struct Memory {
        float* projected;  // (tokens, width): queries, keys and values as matrices give them
        int64_t width;
        Activations mixed;  // (tokens, heads * head_dim)
        float* products;    // (tokens, hidden_size)
        float* rows;        // of some heads of some tokens
        float* shares;      // of the visible positions
        int32_t* others;    // that tokens see beside a run of positions
        Retrieval retrieval;
    };

    Memory memory(Room& room, const Slice& slice) const;
    bool has_keys() const { return source == layer; }
    bool keys_are_values() const { return has_keys() && fused == Fused::kNone && !value.exists(); }
    int64_t tokens_together() const;
    void project(Step& step, const Activations& taken, const Memory& memory) const;
    void attend(Step& step, const Memory& memory) const;
    void put_key_ranges(Step& step) const;
    Visible retrieve(const Step& step, int64_t token, int64_t key_head, const Visible& seen,
                     const Memory& memory) const;
    void gate(const Step& step, int64_t token, int64_t first, int64_t last, const Memory& memory, float* heads) const;

    void place_head(const Step& step, int64_t token, int64_t number, float* values) const;
    void place_rows(Step& step, const Memory& memory) const;
    void place(const Step& step, int64_t token, Role role, int64_t first, int64_t count, float* values) const;
    float query_factor(const Step& step, int64_t token) const;
    void keep(const Step& step, int64_t token, Role role, int64_t first, int64_t count, const float* values) const;
};

}  // namespace mxconv
