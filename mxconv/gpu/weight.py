"""Weights on a GPU, which multiply there as `mxconv.kernels.matrix.Matrix` does on the CPU.

Up to 16 tokens go through the kernels. For more, rows of weights are rebuilt into a scratch of bounded size, panel by
panel, and torch multiplies. Experts of a layer are matrices of one shape, of which each token is multiplied by a few:

    routed = RoutedPairs.of(top_k_index, stack.num_experts)
    stack.product(x, routed)    # (tokens * top_k, rows)

A program of the kernels takes 16 of the pairs of one expert, so that its weights are read once for all 16. The host
waits for the GPU only where so many tokens come that experts are better rebuilt, one by one, for torch's product.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from mxconv.arrays import F32
from mxconv.codecs.e2m1 import VALUES
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.mxint8 import FRACTION_BITS
from mxconv.codecs.vnni8 import QUAD, TILE_ROWS
from mxconv.errors import ModelError
from mxconv.gpu.bsfp_arrays import BsfpArrays
from mxconv.gpu.bsfp_product import bsfp_product, rebuild
from mxconv.gpu.device_arrays import as_words, upload
from mxconv.gpu.four_bit_product import FourBitArrays, dequantize, four_bit_product
from mxconv.gpu.fragment_product import fragment_product, rebuild_fragments
from mxconv.gpu.fragments import FragmentArrays, FragmentDraft, draft_fragments, fits_fragments, fragments_of
from mxconv.gpu.launch import MAX_TOKENS, ROWS, RoutedPairs, on
from mxconv.gpu.self_check import fragments_work
from mxconv.package.stored import StoredBsfp, StoredMxfp4

AnyWeight = TypeVar("AnyWeight", bound="Weight")
SCRATCH_BYTES = 64 << 20


class Weight(Protocol):
    """A weight matrix, (rows, columns), on a device."""

    rows: int
    columns: int

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        ...

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T: (tokens, columns) of a float type to (tokens, rows) float32.

        Up to 16 tokens, a token's bits depend on that token alone; beyond, `torch.matmul` decides.
        """
        ...

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) weights."""
        ...


class FourBitWeight:
    """Implements `Weight` for 4-bit levels on the device: MXFP4, or the draft in BSFP."""

    def __init__(self, arrays: FourBitArrays | FragmentDraft) -> None:
        self.arrays = arrays
        self.rows, self.columns = arrays.shape
        self.num_bytes = arrays.num_bytes

    @classmethod
    def stacked(cls, experts: "Sequence[FourBitWeight]") -> "FourBitWeight":
        """Stack matrices of one shape and kind."""
        arrays: list[Any] = [each.arrays for each in experts]
        return cls(type(arrays[0]).stacked(arrays))

    def expert(self, number: int, num_experts: int) -> "FourBitWeight":
        """View one matrix of a stack."""
        return FourBitWeight(self.arrays.expert(number, num_experts))

    def product(self, x: torch.Tensor, routed: RoutedPairs | None = None) -> torch.Tensor:
        """As `Weight.product`; of a stack as `four_bit_product`, with any number of tokens."""
        device = self.arrays.codes.device
        check_tokens(x, self.columns, device)
        x = x.to(torch.bfloat16).contiguous()
        with on(device):
            if len(x) <= MAX_TOKENS.value or routed is not None:
                if isinstance(self.arrays, FragmentDraft):
                    return fragment_product(self.arrays, x, routed)
                return four_bit_product(self.arrays, x, routed)
            return _by_panels(x, self.rows, lambda first, count: self._values(first, count).to(torch.bfloat16))

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) float32 values."""
        with on(self.arrays.codes.device):
            return self._values(0, None)

    def _values(self, first_row: int, num_rows: int | None) -> torch.Tensor:
        if isinstance(self.arrays, FragmentDraft):
            return rebuild_fragments(self.arrays, first_row, num_rows)
        return dequantize(self.arrays, first_row, num_rows)


