// Latent attention (MLA): a cache holds one short vector a position, from which every head takes its keys and values, as
// mxconv/engine/attention.py has it. Heads meet these vectors with queries that went through the matrix of their keys.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "bindings.hpp"
#include "step.hpp"

namespace mxconv {

namespace {

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
    AttentionPattern pattern;
    HeadRotation rotation;

    Demands demands() const override {
        Demands demands{output.rows(), 0, layer + 1, 1, width()};
        demands.rotation = rotation.table;
        demands.num_pairs = rotation.num_pairs;
        return demands;
    }

    int forms() const override { return down.form() | (query_down.exists() ? query_down : query).form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override {
        Room room = step.room();
        Memory m = memory(room, step.slice);
        m.mixed.finite = step.finite;
        project(step, taken, m);
        attend(step, m);
        step.add_product(output, m.mixed, sum, m.products);
    }

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
    Memory memory(Room& room, const Slice& slice) const {
        const int64_t tokens = slice.num_tokens;
        Memory m{};
        if (query_down.exists()) {
            m.reduced = room.shared.take<float>(tokens * query_down.rows());
            m.shortened =
                room.shared.activations(tokens, query_down.rows(), query.form(), room.shared.take<uint8_t>(tokens));
        }
        m.latents = room.shared.take<float>(tokens * width());
        m.heads = room.shared.take<float>(tokens * query.rows());
        m.mixed = room.shared.activations(tokens, num_heads * value_size, output.form());
        m.products = room.shared.take<float>(tokens * output.rows());
        m.queries = room.own.take<float>(kAttentionRows * width());
        m.means = room.own.take<float>(kAttentionRows * width());
        m.values = room.own.take<float>(kAttentionRows * value_size);
        m.shares = room.own.take<float>(kAttentionRows * (slice.most_visible + kAttentionChunk));
        m.others = room.own.take<int32_t>(kAttentionRows * pattern.most_others(slice.most_visible));
        return m;
    }

    // Queries, as their matrix gives them, and what the cache holds of the tokens.
    void project(Step& step, const Activations& taken, const Memory& m) const {
        const bool is_short = query_down.exists();
        const Projection& first_query = is_short ? query_down : query;
        step.multiply({{&first_query, &taken, is_short ? m.reduced : m.heads, first_query.rows()},
                       {&down, &taken, m.latents, width()}});
        step.each_token([&](int64_t token) {
            keep(step, token, m.latents + token * width());
            if (!is_short) return;
            float* row = m.reduced + token * query_down.rows();
            query_norm.put(step.kernels.rowwise, row, query_down.rows(), row);
            if (m.shortened.codes != nullptr) m.shortened.finite[token] = 1;
            step.kernels.prepare(row, token, 0, query_down.rows(), query.form(), m.shortened);
        });
        step.barrier();
        if (is_short) step.multiply({{&query, &m.shortened, m.heads, query.rows()}});
    }

    // Into the cache, in the place of a key: the normed latent vector, and the key that rotates.
    void keep(const Step& step, int64_t token, float* latent) const {
        const auto& [sequence, position] = step.slice.tokens[token];
        latent_norm.put(step.kernels.rowwise, latent, latent_size, latent);
        rotation.apply(step, token, 1.0f, rotated_size, latent + latent_size);
        sequence->cache.write(layer, false, 0, position, latent, width());
    }

    // A unit of heads fills whole blocks of 32 columns, so that it can be prepared at once. All heads share keys, so a unit has as
    // many as are taken together where it can.
    void attend(Step& step, const Memory& m) const {
        const int64_t fewest = kBlock / std::gcd(value_size, kBlock);
        const int64_t most = std::min(kAttentionRows / fewest, ceil_divide(num_heads, fewest)) * fewest;
        const Rowwise& rowwise = step.kernels.rowwise;
        const auto together = [](int64_t unit) { return kAttentionRows / unit; };
        step.attend(
            pattern, {num_heads, fewest, most}, m.others, together, [&](const HeadsAndTokens& at, const Visible* seen) {
                const int64_t count = at.last - at.first, stride = count * width();
                const CachePages& cache = step.slice.tokens[at.token].sequence->cache;
                for (int64_t head = 0; head < count; ++head) {  // whose matrix serves all tokens
                    for (int64_t t = at.token; t < at.end; ++t) {
                        const float* from = m.heads + t * query.rows() + (at.first + head) * head_size();
                        place_query(step, t, at.first + head, from,
                                    m.queries + (t - at.token) * stride + head * width());
                    }
                }
                // the means of rotated keys come with those of latent vectors, and nobody reads them
                KeysAndValues latents = cache.of(layer, 0);
                latents.value_pages = latents.key_pages;
                latents.value_run = latents.key_run;
                rowwise.attend[static_cast<int>(cache.dtype)](
                    {m.queries, at.end - at.token, count, stride, width(), stride, nullptr}, latents, width(), 0.0f,
                    seen, m.shares, m.means);
                for (int64_t t = at.token; t < at.end; ++t) {
                    for (int64_t head = 0; head < count; ++head) {
                        const float* mean = m.means + (t - at.token) * stride + head * width();
                        const float* up = value_up + (at.first + head) * value_size * latent_size;
                        for (int64_t v = 0; v < value_size; ++v) {
                            m.values[head * value_size + v] = rowwise.dot(up + v * latent_size, mean, latent_size);
                        }
                    }
                    step.kernels.prepare(m.values, t, at.first * value_size, count * value_size, output.form(),
                                         m.mixed);
                }
            });
    }

    // A head's query as it meets what the cache holds, scaled: through the matrix of its keys, and rotated.
    void place_query(const Step& step, int64_t token, int64_t head, const float* from, float* query) const {
        const Rowwise& rowwise = step.kernels.rowwise;
        const float* up = key_up + head * plain_size * latent_size;
        std::fill_n(query, latent_size, 0.0f);
        for (int64_t i = 0; i < plain_size; ++i) rowwise.add_scaled(up + i * latent_size, from[i], latent_size, query);
        rowwise.scale(scale, latent_size, query);
        std::memcpy(query + latent_size, from + plain_size, static_cast<size_t>(rotated_size) * sizeof(float));
        rotation.apply(step, token, scale, rotated_size, query + latent_size);
    }
};

PartPointer make_latent(int64_t layer, const MaybeProjection& query_down, const MaybeNorm& query_norm,
                        const Projection& query, const Projection& down, const Norm& latent_norm,
                        const Array<float>& key_up, const Array<float>& value_up, const Projection& output,
                        double scale, const AttentionPattern& pattern, const HeadRotation& rotation) {
    auto a = std::make_shared<LatentAttention>();
    require(key_up, "key_up", {-1, -1, -1});
    const auto size = [](const Array<float>& array, size_t axis) { return static_cast<int64_t>(array.shape(axis)); };
    a->layer = layer;
    a->num_heads = size(key_up, 0);
    a->plain_size = size(key_up, 1);
    a->latent_size = size(key_up, 2);
    require(value_up, "value_up", {a->num_heads, -1, a->latent_size});
    a->value_size = size(value_up, 1);
    a->rotated_size = down.rows() - a->latent_size;
    a->scale = static_cast<float>(scale);
    a->pattern = pattern;
    a->rotation = rotation;
    require_that(layer >= 0 && layer <= 1 << 20, "a layer of an impossible number");
    require_that(pattern.pages == 0, "latent vectors are not retrieved");
    require_that(a->num_heads >= 1 && a->plain_size >= 1 && a->latent_size >= 1 && a->value_size >= 1,
                 "heads of impossible sizes");
    require_that(rotation.table >= 0 && rotation.num_pairs >= 1 && 2 * rotation.num_pairs <= a->rotated_size,
                 "more pairs rotate than there are after latent vectors");
    const int64_t hidden = output.rows(), rank = query_down ? query_down->rows() : hidden;
    a->query_down = projection_of(query_down, "query_down", rank, hidden);
    a->query_norm = norm_of(query_norm, "query_norm", rank);
    a->query = projection_of(query, "query", a->num_heads * (a->plain_size + a->rotated_size), rank);
    a->down = projection_of(down, "down", -1, hidden);
    a->latent_norm = norm_of(latent_norm, "latent_norm", a->latent_size);
    a->key_up = key_up.data();
    a->value_up = value_up.data();
    a->output = projection_of(output, "output", hidden, a->num_heads * a->value_size);
    return a;
}

}  // namespace

void bind_latent(nb::module_& module) {
    define<0>(
        module, "latent_attention", &make_latent,
        {"layer", "query_down", "query_norm", "query", "down", "latent_norm", "key_up", "value_up", "output", "scale",
         "pattern", "rotation"},
        nb::kw_only(),
        "Attention over latent vectors, which the cache holds with a rotated key each in the place of keys. key_up is "
        "(heads, plain_size, latent_size), value_up (heads, value_size, latent_size).");
}

}  // namespace mxconv
