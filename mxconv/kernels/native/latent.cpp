#include "latent.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "step.hpp"

namespace mxconv {

Demands LatentAttention::demands() const {
    Demands demands{output.rows(), 0, layer + 1, 1, width()};
    demands.rotation = rotation.table;
    demands.num_pairs = rotation.num_pairs;
    return demands;
}

LatentAttention::Memory LatentAttention::memory(Room& room, const Slice& slice) const {
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
    m.others = room.own.take<int32_t>(kAttentionRows * sight.most_others(slice.most_visible));
    return m;
}

void LatentAttention::add_to_rows(Step& step, const Activations& taken, const Sum& sum) const {
    Room room = step.room();
    Memory m = memory(room, step.slice);
    m.mixed.finite = step.finite;
    project(step, taken, m);
    attend(step, m);
    step.add_product(output, m.mixed, sum, m.products);
}

// Queries, as their matrix gives them, and what the cache holds of the tokens.
void LatentAttention::project(Step& step, const Activations& taken, const Memory& m) const {
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
void LatentAttention::keep(const Step& step, int64_t token, float* latent) const {
    const auto& [sequence, position] = step.slice.tokens[token];
    latent_norm.put(step.kernels.rowwise, latent, latent_size, latent);
    rotation.apply(step, token, 1.0f, rotated_size, latent + latent_size);
    sequence->cache.write(layer, false, 0, position, latent, width());
}

// A unit of heads fills whole blocks of 32 columns, so that it can be prepared at once. All heads share keys, so a unit has as
// many as are taken together where it can.
void LatentAttention::attend(Step& step, const Memory& m) const {
    const int64_t fewest = kBlock / std::gcd(value_size, kBlock);
    const int64_t most = std::min(kAttentionRows / fewest, ceil_divide(num_heads, fewest)) * fewest;
    const Rowwise& rowwise = step.kernels.rowwise;
    const auto together = [](int64_t unit) { return kAttentionRows / unit; };
    step.attend(
        sight, {num_heads, fewest, most}, m.others, together, [&](const HeadsAndTokens& at, const Visible* seen) {
            const int64_t count = at.last - at.first, stride = count * width();
            const CachePages& cache = step.slice.tokens[at.token].sequence->cache;
            for (int64_t head = 0; head < count; ++head) {  // whose matrix serves all tokens
                for (int64_t t = at.token; t < at.end; ++t) {
                    const float* from = m.heads + t * query.rows() + (at.first + head) * head_size();
                    place_query(step, t, at.first + head, from, m.queries + (t - at.token) * stride + head * width());
                }
            }
            // the means of rotated keys come with those of latent vectors, and nobody reads them
            KeysAndValues latents = cache.of(layer, 0);
            latents.value_pages = latents.key_pages;
            latents.value_run = latents.key_run;
            rowwise.attend[static_cast<int>(cache.dtype)](
                {m.queries, at.end - at.token, count, stride, width(), stride, nullptr}, latents, width(), 0.0f, seen,
                m.shares, m.means);
            for (int64_t t = at.token; t < at.end; ++t) {
                for (int64_t head = 0; head < count; ++head) {
                    const float* mean = m.means + (t - at.token) * stride + head * width();
                    const float* up = value_up + (at.first + head) * value_size * latent_size;
                    for (int64_t v = 0; v < value_size; ++v) {
                        m.values[head * value_size + v] = rowwise.dot(up + v * latent_size, mean, latent_size);
                    }
                }
                step.kernels.prepare(m.values, t, at.first * value_size, count * value_size, output.form(), m.mixed);
            }
        });
}

// A head's query as it meets what the cache holds, scaled: through the matrix of its keys, and rotated.
void LatentAttention::place_query(const Step& step, int64_t token, int64_t head, const float* from,
                                  float* query) const {
    const Rowwise& rowwise = step.kernels.rowwise;
    const float* up = key_up + head * plain_size * latent_size;
    std::fill_n(query, latent_size, 0.0f);
    for (int64_t i = 0; i < plain_size; ++i) rowwise.add_scaled(up + i * latent_size, from[i], latent_size, query);
    rowwise.scale(scale, latent_size, query);
    std::memcpy(query + latent_size, from + plain_size, static_cast<size_t>(rotated_size) * sizeof(float));
    rotation.apply(step, token, scale, rotated_size, query + latent_size);
}

}  // namespace mxconv
