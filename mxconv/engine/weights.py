"""The tensors of a model by name, and their shapes checked as a decoder takes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from mxconv.arrays import F32
from mxconv.engine.expert_stack import ExpertStack
from mxconv.errors import ModelError
from mxconv.kernels.matrix import Matrix

REMEDY = "Convert the checkpoint again, or take the config.json that belongs to it."


@dataclass(frozen=True)
class Weights:
    """What a loader hands to a decoder.

    Args:
        matrices: the two-dimensional tensors under their names in the checkpoint. `lm_head.weight` is always among
            them: with tied embeddings it is the same tensor, though perhaps in another format.
        vectors: norms and biases, float32.
        stacks: tensors of three dimensions, a matrix an expert.
        arrays: those of three dimensions that are no stacks of matrices: the taps of convolutions, float32.
    """

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, F32]
    stacks: Mapping[str, ExpertStack] = field(default_factory=dict)
    arrays: Mapping[str, F32] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckedWeights:
    """Weights that are taken by name and required shape. `model` names them in messages."""

    weights: Weights
    model: str

    def matrix(self, tensor: str, out_features: int, in_features: int) -> Matrix:
        """Raises ModelError where the matrix is missing or has another shape."""
        required = out_features, in_features
        matrix = self.weights.matrices.get(tensor)
        if matrix is None:
            self._missing(tensor, required)
        if tuple(matrix.shape) != required:
            self._misshapen(tensor, matrix.shape, required)
        return matrix

    def vector(self, tensor: str, length: int) -> F32:
        """Raises ModelError where the vector is missing or has another length."""
        return self._of(self.weights.vectors, tensor, (length,))

    def array(self, tensor: str, shape: tuple[int, int, int]) -> F32:
        """Raises ModelError where the array is missing or has another shape."""
        return self._of(self.weights.arrays, tensor, shape)

    def _of(self, tensors: Mapping[str, F32], tensor: str, shape: tuple[int, ...]) -> F32:
        found = tensors.get(tensor)
        if found is None:
            self._missing(tensor, shape)
        if found.shape != shape:
            self._misshapen(tensor, found.shape, shape)
        return found

    def has_stack(self, tensor: str) -> bool:
        """Whether there are experts of this name in one tensor."""
        return tensor in self.weights.stacks

    def stack(self, tensor: str, required: tuple[int, int, int]) -> ExpertStack:
        """Raises ModelError where the experts are missing or have another shape."""
        stack = self.weights.stacks.get(tensor)
        if stack is None:
            self._missing(tensor, required)
        if stack.shape != required:
            self._misshapen(tensor, stack.shape, required)
        return stack

    def _missing(self, tensor: str, required: tuple[int, ...]) -> NoReturn:
        raise ModelError(f"{self.model}: tensor {tensor} is missing; its shape {required} is required. {REMEDY}")

    def _misshapen(self, tensor: str, found: tuple[int, ...], required: tuple[int, ...]) -> NoReturn:
        raise ModelError(
            f"{self.model}: tensor {tensor} has shape {tuple(found)}; config.json requires {required}. {REMEDY}"
        )