class BsfpWeight:
    """Implements `Weight` for the exact 16-bit weights; `draft` is the 4-bit weight with the same codes."""

    def __init__(self, arrays: BsfpArrays | FragmentArrays, draft: FourBitArrays | FragmentDraft) -> None:
        self.arrays, self.draft = arrays, FourBitWeight(draft)
        self.rows, self.columns = arrays.shape

    @property
    def dtype(self) -> torch.dtype:
        """Type of the exact weights, which activations are rounded to."""
        return self.arrays.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of both weights on the device."""
        return self.arrays.num_bytes + self.draft.num_bytes - self.arrays.codes.nbytes

    @classmethod
    def stacked(cls, experts: "Sequence[BsfpWeight]") -> "BsfpWeight":
        """Stack matrices of one shape and kind."""
        of_each: list[Any] = [each.arrays for each in experts]
        arrays = type(of_each[0]).stacked(of_each)
        draft = FourBitWeight.stacked([each.draft for each in experts])
        return cls(arrays, replace(draft.arrays, codes=arrays.codes))

    def expert(self, number: int, num_experts: int) -> "BsfpWeight":
        """View one matrix of a stack."""
        draft = self.draft.arrays.expert(number, num_experts)
        return BsfpWeight(self.arrays.expert(number, num_experts), draft)

    def product(self, x: torch.Tensor, routed: RoutedPairs | None = None) -> torch.Tensor:
        """As `Weight.product`; of a stack as `bsfp_product`, with any number of tokens."""
        device = self.arrays.codes.device
        check_tokens(x, self.columns, device)
        x = x.to(self.dtype).contiguous()
        with on(device):
            if len(x) <= MAX_TOKENS.value or routed is not None:
                if isinstance(self.arrays, FragmentArrays):
                    return fragment_product(self.arrays, x, routed)
                return bsfp_product(self.arrays, x, routed)
            return _by_panels(x, self.rows, self._patterns)

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) in `dtype`: the source's weights, bit for bit."""
        with on(self.arrays.codes.device):
            return self._patterns(0, None)

    def _patterns(self, first_row: int, num_rows: int | None) -> torch.Tensor:
        if isinstance(self.arrays, FragmentArrays):
            return rebuild_fragments(self.arrays, first_row, num_rows)
        return rebuild(self.arrays, first_row, num_rows)


