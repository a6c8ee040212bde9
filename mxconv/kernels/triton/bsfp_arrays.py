"""The arrays of a BSFP matrix on a device: as they lie in the file, but for row starts and the escapes of splits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mxconv.arrays import I16, I64
from mxconv.codecs.bsfp.packing import PackedBsfp, check_escapes, escape_offsets
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import SIGN_MASK
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.kernels.triton.launch import SPLIT_TILES
from mxconv.kernels.triton.upload import upload

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True, eq=False)
class BsfpArrays:
    """What the kernels of the exact weights read; T row tiles, C column tiles.

    Three arrays are made when a matrix is loaded: `starts`, 32 bytes for each row that has a shift, in place of the
    shifts; and in place of the offsets `firsts`, an eighth of a bit a weight, and `split_firsts`, next to nothing.
    """

    shape: tuple[int, int]
    dtype: torch.dtype  # of the weights
    num_planes: int  # residual bits beyond eight
    codes: torch.Tensor  # (T, C, 16) int32: a lane's nibbles
    residual_low: torch.Tensor  # (T, C, 16, 2) int32: a lane's low bytes
    residual_high: torch.Tensor  # (T, C, num_planes, 16) uint8
    starts: torch.Tensor  # (16 T, 16) int16 by row and nibble, signs included, or (1, 16)
    counts: torch.Tensor  # (T, C) uint8
    firsts: torch.Tensor  # (T, C) int16: where each tile's escapes begin, from the first of its split on
    split_firsts: torch.Tensor  # (T, splits) int64: where those of each split begin in the lists
    positions: torch.Tensor  # (n,) uint8
    high_bytes: torch.Tensor  # (n,) uint8

    @classmethod
    def from_packed(
        cls,
        packed: PackedBsfp,
        table: SegmentTable,
        shape: tuple[int, int],
        device: torch.device,
        stored: Mapping[str, torch.Tensor] | None = None,
    ) -> "BsfpArrays":
        """Copy a matrix to a device.

        Args:
            packed: its arrays, usually views of a memory map.
            table: its segment table.
            shape: (rows, columns) without padding.
            device: where to.
            stored: arrays of `packed` by name that are on the device already; others are copied.

        Raises:
            CodecError: the escape lists contradict themselves, or a row shift leaves the finite patterns.
        """
        check_escapes(packed)
        stored = {} if stored is None else stored

        def on_device(part: str, array: NDArray[Any]) -> torch.Tensor:
            return stored[part] if part in stored else upload(array, device)

        firsts, split_firsts = places_of_escapes(packed)
        num_row_starts = TILE_ROWS * len(packed.codes) if table.has_row_shifts else 1
        starts = table.row_starts(num_row_starts, packed.row_shifts).astype(np.uint16)
        return cls(
            shape=shape,
            dtype=DTYPES[table.float_format.name],
            num_planes=table.residual_bits - 8,
            codes=on_device("codes", packed.codes).view(torch.int32),
            residual_low=on_device("residual_low", packed.residual_low).view(torch.int32),
            residual_high=on_device("residual_high", packed.residual_high),
            starts=upload(np.concatenate([starts, starts | SIGN_MASK], axis=1), device),
            counts=on_device("escape_counts", packed.escape_counts),
            firsts=upload(firsts, device),
            split_firsts=upload(split_firsts, device),
            positions=on_device("escape_positions", packed.escape_positions),
            high_bytes=on_device("escape_high", packed.escape_high),
        )

    @property
    def has_row_starts(self) -> bool:
        """Whether each row has starts of its own."""
        return len(self.starts) > 1

    @property
    def num_bytes(self) -> int:
        """On the device."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, torch.Tensor))

    def for_kernels(self) -> tuple[Any, ...]:
        """In the order in which kernels take them."""
        return (
            self.codes,
            self.residual_low,
            self.residual_high,
            self.starts,
            self.counts,
            self.firsts,
            self.split_firsts,
            self.positions,
            self.high_bytes,
        )


def places_of_escapes(packed: PackedBsfp) -> tuple[I16, I64]:
    """Where in the lists each tile's escapes begin.

    Returns:
        (T, C) int16, counted from the first escape of the same row tile and split of the columns; at most 16,384.
        (T, splits) int64, where that is in the lists.
    """
    counts = packed.escape_counts.astype(np.int64)
    before = np.cumsum(counts, axis=1) - counts + escape_offsets(packed)[:-1, None]
    split_firsts: I64 = np.ascontiguousarray(before[:, :: SPLIT_TILES.value])
    firsts = before - np.repeat(split_firsts, SPLIT_TILES.value, axis=1)[:, : before.shape[1]]
    return firsts.astype(np.int16), split_firsts
