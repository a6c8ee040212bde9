"""Escapes of BSFP as a GPU holds them: words that patch half lanes, found without a search.

A *half lane* is four adjacent columns of a row of a tile. It has a word if one of them escapes: the word's bytes are
the bits in which the high bytes of columns 2, 0, 3, 1 differ from those that start and residual give. So bytes 1 and 3
patch columns 0 and 1, where a pair of patterns has its high bytes, and columns 2 and 3 after a shift by one byte. The
words of a row tile and split adjoin, in the order of tiles, rows and halves; 32 bits a tile say which half lanes have
one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from mxconv.gpu.device_arrays import Parts, expert_of, stacked
from mxconv.gpu.launch import SPLIT_TILES

ESCAPES_AT_A_TIME = 1 << 20  # which keeps intermediate arrays below 100 MB


@dataclass(frozen=True, eq=False)
class Patches:
    """Escapes as the kernels read them."""

    words: torch.Tensor  # (half lanes that have one,) int32
    hits: torch.Tensor  # (T, C) int32: bit 2 * row + half
    firsts: torch.Tensor  # (T, C) int16: the place of a tile's first word in its split; at most 4096
    split_firsts: torch.Tensor  # (T, splits) int64: the place of each split's first word in `words`

    @classmethod
    def stacked(cls, experts: "Sequence[Patches]") -> "Patches":
        """Join the patches of experts."""
        before = accumulate((len(each.words) for each in experts), initial=0)
        moved = [
            replace(each, split_firsts=each.split_firsts + first) for each, first in zip(experts, before, strict=False)
        ]
        return stacked(moved)

    def expert(self, number: int, num_experts: int) -> "Patches":
        """View the patches of one expert; `words` are those of all."""
        return replace(expert_of(self, number, num_experts), words=self.words)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self.words.nbytes + self.hits.nbytes + self.firsts.nbytes + self.split_firsts.nbytes


def most_bytes(num_tiles: int, num_escapes: int) -> int:
    """The most bytes that patches take: `hits`, `firsts` and `split_firsts`, and a word for each escape."""
    return 8 * num_tiles + 4 * num_escapes


def patches_of(parts: Parts, starts: torch.Tensor) -> Patches:
    """Make the patches of a matrix, which replace its lists of escapes.

    Args:
        parts: the arrays of the file by name, all on one device: (T, C, 64) codes, (T, C, 128) residual_low,
            (T, C, planes, 16) residual_high, (T, C) escape_counts, (n,) escape_positions, (n,) escape_high.
        starts: (16 T or 1, 8) int16 magnitudes.
    """
    counts = parts["escape_counts"]
    made = [_of_row_tiles(parts, starts, tiles, escapes) for tiles, escapes in some_at_a_time(counts)]
    words, hits, in_tile = (torch.cat(part) for part in zip(*made, strict=True))
    before = (in_tile.cumsum(0) - in_tile).view(counts.shape)
    split_firsts = before[:, :: SPLIT_TILES.value].contiguous()
    firsts = before - split_firsts.repeat_interleave(SPLIT_TILES.value, 1)[:, : counts.shape[1]]
    return Patches(words, hits.view_as(before), firsts.to(torch.int16), split_firsts)


def some_at_a_time(counts: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of row tiles and of their escapes, as many together as `ESCAPES_AT_A_TIME` allows."""
    ends = counts.sum(1, dtype=torch.int64).cumsum(0).tolist()
    begin, start = 0, 0
    for row_tile, end in enumerate(ends):
        if row_tile + 1 == len(ends) or ends[row_tile + 1] - start > ESCAPES_AT_A_TIME:
            yield slice(begin, row_tile + 1), slice(start, end)
            begin, start = row_tile + 1, end


def _of_row_tiles(
    parts: Parts, starts: torch.Tensor, tiles: slice, escapes: slice
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words, hits of each tile, and the number of words of each tile."""
    counts = parts["escape_counts"][tiles].flatten().long()
    tile = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    position = parts["escape_positions"][escapes].long()
    own = _high_bytes(parts, starts, tiles, tile, position // 8, position % 8)
    differs = parts["escape_high"][escapes].long() ^ own
    half = tile * 32 + position // 4  # ascending, since the lists are
    is_first = torch.ones_like(half, dtype=torch.bool)
    is_first[1:] = half[1:] != half[:-1]
    words = torch.zeros(int(is_first.sum()), dtype=torch.int64, device=half.device)
    words.index_add_(0, is_first.long().cumsum(0) - 1, differs << 8 * ((2 * (position % 4) + 1) % 5))
    half = half[is_first]
    hits = torch.zeros_like(counts).index_add_(0, half // 32, 1 << half % 32)
    in_tile = torch.zeros_like(counts).index_add_(0, half // 32, torch.ones_like(half))
    return words.to(torch.int32), hits.to(torch.int32), in_tile


def _high_bytes(
    parts: Parts, starts: torch.Tensor, tiles: slice, tile: torch.Tensor, row: torch.Tensor, column: torch.Tensor
) -> torch.Tensor:
    """The high byte that kernels compute for each escape, before it is patched."""
    lane = tile * 16 + row
    nibble = parts["codes"][tiles].flatten()[lane * 4 + column % 4].long() >> (column // 4 * 4) & 15
    residual = parts["residual_low"][tiles].flatten()[lane * 8 + column].long()
    planes = parts["residual_high"][tiles]
    for plane in range(planes.shape[2]):
        bits = planes[:, :, plane].flatten()[lane].long()
        residual |= (bits >> column & 1) << (8 + plane)
    above = tiles.start * 16 + tile // planes.shape[1] * 16
    start = starts[above + row if len(starts) > 1 else 0, nibble & 7].long()
    return (start + residual >> 8) | (nibble & 8) << 4
