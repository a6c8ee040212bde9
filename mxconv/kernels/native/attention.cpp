// The attention of a layer: from rows to what it adds to them, over keys and values that caches hold.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "bindings.hpp"
#include "parts.hpp"
#include "pass.hpp"
#include "retrieval.hpp"
#include "step.hpp"

namespace mxconv {

namespace {

// Of queries, keys and values; each may be none.
struct HeadNorms {
    Norm query, key, value;
    bool span_rows;   // queries and keys: all heads of a row together
    bool are_behind;  // queries and keys: after their rotation
    float clip;       // which queries, keys and values are kept within before they rotate; 0: none
};

// How one matrix holds queries, keys and values: "blocks" of them, or a query, a key and a value a head.
enum class Fused { kBlocks, kHeads, kNone };

struct Attention final : Part {
    int64_t layer;   // of the cache that it writes
    int64_t source;  // and reads: its own, or that of a layer before, when it has neither keys nor values
    int64_t num_heads, num_key_value_heads, head_dim;
    Projection query;       // or all three
    Projection key, value;  // none where they are fused or another layer's, values too where they are the keys
    Projection output;
    Fused fused;
    float scale;  // of a query times a key
    AttentionPattern pattern;
    HeadNorms norms;
    HeadRotation rotation;
    int64_t temperature;  // which of the pass's, that multiply queries; -1: none
    float logit_cap;      // 0: none
    const float* sinks;   // (num_heads): see AttentionQueries; or null
    bool is_gated;        // a gate lies after each query, whose sigmoid multiplies what the head gives

    // From one query to the next.
    int64_t query_dim() const { return is_gated ? 2 * head_dim : head_dim; }
    int64_t head_stride() const { return fused == Fused::kHeads ? 3 * head_dim : query_dim(); }

    Demands demands() const override {
        Demands demands{output.rows(), query.matrix->columns, layer + 1, num_key_value_heads, head_dim};
        demands.rotation = rotation.table;
        demands.num_pairs = rotation.num_pairs;
        demands.temperature = temperature;
        demands.retrieves = pattern.pages > 0;
        return demands;
    }

    int forms() const override { return query.form() | key.form() | value.form(); }
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override {
        Room room = step.room();
        Memory m = memory(room, step.slice);
        m.mixed.finite = step.finite;
        project(step, taken, m);
        if (norms.span_rows) place_rows(step, m);
        if (pattern.pages > 0) put_key_ranges(step, source, num_key_value_heads);
        attend(step, m);
        step.add_product(output, m.mixed, sum, m.products);
    }

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

    Memory memory(Room& room, const Slice& slice) const {
        const int64_t tokens = slice.num_tokens, columns = num_heads * head_dim;
        Memory m{};
        m.width = query.rows() + key.rows() + value.rows();
        m.projected = room.shared.take<float>(tokens * m.width);
        m.mixed = room.shared.activations(tokens, columns, output.form());
        m.products = room.shared.take<float>(tokens * output.rows());
        m.rows = room.own.take<float>(tokens_together() * columns);
        m.shares = room.own.take<float>(kAttentionRows * (slice.most_visible + kAttentionChunk));
        m.others = room.own.take<int32_t>(tokens_together() * pattern.most_others(slice.most_visible));
        if (pattern.pages > 0) m.retrieval = Retrieval::take(room.own, head_dim, slice.most_visible);
        return m;
    }

    bool has_keys() const { return source == layer; }
    bool keys_are_values() const { return has_keys() && fused == Fused::kNone && !value.exists(); }
    // How many tokens share a reading of keys and values, at most.
    int64_t tokens_together() const { return std::max<int64_t>(1, kAttentionRows * num_key_value_heads / num_heads); }

