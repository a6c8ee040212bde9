"""A BSFP weight on a GPU: one set of bytes, the exact 16-bit matrix and its 4-bit draft."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from mxconv.codecs.bsfp.packing import PackedBsfp
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.kernels.triton.arrays.bsfp_arrays import BsfpArrays
from mxconv.kernels.triton.arrays.four_bit_arrays import FourBitArrays
from mxconv.kernels.triton.arrays.upload import upload
from mxconv.kernels.triton.chosen import Chosen
from mxconv.kernels.triton.launch import MAX_TOKENS, on
from mxconv.kernels.triton.panels import multiply_by_panels
from mxconv.kernels.triton.products.bsfp_product import bsfp_product
from mxconv.kernels.triton.rebuild import rebuild
from mxconv.kernels.triton.weight import Activations, FourBitWeight, check_tokens


class BsfpWeight:
    """Implements `Weight` for the exact weights; `draft` is the other one, on the same codes."""

    def __init__(self, arrays: BsfpArrays, draft: FourBitArrays, activations: Activations = "bf16") -> None:
        self.arrays = arrays
        self.draft = FourBitWeight(draft, activations if draft.int8_levels is not None else "bf16")
        self.rows, self.columns = arrays.shape

    @classmethod
    def from_packed(
        cls,
        packed: PackedBsfp,
        table: SegmentTable,
        shape: tuple[int, int],
        device: torch.device,
        activations: Activations = "bf16",
        stored: Mapping[str, torch.Tensor] | None = None,
        num_planes: int = 0,
        has_row_starts: bool = False,
    ) -> "BsfpWeight":
        """Copy a matrix to a device.

        Args:
            packed: its arrays as stored.
            table: its segment table.
            shape: (rows, columns) without padding.
            device: where to.
            activations: of the draft; "int8" where its levels are integers.
            stored: arrays of `packed` by name that are on the device already.
            num_planes: as for `BsfpArrays.from_packed`.
            has_row_starts: likewise.

        Raises:
            CodecError: the escape lists contradict themselves, or a row shift leaves the finite patterns.
        """
        arrays = BsfpArrays.from_packed(packed, table, shape, device, stored, num_planes, has_row_starts)
        scales = stored["scales"] if stored and "scales" in stored else upload(packed.scales, device)
        return cls(arrays, FourBitArrays.of_bsfp(arrays.codes, scales, table, shape), activations)

    @property
    def dtype(self) -> torch.dtype:
        """Of the exact weights; activations are rounded to it."""
        return self.arrays.dtype

    @property
    def num_bytes(self) -> int:
        """On the device, both weights."""
        return self.arrays.num_bytes + self.draft.num_bytes - self.arrays.codes.nbytes

    @classmethod
    def stacked(cls, experts: "Sequence[BsfpWeight]") -> "BsfpWeight":
        """A stack of matrices, as `BsfpArrays.stacked`."""
        arrays = BsfpArrays.stacked([each.arrays for each in experts])
        draft = FourBitWeight.stacked([each.draft for each in experts])
        return cls(arrays, replace(draft.arrays, codes=arrays.codes), draft.activations)

    def expert(self, number: int, num_experts: int) -> "BsfpWeight":
        """One of a stack: views."""
        draft = self.draft.arrays.expert(number, num_experts)
        return BsfpWeight(self.arrays.expert(number, num_experts), draft, self.draft.activations)

    def product(self, x: torch.Tensor, chosen: Chosen | None = None) -> torch.Tensor:
        """As `Weight.product`; of a stack as `bsfp_product`, with any number of tokens."""
        device = self.arrays.codes.device
        check_tokens(x, self.columns, device)
        x = x.to(self.dtype).contiguous()
        with on(device):
            if len(x) <= MAX_TOKENS.value or chosen is not None:
                return bsfp_product(self.arrays, x, chosen)
            return multiply_by_panels(x, self.rows, lambda first, count: rebuild(self.arrays, first, count))

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) in `dtype`: the source's weights, bit for bit."""
        with on(self.arrays.codes.device):
            return rebuild(self.arrays)
