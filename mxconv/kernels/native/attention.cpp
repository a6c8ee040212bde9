#include "attention.hpp"

#include <algorithm>
#include <numeric>

#include "step.hpp"

namespace mxconv {

Demands Attention::demands() const {
    Demands demands{output.rows(), layer + 1, num_key_value_heads, head_dim};
    demands.rotation = rotation.table;
    demands.num_pairs = rotation.num_pairs;
    demands.temperature = temperature;
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
    return m;
}

void Attention::add_to_rows(Step& step, const Activations& taken, const Sum& sum) const {
    Room room = step.room();
    Memory m = memory(room, step.slice);
    m.mixed.finite = step.finite;
    project(step, taken, m);
    if (norms.span_rows) place_rows(step, m);
    attend(step, m);
    step.add_product(output, m.mixed, sum, m.products);
}

// Queries, keys and values as one operator. Pieces are whole heads, so that whoever multiplied them can rotate them.
void Attention::project(Step& step, const Activations& taken, const Memory& m) const {
    const Projection* projections[3] = {&query, &key, &value};
    int64_t counts[3], at_once[3], columns[3], total = 0, width = 0;
    for (int which = 0; which < 3; ++which) {
        const Projection& each = *projections[which];
        columns[which] = width;
        counts[which] = 0;
        if (!each.exists()) continue;
        const int64_t whole = which == 0 ? query_dim() : head_dim;
        at_once[which] = step.tiles_at_once(*each.matrix, std::lcm(whole, kTileRows) / kTileRows);
        counts[which] = ceil_divide(each.matrix->row_tiles(), at_once[which]);
        total += counts[which];
        width += each.rows();
    }
    step.share(total, [&](int64_t i) {
        int which = 0;
        while (i >= counts[which]) i -= counts[which++];
        const Projection& each = *projections[which];
        const int64_t first = i * at_once[which], last = std::min(first + at_once[which], each.matrix->row_tiles());
        const int64_t row = first * kTileRows, count = std::min(last * kTileRows, each.rows()) - row;
        step.kernels.linear(*each.matrix, taken, first, last, m.projected + columns[which], m.width);
        for (int64_t token = 0; token < step.slice.num_tokens; ++token) {
            float* values = m.projected + token * m.width + columns[which] + row;
            if (each.bias != nullptr) step.kernels.rowwise.add(each.bias + row, count, values);
            if (norms.span_rows) continue;
            const int64_t number = (columns[which] + row) / head_dim;
            for (int64_t head = 0; head < count / head_dim; ++head)
                place_head(step, token, number + head, values + head * head_dim);
        }
    });
}

// Attention by tokens and heads. A unit of heads fills whole blocks of 32 columns, so that it can be prepared at once, and
// where that leaves every thread enough units it has all heads that share keys and values, for some tokens whose positions
// begin together: keys and values are read once for all of them.
void Attention::attend(Step& step, const Memory& m) const {
    const Slice& slice = step.slice;
    const int64_t num_tokens = slice.num_tokens, group = num_heads / num_key_value_heads;
    const int64_t fewest = kBlock / std::gcd(head_dim, kBlock), grouped = std::lcm(fewest, group);
    const int64_t enough = 2 * step.num_threads();
    const int64_t unit = ceil_divide(num_heads, grouped) * num_tokens >= enough ? grouped : fewest;
    const int64_t units = ceil_divide(num_heads, unit);
    const int64_t together = std::max<int64_t>(1, std::min(tokens_together(), num_tokens * units / enough));
    const int64_t tiles = ceil_divide(num_tokens, together), most_others = sight.most_others(slice.most_visible);
    const int64_t head_stride = fused == Fused::kHeads ? 3 * head_dim : query_dim();
    step.share(units * tiles, [&](int64_t i) {
        const int64_t first = i / tiles * unit, last = std::min(first + unit, num_heads),
                      columns = (last - first) * head_dim;
        const int64_t end = std::min((i % tiles + 1) * together, num_tokens);
        for (int64_t token = i % tiles * together, next; token < end; token = next) {
            const SequenceTokens& sequence = *slice.tokens[token].sequence;
            const auto attend_rows = step.kernels.rowwise.attend[static_cast<int>(sequence.cache.dtype)];
            Visible seen[kAttentionRows];
            for (next = token; next < end && slice.tokens[next].sequence == &sequence; ++next) {
                seen[next - token] = sight.of(slice.tokens[next], m.others + (next - token) * most_others);
                if (seen[next - token].start != seen[0].start) break;
            }
            for (int64_t head = first, other; head < last; head = other) {
                other = std::min((head / group + 1) * group, last);
                const AttentionQueries queries{m.projected + token * m.width + head * head_stride,
                                               next - token,
                                               other - head,
                                               m.width,
                                               head_stride,
                                               columns,
                                               sinks != nullptr ? sinks + head : nullptr};
                attend_rows(queries, sequence.cache.of(source, head / group), head_dim, logit_cap, seen, m.shares,
                            m.rows + (head - first) * head_dim);
            }
            for (int64_t t = token; t < next; ++t) {
                if (is_gated) gate(step, t, first, last, m, m.rows + (t - token) * columns);
                step.kernels.prepare(m.rows + (t - token) * columns, t, first * head_dim, columns, output.form(),
                                     m.mixed);
            }
        }
    });
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

}  // namespace mxconv
