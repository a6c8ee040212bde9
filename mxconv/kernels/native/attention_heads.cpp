// What is done to queries, keys and values between their matrices and the attention: norms, rotations, and the way into
// the caches.
#include <cstring>

#include "attention.hpp"
#include "step.hpp"

namespace mxconv {

// A head by its number among those that the matrices give: all queries, each perhaps with a gate behind it, then keys, then
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

// All heads of a row together, behind a barrier: a norm needs them all. Those that are fused one by one are put side by side.
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
        rotate(step, token, is_normed_last ? 1.0f : factor, values + head * head_dim);
    if (is_normed_last) {
        norm.apply(rowwise, values, values);
        if (factor != 1.0f) rowwise.scale(factor, count * head_dim, values);
    }
    if (role == Role::kKey) keep(step, token, role, first, count, values);
}

// A head rotated by its position, and multiplied by a factor.
void Attention::rotate(const Step& step, int64_t token, float factor, float* values) const {
    const Rowwise& rowwise = step.kernels.rowwise;
    int64_t rotated = 0;
    if (rotation.table >= 0) {
        const Rotations& r = step.slice.pass->rotations[static_cast<size_t>(rotation.table)];
        const int64_t at = (step.slice.first + token) * r.num_pairs;
        const auto turn = rotation.is_interleaved ? rowwise.rotate_neighbours : rowwise.rotate;
        turn(r.cosines + at, r.sines + at, r.num_pairs, factor, values);
        rotated = 2 * r.num_pairs;
    }
    if (factor != 1.0f && rotated < head_dim) rowwise.scale(factor, head_dim - rotated, values + rotated);
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
