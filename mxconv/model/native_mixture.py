"""Experts as the native decoder takes them: handles of every expert, of which a pass reads those that rows chose.

What is shared by all rows is an MLP beside them, which takes in the same rows.
"""

from mxconv.kernels import _native
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.native_matrix import NativeMatrix
from mxconv.model.expert_matrices import ExpertMatrices
from mxconv.model.experts import WeightedMixture
from mxconv.model.native_vectors import native_norm, native_projection, native_vector
from mxconv.model.norm import WeightedNorm
from mxconv.model.stored_experts import DeferredMatrix

Expert = tuple[_native.Projection, _native.Projection | None, _native.Projection]


def native_mixture(mixture: WeightedMixture, before: WeightedNorm | None) -> _native.Part:
    """The experts of a layer behind its norm; at least one is chosen."""
    norm, routing, router = native_norm(before), mixture.parts.routing, mixture.router
    assert norm is not None, "what `missing_parts` names runs on NumPy"
    return _native.mixture(
        activation=mixture.parts.experts.activation,
        norm=norm,
        router=native_projection(router.projection),
        experts=[_expert(mixture.experts, number) for number in range(routing.num_experts)],
        num_chosen=mixture.num_chosen,
        score=routing.score,
        is_normalized=routing.is_normalized,
        correction=None if router.correction is None else native_vector(router.correction),
        groups=(routing.num_groups, routing.num_chosen_groups),
        multiplier=routing.multiplier,
    )


def _expert(experts: ExpertMatrices, number: int) -> Expert:
    down = _projection(experts.back(number))
    if experts.both is not None:
        return _projection(experts.both(number)), None, down
    assert experts.gate is not None and experts.up is not None
    return _projection(experts.gate(number)), _projection(experts.up(number)), down


def _projection(matrix: Matrix) -> _native.Projection:
    made = matrix.matrix if isinstance(matrix, DeferredMatrix) else matrix
    assert isinstance(made, NativeMatrix), "made of native matrices"
    return _native.Projection(made.handle, None)
