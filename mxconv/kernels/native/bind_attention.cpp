// Attention as Python describes it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "attention.hpp"
#include "bindings.hpp"
#include "latent.hpp"

namespace mxconv {

namespace {

constexpr int64_t kMost = 1 << 20;  // heads, numbers of a head, layers

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
    require_that(a.num_key_value_heads >= 1 && a.num_heads >= 1 && a.num_heads % a.num_key_value_heads == 0,
                 "num_heads must be a multiple of num_key_value_heads");
    require_that(a.head_dim >= 1 && a.head_dim <= kMost && a.num_heads <= kMost, "heads of impossible sizes");
    require_that(a.layer >= 0 && a.layer <= kMost && a.source >= 0 && a.source <= a.layer,
                 "source must be the layer's own number or one before it");
    require_that(a.rotation.table < 0 || (a.rotation.num_pairs >= 1 && 2 * a.rotation.num_pairs <= a.head_dim),
                 "more pairs rotate than a head has");
    require_that(a.sight.window >= 0, "window must be 0 (all) or more");
    require_that(a.sight.sink >= 0 && a.sight.recent >= 0, "sink and recent must be 0 or more");
    require_that(a.sight.pages == 0 || (a.sight.pages > 0 && a.sight.window == 0 && a.sight.recent >= kTreeTokens),
                 "pages are retrieved before the last 64 positions, without another window");
    require_that(a.fused != Fused::kHeads || a.num_heads == a.num_key_value_heads,
                 "heads that are fused one by one have a key and a value each");
    require_that(!a.sight.is_chunked || a.sight.window > 0, "chunks need a window");
    require_that(a.norms.clip >= 0.0f, "clip must be 0 (none) or more");
    require_that(!a.is_gated || (a.fused == Fused::kNone && !a.norms.span_rows),
                 "gates lie between queries that are neither fused nor normed together");
}

PartPointer make_attention(int64_t layer, int64_t source, int64_t num_heads, int64_t num_key_value_heads,
                           int64_t head_dim, const Projection& query, const MaybeProjection& key,
                           const MaybeProjection& value, const Projection& output,
                           const std::optional<std::string>& fused, double scale, const Sight& sight,
                           const BoundHeadNorms& norms, const HeadRotation& rotation, int64_t temperature,
                           double logit_cap, bool is_gated, const MaybeVector& sinks) {
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

PartPointer make_latent(int64_t layer, const MaybeProjection& query_down, const MaybeNorm& query_norm,
                        const Projection& query, const Projection& down, const Norm& latent_norm,
                        const Array<float>& key_up, const Array<float>& value_up, const Projection& output,
                        double scale, const Sight& sight, const HeadRotation& rotation) {
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
    a->sight = sight;
    a->rotation = rotation;
    require_that(layer >= 0 && layer <= kMost, "a layer of an impossible number");
    require_that(sight.pages == 0, "latent vectors are not retrieved");
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

void bind_attention(nb::module_& module) {
    nb::class_<Sight> sight(
        module, "Sight",
        "How many positions a token sees: the last `window` (0: all), and of these the first `sink` "
        "and the last `recent` (0: all), and so many `pages` between them (0: none). Chunks begin at the multiples of "
        "`window`.");
    define_members<int64_t, int64_t, int64_t, bool, int64_t>(sight,
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
         "scale", "sight", "norms", "rotation", "temperature", "logit_cap", "is_gated", "sinks"},
        nb::kw_only(),
        "Attention over the cache of layer `source`, into which it writes where that is `layer`. Without `value` "
        "values are the keys. temperature -1 is none, as is logit_cap 0. Gated queries have a gate after each. Sinks "
        "(num_heads,) are scores that take a share of attention and give nothing.");
    define<0>(
        module, "latent_attention", &make_latent,
        {"layer", "query_down", "query_norm", "query", "down", "latent_norm", "key_up", "value_up", "output", "scale",
         "sight", "rotation"},
        nb::kw_only(),
        "Attention over latent vectors, which the cache holds with a rotated key each in the place of keys. key_up is "
        "(heads, plain_size, latent_size), value_up (heads, value_size, latent_size).");
}

}  // namespace mxconv
