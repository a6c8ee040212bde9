"""Matrices on a device, one for each kernel, their weights as NumPy decodes them, and a check against these."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, U16
from mxconv.bench.exactness import check_alone, check_values, rounded, sampled_rows
from mxconv.bench.slabs import BsfpSlab, MxSlab, bsfp_slab, gaussian_slab, mxfp4_slab, repeat, repeat_bsfp
from mxconv.codecs.bsfp.packing import decode_bsfp_draft
from mxconv.codecs.float16 import BF16
from mxconv.errors import MxconvError
from mxconv.gpu.launch import MAX_TOKENS
from mxconv.gpu.weight import Activations, BsfpWeight, FourBitWeight

ROUNDING = 2.0**-8  # of torch's BF16 products: of results, and of partial sums where it splits columns
LIBRARY = "bf16"  # the baseline
KERNELS = (LIBRARY, "bsfp-full", "bsfp-draft", "mxfp4-int8", "mxfp4-bf16")


class Product(Protocol):
    """A matrix W, (rows, columns), on a device."""

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T."""
        ...

    def rebuild(self) -> torch.Tensor:
        """W."""
        ...


@dataclass(frozen=True)
class GpuOperand:
    """A kernel's matrix.

    Args:
        kernel: one of `KERNELS`.
        implementation: triton or torch.
        shape: (out_features, in_features).
        num_bytes: of it, which one product reads.
        is_int8: whether activations are rounded to int8, in blocks of 32; else to BF16.
        slab: (slab rows, in_features) weights of the first rows, decoded by NumPy; they repeat.
        copy: makes the matrix anew, in memory of its own.
    """

    kernel: str
    implementation: str
    shape: tuple[int, int]
    num_bytes: int
    is_int8: bool
    slab: F32
    copy: Callable[[], Product]

    def weights(self, rows: NDArray[np.intp]) -> F64:
        """(len(rows), in_features) weights of some rows."""
        return self.slab[rows % len(self.slab)].astype(np.float64)


class LibraryMatrix:
    """A BF16 matrix that torch multiplies."""

    def __init__(self, patterns: U16, device: torch.device) -> None:
        self._weights = torch.from_numpy(patterns.view(np.int16)).to(device, copy=True).view(torch.bfloat16)
        self.num_bytes = self._weights.nbytes

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T in BF16."""
        return torch.matmul(x, self._weights.T)

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) BF16."""
        return self._weights


class GpuOperands:
    """The same Gaussian weights for every kernel; they are encoded once."""

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        self._shape, self._device = shape, device

    def make(self, kernel: str) -> GpuOperand:
        """The matrix of one of `KERNELS`."""
        if kernel == LIBRARY:
            return self._library()
        if kernel.startswith("mxfp4"):
            return self._mxfp4(kernel, "int8" if kernel == "mxfp4-int8" else "bf16")
        return self._bsfp_full() if kernel == "bsfp-full" else self._bsfp_draft()

    @cached_property
    def _bsfp(self) -> BsfpSlab:
        return bsfp_slab(gaussian_slab(self._shape))

    @cached_property
    def _mxfp4_slab(self) -> MxSlab:
        return mxfp4_slab(gaussian_slab(self._shape))

    def _patterns(self) -> tuple[U16, U16]:
        """BF16 of a slab, and of the whole matrix."""
        slab = BF16.encode(gaussian_slab(self._shape))
        return slab, slab[np.arange(self._shape[0]) % len(slab)]

    def _library(self) -> GpuOperand:
        slab, patterns = self._patterns()
        return GpuOperand(
            LIBRARY, "torch", self._shape, patterns.nbytes, False, BF16.decode(slab),
            lambda: LibraryMatrix(patterns, self._device),
        )  # fmt: skip

    def _bsfp_weight(self) -> BsfpWeight:
        packed = repeat_bsfp(self._bsfp.packed, self._shape[0])
        return BsfpWeight.from_packed(packed, self._bsfp.table, self._shape, self._device)

    def _bsfp_full(self) -> GpuOperand:
        num_bytes = self._bsfp_weight().arrays.num_bytes  # without the draft's scales
        weights = BF16.decode(self._bsfp.patterns)
        return GpuOperand("bsfp-full", "triton", self._shape, num_bytes, False, weights, self._bsfp_weight)

    def _bsfp_draft(self) -> GpuOperand:
        num_bytes = self._bsfp_weight().draft.num_bytes
        weights = decode_bsfp_draft(self._bsfp.packed, self._bsfp.table, self._bsfp.patterns.shape)
        copy = lambda: self._bsfp_weight().draft  # noqa: E731
        return GpuOperand("bsfp-draft", "triton", self._shape, num_bytes, False, weights, copy)

    def _mxfp4(self, kernel: str, activations: Activations) -> GpuOperand:
        slab, rows = self._mxfp4_slab, self._shape[0]
        codes, scales = repeat(slab.codes, rows), repeat(slab.scales, rows)

        def copy() -> FourBitWeight:
            return FourBitWeight.from_mxfp4(codes, scales, self._shape, self._device, activations)

        return GpuOperand(
            kernel, "triton", self._shape, copy().num_bytes, activations == "int8", slab.weights, copy
        )  # fmt: skip


def check_gpu_exactness(operand: GpuOperand, matrix: Product, x: torch.Tensor) -> None:
    """Compare a product with float64 arithmetic on the weights that NumPy decodes.

    A token of our kernels must also have the same bits alone as among others, up to 16.

    Args:
        operand: what the matrix was made of.
        matrix: on the device.
        x: (num_tokens, in_features) BF16, there too.

    Raises:
        MxconvError: a result is wrong.
    """
    name = _name(operand)
    is_own = operand.implementation == "triton" and len(x) <= MAX_TOKENS.value  # beyond, torch multiplies
    out = _on_host(matrix.product(x))
    rows = sampled_rows(operand.shape[0])
    activations = rounded("int8" if operand.is_int8 and is_own else "bf16", _on_host(x))
    check_values(name, out, activations, operand.weights(rows), rows, 0 if is_own else ROUNDING)
    if is_own:
        check_alone(name, out, lambda token: _on_host(matrix.product(x[token : token + 1])).reshape(-1))


def check_gpu_weights(operand: GpuOperand, matrix: Product) -> None:
    """Compare all weights with those that NumPy decodes.

    Raises:
        MxconvError: one differs.
    """
    rebuilt, slab = matrix.rebuild(), operand.slab
    for first in range(0, operand.shape[0], len(slab)):
        found = _on_host(rebuilt[first : first + len(slab)])
        expected = slab[: len(found)]
        if not np.array_equal(found, expected):
            row, column = np.argwhere(found != expected)[0]
            raise MxconvError(
                f"kernel {_name(operand)}: weight {found[row, column]} at row {first + row}, column {column}; "
                f"{expected[row, column]} is required. It is not measured; please report this as a defect."
            )


def _name(operand: GpuOperand) -> str:
    return f"{operand.kernel} ({operand.implementation})"


def _on_host(tensor: torch.Tensor) -> F32:
    found: F32 = tensor.float().cpu().numpy()
    return found
