"""Native copies of decoders, in every format, from the 16-bit patterns of their matrices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from stored_matrices import stored_bsfp, stored_mxfp4

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32, U16
from mxconv.codecs.float16 import BF16, FloatFormat
from mxconv.conversion.plan import ROUTERS, matches
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.weights import ExpertStack, ModelWeights
from mxconv.kernels.matrix import DenseMatrix, Float32Matrix, Matrix
from mxconv.package.stored import StoredBsfp

Maker = Callable[[Matrices, U16, FloatFormat], Matrix]


@dataclass(frozen=True)
class DraftOfNumpy:
    """A draft's 4 bits on NumPy; turned ones are what native kernels make of them, 16 bits."""

    inner: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    def multiply(self, x: np.ndarray) -> np.ndarray:
        return self.inner.multiply(x)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return self.inner.rows(indices)

    def turned(self) -> Matrix:
        return Bf16Inputs(DenseMatrix(BF16.encode(np.ascontiguousarray(values_of(self.inner).T)), BF16))


class Bf16Inputs(DraftOfNumpy):
    """What the native BF16 kernels compute, by NumPy: activations are rounded to BF16 before they are multiplied."""

    def multiply(self, x: np.ndarray) -> np.ndarray:
        return self.inner.multiply(BF16.decode(BF16.encode(x)))

    def turned(self) -> Matrix:
        return Bf16Inputs(self.inner.turned())


dense: Maker = Matrices.dense


def escaping_bsfp(patterns: U16, float_format: FloatFormat) -> StoredBsfp:
    """Encoded with row shifts, narrow segments and their escapes."""
    return stored_bsfp(patterns, float_format, True, 8 if float_format == BF16 else 10)


TARGETS: dict[str, Maker] = {
    "dense": dense,
    "bsfp": lambda make, patterns, float_format: make.bsfp(escaping_bsfp(patterns, float_format), "test"),
}
DRAFTS: dict[str, Maker] = {
    "mxfp4": lambda make, patterns, float_format: make.mxfp4_draft(stored_mxfp4(float_format.decode(patterns))[0]),
    "bsfp-draft": lambda make, patterns, float_format: make.bsfp_draft(escaping_bsfp(patterns, float_format)),
}


def with_format(weights: ModelWeights, float_format: FloatFormat) -> ModelWeights:
    """Dense weights rounded to a 16-bit format."""
    return _each(weights, lambda matrix: DenseMatrix(float_format.encode(values_of(matrix)), float_format))


def values_of(matrix: Matrix) -> F32:
    return matrix.rows(np.arange(matrix.shape[0]))


def convert(
    weights: ModelWeights, matrices: Matrices, make: Maker, looked_up: Sequence[str] = ("model.embed_tokens.weight",)
) -> ModelWeights:
    """Every dense matrix made anew; as in packages, those that are looked up and routers stay exact."""

    def changed(matrix: Matrix, make: Maker = make) -> Matrix:
        assert isinstance(matrix, DenseMatrix)
        return make(matrices, matrix.patterns, matrix.float_format)

    kept = [name for name in weights.matrices if name in looked_up or matches(name, ROUTERS)]
    exact = {name: changed(weights.matrices[name], dense) for name in kept if make in DRAFTS.values()}
    others = {name: matrix for name, matrix in weights.matrices.items() if name not in exact}
    found = _each(replace(weights, matrices=others), changed)
    return replace(found, matrices={**found.matrices, **exact})


def rounding_as_native(weights: ModelWeights) -> ModelWeights:
    """Weights whose products on NumPy round what native kernels round: 16 bits take in BF16, drafts int8."""
    return _each(weights, lambda matrix: (Bf16Inputs if isinstance(matrix, DenseMatrix) else DraftOfNumpy)(matrix))


def rounding_nothing(weights: ModelWeights) -> ModelWeights:
    """The same weights, whatever their format, multiplied by activations in float32."""
    return _each(weights, lambda matrix: Float32Matrix(values_of(matrix)))


def _each(weights: ModelWeights, change: Callable[[Matrix], Matrix]) -> ModelWeights:
    def changed(stack: ExpertStack) -> ExpertStack:
        return ExpertStack(stack.shape, lambda expert: change(stack.matrix(expert)))

    matrices = {name: change(matrix) for name, matrix in weights.matrices.items()}
    return replace(weights, matrices=matrices, stacks={name: changed(each) for name, each in weights.stacks.items()})


def native_copy(config: ModelConfig, weights: ModelWeights, matrices: Matrices, make: Maker = dense) -> Decoder:
    """A decoder of dense weights, on the kernels of `matrices`."""
    return matrices.decoder(config, convert(weights, matrices, make, config.looked_up), "copy")


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square of the difference over that of what is expected."""
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def assert_rounded_alike(
    found: np.ndarray, expected: np.ndarray, unrounded: np.ndarray, label: object, by_row: bool = False
) -> None:
    """Two ways to compute logits that round the same activations differ by no more than these roundings can explain.

    Sums of floats differ in their last bits from processor to processor. Where one tips a rounding, all that comes
    later rounds anew, so no fixed bound holds everywhere. But neither is further from what it would be without rounding
    than roundings take it, and how far that is `expected` shows. Twice that, by the triangle inequality, holds on any
    processor.

    Args:
        found: (rows, vocabulary), of native kernels.
        expected: the same of NumPy, with the same roundings.
        unrounded: the same of NumPy, with none.
        label: of what failed.
        by_row: compare the median row, not all: a rounding may give some rows other experts, or others a state that
            hands it on.
    """
    apart, rounding = (
        [relative_error(one, other) for one, other in zip(pair[0], pair[1], strict=True)]
        if by_row
        else [relative_error(*pair)]
        for pair in ((found, expected), (expected, unrounded))
    )
    assert np.median(apart) <= 2 * np.median(rounding), label
