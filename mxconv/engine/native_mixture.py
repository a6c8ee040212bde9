"""Experts as the native decoder takes them: handles of every expert, of which a pass reads those that rows chose.

What is shared by all rows is an MLP beside them, which takes in the same rows.
"""

from dataclasses import replace

import numpy as np

from mxconv.engine.expert_matrices import ExpertMatrices
from mxconv.engine.experts import WeightedMixture
from mxconv.engine.native_vectors import native_norm, native_projection, native_vector
from mxconv.engine.norm import WeightedNorm
from mxconv.engine.routing import Router
from mxconv.engine.stored_experts import DeferredMatrix
from mxconv.kernels import _native
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.native_matrix import NativeMatrix

Expert = tuple[_native.Projection, _native.Projection | None, _native.Projection]


def native_mixture(mixture: WeightedMixture, before: WeightedNorm | None) -> _native.Part:
    """The experts of a layer behind its norm, or behind one of their own; at least one is chosen."""
    parts, router = mixture.parts.experts, mixture.router
    norm, routed = mixture.before_experts or before, router.norm or before
    is_apart = routed is not norm or router.input_weights is not None
    return _native.mixture(
        activation=parts.activation,
        clamped=None if parts.clamped is None else (parts.clamped.slope, parts.clamped.limit),
        is_interleaved=parts.is_interleaved,
        scales_input=mixture.parts.scales_input,
        norm=native_norm(norm),
        router_norm=_router_norm(routed, router) if is_apart else None,
        is_routed_apart=is_apart,
        routing=_routing(router, mixture.num_chosen),
        experts=[_expert(mixture.experts, number) for number in range(router.parts.num_experts)],
    )


def _router_norm(norm: WeightedNorm | None, router: Router) -> _native.Norm | None:
    """With the weights of what the router takes in."""
    if norm is not None and router.input_weights is not None:
        factors = router.input_weights * np.float32(router.parts.input_multiplier)
        bias = None if norm.bias is None else norm.bias * factors
        norm = replace(norm, weight=norm.weight * factors, bias=bias)
    return native_norm(norm)


def _routing(router: Router, num_chosen: int) -> _native.Routing:
    routing = router.parts
    return _native.Routing(
        router=native_projection(router.projection),
        num_chosen=num_chosen,
        score=routing.score,
        is_normalized=routing.is_normalized,
        correction=None if router.correction is None else native_vector(router.correction),
        groups=(routing.num_groups, routing.num_chosen_groups),
        multiplier=routing.multiplier,
        multipliers=None if router.multipliers is None else native_vector(router.multipliers),
    )


def _expert(experts: ExpertMatrices, number: int) -> Expert:
    down = _projection(experts.back(number), experts.back_bias, number)
    if experts.both is not None:
        return _projection(experts.both(number), experts.both_bias, number), None, down
    assert experts.gate is not None and experts.up is not None
    return _projection(experts.gate(number)), _projection(experts.up(number)), down


def _projection(matrix: Matrix, biases: Matrix | None = None, number: int = 0) -> _native.Projection:
    made = matrix.matrix if isinstance(matrix, DeferredMatrix) else matrix
    assert isinstance(made, NativeMatrix), "made of native matrices"
    bias = None if biases is None else native_vector(biases.rows(np.array([number]))[0])
    return _native.Projection(made.handle, bias)
