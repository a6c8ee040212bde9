"""Linear layers on mxconv's kernels, for inference on the CPU: MXFP4 and BSFP.

The stored arrays of a package are the module's buffers, so `state_dict` saves them and `load_state_dict` loads them,
whatever their lengths. Kernels read the buffers in place; float32 activations go to NumPy and back without a copy.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mxconv.arrays import U16
from mxconv.checkpoint.safetensors_header import DTYPES
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.packing import PackedBsfp, escape_offsets
from mxconv.codecs.bsfp.table import NUM_CODES, SHIFTS_PER_OCTAVE, SegmentTable
from mxconv.codecs.float16 import FORMATS, FloatFormat
from mxconv.codecs.mxfp4 import NonFiniteError, ScaleRule
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.engine.matrices import Matrices
from mxconv.errors import CodecError, ModelError
from mxconv.kernels.encoders import (
    add_to_histogram,
    cast_bsfp,
    decode_bsfp,
    decode_mxfp4,
    encode_mxfp4,
    fit_table,
    row_shifts_of,
)
from mxconv.kernels.engine import choose_engine
from mxconv.kernels.matrix import Matrix
from mxconv.package.stored import StoredArray, bsfp_arrays, mxfp4_arrays
from mxconv.package.stored_matrix import StoredBsfp, StoredMxfp4

INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TORCH_FORMATS = {torch.bfloat16: "BF16", torch.float16: "F16"}


class KernelLinear(nn.Module):
    """`y = x W^T + bias`, W (out_features, in_features) in a format of ours."""

    def __init__(self, in_features: int, out_features: int, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.bias: torch.Tensor | None
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self._matrix: Matrix | None = None
        self._addresses: tuple[int, ...] = ()  # of the matrix's buffers

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.out_features, self.in_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), in the dtype of `x`; products are rounded by our kernels.

        Raises:
            ModelError: `x` is not on the CPU, is no float of 16 to 64 bits, has another last axis, or requires a
                gradient.
        """
        self._check_input(x)
        rows = x.detach().to(torch.float32).reshape(-1, self.in_features).contiguous()
        if len(rows) == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        result = torch.from_numpy(self.matrix().multiply(rows.numpy()))
        if self.bias is not None:
            result += self.bias
        return result.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def matrix(self) -> Matrix:
        """The kernels' matrix over this module's buffers, made anew whenever these moved.

        Raises:
            ModelError: a buffer is not what the format requires.
        """
        addresses = tuple(buffer.data_ptr() for buffer in self.buffers())  # the matrix keeps the old ones alive
        if self._matrix is None or addresses != self._addresses:
            self._matrix, self._addresses = self._make_matrix(Matrices(choose_engine())), addresses
        return self._matrix

    def _make_matrix(self, make: Matrices) -> Matrix:
        raise NotImplementedError

    def _arrays(self) -> tuple[StoredArray, ...]:
        """The buffers that the format requires."""
        raise NotImplementedError

    def _buffer_arrays(self) -> dict[str, NDArray[Any]]:
        """Checked arrays of the buffers: a state dict may hold anything, and kernels trust what they read."""
        found = {}
        for array in self._arrays():
            name = array.name.removeprefix(".")
            buffer = getattr(self, name)
            dtype = DTYPES[array.dtype].array_dtype
            if not isinstance(buffer, torch.Tensor) or buffer.device.type != "cpu":
                raise ModelError(
                    f"{type(self).__name__}: buffer {name} is not on the CPU, where its kernels run. Move it back."
                )
            content = buffer.numpy()
            content = content.view(np.uint16) if content.dtype == np.int16 else content
            if (content.dtype, content.shape) != (dtype, array.shape):
                raise ModelError(
                    f"{type(self).__name__}: buffer {name} is {content.dtype} {list(content.shape)}; {dtype} "
                    f"{list(array.shape)} is required. Load the state of a layer of this shape."
                )
            found[name] = np.ascontiguousarray(content)
        return found

    def _check_input(self, x: torch.Tensor) -> None:
        kind = type(self).__name__
        if x.device.type != "cpu":
            raise ModelError(f"{kind}: input on {x.device}; its kernels run on the CPU. Move the model there.")
        if x.dtype not in INPUT_DTYPES:
            raise ModelError(
                f"{kind}: input of {x.dtype}; float32, bfloat16, float16 or float64 is required. Convert it."
            )
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ModelError(f"{kind}: input of shape {tuple(x.shape)}; a last axis of {self.in_features} is required.")
        if x.requires_grad and torch.is_grad_enabled():
            raise ModelError(
                f"{kind}: input that requires a gradient; this layer is for inference. Use torch.no_grad()."
            )

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Take buffers of any length, since the number of escapes depends on the weights."""
        for name in self._buffers:
            value = state_dict.get(prefix + name)
            if isinstance(value, torch.Tensor):
                self._buffers[name] = torch.empty_like(value)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_matrix": None}  # a handle of the kernels cannot be copied

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class MXFP4Linear(KernelLinear):
    """W in MXFP4: 4.25 bits a weight, multiplied with int8 activations.

    Buffers: `codes` U8 (row tiles, column tiles, 64) and `scales` U8 (row tiles, blocks, 16), as formats/mxfp4.md says.
    """

    def __init__(self, in_features: int, out_features: int, bias: torch.Tensor | None = None) -> None:
        super().__init__(in_features, out_features, bias)
        for array in self._arrays():
            self.register_buffer(array.name.removeprefix("."), torch.zeros(array.shape, dtype=torch.uint8))

    @classmethod
    def from_linear(cls, linear: nn.Linear, scale_rule: ScaleRule = "ocp", name: str = "linear") -> "MXFP4Linear":
        """Quantize a torch layer.

        Args:
            linear: 16-bit weights on the CPU, or float32 ones that are BF16 exactly.
            scale_rule: as for `mxconv quantize`.
            name: of the layer, in messages.

        Raises:
            ModelError: weights of another kind, or not finite.
        """
        stored = as_mxfp4(linear.weight, name, scale_rule)
        layer = cls(linear.in_features, linear.out_features, linear.bias)
        layer.codes, layer.scales = torch.from_numpy(stored.codes), torch.from_numpy(stored.scales)
        return layer

    def weight(self) -> torch.Tensor:
        """(out_features, in_features) float32 values of the codes."""
        found = self._buffer_arrays()
        return torch.from_numpy(decode_mxfp4(found["codes"], found["scales"], self.shape))

    def _arrays(self) -> tuple[StoredArray, ...]:
        return mxfp4_arrays("", self.shape)

    def _make_matrix(self, make: Matrices) -> Matrix:
        return make.mxfp4_draft(StoredMxfp4(self.shape, **self._buffer_arrays()))


class BSFPLinear(KernelLinear):
    """W in BSFP: the exact 16-bit weights and a 4-bit draft of them in one set of bytes.

    `level` is "target" (exact, about 12.7 bits a weight for BF16) or "draft" (4.13 bits), and may be changed at any
    time. Buffers: the planes that formats/bsfp.md describes, 16-bit scales as int16 patterns, and the segment table
    as `starts`, `levels` and `format` (residual bits, mantissa bits).
    """

    def __init__(self, in_features: int, out_features: int, bias: torch.Tensor | None = None) -> None:
        """Make an empty layer, to be filled by `from_linear` or `load_state_dict`."""
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
            name: of the layer, in messages.

        Raises:
            ModelError: weights of another kind.
        """
        stored = as_bsfp(linear.weight, name)
        packed, table = stored.packed, stored.table
        layer = cls(linear.in_features, linear.out_features, linear.bias)
        contents: dict[str, NDArray[Any]] = {
            **{part: array for part, array in vars(packed).items() if array is not None},
            "starts": np.array(table.starts, np.int32),
            "levels": np.array(table.levels, np.float64),
            "format": np.array([table.residual_bits, table.float_format.mantissa_bits], np.int32),
            "scales": packed.scales.view(np.int16),
            "row_shifts": np.zeros(0, np.int8) if packed.row_shifts is None else packed.row_shifts,
            "escape_offsets": stored.escape_offsets,
        }
        for buffer, content in contents.items():
            setattr(layer, buffer, torch.from_numpy(np.ascontiguousarray(content)))
        return layer

    @property
    def level(self) -> Literal["target", "draft"]:
        """The level that multiplies."""
        return self._level

    @level.setter
    def level(self, level: Literal["target", "draft"]) -> None:
        if level not in ("target", "draft"):
            raise ModelError(f"BSFPLinear: level {level!r}; target or draft is required.")
        self._level, self._matrix = level, None

    def weight(self) -> torch.Tensor:
        """(out_features, in_features) the exact 16-bit weights."""
        stored = self._stored()
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

    def _stored(self) -> StoredBsfp:
        """The matrix of the buffers.

        Raises:
            ModelError: a buffer is not what the format requires, or the escape lists contradict themselves.
        """
        table, found = self._table(), self._buffer_arrays()
        offsets = found.pop("escape_offsets")
        no_planes = np.zeros((*found["residual_low"].shape[:2], 0, TILE_ROWS), np.uint8)
        parts: dict[str, Any] = {"residual_high": no_planes, "row_shifts": None} | found
        packed = PackedBsfp(**parts)
        if not np.array_equal(offsets, escape_offsets(packed)) or offsets[-1] != len(packed.escape_high):
            raise ModelError("BSFPLinear: escape offsets and counts disagree; they must agree. Load the state again.")
        return StoredBsfp(self.shape, table, packed, offsets, 1.0)

    def _make_matrix(self, make: Matrices) -> Matrix:
        stored = self._stored()
        return make.bsfp(stored, type(self).__name__) if self._level == "target" else make.bsfp_draft(stored)


