"""Matrices on a device, one for each kernel, and the weights that their bytes mean."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, U16
from mxconv.bench.gpu.dfloat11 import DFloat11Matrix
from mxconv.bench.slabs import BsfpSlab, MxSlab, bsfp_slab, gaussian_slab, mxfp4_slab, repeat, repeat_bsfp
from mxconv.codecs.bsfp.packing import decode_bsfp_draft
from mxconv.codecs.float16 import BF16
from mxconv.kernels.triton.bsfp_weight import BsfpWeight
from mxconv.kernels.triton.weight import Activations, FourBitWeight

LIBRARY = "bf16"  # what the others are set against
KERNELS = (LIBRARY, "bsfp-full", "bsfp-draft", "mxfp4-int8", "mxfp4-bf16", "dfloat11")


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
        implementation: triton, torch or dfloat11: whose product it is.
        shape: (out_features, in_features).
        num_bytes: that one product reads of it.
        is_int8: whether activations are rounded to int8, in blocks of 32; else to BF16.
        slab: (slab rows, in_features) the weights that the first rows mean, decoded by NumPy; they repeat.
        copy: makes it anew, in memory of its own.
    """

    kernel: str
    implementation: str
    shape: tuple[int, int]
    num_bytes: int
    is_int8: bool
    slab: F32
    copy: Callable[[], Product]

    def weights(self, rows: NDArray[np.intp]) -> F64:
        """(len(rows), in_features) the weights of some rows."""
        return self.slab[rows % len(self.slab)].astype(np.float64)


class LibraryMatrix:
    """BF16, multiplied by torch."""

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
        if kernel == "dfloat11":
            return self._dfloat11()
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

    def _dfloat11(self) -> GpuOperand:
        slab, patterns = self._patterns()
        encoded = DFloat11Matrix.encode(patterns, self._device)
        return GpuOperand(
            "dfloat11", "dfloat11", self._shape, encoded.num_bytes, False, BF16.decode(slab), encoded.copy
        )

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
