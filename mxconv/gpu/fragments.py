"""Matrices in fragment order: their bytes, permuted so that a lane of a warp loads the weights that it multiplies.

Normative for the bytes: formats/bsfp.md and mxfp4.md. A step is 16 rows x 64 columns. Lane 4 g + t of a warp (g = 0..7,
t = 0..3) has rows g and g + 8 and, of each block of 32 columns, columns 8 t to 8 t + 7: columns
32 b + 8 t + 4 r + 2 k + e in instruction s = 2 b + r (`mma.m16n8k16`, whose places 2 t + e + 8 k they take; sums do not
mind the order of columns).

    codes       a word a lane and s: bits 2..0 of nibble 4 h + 2 k + e are the code of row g + 8 h, column 2 k + e
                bits 15 - 4 p and 31 - 4 p are the signs of e = 0 and e = 1 of pair p = 2 k + h, so that a shift by 4 p
                puts both where a pattern has them
    residuals   a word a lane, h and s: byte 2 k + e has bits 7..0
    planes      a byte a lane, s and further residual bit: bit p + 4 e; of an escape 0
    starts      16 bytes a row, `pattern_table`: a byte permutation looks up four codes at a time
    escapes     16 bits each: bits 8..0 the place, 16 * lane + 4 s + 2 k + e; bits 15..9 what the high byte of the start
                is XORed with, so that `start + residual` becomes the pattern. Bit 15 of the sum is replaced by the sign
    firsts      the index of the first escape of each half step, rows 0 to 7 before rows 8 to 15

A weight takes 12 bits and one for each plane, its row's 128 bits and its half step's 32 bits a share, and an escape 16
bits more. The draft
has the same codes, and the scales of the file; MXFP4 has codes and scales alone. Two instructions multiply a block of
MXFP4, whose sums have one scale.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

from mxconv.arrays import F32, U16
from mxconv.codecs.bsfp.packing import escape_mask
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.gpu.device_arrays import Parts, expert_of, pattern_table, stacked, upload
from mxconv.package.stored import StoredBsfp

STEP_COLUMNS = 64
GROUP_STEPS = 2  # of a group of 128 columns, which has one scale a row; rows are padded to whole groups
WEIGHTS_AT_A_TIME, ESCAPES_AT_A_TIME = 1 << 23, 1 << 20  # which keep intermediate arrays below 100 MB
SIGNS = (6, 2, 4, 0, 7, 3, 5, 1)  # whose sign, as 4 h + 2 k + e, bit 3 of each nibble is
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}
COPIED = ("codes", "scales", "residual_low", "residual_high", "escape_counts", "escape_positions", "escape_high")


@dataclass(frozen=True, eq=False)
class FragmentArrays:
    """What the kernels of fragment_product.py read: T row tiles, S steps along the columns.

    A stack has the arrays of all experts one after the other, and the shape of one; its counters are twice as many,
    since experts with more than 16 tokens count for each 16 of them.
    """

    shape: tuple[int, int]
    dtype: torch.dtype  # of the weights
    codes: torch.Tensor  # (T, S, 32, 4) int32
    planes: torch.Tensor | None  # (T, S, residual bits beyond eight, 32, 4) uint8, where there are some
    residuals: torch.Tensor  # (T, S, 2, 32, 4) int32; in the host's memory, where the device has no room for them
    starts: torch.Tensor  # (16 T, 4) int32
    escapes: torch.Tensor  # (n,) int16
    firsts: torch.Tensor  # (2 T S + 3,) int32: the last three are n
    counters: torch.Tensor  # (T,) int32 zeros, between products: how many programs of a row tile are done

    @property
    def num_planes(self) -> int:
        """Residual bits beyond eight."""
        return 0 if self.planes is None else self.planes.shape[2]

    def for_kernels(self) -> list[torch.Tensor | None]:
        """Arrays in the order of the kernels' parameters."""
        return [self.codes, self.residuals, self.planes, self.starts, self.escapes, self.firsts]

    @classmethod
    def stacked(cls, experts: "Sequence[FragmentArrays]") -> "FragmentArrays":
        """Stack matrices of one shape and dtype, all with as many planes."""
        begins = accumulate((len(each.escapes) for each in experts[:-1]), initial=0)
        firsts = [each.firsts + begin for each, begin in zip(experts, begins, strict=True)]
        return replace(stacked(experts), firsts=torch.cat(firsts), counters=_counters_of(experts))

    def expert(self, number: int, num_experts: int) -> "FragmentArrays":
        """View one matrix of a stack."""
        return replace(expert_of(self, number, num_experts), escapes=self.escapes)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        tensors = (each for each in vars(self).values() if isinstance(each, torch.Tensor))
        return sum(each.nbytes for each in tensors if each.device == self.codes.device)


