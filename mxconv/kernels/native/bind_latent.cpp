// Latent attention as Python describes it.
#include <nanobind/stl/optional.h>

#include "bound_parts.hpp"
#include "latent.hpp"

namespace mxconv {

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
        throw nb::value_error("more pairs rotate than there are behind latent vectors");
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
    module.def("latent_attention", &make_latent, nb::kw_only(), nb::arg("layer"), nb::arg("query_down").none(),
               nb::arg("query_norm").none(), nb::arg("query"), nb::arg("down"), nb::arg("latent_norm"),
               nb::arg("key_up").noconvert(), nb::arg("value_up").noconvert(), nb::arg("output"), nb::arg("scale"),
               nb::arg("sight"), nb::arg("rotation"),
               "Attention over latent vectors, which the cache holds with a rotated key each in the place of keys. "
               "key_up is (heads, plain_size, latent_size), value_up (heads, value_size, latent_size).");
}

}  // namespace mxconv
