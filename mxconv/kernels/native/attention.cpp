#include "attention.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "step.hpp"

namespace mxconv {

void HeadRotation::apply(const Step& step, int64_t token, float factor, int64_t size, float* values) const {
    const Rowwise& rowwise = step.kernels.rowwise;
    int64_t rotated = 0;
    if (table >= 0) {
        const Rotations& r = step.slice.pass->rotations[static_cast<size_t>(table)];
        const int64_t at = (step.slice.first + token) * r.num_pairs;
        const auto turn = is_interleaved ? rowwise.rotate_neighbours : rowwise.rotate;
        turn(r.cosines + at, r.sines + at, r.num_pairs, factor, values);
        rotated = 2 * r.num_pairs;
    }
    if (factor != 1.0f && rotated < size) rowwise.scale(factor, size - rotated, values + rotated);
}

Demands Attention::demands() const {
    Demands demands{output.rows(), query.matrix->columns, layer + 1, num_key_value_heads, head_dim};
    demands.rotation = rotation.table;
    demands.num_pairs = rotation.num_pairs;
    demands.temperature = temperature;
    demands.retrieves = sight.pages > 0;
    return demands;
}

Attention::Memory Attention::memory(Room& room, const Slice& slice) const {
    const int64_t tokens = slice.num_tokens, columns = num_heads * head_dim;
    Memory m{};
    m.width = query.rows() + key.rows() + value.rows();
    m.projected = room.shared.take<float>(tokens * m.width);
    m.mixed = room.shared.activations(tokens, columns, output.form());
    m.products = room.shared.take<float>(tokens * output.rows());
    m.rows = room.own.take<float>(tokens_together() * columns);
    m.shares = room.own.take<float>(kAttentionRows * (slice.most_visible + kAttentionChunk));
    m.others = room.own.take<int32_t>(tokens_together() * sight.most_others(slice.most_visible));
    if (sight.pages > 0) m.retrieval = Retrieval::take(room.own, head_dim, slice.most_visible);
    return m;
}

void Attention::add_to_rows(Step& step, const Activations& taken, const Sum& sum) const {
    Room room = step.room();
    Memory m = memory(room, step.slice);
    m.mixed.finite = step.finite;
    project(step, taken, m);
    if (norms.span_rows) place_rows(step, m);
    if (sight.pages > 0) put_key_ranges(step);
    attend(step, m);
    step.add_product(output, m.mixed, sum, m.products);
}

// Queries, keys and values as one operator. Pieces are whole heads, so that whoever multiplied them can rotate them.
void Attention::project(Step& step, const Activations& taken, const Memory& m) const {
    const auto heads = [](int64_t size) { return std::lcm(size, kTileRows) / kTileRows; };
    float* const keys = m.projected + query.rows();
    step.multiply({{&query, &taken, m.projected, m.width, heads(query_dim())},
                   {&key, &taken, keys, m.width, heads(head_dim)},
                   {&value, &taken, keys + key.rows(), m.width, heads(head_dim)}},
                  [&](int64_t, int64_t token, int64_t, int64_t count, float* values) {
                      if (norms.span_rows) return;
                      const int64_t number = (values - m.projected - token * m.width) / head_dim;
                      for (int64_t head = 0; head < count / head_dim; ++head)
                          place_head(step, token, number + head, values + head * head_dim);
                  });
}

// A unit of heads fills whole blocks of 32 columns, so that it can be prepared at once, and where it can it has all heads that
// share keys and values: these are read once for all of them.
void Attention::attend(Step& step, const Memory& m) const {
    const int64_t group = num_heads / num_key_value_heads;
    const int64_t fewest = kBlock / std::gcd(head_dim, kBlock), grouped = std::lcm(fewest, group);
    const auto together = [&](int64_t) { return tokens_together(); };
    step.attend(sight, {num_heads, fewest, grouped}, m.others, together,
                [&](const HeadsAndTokens& at, const Visible* seen) {
                    const CachePages& cache = step.slice.tokens[at.token].sequence->cache;
                    const auto attend = step.kernels.rowwise.attend[static_cast<int>(cache.dtype)];
                    const int64_t columns = (at.last - at.first) * head_dim;
                    for (int64_t head = at.first, other; head < at.last; head = other) {
                        other = std::min((head / group + 1) * group, at.last);
                        AttentionQueries queries{m.projected + at.token * m.width + head * head_stride(),
                                                 at.end - at.token,
                                                 other - head,
                                                 m.width,
                                                 head_stride(),
                                                 columns,
                                                 sinks != nullptr ? sinks + head : nullptr};
                        KeysAndValues kept = cache.of(source, head / group);
                        float* out = m.rows + (head - at.first) * head_dim;
                        if (sight.pages == 0) {
                            attend(queries, kept, head_dim, logit_cap, seen, m.shares, out);
                            continue;
                        }
                        queries.num_tokens = 1;
                        kept.key_pages = kept.value_pages = m.retrieval.pages;
                        for (int64_t t = at.token; t < at.end; ++t, queries.values += m.width, out += columns) {
                            const Visible found = retrieve(step, t, head / group, seen[t - at.token], m);
                            attend(queries, kept, head_dim, logit_cap, &found, m.shares, out);
                        }
                    }
                    for (int64_t t = at.token; t < at.end; ++t) {
                        float* row = m.rows + (t - at.token) * columns;
                        if (is_gated) gate(step, t, at.first, at.last, m, row);
                        step.kernels.prepare(row, t, at.first * head_dim, columns, output.form(), m.mixed);
                    }
                });
}

// Of pages that are whole now, a page's for each head of keys; those before the pass were put by passes before it.
void Attention::put_key_ranges(Step& step) const {
    const Slice& slice = step.slice;
    for (int64_t token = 0, next; token < slice.num_tokens; token = next) {
        const auto& [sequence, place] = slice.tokens[token];
        for (next = token; next < slice.num_tokens && slice.tokens[next].sequence == sequence;) ++next;
        const int64_t first = place == sequence->length ? sequence->key_ranges.num_known : place / kPagePositions;
        const int64_t last = (slice.tokens[next - 1].place + 1) / kPagePositions;
        if (first >= last) continue;
        const SequenceTokens& of = *sequence;
        step.share((last - first) * num_key_value_heads, [&](int64_t i) {
            put_key_range(of, source, i % num_key_value_heads, first + i / num_key_value_heads);
        });
    }
}

// All queries of a head of keys choose together, so that no token's pages depend on how heads are shared among threads.
Visible Attention::retrieve(const Step& step, int64_t token, int64_t key_head, const Visible& seen,
                            const Memory& m) const {
    const int64_t group = num_heads / num_key_value_heads;
    std::fill_n(m.retrieval.raised, head_dim, 0.0f);
    std::fill_n(m.retrieval.lowered, head_dim, 0.0f);
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
        const float* query = m.projected + token * m.width + head * head_stride();
        for (int64_t i = 0; i < head_dim; ++i) {
            m.retrieval.raised[i] += std::max(query[i], 0.0f);
            m.retrieval.lowered[i] += std::min(query[i], 0.0f);
        }
    }
    const SequenceTokens& sequence = *step.slice.tokens[token].sequence;
    return m.retrieval.choose(step.kernels.rowwise, sequence, sight, source, key_head, head_dim, seen);
}