    // Queries, keys and values as one operator. Pieces are whole heads, so that whoever multiplied them can rotate them.
    void project(Step& step, const Activations& taken, const Memory& m) const {
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
    void attend(Step& step, const Memory& m) const {
        const int64_t group = num_heads / num_key_value_heads;
        const int64_t fewest = kBlock / std::gcd(head_dim, kBlock), grouped = std::lcm(fewest, group);
        const auto together = [&](int64_t) { return tokens_together(); };
        step.attend(pattern, {num_heads, fewest, grouped}, m.others, together,
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
                            if (pattern.pages == 0) {
                                attend(queries, kept, head_dim, logit_cap, seen, m.shares, out);
                                continue;
                            }
                            queries.num_tokens = 1;
                            kept.key_pages = kept.value_pages = m.retrieval.pages;
                            for (int64_t t = at.token; t < at.end; ++t, queries.values += m.width, out += columns) {
                                const Visible found =
                                    m.retrieval.choose(step, t, pattern, source, head / group,
                                                       of_group(t, head / group, m), seen[t - at.token]);
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

    // The queries of a token that share a head of keys.
    HeadQueries of_group(int64_t token, int64_t key_head, const Memory& m) const {
        const int64_t group = num_heads / num_key_value_heads;
        return {m.projected + token * m.width + key_head * group * head_stride(), group, head_stride(), head_dim};
    }

    // What heads [first, last) of a token gave, by their gates.
    void gate(const Step& step, int64_t token, int64_t first, int64_t last, const Memory& m, float* heads) const {
        const auto activate = step.kernels.rowwise.activate[static_cast<int>(Activation::kSigmoid)];
        for (int64_t head = first; head < last; ++head, heads += head_dim) {
            activate(m.projected + token * m.width + head * query_dim() + head_dim, heads, head_dim, heads);
        }
    }

    // A head by its number among those that the matrices give: all queries, each perhaps with a gate after it, then keys, then
    // values; or one of each in turn.
    void place_head(const Step& step, int64_t token, int64_t number, float* values) const {
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
        place(step, token, is_key ? Role::kKey : Role::kValue, is_key ? number : number - num_key_value_heads, 1,
              values);
    }

    // All heads of a row together, after a barrier: a norm needs them all. Those that are fused one by one are put side by side.
    void place_rows(Step& step, const Memory& m) const {
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
    void place(const Step& step, int64_t token, Role role, int64_t first, int64_t count, float* values) const {
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
    float query_factor(const Step& step, int64_t token) const {
        if (temperature < 0) return scale;
        return scale * step.slice.pass->temperatures[static_cast<size_t>(temperature)][step.slice.first + token];
    }

    // Into the cache: keys as they are, values normed where there is such a norm.
    void keep(const Step& step, int64_t token, Role role, int64_t first, int64_t count, const float* values) const {
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
};

// ---- what is done to queries, keys and values between their matrices and the attention ----

constexpr int64_t kMost = 1 << 20;  // heads, numbers of a head, layers

struct BoundHeadNorms {
    MaybeNorm query, key, value;
    bool span_rows, are_behind;
    double clip;
};

void check_heads(const Attention& a) {
    require_that(a.num_key_value_heads >= 1 && a.num_heads >= 1 && a.num_heads % a.num_key_value_heads == 0,
                 "num_heads must be a multiple of num_key_value_heads");
    require_that(a.head_dim >= 1 && a.head_dim <= kMost && a.num_heads <= kMost, "heads of impossible sizes");
    require_that(a.layer >= 0 && a.layer <= kMost && a.source >= 0 && a.source <= a.layer,
                 "source must be the layer's own number or one before it");
    require_that(a.rotation.table < 0 || (a.rotation.num_pairs >= 1 && 2 * a.rotation.num_pairs <= a.head_dim),
                 "more pairs rotate than a head has");
    require_that(a.pattern.window >= 0, "window must be 0 (all) or more");
    require_that(a.pattern.sink >= 0 && a.pattern.recent >= 0, "sink and recent must be 0 or more");
    require_that(
        a.pattern.pages == 0 || (a.pattern.pages > 0 && a.pattern.window == 0 && a.pattern.recent >= kTreeTokens),
        "pages are retrieved before the last 64 positions, without another window");
    require_that(a.fused != Fused::kHeads || a.num_heads == a.num_key_value_heads,
                 "heads that are fused one by one have a key and a value each");
    require_that(!a.pattern.is_chunked || a.pattern.window > 0, "chunks need a window");
    require_that(a.norms.clip >= 0.0f, "clip must be 0 (none) or more");
    require_that(!a.is_gated || (a.fused == Fused::kNone && !a.norms.span_rows),
                 "gates lie between queries that are neither fused nor normed together");
}

PartPointer make_attention(int64_t layer, int64_t source, int64_t num_heads, int64_t num_key_value_heads,
                           int64_t head_dim, const Projection& query, const MaybeProjection& key,
                           const MaybeProjection& value, const Projection& output,
                           const std::optional<std::string>& fused, double scale, const AttentionPattern& pattern,
                           const BoundHeadNorms& norms, const HeadRotation& rotation, int64_t temperature,
                           double logit_cap, bool is_gated, const MaybeVector& sinks) {
    auto a = std::make_shared<Attention>();
    a->layer = layer;
    a->source = source;
    a->num_heads = num_heads;
    a->num_key_value_heads = num_key_value_heads;
    a->head_dim = head_dim;
    a->fused = named<Fused>("fused", fused.value_or("None"), {"blocks", "heads", "None"});
    a->scale = static_cast<float>(scale);
    a->pattern = pattern;
    a->rotation = rotation;
    a->temperature = temperature;
    a->logit_cap = static_cast<float>(logit_cap);
    a->is_gated = is_gated;
    a->norms = {{}, {}, {}, norms.span_rows, norms.are_behind, static_cast<float>(norms.clip)};
    check_heads(*a);
    const bool is_fused = a->fused != Fused::kNone, has_keys = source == layer;
    require_that(!(is_fused || !has_keys) || !(key || value), "keys or values of one too many");
    require_that(!is_fused || has_keys, "what is fused has keys of its own");
    require_that(is_fused || !has_keys || key, "keys are neither the layer's own nor another's");
    const int64_t taken = query.matrix->columns, queries = num_heads * head_dim, keys = num_key_value_heads * head_dim;
    a->query = projection_of(query, "query", is_fused ? queries + 2 * keys : num_heads * a->query_dim(), taken);
    a->key = projection_of(key, "key", keys, taken);
    a->value = projection_of(value, "value", keys, taken);
    a->output = projection_of(output, "output", -1, queries);
    a->norms.query = norm_of(norms.query, "query_norm", norms.span_rows ? queries : head_dim);
    a->norms.key = norm_of(norms.key, "key_norm", norms.span_rows ? keys : head_dim);
    a->norms.value = norm_of(norms.value, "value_norm", head_dim);
    a->sinks = vector_of(sinks, "sinks", num_heads);
    return a;
}

}  // namespace

void bind_attention(nb::module_& module) {
    nb::class_<AttentionPattern> pattern(
        module, "AttentionPattern",
        "How many positions a token sees: the last `window` (0: all), and of these the first `sink` "
        "and the last `recent` (0: all), and so many `pages` between them (0: none). Chunks begin at the multiples of "
        "`window`.");
    define_members<int64_t, int64_t, int64_t, bool, int64_t>(pattern,
                                                             {"window", "sink", "recent", "is_chunked", "pages"});
    nb::class_<HeadRotation> rotation(module, "HeadRotation", "Which of the pass's rotations turns heads; -1: none.");
    define_members<int64_t, int64_t, bool>(rotation, {"table", "num_pairs", "is_interleaved"});
    nb::class_<BoundHeadNorms> norms(module, "HeadNorms",
                                     "Norms of queries, keys and values; each may be None. clip 0 is none.");
    define_members<MaybeNorm, MaybeNorm, MaybeNorm, bool, bool, double>(
        norms, {"query", "key", "value", "span_rows", "are_behind", "clip"});
    define<0>(
        module, "attention", &make_attention,
        {"layer", "source", "num_heads", "num_key_value_heads", "head_dim", "query", "key", "value", "output", "fused",
         "scale", "pattern", "norms", "rotation", "temperature", "logit_cap", "is_gated", "sinks"},
        nb::kw_only(),
        "Attention over the cache of layer `source`, into which it writes where that is `layer`. Without `value` "
        "values are the keys. temperature -1 is none, as is logit_cap 0. Gated queries have a gate after each. Sinks "
        "(num_heads,) are scores that take a share of attention and give nothing.");
}

}  // namespace mxconv