class EightBitWeight:
    """Implements `Weight` for the MXINT8 head of an MXFP4 draft: decoded once to BF16, exactly, for torch's product.

    Args:
        elements: (row tiles, column quads, 64) int8, on the device.
        scales: (row tiles, blocks, 16) uint8, there too.
        shape: (rows, columns) without padding.
    """

    def __init__(self, elements: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int]) -> None:
        self.rows, self.columns = shape
        self._values = torch.empty(shape, dtype=torch.bfloat16, device=elements.device)
        # a table, since powers of two are not exact in every exp2
        powers: F32 = decode_e8m0(np.arange(256, dtype=np.uint8)) * np.float32(2.0**-FRACTION_BITS)
        table = torch.from_numpy(powers).to(elements.device)
        step = panel_rows(self.columns) // TILE_ROWS
        for first in range(0, len(elements), step):
            tiles = elements[first : first + step]
            blocks = tiles.view(*scales[first : first + step].shape[:2], -1, TILE_ROWS, QUAD).permute(0, 3, 1, 2, 4)
            steps = table[scales[first : first + step].long()].permute(0, 2, 1)[..., None, None]
            values = (blocks.float() * steps).reshape(len(tiles) * TILE_ROWS, -1)
            start = first * TILE_ROWS
            stop = min(start + len(values), self.rows)
            self._values[start:stop] = values[: stop - start, : self.columns]

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self._values.nbytes

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """As `Weight.product`, rounded to 16 bits by torch. Fewer than 16 tokens are padded to 16 with zeros."""
        check_tokens(x, self.columns, self._values.device)
        num_tokens = len(x)
        x = x.to(torch.bfloat16)
        if num_tokens < MAX_TOKENS.value:
            x = torch.cat([x, x.new_zeros(MAX_TOKENS.value - num_tokens, self.columns)])
        return _by_panels(x, self.rows, lambda first, count: self._values[first : first + count])[:num_tokens]

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) BF16, exactly."""
        return self._values


def at_level(weight: AnyWeight, level: str) -> AnyWeight | FourBitWeight:
    """The weight of a level: "draft" is the 4-bit weight in BSFP; other formats have one level."""
    return weight.draft if isinstance(weight, BsfpWeight) and level == "draft" else weight


def uploaded_weight(
    stored: StoredBsfp | StoredMxfp4,
    device: torch.device,
    parts: Mapping[str, torch.Tensor] | None = None,
    num_planes: int = 0,
    has_row_starts: bool = False,
    in_fragments: bool = False,
    residuals_on_host: bool = False,
) -> BsfpWeight | FourBitWeight:
    """Copy an encoded matrix to a device.

    Args:
        stored: views of a memory map, usually.
        device: the destination.
        parts: its arrays by name that are on the device already.
        num_planes: as for `BsfpArrays.from_stored`.
        has_row_starts: likewise.
        in_fragments: whether it comes in fragment order, where its format and the device allow it; of experts all may.
        residuals_on_host: as for `fragments_of`; in another order they are on the device.

    Raises:
        CodecError: the escape lists contradict themselves, or a row shift leaves the finite patterns.
    """
    parts = {} if parts is None else parts
    if in_fragments and isinstance(stored, StoredBsfp) and fits_fragments(stored) and fragments_work(device):
        return BsfpWeight(*fragments_of(stored, device, parts, residuals_on_host))
    packed = stored if isinstance(stored, StoredMxfp4) else stored.packed
    scales = parts["scales"] if "scales" in parts else upload(packed.scales, device)
    if isinstance(stored, StoredMxfp4):
        codes = parts["codes"] if "codes" in parts else upload(stored.codes, device)
        return four_bit_weight(stored.shape, codes, scales, VALUES[:8], in_fragments)
    assert stored.rescale_factor == 1.0, "others are refused before they are copied"
    arrays = BsfpArrays.from_stored(stored, device, parts, num_planes, has_row_starts)
    draft = FourBitArrays.of(stored.shape, arrays.codes, scales, stored.table.signed_levels[:8])
    return BsfpWeight(arrays, draft)


def four_bit_weight(
    shape: tuple[int, int], codes: torch.Tensor, scales: torch.Tensor, magnitudes: F32, in_fragments: bool = False
) -> FourBitWeight:
    """4 bits of arrays on a device, as `draft_fragments` takes them; `in_fragments` as in `uploaded_weight`."""
    if in_fragments and fragments_work(codes.device):
        return FourBitWeight(draft_fragments(shape, codes, scales, magnitudes))
    return FourBitWeight(FourBitArrays.of(shape, as_words(codes), scales, magnitudes))


def check_tokens(x: torch.Tensor, num_columns: int, device: torch.device) -> None:
    """Require (tokens, columns) floats on the device.

    Raises:
        ModelError: another shape, dtype or device, or no token.
    """
    if x.dim() != 2 or x.shape[1] != num_columns or not len(x) or not x.dtype.is_floating_point:
        raise ModelError(
            f"product: {x.dtype} of shape {tuple(x.shape)}; floats of shape (tokens, {num_columns}) are required."
        )
    if x.device != device:
        raise ModelError(f"product: input on {x.device}, weights on {device}; one device is required. Move the input.")


def panel_rows(num_columns: int) -> int:
    """Rows of 16-bit weights that the scratch holds: a multiple of 64."""
    return max(SCRATCH_BYTES // (2 * num_columns * int(ROWS.value)), 1) * int(ROWS.value)


def _by_panels(x: torch.Tensor, num_rows: int, weight_rows: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
    """x W^T by `torch.matmul`, whose bits may depend on the number of tokens.

    Args:
        x: (tokens, columns) in the weights' dtype.
        num_rows: of W.
        weight_rows: (first row, number of rows) to these rows of W, in 16 bits.

    Returns:
        (tokens, rows) float32, rounded to 16 bits by torch.
    """
    out = torch.empty((len(x), num_rows), dtype=torch.float32, device=x.device)
    step = panel_rows(x.shape[1])
    for first in range(0, num_rows, step):
        stop = min(first + step, num_rows)
        out[:, first:stop] = x @ weight_rows(first, stop - first).T
    return out


class StackedWeight:
    """Experts in one format.

    Args:
        experts: in their order; of BSFP all with as many planes, and all or none with row starts.
    """

    def __init__(self, experts: Sequence[BsfpWeight | FourBitWeight]) -> None:
        self.num_experts = len(experts)
        exact = [each for each in experts if isinstance(each, BsfpWeight)]
        four_bit = [each for each in experts if isinstance(each, FourBitWeight)]
        self.weight = BsfpWeight.stacked(exact) if exact else FourBitWeight.stacked(four_bit)
        self.rows, self.columns = self.weight.rows, self.weight.columns

    @classmethod
    def uploaded(cls, stored: Sequence[StoredBsfp | StoredMxfp4], device: torch.device) -> "StackedWeight":
        """Copy experts to a device; arguments as for `uploaded_weight`."""
        num_planes = max((each.table.residual_bits for each in stored if isinstance(each, StoredBsfp)), default=8) - 8
        fits = all(isinstance(each, StoredMxfp4) or fits_fragments(each) for each in stored)
        return cls([uploaded_weight(each, device, None, num_planes, True, fits) for each in stored])

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self.weight.num_bytes

    def expert(self, number: int) -> BsfpWeight | FourBitWeight:
        """The matrix of one expert: views."""
        return self.weight.expert(number, self.num_experts)

    def product(self, x: torch.Tensor, routed: RoutedPairs, level: str = "target") -> torch.Tensor:
        """Multiply each token by the experts that it is routed to.

        Args:
            x: (tokens or pairs, columns) of a float type.
            routed: as many tokens or pairs, for as many experts.
            level: "target", or "draft" for the one in BSFP; MXFP4 has one level.

        Returns:
            (pairs, rows) float32. Up to 16 tokens, a row's bits depend on its row of `x` and its expert alone.
        """
        if len(routed.experts) <= MAX_TOKENS.value * self.num_experts:
            return at_level(self.weight, level).product(x, routed)
        out = torch.empty((len(routed.experts), self.rows), dtype=torch.float32, device=x.device)
        pairs = routed.pairs.long()
        counts = torch.bincount(routed.experts, minlength=self.num_experts).tolist()
        for number, mine in enumerate(pairs.split(counts)):
            if len(mine):
                rows = x[mine // (len(routed.experts) // len(x))]
                out[mine] = at_level(self.expert(number), level).product(rows)
        return out