// What heads [first, last) of a token gave, by their gates.
void Attention::gate(const Step& step, int64_t token, int64_t first, int64_t last, const Memory& m,
                     float* heads) const {
    const auto activate = step.kernels.rowwise.activate[static_cast<int>(Activation::kSigmoid)];
    for (int64_t head = first; head < last; ++head, heads += head_dim) {
        activate(m.projected + token * m.width + head * query_dim() + head_dim, heads, head_dim, heads);
    }
}

// How many tokens share a reading of keys and values, at most.
int64_t Attention::tokens_together() const {
    return std::max<int64_t>(1, kAttentionRows * num_key_value_heads / num_heads);
}

// ---- what is done to queries, keys and values between their matrices and the attention ----

// A head by its number among those that the matrices give: all queries, each perhaps with a gate after it, then keys, then
// values; or one of each in turn.
void Attention::place_head(const Step& step, int64_t token, int64_t number, float* values) const {
    if (fused == Fused::kHeads) {
        return place(step, token, static_cast<Role>(number % 3), number / 3, 1, values);
    }
    if (is_gated) {
        if (number < 2 * num_heads && number % 2 == 1) return;
        number = number < 2 * num_heads ? number / 2 : number - num_heads;
    }
    if (number < num_heads) return place(step, token, Role::kQuery, number, 1, values);
    number -= num_heads;
    const bool is_key = number < num_key_value_heads;
    place(step, token, is_key ? Role::kKey : Role::kValue, is_key ? number : number - num_key_value_heads, 1, values);
}