@dataclass(frozen=True, eq=False)
class FragmentDraft:
    """Levels times scales: the draft of `FragmentArrays`, or MXFP4."""

    shape: tuple[int, int]
    codes: torch.Tensor  # (T, S, 32, 4) int32, of a draft those of the exact weights
    levels: torch.Tensor  # (4,) int32: `pattern_table` of the BF16 patterns of eight magnitudes
    scales: torch.Tensor  # (T, S / 2, 16) int16 BF16 patterns, of MXFP4 (T, 2 S, 16) uint8 E8M0
    counters: torch.Tensor  # (T,) int32 zeros, as in `FragmentArrays`, of which a draft's are

    @classmethod
    def stacked(cls, experts: "Sequence[FragmentDraft]") -> "FragmentDraft":
        """Stack matrices of one shape and kind."""
        return replace(stacked(experts), counters=_counters_of(experts))

    def expert(self, number: int, num_experts: int) -> "FragmentDraft":
        """View one matrix of a stack."""
        return expert_of(self, number, num_experts)

    @property
    def is_e8m0(self) -> bool:
        return self.scales.dtype == torch.uint8

    @property
    def num_bytes(self) -> int:
        """Bytes on the device, `codes` included."""
        return self.codes.nbytes + self.levels.nbytes + self.scales.nbytes


def level_patterns(magnitudes: F32) -> U16:
    """BF16 patterns of levels, rounded to nearest even; no table of mxconv's has levels that BF16 does not hold."""
    patterns = torch.tensor(magnitudes, dtype=torch.float32).to(torch.bfloat16).view(torch.int16)
    return patterns.numpy().view(np.uint16)


def _counters_of(experts: "Sequence[FragmentArrays | FragmentDraft]") -> torch.Tensor:
    return torch.cat([each.counters for each in experts]).repeat(2)


def fragments_of(
    stored: StoredBsfp, device: torch.device, parts: Parts, residuals_on_host: bool = False, num_planes: int = 0
) -> tuple[FragmentArrays, FragmentDraft]:
    """Copy a matrix to a device, in fragment order.

    Args:
        stored: its arrays, usually views of a memory map.
        device: the destination.
        parts: its arrays by name that are on the device already; the others are copied.
        residuals_on_host: whether eight bits stay in pinned memory of the host, which kernels read at every product.
        num_planes: the least number of planes, where other experts of its stack have more.

    Raises:
        CodecError: the escape lists contradict themselves, or a row shift leaves the finite patterns.
    """
    escape_mask(stored.packed)
    own = {name: parts[name] if name in parts else upload(getattr(stored.packed, name), device) for name in COPIED}
    row_tiles, column_tiles = own["escape_counts"].shape
    num_steps = _num_steps(column_tiles)
    starts = stored.table.row_starts(TILE_ROWS * row_tiles, stored.packed.row_shifts).astype(np.uint16)
    on_device = upload(starts, device)
    made = [_escapes(own, on_device, num_steps, *some) for some in _some_at_a_time(own["escape_counts"])]
    escapes, counts, nibbles = (torch.cat(part) for part in zip(*made, strict=True))
    ends = counts.cumsum(0, dtype=torch.int32)
    firsts = torch.cat([ends.new_zeros(1), ends, ends[-1:].expand(2)])
    residuals = torch.empty((row_tiles, num_steps, 2, 32, 4), dtype=torch.int32, device=device)
    for some in _tiles_at_a_time(row_tiles, num_steps):
        low = _by_lane(own["residual_low"][some].view(-1, column_tiles, TILE_ROWS, 8), num_steps)
        residuals[some] = low.permute(0, 1, 4, 2, 3, 5).contiguous().view(torch.int32).squeeze(-1)
    if residuals_on_host:
        residuals = torch.empty_like(residuals, device="cpu", pin_memory=residuals.is_cuda).copy_(residuals)
    table = upload(pattern_table(starts), device)
    draft = draft_fragments(stored.shape, nibbles, own["scales"], stored.table.signed_levels[:8])
    planes = _planes(own, num_steps, max(num_planes, stored.table.residual_bits - 8))
    dtype = DTYPES[stored.table.float_format.name]
    of_all = draft.codes, planes, residuals, table, escapes, firsts, draft.counters
    return FragmentArrays(stored.shape, dtype, *of_all), draft


