// Attention as Python describes it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "attention.hpp"
#include "bound_parts.hpp"
#include "define.hpp"
#include "latent.hpp"

namespace mxconv {

namespace {

struct BoundHeadNorms {
    MaybeNorm query, key, value;
    bool span_rows, are_behind;
    double clip;
};

Fused fused_of(const std::optional<std::string>& name) {
    if (!name) return Fused::kNone;
    if (*name == "blocks") return Fused::kBlocks;
    if (*name == "heads") return Fused::kHeads;
    throw nb::value_error("fused must be blocks, heads or None");
}

void check_heads(const Attention& a) {
    constexpr int64_t kMost = 1 << 20;
    if (a.num_key_value_heads < 1 || a.num_heads < 1 || a.num_heads % a.num_key_value_heads) {
        throw nb::value_error("num_heads must be a multiple of num_key_value_heads");
    }
    if (a.head_dim < 1 || a.head_dim > kMost || a.num_heads > kMost) throw nb::value_error("heads of impossible sizes");
    if (a.layer < 0 || a.layer > kMost || a.source < 0 || a.source > a.layer) {
        throw nb::value_error("source must be the layer's own number or one before it");
    }
    if (a.rotation.table >= 0 && (a.rotation.num_pairs < 1 || 2 * a.rotation.num_pairs > a.head_dim)) {
        throw nb::value_error("more pairs rotate than a head has");
    }
    if (a.sight.window < 0) throw nb::value_error("window must be 0 (all) or more");
    if (a.sight.sink < 0 || a.sight.recent < 0) throw nb::value_error("sink and recent must be 0 or more");
    if (a.fused == Fused::kHeads && a.num_heads != a.num_key_value_heads) {
        throw nb::value_error("heads that are fused one by one have a key and a value each");
    }
    if (a.sight.is_chunked && a.sight.window == 0) throw nb::value_error("chunks need a window");
    if (!(a.norms.clip >= 0.0f)) throw nb::value_error("clip must be 0 (none) or more");
    if (a.is_gated && (a.fused != Fused::kNone || a.norms.span_rows)) {
        throw nb::value_error("gates lie between queries that are neither fused nor normed together");
    }
}

BoundPart make_attention(int64_t layer, int64_t source, int64_t num_heads, int64_t num_key_value_heads,
                         int64_t head_dim, const BoundProjection& query, const MaybeProjection& key,
                         const MaybeProjection& value, const BoundProjection& output,
                         const std::optional<std::string>& fused, double scale, const Sight& sight,
                         const BoundHeadNorms& norms, const HeadRotation& rotation, int64_t temperature,
                         double logit_cap, bool is_gated, const std::optional<Array<float>>& sinks) {
    BoundPart made;
    auto a = std::make_shared<Attention>();
    a->layer = layer;
    a->source = source;
    a->num_heads = num_heads;
    a->num_key_value_heads = num_key_value_heads;
    a->head_dim = head_dim;
    a->fused = fused_of(fused);
    a->scale = static_cast<float>(scale);
    a->sight = sight;
    a->rotation = rotation;
    a->temperature = temperature;
    a->logit_cap = static_cast<float>(logit_cap);
    a->is_gated = is_gated;
    a->norms.span_rows = norms.span_rows;
    a->norms.are_behind = norms.are_behind;
    a->norms.clip = static_cast<float>(norms.clip);
    check_heads(*a);
    const bool is_fused = a->fused != Fused::kNone, has_keys = source == layer;
    if ((is_fused || !has_keys) && (key || value)) throw nb::value_error("keys or values of one too many");
    if (is_fused && !has_keys) throw nb::value_error("what is fused has keys of its own");
    if (!is_fused && has_keys && !key) throw nb::value_error("keys are neither the layer's own nor another's");
    const int64_t hidden = output.projection.matrix->rows;
    const int64_t queries = num_heads * head_dim, keys = num_key_value_heads * head_dim;
    a->query =
        projection_of(query, "query", is_fused ? queries + 2 * keys : num_heads * a->query_dim(), hidden, made.owners);
    a->key = projection_of(key, "key", keys, hidden, made.owners);
    a->value = projection_of(value, "value", keys, hidden, made.owners);
    a->output = projection_of(output, "output", hidden, queries, made.owners);
    a->norms.query = norm_of(norms.query, "query_norm", norms.span_rows ? queries : head_dim, made.owners);
    a->norms.key = norm_of(norms.key, "key_norm", norms.span_rows ? keys : head_dim, made.owners);
    a->norms.value = norm_of(norms.value, "value_norm", head_dim, made.owners);
    a->sinks = vector_of(sinks, "sinks", num_heads, made.owners);
    made.part = std::move(a);
    return made;
}

Sight make_sight(int64_t window, int64_t sink, int64_t recent, bool is_chunked) {
    return {window, sink, recent, is_chunked};
}

HeadRotation make_rotation(int64_t table, int64_t num_pairs, bool is_interleaved) {
    return {table, num_pairs, is_interleaved};
}

BoundHeadNorms make_norms(const MaybeNorm& query, const MaybeNorm& key, const MaybeNorm& value, bool span_rows,
                          bool are_behind, double clip) {
    return {query, key, value, span_rows, are_behind, clip};
}

}  // namespace

void bind_attention(nb::module_& module) {
    nb::class_<Sight> sight(
        module, "Sight",
        "How many positions a token sees: the last `window` (0: all), and of these the first `sink` "
        "and the last `recent` (0: all). Chunks begin at the multiples of `window`.");
    define_init(sight, &make_sight, {"window", "sink", "recent", "is_chunked"});
    nb::class_<HeadRotation> rotation(module, "HeadRotation", "Which of the pass's rotations turns heads; -1: none.");
    define_init(rotation, &make_rotation, {"table", "num_pairs", "is_interleaved"});
    nb::class_<BoundHeadNorms> norms(module, "HeadNorms",
                                     "Norms of queries, keys and values; each may be None. clip 0 is none.");
    define_init(norms, &make_norms, {"query", "key", "value", "span_rows", "are_behind", "clip"});
    define(
        module, "attention", &make_attention,
        {"layer", "source", "num_heads", "num_key_value_heads", "head_dim", "query", "key", "value", "output", "fused",
         "scale", "sight", "norms", "rotation", "temperature", "logit_cap", "is_gated", "sinks"},
        nb::kw_only(),
        "Attention over the cache of layer `source`, into which it writes where that is `layer`. Without `value` "
        "values are the keys. temperature -1 is none, as is logit_cap 0. Gated queries have a gate after each. Sinks "
        "(num_heads,) are scores that take a share of attention and give nothing.");
}

namespace {

BoundPart make_latent(int64_t layer, const MaybeProjection& query_down, const MaybeNorm& query_norm,
                      const BoundProjection& query, const BoundProjection& down, const BoundNorm& latent_norm,
                      const Array<float>& key_up, const Array<float>& value_up, const BoundProjection& output,
                      double scale, const Sight& sight, const HeadRotation& rotation) {
    constexpr int64_t kMost = 1 << 20;
    BoundPart made;
    auto a = std::make_shared<LatentAttention>();
    require(key_up, "key_up", {-1, -1, -1});
    const auto size = [](const Array<float>& array, size_t axis) { return static_cast<int64_t>(array.shape(axis)); };
    a->layer = layer;
    a->num_heads = size(key_up, 0);
    a->plain_size = size(key_up, 1);
    a->latent_size = size(key_up, 2);
    require(value_up, "value_up", {a->num_heads, -1, a->latent_size});
    a->value_size = size(value_up, 1);
    a->rotated_size = down.projection.rows() - a->latent_size;
    a->scale = static_cast<float>(scale);
    a->sight = sight;
    a->rotation = rotation;
    if (layer < 0 || layer > kMost) throw nb::value_error("a layer of an impossible number");
    if (a->num_heads < 1 || a->plain_size < 1 || a->latent_size < 1 || a->value_size < 1) {
        throw nb::value_error("heads of impossible sizes");
    }
    if (rotation.table < 0 || rotation.num_pairs < 1 || 2 * rotation.num_pairs > a->rotated_size) {
        throw nb::value_error("more pairs rotate than there are after latent vectors");
    }
    const int64_t hidden = output.projection.rows();
    const int64_t rank = query_down ? query_down->projection.rows() : hidden;
    a->query_down = projection_of(query_down, "query_down", rank, hidden, made.owners);
    a->query_norm = norm_of(query_norm, "query_norm", rank, made.owners);
    a->query = projection_of(query, "query", a->num_heads * (a->plain_size + a->rotated_size), rank, made.owners);
    a->down = projection_of(down, "down", -1, hidden, made.owners);
    a->latent_norm = norm_of(latent_norm, "latent_norm", a->latent_size, made.owners);
    a->key_up = key_up.data();
    a->value_up = value_up.data();
    for (const Array<float>& array : {key_up, value_up}) made.owners.push_back(nb::cast(array));
    a->output = projection_of(output, "output", hidden, a->num_heads * a->value_size, made.owners);
    made.part = std::move(a);
    return made;
}

}  // namespace

void bind_latent(nb::module_& module) {
    define(
        module, "latent_attention", &make_latent,
        {"layer", "query_down", "query_norm", "query", "down", "latent_norm", "key_up", "value_up", "output", "scale",
         "sight", "rotation"},
        nb::kw_only(),
        "Attention over latent vectors, which the cache holds with a rotated key each in the place of keys. key_up is "
        "(heads, plain_size, latent_size), value_up (heads, value_size, latent_size).");
}

}  // namespace mxconv