// All heads of a row together, after a barrier: a norm needs them all. Those that are fused one by one are put side by side.
void Attention::place_rows(Step& step, const Memory& m) const {
    const int64_t num_roles = m.width == num_heads * head_dim ? 1 : keys_are_values() ? 2 : 3;
    const int64_t keys = num_heads * head_dim, values = keys + num_key_value_heads * head_dim;
    step.share(step.slice.num_tokens * num_roles, [&](int64_t i) {
        const int64_t token = i / num_roles, role = i % num_roles;
        float* row = m.projected + token * m.width;
        if (fused != Fused::kHeads) {
            row += role == 0 ? 0 : role == 1 ? keys : values;
            return place(step, token, static_cast<Role>(role), 0, role == 0 ? num_heads : num_key_value_heads, row);
        }
        row += role * head_dim;
        const auto num_bytes = static_cast<size_t>(head_dim) * sizeof(float);
        for (int64_t head = 0; head < num_heads; ++head) {
            std::memcpy(m.rows + head * head_dim, row + 3 * head * head_dim, num_bytes);
        }
        place(step, token, static_cast<Role>(role), 0, num_heads, m.rows);
        for (int64_t head = 0; head < num_heads && role == 0; ++head) {
            std::memcpy(row + 3 * head * head_dim, m.rows + head * head_dim, num_bytes);
        }
    });
}

// Heads [first, first + count) of a token, side by side: a norm spans all of them.
void Attention::place(const Step& step, int64_t token, Role role, int64_t first, int64_t count, float* values) const {
    if (role == Role::kValue) return keep(step, token, role, first, count, values);
    if (role == Role::kKey && keys_are_values()) keep(step, token, Role::kValue, first, count, values);
    const Rowwise& rowwise = step.kernels.rowwise;
    const Norm& norm = role == Role::kQuery ? norms.query : norms.key;
    const float factor = role == Role::kQuery ? query_factor(step, token) : 1.0f;
    const bool is_normed_last = norm.exists() && norms.are_behind;
    if (norm.exists() && !norms.are_behind) norm.apply(rowwise, values, values);
    if (norms.clip != 0.0f) rowwise.clip(norms.clip, count * head_dim, values);
    for (int64_t head = 0; head < count; ++head)
        rotation.apply(step, token, is_normed_last ? 1.0f : factor, head_dim, values + head * head_dim);
    if (is_normed_last) {
        norm.apply(rowwise, values, values);
        if (factor != 1.0f) rowwise.scale(factor, count * head_dim, values);
    }
    if (role == Role::kKey) keep(step, token, role, first, count, values);
}

// What a query is multiplied by, so that scores are products.
float Attention::query_factor(const Step& step, int64_t token) const {
    if (temperature < 0) return scale;
    return scale * step.slice.pass->temperatures[static_cast<size_t>(temperature)][step.slice.first + token];
}

// Into the cache: keys as they are, values normed where there is such a norm.
void Attention::keep(const Step& step, int64_t token, Role role, int64_t first, int64_t count,
                     const float* values) const {
    const auto& [sequence, position] = step.slice.tokens[token];
    const bool is_value = role == Role::kValue;
    for (int64_t head = 0; head < count; ++head, values += head_dim) {
        const float* kept = values;
        if (is_value && (norms.value.exists() || norms.clip != 0.0f)) {
            float* row = step.own.row.data();
            norms.value.put(step.kernels.rowwise, values, head_dim, row);
            if (norms.clip != 0.0f) step.kernels.rowwise.clip(norms.clip, head_dim, row);
            kept = row;
        }
        sequence->cache.write(layer, is_value, first + head, position, kept, head_dim);
    }
}

}  // namespace mxconv