def as_mxfp4(weight: torch.Tensor, name: str, scale_rule: ScaleRule = "ocp") -> StoredMxfp4:
    """Encode a torch layer's weight in MXFP4; arguments and errors as for `MXFP4Linear.from_linear`."""
    patterns, float_format = weight_patterns(weight, name)
    try:
        codes, scales = encode_mxfp4(patterns, float_format, scale_rule)
    except NonFiniteError as error:
        raise ModelError(
            f"{name}: weight [{error.row}, {error.column}] is {error.value}; finite weights are required. "
            "Skip this layer."
        ) from error
    return StoredMxfp4((weight.shape[0], weight.shape[1]), codes, scales)


def as_bsfp(weight: torch.Tensor, name: str) -> StoredBsfp:
    """Encode a torch layer's weight in BSFP; arguments and errors as for `BSFPLinear.from_linear`."""
    patterns, float_format = weight_patterns(weight, name)
    histogram = PatternHistogram(float_format)
    add_to_histogram(histogram, patterns)
    table = fit_table(histogram).table
    packed = cast_bsfp(patterns, table, row_shifts_of(patterns, float_format) if table.has_row_shifts else None)
    return StoredBsfp((weight.shape[0], weight.shape[1]), table, packed, escape_offsets(packed), 1.0)


