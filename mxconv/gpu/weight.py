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
from typing import Protocol, TypeVar

import numpy as np
import torch

from mxconv.arrays import F32
from mxconv.codecs.e2m1 import VALUES
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.mxint8 import FRACTION_BITS
from mxconv.codecs.vnni8 import QUAD, TILE_ROWS
from mxconv.errors import ModelError
from mxconv.gpu.device_arrays import upload
from mxconv.gpu.fragment_product import fragment_patterns, fragment_product
from mxconv.gpu.fragment_reference import reference_patterns, reference_product
from mxconv.gpu.fragments import FragmentArrays, FragmentDraft, draft_fragments, fragments_of, rows_of_patterns
from mxconv.gpu.launch import MAX_TOKENS, RoutedPairs, on
from mxconv.gpu.self_check import kernels_work
from mxconv.package.stored import StoredBsfp, StoredMxfp4

AnyWeight = TypeVar("AnyWeight", bound="Weight")
SCRATCH_BYTES, PANEL_ROWS = 64 << 20, 64


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


class _InFragments:
    """A matrix in fragment order, multiplied by kernels, or by torch where they do not work.

    Args:
        arrays: on a device; those of a stack too.
        dtype: which activations are rounded to.
    """

    def __init__(self, arrays: FragmentArrays | FragmentDraft, dtype: torch.dtype) -> None:
        self._arrays, self.dtype = arrays, dtype
        self.rows, self.columns = arrays.shape
        self._device = arrays.codes.device
        of_kind = (arrays.dtype, arrays.num_planes) if isinstance(arrays, FragmentArrays) else ()
        self._has_kernels = kernels_work(self._device, *of_kind)

    def product(self, x: torch.Tensor, routed: RoutedPairs | None = None) -> torch.Tensor:
        """As `Weight.product`; of a stack as `fragment_product`, with any number of tokens."""
        check_tokens(x, self.columns, self._device)
        x = x.to(self.dtype).contiguous()
        with on(self._device):
            if len(x) <= MAX_TOKENS.value or routed is not None:
                return (fragment_product if self._has_kernels else reference_product)(self._arrays, x, routed)
            return _by_panels(x, self.rows, lambda first, count: self._values(first, count).to(self.dtype))

    def rebuild(self) -> torch.Tensor:
        """(rows, columns): the source's weights, bit for bit, in their dtype; of 4 bits float32."""
        with on(self._device):
            return self._values(0, self.rows)

    def _values(self, first_row: int, num_rows: int) -> torch.Tensor:
        patterns = (fragment_patterns if self._has_kernels else reference_patterns)(self._arrays, first_row, num_rows)
        return rows_of_patterns(self._arrays, patterns, first_row)


class FourBitWeight(_InFragments):
    """Implements `Weight` for 4-bit levels on the device: MXFP4, or the draft in BSFP."""

    def __init__(self, arrays: FragmentDraft) -> None:
        super().__init__(arrays, torch.bfloat16)
        self.arrays, self.num_bytes = arrays, arrays.num_bytes

    @classmethod
    def stacked(cls, experts: "Sequence[FourBitWeight]") -> "FourBitWeight":
        """Stack matrices of one shape and kind."""
        return cls(FragmentDraft.stacked([each.arrays for each in experts]))

    def expert(self, number: int, num_experts: int) -> "FourBitWeight":
        """View one matrix of a stack."""
        return FourBitWeight(self.arrays.expert(number, num_experts))


class BsfpWeight(_InFragments):
    """Implements `Weight` for the exact 16-bit weights; `draft` is the 4-bit weight with the same codes."""

    def __init__(self, arrays: FragmentArrays, draft: FragmentDraft) -> None:
        super().__init__(arrays, arrays.dtype)
        self.arrays, self.draft = arrays, FourBitWeight(draft)

    @property
    def num_bytes(self) -> int:
        """Bytes of both weights on the device."""
        return self.arrays.num_bytes + self.draft.num_bytes - self.arrays.codes.nbytes

    @classmethod
    def stacked(cls, experts: "Sequence[BsfpWeight]") -> "BsfpWeight":
        """Stack matrices of one shape and kind."""
        arrays = FragmentArrays.stacked([each.arrays for each in experts])
        draft = FragmentDraft.stacked([each.draft.arrays for each in experts])
        return cls(arrays, replace(draft, codes=arrays.codes))

    def expert(self, number: int, num_experts: int) -> "BsfpWeight":
        """View one matrix of a stack."""
        draft = self.draft.arrays.expert(number, num_experts)
        return BsfpWeight(self.arrays.expert(number, num_experts), draft)


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
    residuals_on_host: bool = False,
) -> BsfpWeight | FourBitWeight:
    """Copy an encoded matrix to a device.

    Args:
        stored: views of a memory map, usually.
        device: the destination.
        parts: its arrays by name that are on the device already.
        num_planes: as for `fragments_of`.
        residuals_on_host: likewise.

    Raises:
        CodecError: the escape lists contradict themselves, or a row shift leaves the finite patterns.
    """
    parts = {} if parts is None else parts
    if isinstance(stored, StoredBsfp):
        assert stored.rescale_factor == 1.0, "others are refused before they are copied"
        return BsfpWeight(*fragments_of(stored, device, parts, residuals_on_host, num_planes))
    codes = parts["codes"] if "codes" in parts else upload(stored.codes, device)
    scales = parts["scales"] if "scales" in parts else upload(stored.scales, device)
    return FourBitWeight(draft_fragments(stored.shape, codes, scales, VALUES[:8]))


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
    return max(SCRATCH_BYTES // (2 * num_columns * PANEL_ROWS), 1) * PANEL_ROWS


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
        experts: in their order; of BSFP all with as many planes.
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
        return cls([uploaded_weight(each, device, None, num_planes) for each in stored])

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
