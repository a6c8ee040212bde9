"""A linear layer whose weights are BSFP: exact 16-bit ones and their draft in the same bytes."""

from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mxconv.arrays import U16
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.packing import PackedBsfp, escape_offsets
from mxconv.codecs.bsfp.table import NUM_CODES, SHIFTS_PER_OCTAVE, SegmentTable
from mxconv.codecs.float16 import FORMATS
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.engine.matrices import Matrices
from mxconv.errors import CodecError, ModelError
from mxconv.interop.transformers.linear import KernelLinear
from mxconv.interop.transformers.weights import TORCH_FORMATS, weight_patterns
from mxconv.kernels.encoders import add_to_histogram, decode_bsfp, encode_bsfp, fit_table, row_shifts_of
from mxconv.kernels.matrix import Matrix
from mxconv.package.package import StoredBsfp
from mxconv.package.stored import StoredArray, bsfp_arrays


class BSFPLinear(KernelLinear):
    """W in BSFP: the exact 16-bit weights and a 4-bit draft of them in one set of bytes.

    `level` is "target" (exact, about 12.7 bits a weight for BF16) or "draft" (4.13 bits), and may be changed at any
    time. Buffers: the planes that formats/bsfp.md describes, 16-bit scales as int16 patterns, and the segment table
    as `starts`, `levels` and `format` (residual bits, mantissa bits).
    """

    label = "BSFPLinear"

    def __init__(self, in_features: int, out_features: int, bias: torch.Tensor | None = None) -> None:
        """An empty layer, to be filled by `from_linear` or `load_state_dict`."""
        super().__init__(in_features, out_features, bias)
        self._level: Literal["target", "draft"] = "target"
        names = ("starts", "levels", "format", "codes", "residual_low", "residual_high", "scales", "row_shifts",
                 "escape_counts", "escape_offsets", "escape_positions", "escape_high")  # fmt: skip
        for name in names:
            self.register_buffer(name, torch.zeros(0, dtype=torch.uint8))

    @classmethod
    def from_linear(cls, linear: nn.Linear, name: str = "linear") -> "BSFPLinear":
        """Encode a torch layer, losing nothing.

        Args:
            linear: 16-bit weights on the CPU, or float32 ones that are BF16 exactly.
            name: what messages call it.

        Raises:
            ModelError: weights of another kind.
        """
        patterns, float_format = weight_patterns(linear, name)
        histogram = PatternHistogram(float_format)
        add_to_histogram(histogram, patterns)
        table = fit_table(histogram).table
        shifts = row_shifts_of(patterns, float_format) if table.has_row_shifts else None
        packed = encode_bsfp(patterns, table, shifts)
        layer = cls(linear.in_features, linear.out_features, linear.bias)
        contents: dict[str, NDArray[Any]] = {
            "starts": np.array(table.starts, np.int32),
            "levels": np.array(table.levels, np.float64),
            "format": np.array([table.residual_bits, float_format.mantissa_bits], np.int32),
            "codes": packed.codes,
            "residual_low": packed.residual_low,
            "residual_high": packed.residual_high,
            "scales": packed.scales.view(np.int16),
            "row_shifts": np.zeros(0, np.int8) if packed.row_shifts is None else packed.row_shifts,
            "escape_counts": packed.escape_counts,
            "escape_offsets": escape_offsets(packed),
            "escape_positions": packed.escape_positions,
            "escape_high": packed.escape_high,
        }
        for buffer, content in contents.items():
            setattr(layer, buffer, torch.from_numpy(np.ascontiguousarray(content)))
        return layer

    @property
    def level(self) -> Literal["target", "draft"]:
        """Which of the two weights multiplies."""
        return self._level

    @level.setter
    def level(self, level: Literal["target", "draft"]) -> None:
        if level not in ("target", "draft"):
            raise ModelError(f"BSFPLinear: level {level!r}; target or draft is required.")
        self._level, self._matrix = level, None

    def weight(self) -> torch.Tensor:
        """(out_features, in_features) the exact 16-bit weights."""
        stored = self.stored()
        patterns: U16 = decode_bsfp(stored.packed, stored.table, self.shape)
        dtype = next(dtype for dtype, name in TORCH_FORMATS.items() if name == stored.table.float_format.name)
        return torch.from_numpy(patterns.view(np.int16)).view(dtype)

    def _arrays(self) -> tuple[StoredArray, ...]:
        table = self._table()
        num_escapes = cast(torch.Tensor, self.escape_high).numel()
        return bsfp_arrays("", self.shape, table.residual_bits, table.has_row_shifts, num_escapes)

    def _table(self) -> SegmentTable:
        starts, levels, sizes = (
            cast(torch.Tensor, getattr(self, name)).cpu() for name in ("starts", "levels", "format")
        )
        formats = {f.mantissa_bits: f for f in FORMATS.values()}
        is_whole = starts.dim() == 2 and starts.shape[1] == NUM_CODES and starts.shape[0] in (1, SHIFTS_PER_OCTAVE)
        if not is_whole or levels.shape != (NUM_CODES,) or sizes.numel() != 2 or int(sizes[1]) not in formats:
            raise ModelError(
                "BSFPLinear: buffers hold no segment table; one is required. Use from_linear, or load a state."
            )
        try:
            return SegmentTable(
                formats[int(sizes[1])], int(sizes[0]), tuple(map(tuple, starts.tolist())), tuple(levels.tolist())
            )
        except CodecError as error:
            raise ModelError(f"BSFPLinear: {error} Load the state of such a layer.") from error

    def stored(self) -> StoredBsfp:
        """The buffers as a package has them.

        Raises:
            ModelError: a buffer is not what the format requires, or the escape lists contradict themselves.
        """
        table, stored = self._table(), self._stored()
        low = stored["residual_low"]
        packed = PackedBsfp(
            codes=stored["codes"],
            residual_low=low,
            residual_high=stored.get("residual_high", np.zeros((*low.shape[:2], 0, TILE_ROWS), np.uint8)),
            scales=stored["scales"],
            row_shifts=stored.get("row_shifts"),
            escape_counts=stored["escape_counts"],
            escape_positions=stored["escape_positions"],
            escape_high=stored["escape_high"],
        )
        offsets = stored["escape_offsets"]
        if not np.array_equal(offsets, escape_offsets(packed)) or offsets[-1] != len(packed.escape_high):
            raise ModelError("BSFPLinear: escape offsets and counts disagree; they must agree. Load the state again.")
        return StoredBsfp(self.shape, table, packed, offsets, 1.0)

    def _make_matrix(self, make: Matrices) -> Matrix:
        stored = self.stored()
        return make.bsfp(stored, self.label) if self._level == "target" else make.bsfp_draft(stored)