def weight_patterns(weight: torch.Tensor, name: str) -> tuple[U16, FloatFormat]:
    """A torch layer's weight as 16-bit patterns, (out_features, in_features), and their format.

    Raises:
        ModelError: not on the CPU, of no 16-bit dtype, or float32 that would have to be rounded.
    """
    weight = weight.detach()
    if weight.device.type != "cpu":
        raise ModelError(f"{name}: weights on {weight.device}; the CPU is required. Move the model there first.")
    if 0 in weight.shape:
        raise ModelError(f"{name}: weights of shape {tuple(weight.shape)}; at least one is required. Skip this layer.")
    if weight.dtype == torch.float32:
        rounded = weight.to(torch.bfloat16)
        if not torch.equal(rounded.to(torch.float32), weight):
            raise ModelError(
                f"{name}: float32 weights that BF16 does not hold exactly; 16-bit weights are required. "
                "Round them yourself: model.to(torch.bfloat16)."
            )
        weight = rounded
    if weight.dtype not in TORCH_FORMATS:
        raise ModelError(
            f"{name}: weights of {weight.dtype}; bfloat16 or float16 is required. Convert the model, or skip this "
            "layer."
        )
    patterns: U16 = weight.contiguous().view(torch.int16).numpy().view(np.uint16)
    return patterns, FORMATS[TORCH_FORMATS[weight.dtype]]
