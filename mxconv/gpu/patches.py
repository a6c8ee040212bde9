"""Escapes of BSFP as a GPU holds them: words that patch half lanes, found without a search.

A *half lane* is four adjacent columns of a row of a tile. It has a word if one of them escapes: the word's bytes are
the bits in which the high bytes of columns 2, 0, 3, 1 differ from those that start and residual give. So bytes 1 and 3
patch columns 0 and 1, where a pair of patterns has its high bytes, and columns 2 and 3 after a shift by one byte. The
words of a row tile and split adjoin, in the order of tiles, rows and halves; 32 bits a tile say which half lanes have
one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from mxconv.gpu.device_arrays import joined, piece
from mxconv.gpu.launch import SPLIT_TILES

ESCAPES_AT_A_TIME = 1 << 20  # which keeps intermediate arrays below 100 MB


@dataclass(frozen=True, eq=False)
class Escaped:
    """Escape lists as in the file, and the arrays that they patch; T row tiles, C column tiles, all on one device."""

    codes: torch.Tensor  # (T, C, 64) uint8
    residual_low: torch.Tensor  # (T, C, 128) uint8
    residual_high: torch.Tensor  # (T, C, planes, 16) uint8
    starts: torch.Tensor  # (16 T or 1, 8) int16 magnitudes
    counts: torch.Tensor  # (T, C) uint8
    positions: torch.Tensor  # (n,) uint8
    high_bytes: torch.Tensor  # (n,) uint8


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
        before = list(accumulate((len(each.words) for each in experts), initial=0))
        return cls(
            joined([each.words for each in experts]),
            joined([each.hits for each in experts]),
            joined([each.firsts for each in experts]),
            joined([each.split_firsts + first for each, first in zip(experts, before, strict=False)]),
        )

    def expert(self, number: int, num_experts: int) -> "Patches":
        """View the patches of one expert; `words` are those of all."""
        hits, firsts, split_firsts = (
            piece(each, number, num_experts) for each in (self.hits, self.firsts, self.split_firsts)
        )
        return Patches(self.words, hits, firsts, split_firsts)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self.words.nbytes + self.hits.nbytes + self.firsts.nbytes + self.split_firsts.nbytes


def most_bytes(num_tiles: int, num_escapes: int) -> int:
    """The most bytes that patches take: `hits`, `firsts` and `split_firsts`, and a word for each escape."""
    return 8 * num_tiles + 4 * num_escapes


def patches_of(escaped: Escaped) -> Patches:
    """Make the patches of a matrix, which replace the lists."""
    row_tiles, column_tiles = escaped.counts.shape
    parts = [_of_row_tiles(escaped, tiles, escapes) for tiles, escapes in _some_at_a_time(escaped.counts)]
    words, hits, in_tile = (torch.cat(part) for part in zip(*parts, strict=True))
    before = (in_tile.cumsum(0) - in_tile).view(row_tiles, column_tiles)
    split_firsts = before[:, :: SPLIT_TILES.value].contiguous()
    firsts = before - split_firsts.repeat_interleave(SPLIT_TILES.value, 1)[:, :column_tiles]
    return Patches(words, hits.view_as(before), firsts.to(torch.int16), split_firsts)


def _some_at_a_time(counts: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of row tiles and of their escapes, as many together as `ESCAPES_AT_A_TIME` allows."""
    ends = counts.sum(1, dtype=torch.int64).cumsum(0).tolist()
    begin, start = 0, 0
    for row_tile, end in enumerate(ends):
        if row_tile + 1 == len(ends) or ends[row_tile + 1] - start > ESCAPES_AT_A_TIME:
            yield slice(begin, row_tile + 1), slice(start, end)
            begin, start = row_tile + 1, end


def _of_row_tiles(escaped: Escaped, tiles: slice, escapes: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words, hits of each tile, and the number of words of each tile."""
    counts = escaped.counts[tiles].flatten().long()
    tile = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    position = escaped.positions[escapes].long()
    differs = escaped.high_bytes[escapes].long() ^ _high_bytes(escaped, tiles, tile, position // 8, position % 8)
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
    escaped: Escaped, tiles: slice, tile: torch.Tensor, row: torch.Tensor, column: torch.Tensor
) -> torch.Tensor:
    """The high byte that kernels compute for each escape, before it is patched."""
    lane = tile * 16 + row
    nibble = escaped.codes[tiles].flatten()[lane * 4 + column % 4].long() >> (column // 4 * 4) & 15
    residual = escaped.residual_low[tiles].flatten()[lane * 8 + column].long()
    planes = escaped.residual_high[tiles]
    for plane in range(planes.shape[2]):
        bits = planes[:, :, plane].flatten()[lane].long()
        residual |= (bits >> column & 1) << (8 + plane)
    above = tiles.start * 16 + tile // planes.shape[1] * 16
    start = escaped.starts[above + row if len(escaped.starts) > 1 else 0, nibble & 7].long()
    return (start + residual >> 8) | (nibble & 8) << 4
