// The MLP as Python describes it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bound_parts.hpp"
#include "mlp.hpp"

namespace mxconv {

namespace {

BoundPart make_mlp(const std::string& activation, const MaybeProjection& gate, const MaybeProjection& up,
                   const BoundProjection& down, const MaybeProjection& row_gate, bool is_fused, int64_t layer_input) {
    BoundPart made;
    auto mlp = std::make_shared<Mlp>();
    mlp->activation = activation_of(activation);
    mlp->size = down.projection.matrix->columns;
    mlp->is_fused = is_fused;
    mlp->layer_input = layer_input;
    if (!gate && !up) throw nb::value_error("an MLP needs a matrix that takes rows in");
    if (is_fused && !(gate && up)) throw nb::value_error("what is fused is both gate and up");
    if (gate && !up && layer_input < 0) throw nb::value_error("a gate alone needs the layer's own inputs");
    const int64_t hidden = down.projection.matrix->rows, inner = (is_fused ? 2 : 1) * mlp->size;
    mlp->gate = projection_of(gate, "gate", inner, hidden, made.owners);
    mlp->up = projection_of(up, "up", inner, hidden, made.owners);
    mlp->down = projection_of(down, "down", hidden, mlp->size, made.owners);
    mlp->row_gate = projection_of(row_gate, "row_gate", 1, hidden, made.owners);
    made.part = std::move(mlp);
    return made;
}

}  // namespace

void bind_mlp(nb::module_& module) {
    module.def("mlp", &make_mlp, nb::kw_only(), nb::arg("activation"), nb::arg("gate").none(), nb::arg("up").none(),
               nb::arg("down"), nb::arg("row_gate").none(), nb::arg("is_fused"), nb::arg("layer_input"),
               "An MLP; without `up` the layer's inputs of that number stand for what it would give. The sigmoid of a "
               "row gate multiplies what is made of a row.");
}

}  // namespace mxconv
