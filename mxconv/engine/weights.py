"""The tensors of a model by name, and what layers take of them: matrices with biases, norms, stacks of experts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.elements import Linear, Norm
from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place
from mxconv.errors import ModelError
from mxconv.kernels.matrix import Float32Matrix, Matrix
from mxconv.kernels.rowwise import rms_norm

Shaped = TypeVar("Shaped", Matrix, F32, "ExpertStack")
REMEDY = "Convert the checkpoint again, or take the config.json that belongs to it."


@dataclass(frozen=True, eq=False)
class DeferredMatrix:
    """A matrix that perhaps no pass reads, made when it is first used: memory-mapped weights of others stay unread."""

    shape: tuple[int, int]
    make: Callable[[], Matrix]

    @cached_property
    def matrix(self) -> Matrix:
        return self.make()

    def multiply(self, x: F32) -> F32:
        return self.matrix.multiply(x)

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return self.matrix.rows(indices)

    def turned(self) -> Matrix:
        return self.matrix.turned()


@dataclass(frozen=True, eq=False)
class ScreenedHead:
    """Implements `Matrix` for a draft: candidates have the logits of the head, all others their scores.

    `NativeDecoder` gives the matrices to the kernels; `multiply` is their reference. Normative text:
    formats/package.md, "Head screen".
    """

    projection: Matrix | None  # (rank, hidden_size); None: rows are scored as they are
    scores: Matrix  # (vocab_size, rank)
    head: Matrix  # (vocab_size, hidden_size), the target's
    num_candidates: int  # tiles of 16 tokens, whose highest scores bound the candidates'

    @property
    def shape(self) -> tuple[int, int]:
        return self.head.shape

    def multiply(self, x: F32) -> F32:
        from mxconv.codecs.screen_axes import candidates

        logits = self.scores.multiply(x if self.projection is None else self.projection.multiply(x))
        for row, taken in zip(logits, x, strict=True):
            (chosen,) = np.nonzero(candidates(row, self.num_candidates))
            row[chosen] = Float32Matrix(self.head.rows(chosen)).multiply(taken[None])[0]
        return logits

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return self.head.rows(indices)

    def turned(self) -> Matrix:
        return self.head.turned()


class ExpertStack:
    """The experts that one tensor holds, by number.

    Args:
        shape: (num_experts, out_features, in_features).
        make: the matrix of an expert; called once for each, when it is first asked for.
    """

    def __init__(self, shape: tuple[int, int, int], make: Callable[[int], Matrix]) -> None:
        self.shape = shape
        self._make = make
        self._made: dict[int, Matrix] = {}

    def matrix(self, expert: int) -> Matrix:
        """(out_features, in_features)."""
        if expert not in self._made:
            self._made[expert] = self._make(expert)
        return self._made[expert]


@dataclass(frozen=True)
class ModelWeights:
    """What a loader hands to a decoder, by the names of tensors.

    `lm_head.weight` is always among the matrices: with tied embeddings it is the same tensor, though perhaps in another
    format.
    """

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, F32]  # norms and biases
    stacks: Mapping[str, ExpertStack] = field(default_factory=dict)  # tensors of three dimensions, a matrix an expert
    arrays: Mapping[str, F32] = field(default_factory=dict)  # others of three dimensions: the taps of convolutions


@dataclass(frozen=True)
class Projection:
    """A matrix and, in some models, a bias of (out_features,)."""

    matrix: Matrix
    bias: F32 | None

    def __call__(self, x: F32) -> F32:
        """(num_tokens, in_features) to (num_tokens, out_features)."""
        y = self.matrix.multiply(x)
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, eq=False)
class WeightedNorm:
    """A norm over the last axis."""

    parts: Norm
    weight: F32  # (n,), its offset added
    bias: F32 | None  # (n,)

    def __call__(self, x: F32) -> F32:
        """(..., n) float32, each row by itself."""
        if self.parts.kind == "layer":
            count = np.float32(x.shape[-1])
            x = x - fold_in_place(x.copy())[..., None] / count
        y = rms_norm(x, self.weight, self.parts.eps)
        return y if self.bias is None else y + self.bias


class WeightedPart:
    """A part of a layer with its tensors; its projections are attributes."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """All that a pass multiplies by but for experts; one that is fused of several once."""
        own = {id(value): value for value in vars(self).values()}.values()
        found = [
            (value.matrix,) if isinstance(value, Projection) else value.matrices
            for value in own
            if isinstance(value, Projection | WeightedPart)
        ]
        return tuple(matrix for matrices in found for matrix in matrices)


@dataclass(frozen=True)
class CheckedWeights:
    """Weights that are taken by name and required shape; methods raise ModelError where one is missing or differs."""

    weights: ModelWeights
    model: str  # names it in messages
    prefix: str = ""  # of the names that are given

    def under(self, prefix: str) -> "CheckedWeights":
        """The same tensors, for parts whose names lack a prefix."""
        return replace(self, prefix=self.prefix + prefix)

    def matrix(self, name: str, out_features: int, in_features: int) -> Matrix:
        """A matrix of this shape."""
        return self._taken(self.weights.matrices, name, (out_features, in_features))

    @overload
    def vector(self, name: str, length: int) -> F32: ...
    @overload
    def vector(self, name: None, length: int) -> None: ...
    def vector(self, name: str | None, length: int) -> F32 | None:
        """A vector of this length, where there is to be one."""
        return None if name is None else self._taken(self.weights.vectors, name, (length,))

    def array(self, name: str, shape: tuple[int, int, int]) -> F32:
        """An array of this shape."""
        return self._taken(self.weights.arrays, name, shape)

    def has_stack(self, name: str) -> bool:
        """Whether there are experts of this name in one tensor."""
        return self.prefix + name in self.weights.stacks

    def stack(self, name: str, shape: tuple[int, int, int]) -> ExpertStack:
        """Experts in one tensor of this shape."""
        return self._taken(self.weights.stacks, name, shape)

    def projection(self, parts: Linear, out_features: int, in_features: int) -> Projection:
        """A matrix and its bias, by description."""
        name = f"{parts.name}.weight"
        if parts.is_transposed:
            matrix = self.matrix(name, in_features, out_features).turned()
        else:
            matrix = self.matrix(name, out_features, in_features)
        return Projection(matrix, self.vector(f"{parts.name}.bias" if parts.has_bias else None, out_features))

    @overload
    def norm(self, parts: Norm, length: int) -> WeightedNorm: ...
    @overload
    def norm(self, parts: None, length: int) -> None: ...
    def norm(self, parts: Norm | None, length: int) -> WeightedNorm | None:
        """A norm by description, where there is to be one."""
        if parts is None:
            return None
        weight = self.vector(f"{parts.name}.weight", length) if parts.has_weight else np.ones(length, np.float32)
        if parts.offset:
            weight = weight + np.float32(parts.offset)
        return WeightedNorm(parts, weight, self.vector(f"{parts.name}.bias" if parts.has_bias else None, length))

    def _taken(self, tensors: Mapping[str, Shaped], name: str, shape: tuple[int, ...]) -> Shaped:
        tensor = f"{self.model}: tensor {self.prefix}{name}"
        if (found := tensors.get(self.prefix + name)) is None:
            raise ModelError(f"{tensor} is missing; its shape {shape} is required. {REMEDY}")
        if tuple(found.shape) != shape:
            raise ModelError(f"{tensor} has shape {tuple(found.shape)}; config.json requires {shape}. {REMEDY}")
        return found