def draft_fragments(
    shape: tuple[int, int], nibbles: torch.Tensor, scales: torch.Tensor, magnitudes: F32
) -> FragmentDraft:
    """Levels times scales in fragment order, of arrays on a device.

    Args:
        shape: (rows, columns) without padding.
        nibbles: (T, C, 64) uint8 codes of T row tiles and C column tiles: formats/vnni8.md.
        scales: as the file has them: (T, groups, 16) int16 of BSFP, (T, blocks, 16) uint8 of MXFP4.
        magnitudes: (8,) float32 levels.
    """
    row_tiles, column_tiles = nibbles.shape[:2]
    num_steps = _num_steps(column_tiles)
    codes = torch.empty((row_tiles, num_steps, 32, 4), dtype=torch.int32, device=nibbles.device)
    for some in _tiles_at_a_time(row_tiles, num_steps):
        lanes = nibbles[some].view(-1, column_tiles, TILE_ROWS, 4)
        codes[some] = _words_of_nibbles(_by_lane(torch.cat([lanes & 15, lanes >> 4], dim=-1), num_steps))
    if scales.dtype == torch.uint8:
        scales = torch.nn.functional.pad(scales, (0, 0, 0, 2 * num_steps - scales.shape[1]))
    levels = upload(pattern_table(level_patterns(magnitudes)), nibbles.device)
    counters = torch.zeros(row_tiles, dtype=torch.int32, device=nibbles.device)
    return FragmentDraft(shape, codes, levels, scales, counters)


