#include "latent.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "step.hpp"

namespace mxconv {

Demands LatentAttention::demands() const {
    Demands demands{output.rows(), layer + 1, 1, width()};
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
    rotate(step, token, 1.0f, latent + latent_size);
    sequence->cache.write(layer, false, 0, position, latent, width());
}

// Attention by tokens and heads: a unit of heads fills whole blocks of 32 columns, so that it can be prepared at once. All
// heads share keys, so a unit has as many as are taken together where that leaves every thread enough units.
void LatentAttention::attend(Step& step, const Memory& m) const {
    const Slice& slice = step.slice;
    const int64_t num_tokens = slice.num_tokens, enough = 2 * step.num_threads();
    const int64_t fewest = kBlock / std::gcd(value_size, kBlock);
    const int64_t most = std::min(kAttentionRows / fewest, ceil_divide(num_heads, fewest)) * fewest;
    const int64_t unit = ceil_divide(num_heads, most) * num_tokens >= enough ? most : fewest;
    const int64_t units = ceil_divide(num_heads, unit);
    const int64_t together = std::max<int64_t>(1, std::min(kAttentionRows / unit, num_tokens * units / enough));
    const int64_t tiles = ceil_divide(num_tokens, together), most_others = sight.most_others(slice.most_visible);
    const Rowwise& rowwise = step.kernels.rowwise;
    step.share(units * tiles, [&](int64_t i) {
        const int64_t first = i / tiles * unit, count = std::min(unit, num_heads - first);
        const int64_t end = std::min((i % tiles + 1) * together, num_tokens), stride = count * width();
        for (int64_t token = i % tiles * together, next; token < end; token = next) {
            const SequenceTokens& sequence = *slice.tokens[token].sequence;
            Visible seen[kAttentionRows];
            for (next = token; next < end && slice.tokens[next].sequence == &sequence; ++next) {
                seen[next - token] = sight.of(slice.tokens[next], m.others + (next - token) * most_others);
                if (seen[next - token].start != seen[0].start) break;
            }
            for (int64_t head = 0; head < count; ++head) {  // whose matrix serves all tokens
                for (int64_t t = token; t < next; ++t) {
                    const float* from = m.heads + t * query.rows() + (first + head) * head_size();
                    place_query(step, t, first + head, from, m.queries + (t - token) * stride + head * width());
                }
            }
            // the means of rotated keys come with those of latent vectors, and nobody reads them
            KeysAndValues latents = sequence.cache.of(layer, 0);
            latents.value_pages = latents.key_pages;
            latents.value_run = latents.key_run;
            rowwise.attend[static_cast<int>(sequence.cache.dtype)](
                {m.queries, next - token, count, stride, width(), stride, nullptr}, latents, width(), 0.0f, seen,
                m.shares, m.means);
            for (int64_t t = token; t < next; ++t) {
                for (int64_t head = 0; head < count; ++head) {
                    const float* mean = m.means + (t - token) * stride + head * width();
                    const float* up = value_up + (first + head) * value_size * latent_size;
                    for (int64_t v = 0; v < value_size; ++v) {
                        m.values[head * value_size + v] = rowwise.dot(up + v * latent_size, mean, latent_size);
                    }
                }
                step.kernels.prepare(m.values, t, first * value_size, count * value_size, output.form(), m.mixed);
            }
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
    rotate(step, token, scale, query + latent_size);
}

// What rotates of a query or key, turned by its position and multiplied by a factor.
void LatentAttention::rotate(const Step& step, int64_t token, float factor, float* values) const {
    const Rowwise& rowwise = step.kernels.rowwise;
    const Rotations& r = step.slice.pass->rotations[static_cast<size_t>(rotation.table)];
    const int64_t at = (step.slice.first + token) * r.num_pairs;
    const auto turn = rotation.is_interleaved ? rowwise.rotate_neighbours : rowwise.rotate;
    turn(r.cosines + at, r.sines + at, r.num_pairs, factor, values);
    rowwise.scale(factor, rotated_size - 2 * r.num_pairs, values + 2 * r.num_pairs);
}

}  // namespace mxconv
