"""Matrices, biases and norms as the native decoder takes them."""

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.norm import WeightedNorm
from mxconv.engine.projection import Projection
from mxconv.kernels import _native
from mxconv.kernels.native_matrix import NativeMatrix


def native_projection(projection: Projection) -> _native.Projection:
    """A matrix and its bias."""
    bias = None if projection.bias is None else native_vector(projection.bias)
    return _native.Projection(native_handle(projection), bias)


def native_handle(projection: Projection) -> _native.Matrix:
    """The matrix alone."""
    assert isinstance(projection.matrix, NativeMatrix), "made of native matrices"
    return projection.matrix.handle


def native_norm(norm: WeightedNorm | None) -> _native.Norm | None:
    """A norm, if there is one."""
    if norm is None:
        return None
    bias = None if norm.bias is None else native_vector(norm.bias)
    return _native.Norm(native_vector(norm.weight), bias, norm.parts.eps, norm.parts.kind == "layer")


def native_vector(values: F32) -> F32:
    """As kernels read it."""
    return np.require(values, np.float32, ["C", "A"])