def rows_of_patterns(arrays: FragmentArrays | FragmentDraft, patterns: torch.Tensor, first_row: int) -> torch.Tensor:
    """What patterns of rows mean.

    Args:
        arrays: the matrix.
        patterns: (num_rows, columns) int16, as `fragment_patterns` returns them.
        first_row: of them, a multiple of 16.

    Returns:
        (num_rows, columns): the exact weights in their dtype; of a draft float32, levels times scales.
    """
    if not isinstance(arrays, FragmentDraft):
        return patterns.view(arrays.dtype)
    num_rows, columns = patterns.shape
    some = arrays.scales[first_row // TILE_ROWS :][: -(-num_rows // TILE_ROWS)].permute(0, 2, 1).flatten(0, 1)
    if arrays.is_e8m0:
        scales = upload(decode_e8m0(np.arange(256, dtype=np.uint8)), some.device)[some[:num_rows].long()]
    else:
        scales = some[:num_rows].view(torch.bfloat16).float()
    each = arrays.codes.shape[1] * STEP_COLUMNS // scales.shape[1]
    return patterns.view(torch.bfloat16).float() * scales.repeat_interleave(each, 1)[:, :columns]


def _num_steps(column_tiles: int) -> int:
    return -(-column_tiles * 8 // (STEP_COLUMNS * GROUP_STEPS)) * GROUP_STEPS


def _tiles_at_a_time(row_tiles: int, num_steps: int) -> Iterator[slice]:
    step = max(WEIGHTS_AT_A_TIME // (TILE_ROWS * STEP_COLUMNS * num_steps), 1)
    return (slice(first, first + step) for first in range(0, row_tiles, step))


def _some_at_a_time(counts: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of row tiles and of their escapes, as many together as `ESCAPES_AT_A_TIME` allows."""
    ends = counts.sum(1, dtype=torch.int64).cumsum(0).tolist()
    begin, start = 0, 0
    for row_tile, end in enumerate(ends):
        if row_tile + 1 == len(ends) or ends[row_tile + 1] - start > ESCAPES_AT_A_TIME:
            yield slice(begin, row_tile + 1), slice(start, end)
            begin, start = row_tile + 1, end


def _by_lane(tiles: torch.Tensor, num_steps: int) -> torch.Tensor:
    """(T, C, 16, 8) bytes, one a weight, to (T, S, 32, s 4, h 2, 2 k + e 4); zeros beyond the columns."""
    rows = tiles.permute(0, 2, 1, 3).flatten(2)
    rows = torch.nn.functional.pad(rows, (0, STEP_COLUMNS * num_steps - rows.shape[2]))
    apart = rows.view(len(rows), 2, 8, num_steps, 2, 4, 2, 4)  # T, h, g, S, b, t, r, 2 k + e
    return apart.permute(0, 3, 2, 5, 4, 6, 1, 7).reshape(len(rows), num_steps, 32, 4, 2, 4)


def _words_of_nibbles(nibbles: torch.Tensor) -> torch.Tensor:
    """What `_by_lane` returns of nibbles to (T, S, 32, 4) words."""
    eight = nibbles.flatten(-2)
    eight = (eight & 7) | (eight[..., list(SIGNS)] & 8)
    return (eight[..., 0::2] | eight[..., 1::2] << 4).contiguous().view(torch.int32).squeeze(-1)


def _planes(own: Parts, num_steps: int, num_planes: int) -> torch.Tensor | None:
    """`planes` of a matrix; those that it lacks are zeros."""
    if not num_planes:
        return None
    stored = own["residual_high"].contiguous().clone()  # (T, C, P, 16), a bit a column
    row_tiles, _, num_stored = stored.shape[:3]
    for tiles, some in _some_at_a_time(own["escape_counts"]):
        tile, position = _places(own, tiles, some)
        flat = stored[tiles].view(-1)
        for plane in range(num_stored):
            byte, bit = (tile * num_stored + plane) * TILE_ROWS + position // 8, (1 << position % 8).to(torch.uint8)
            flat.index_add_(0, byte, -(flat[byte] & bit))  # bits of an escape differ, so nothing is taken twice
    planes = torch.zeros((row_tiles, num_steps, num_planes, 32, 4), dtype=torch.uint8, device=stored.device)
    columns = torch.arange(8, dtype=torch.uint8, device=stored.device)
    places = torch.tensor([[0, 4, 2, 6], [1, 5, 3, 7]], dtype=torch.uint8, device=stored.device)
    for tiles in _tiles_at_a_time(row_tiles, num_steps):
        for plane in range(num_stored):
            bits = stored[tiles, :, plane, :, None] >> columns & 1
            planes[tiles, :, plane] = (_by_lane(bits, num_steps) << places).sum((-2, -1), dtype=torch.uint8)
    return planes


def _places(own: Parts, tiles: slice, some: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """The tile of each escape, from the first of these row tiles on, and its place in that, 8 * row + column."""
    counts = own["escape_counts"][tiles].flatten().long()
    tile = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return tile, own["escape_positions"][some].long()


def _escapes(
    own: Parts, starts: torch.Tensor, num_steps: int, tiles: slice, some: slice
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`escapes` of some row tiles, the number of each half step, and the nibbles with the signs of the escapes."""
    nibbles = own["codes"][tiles]
    row_tiles, column_tiles = nibbles.shape[:2]
    (tile, position), high = _places(own, tiles, some), own["escape_high"][some].long()
    row, column = position // 8, tile % column_tiles * 8 + position % 8
    byte, shift = tile * 64 + row * 4 + column % 4, column // 4 % 2 * 4
    nibble = nibbles.flatten()[byte].long() >> shift & 15
    # an escape may have another sign than its nibble, though no writer makes such
    signs = (((nibble ^ high >> 4) & 8) << shift).to(torch.uint8)
    flips = torch.zeros_like(nibbles.flatten()).index_add_(0, byte, signs).view_as(nibbles)
    residual = own["residual_low"][tiles].flatten()[tile * 128 + position].long()
    start = starts[(tiles.start + tile // column_tiles) * TILE_ROWS + row, nibble & 7].long()
    carry = (start & 255) + residual >> 8
    change = (high - carry & 127) ^ start >> 8
    place = row % 8 * 64 + column // 8 % 4 * 16 + column // 32 % 2 * 8 + column % 8
    half_step = (tile // column_tiles * num_steps + column // STEP_COLUMNS) * 2 + row // 8
    order = torch.sort(half_step, stable=True).indices
    in_each = torch.bincount(half_step, minlength=2 * row_tiles * num_steps)
    return (change << 9 | place)[order].to(torch.int16), in_each, nibbles ^ flips
