// Latent attention (MLA): a cache holds one short vector a position, from which every head takes its keys and values, as
// mxconv/engine/latent_attention.py has it. Heads meet these vectors with queries that went through the matrix of their keys.
#pragma once

#include "attention.hpp"

namespace mxconv {

struct LatentAttention final : Part {
    int64_t layer;  // of the cache, which has latent vector and rotated key in the place of keys
    int64_t num_heads, latent_size, plain_size, rotated_size, value_size;
    Projection query_down;  // to fewer numbers, or none
    Norm query_norm;        // of these
    Projection query;       // (num_heads, plain_size + rotated_size)
    Projection down;        // (latent_size + rotated_size)
    Norm latent_norm;       // of the former
    const float* key_up;    // (num_heads, plain_size, latent_size)
    const float* value_up;  // (num_heads, value_size, latent_size)
    Projection output;
    float scale;  // of a query times a key
    Sight sight;
    HeadRotation rotation;

    Demands demands() const override;
    int forms() const override { return down.form() | (query_down.exists() ? query_down : query).form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override;

  private:
    struct Memory {
        float* reduced;         // (tokens, rows of query_down)
        Activations shortened;  // the same, normed
        float* latents;         // (tokens, width)
        float* heads;           // (tokens, num_heads, plain_size + rotated_size)
        Activations mixed;      // (tokens, num_heads * value_size)
        float* products;        // (tokens, hidden_size)
        float* queries;         // (kAttentionRows, width), of a thread, as are the others
        float* means;           // (kAttentionRows, width)
        float* values;          // (kAttentionRows, value_size)
        float* shares;          // of the visible positions
        int32_t* others;        // that tokens see beside a run of positions
    };

    int64_t width() const { return latent_size + rotated_size; }
    int64_t head_size() const { return plain_size + rotated_size; }
    Memory memory(Room& room, const Slice& slice) const;
    void project(Step& step, const Activations& taken, const Memory& m) const;
    void keep(const Step& step, int64_t token, float* latent) const;
    void attend(Step& step, const Memory& m) const;
    void place_query(const Step& step, int64_t token, int64_t head, const float* from, float* query) const;
};

}  // namespace mxconv
