"""A linear layer whose weights are MXFP4."""

import torch
from torch import nn

from mxconv.codecs.mxfp4 import NonFiniteError, ScaleRule
from mxconv.engine.matrices import Matrices
from mxconv.errors import ModelError
from mxconv.interop.transformers.linear import KernelLinear
from mxconv.interop.transformers.weights import weight_patterns
from mxconv.kernels.encoders import decode_mxfp4, encode_mxfp4
from mxconv.kernels.matrix import Matrix
from mxconv.package.package import StoredMxfp4
from mxconv.package.stored import StoredArray, mxfp4_arrays


class MXFP4Linear(KernelLinear):
    """W in MXFP4: 4.25 bits a weight, multiplied with int8 activations.

    Buffers: `codes` U8 (row tiles, column tiles, 64) and `scales` U8 (row tiles, blocks, 16), as formats/mxfp4.md says.
    """

    label = "MXFP4Linear"

    def __init__(self, in_features: int, out_features: int, bias: torch.Tensor | None = None) -> None:
        super().__init__(in_features, out_features, bias)
        self.codes: torch.Tensor
        self.scales: torch.Tensor
        for array in self._arrays():
            self.register_buffer(array.name.removeprefix("."), torch.zeros(array.shape, dtype=torch.uint8))

    @classmethod
    def from_linear(cls, linear: nn.Linear, scale_rule: ScaleRule = "ocp", name: str = "linear") -> "MXFP4Linear":
        """Quantize a torch layer.

        Args:
            linear: 16-bit weights on the CPU, or float32 ones that are BF16 exactly.
            scale_rule: as for `mxconv quantize`.
            name: what messages call it.

        Raises:
            ModelError: weights of another kind, or not finite.
        """
        patterns, float_format = weight_patterns(linear, name)
        try:
            codes, scales = encode_mxfp4(patterns, float_format, scale_rule)
        except NonFiniteError as error:
            raise ModelError(
                f"{name}: weight [{error.row}, {error.column}] is {error.value}; finite weights are required. "
                "Skip this layer."
            ) from error
        layer = cls(linear.in_features, linear.out_features, linear.bias)
        layer.codes, layer.scales = torch.from_numpy(codes), torch.from_numpy(scales)
        return layer

    def weight(self) -> torch.Tensor:
        """(out_features, in_features) float32 values of the codes."""
        stored = self._stored()
        return torch.from_numpy(decode_mxfp4(stored["codes"], stored["scales"], self.shape))

    def stored(self) -> StoredMxfp4:
        """The buffers as a package has them.

        Raises:
            ModelError: a buffer is not what the format requires.
        """
        stored = self._stored()
        return StoredMxfp4(self.shape, stored["codes"], stored["scales"])

    def _arrays(self) -> tuple[StoredArray, ...]:
        return mxfp4_arrays("", self.shape)

    def _make_matrix(self, make: Matrices) -> Matrix:
        return make.mxfp4_draft(self.stored())
