"""FP8 matrices of a checkpoint: which tensors hold their scales, and the 16-bit weights that they stand for.

Normative text: formats/fp8.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from mxconv.arrays import F32, U8, U16
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.float16 import BF16, FORMATS
from mxconv.errors import CheckpointError


def _e4m3_values() -> F32:
    """(256,) by byte: bit 7 the sign, bits 6..3 the exponent, bits 2..0 the mantissa; 7f and ff are NaN."""
    codes = np.arange(128)
    exponents, mantissas = codes >> 3, codes & 7
    normal = np.ldexp(1 + mantissas / 8, exponents - 7)
    magnitudes = np.where(exponents == 0, np.ldexp(mantissas / 8, -6), normal).astype(np.float32)
    magnitudes[0x7F] = np.nan
    return np.concatenate([magnitudes, -magnitudes])


E4M3_VALUES = _e4m3_values()


def decode_fp8(codes: U8, scales: F32, block: tuple[int, int], first_row: int = 0) -> U16:
    """Rows of a matrix as BF16.

    Args:
        codes: (rows, columns) uint8, some rows of the matrix.
        scales: (blocks of rows, blocks of columns) float32, of the whole matrix.
        block: rows and columns of a block.
        first_row: of the matrix, that `codes` begins with.

    Returns:
        (rows, columns) uint16 BF16 patterns: binary32 products, rounded to nearest, ties to even.
    """
    rows, columns = codes.shape
    by_row = scales[(first_row + np.arange(rows)) // block[0]]
    by_column = np.repeat(by_row, block[1], axis=1)[:, :columns]
    with np.errstate(over="ignore", invalid="ignore"):  # of foreign scales; a writer refuses what is not finite
        return BF16.encode(E4M3_VALUES[codes] * by_column)


DTYPE = "F8_E4M3"
SCALES = "_scale_inv"  # after the name of the matrix
SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0")
DEFAULT_BLOCK = 128, 128


@dataclass(frozen=True)
class Fp8Matrix:
    """A matrix as formats/fp8.md has it."""

    codes: SourceTensor  # (out_features, in_features) F8_E4M3
    scales: SourceTensor  # one a block
    block: tuple[int, int]  # its rows and columns

    def __post_init__(self) -> None:
        """Raises CheckpointError where the tensors do not belong together."""
        if self.codes.dtype != DTYPE or len(self.codes.shape) != 2 or min(self.block) < 1:
            raise CheckpointError(
                f"{self.codes.path}: tensor {self.codes.name} is {self.codes.dtype} {list(self.codes.shape)} in blocks "
                f"of {list(self.block)}; a matrix of {DTYPE} in blocks that are not empty is required. "
                "Download the model again."
            )
        grid = tuple(-(-size // step) for size, step in zip(self.codes.shape, self.block, strict=True))
        if self.scales.dtype not in SCALE_DTYPES or self.scales.shape != grid:
            raise CheckpointError(
                f"{self.scales.path}: tensor {self.scales.name} is {self.scales.dtype} {list(self.scales.shape)}; "
                f"{', '.join(SCALE_DTYPES)} {list(grid)} is required, a scale for each {self.block[0]} x "
                f"{self.block[1]} weights. Check quantization_config.weight_block_size in config.json."
            )

    def patterns(self, start: int, stop: int) -> U16:
        """Rows [start, stop) as BF16, (stop - start, in_features) uint16."""
        return decode_fp8(cast(U8, self.codes.rows(start, stop)), self._scales, self.block, start)

    @cached_property
    def _scales(self) -> F32:
        stored = self.scales.array()
        if self.scales.dtype == "F8_E8M0":
            return decode_e8m0(cast(U8, stored))
        float_format = FORMATS.get(self.scales.dtype)
        return float_format.decode(cast(U16, stored)) if float_format else cast(F32, np.asarray(stored))


def fp8_matrices(tensors: Mapping[str, SourceTensor], config: Mapping[str, Any] | None) -> dict[str, Fp8Matrix]:
    """The FP8 matrices among the tensors of a checkpoint that have block scales, by name. Raises CheckpointError where
    scales have another shape than the matrix and the block imply."""
    block = _block(config)
    return {
        name: Fp8Matrix(tensor, tensors[name + SCALES], block)
        for name, tensor in tensors.items()
        if tensor.dtype == DTYPE and len(tensor.shape) == 2 and _has_blocks(tensor, tensors.get(name + SCALES), block)
    }


def _has_blocks(codes: SourceTensor, scales: SourceTensor | None, block: tuple[int, int]) -> bool:
    """Whether scales are of blocks, and not one for the whole matrix or for each row."""
    rows = codes.shape[0]
    return scales is not None and len(scales.shape) == 2 and (scales.shape != (rows, 1) or 1 in (rows, block[0]))


def _block(config: Mapping[str, Any] | None) -> tuple[int, int]:
    quantization = (config or {}).get("quantization_config")
    found = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    if isinstance(found, list) and len(found) == 2 and all(type(size) is int and size > 0 for size in found):
        return found[0], found[1]
    return DEFAULT_BLOCK
