"""A weight on a GPU: what multiplies there, as `mxconv.kernels.matrix.Matrix` does on the CPU."""

from collections.abc import Sequence
from typing import Literal, Protocol

import torch

from mxconv.arrays import U8
from mxconv.errors import ModelError
from mxconv.kernels.triton.arrays.four_bit_arrays import FourBitArrays
from mxconv.kernels.triton.arrays.upload import as_words, upload
from mxconv.kernels.triton.chosen import Chosen
from mxconv.kernels.triton.dequantize import dequantize
from mxconv.kernels.triton.launch import MAX_TOKENS, on
from mxconv.kernels.triton.panels import multiply_by_panels
from mxconv.kernels.triton.products.four_bit_int8_product import four_bit_int8_product
from mxconv.kernels.triton.products.four_bit_product import four_bit_product

Activations = Literal["bf16", "int8"]


class Weight(Protocol):
    """A weight matrix, (rows, columns), on a device."""

    @property
    def rows(self) -> int:
        """out_features."""
        ...

    @property
    def columns(self) -> int:
        """in_features."""
        ...

    @property
    def num_bytes(self) -> int:
        """On the device."""
        ...

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T: (tokens, columns) of a float type to (tokens, rows) float32.

        Up to 16 tokens, a token's bits depend on that token alone; beyond, `torch.matmul` decides.
        """
        ...

    def rebuild(self) -> torch.Tensor:
        """(rows, columns): the weights themselves."""
        ...


class FourBitWeight:
    """Implements `Weight` for 4-bit levels: MXFP4, or the draft in BSFP.

    Args:
        arrays: on the device.
        activations: "bf16", or "int8" where the levels are integers; more than 16 tokens are BF16 either way.

    Raises:
        ModelError: int8 activations for levels that are no integers.
    """

    def __init__(self, arrays: FourBitArrays, activations: Activations = "bf16") -> None:
        if activations == "int8" and arrays.int8_levels is None:
            raise ModelError(
                "4-bit weight: levels that are no integers with int8 activations; the fitted table has integers, the "
                "paper's has none. Use activations='bf16'."
            )
        self.arrays, self.activations = arrays, activations
        self.rows, self.columns = arrays.shape
        self.num_bytes = arrays.num_bytes

    @classmethod
    def from_mxfp4(
        cls, codes: U8, scales: U8, shape: tuple[int, int], device: torch.device, activations: Activations = "bf16"
    ) -> "FourBitWeight":
        """Copy an MXFP4 matrix to a device.

        Args:
            codes: (T, C, 64) as stored.
            scales: (T, blocks, 16) E8M0.
            shape: (rows, columns) without padding.
            device: where to.
            activations: as for the class.
        """
        on_device = as_words(upload(codes, device))
        return cls(FourBitArrays.of_mxfp4(on_device, upload(scales, device), shape), activations)

    @classmethod
    def stacked(cls, experts: "Sequence[FourBitWeight]") -> "FourBitWeight":
        """A stack of matrices of one shape and kind; int8 activations where all have integer levels."""
        arrays = FourBitArrays.stacked([each.arrays for each in experts])
        return cls(arrays, experts[0].activations if arrays.int8_levels is not None else "bf16")

    def expert(self, number: int, num_experts: int) -> "FourBitWeight":
        """One of a stack: views."""
        return FourBitWeight(self.arrays.expert(number, num_experts), self.activations)

    def product(self, x: torch.Tensor, chosen: Chosen | None = None) -> torch.Tensor:
        """As `Weight.product`; of a stack as `four_bit_product`, with any number of tokens."""
        device = self.arrays.codes.device
        check_tokens(x, self.columns, device)
        is_for_kernels = len(x) <= MAX_TOKENS.value or chosen is not None
        with on(device):
            if is_for_kernels and self.activations == "int8":
                return four_bit_int8_product(self.arrays, x.contiguous(), chosen)
            x = x.to(torch.bfloat16).contiguous()
            if is_for_kernels:
                return four_bit_product(self.arrays, x, chosen)
            return multiply_by_panels(
                x, self.rows, lambda first, count: dequantize(self.arrays, first, count).to(torch.bfloat16)
            )

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) float32."""
        with on(self.arrays.codes.device):
            return dequantize(self.arrays)


def check_tokens(x: torch.Tensor, num_columns: int, device: torch.device) -> None:
    """Refuse what is no (tokens, columns) of floats on the device.

    Raises:
        ModelError: another shape, dtype or device, or no token.
    """
    if x.dim() != 2 or x.shape[1] != num_columns or not len(x) or not x.dtype.is_floating_point:
        raise ModelError(
            f"product: {x.dtype} of shape {tuple(x.shape)}; floats of shape (tokens, {num_columns}) are required."
        )
    if x.device != device:
        raise ModelError(f"product: input on {x.device}, weights on {device}; one device is required. Move the input.")
