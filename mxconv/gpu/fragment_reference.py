"""Matrices in fragment order by torch's own operations: what the kernels compute, where a device has none that work.

A product decodes its matrix at every call and multiplies token by token, so it is slow. A token's bits depend on the
token and the matrix alone.
"""

import torch

from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.gpu.fragments import SIGNS, STEP_COLUMNS, FragmentArrays, FragmentDraft, rows_of_patterns
from mxconv.gpu.launch import RoutedPairs

BIT_OF_PLANES = ((0, 4, 2, 6), (1, 5, 3, 7))  # by h and 2 k + e


def reference_patterns(arrays: FragmentArrays | FragmentDraft, first_row: int, num_rows: int) -> torch.Tensor:
    """As `fragment_patterns`."""
    device, first = arrays.codes.device, first_row // TILE_ROWS
    tiles = slice(first, first + -(-num_rows // TILE_ROWS))
    words = arrays.codes[tiles]
    row_tiles, num_steps = words.shape[:2]
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=device)
    nibbles = (words.unsqueeze(-1) >> shifts & 15).unflatten(-1, (2, 4))  # T, S, lane, s, h, 2 k + e
    places = torch.tensor(SIGNS, device=device).argsort()
    signs = (nibbles >> 3).flatten(-2)[..., places].unflatten(-1, (2, 4))
    codes = (nibbles & 7).long()
    if isinstance(arrays, FragmentDraft):
        magnitudes = _patterns_of_table(arrays.levels[None])[0][codes]
    else:
        rows = torch.arange(row_tiles, device=device)[:, None, None, None, None, None] * TILE_ROWS
        lane = torch.arange(32, device=device)[None, None, :, None, None, None] // 4
        half = torch.arange(2, device=device)[None, None, None, None, :, None] * 8
        table = _patterns_of_table(arrays.starts[first * TILE_ROWS :][: row_tiles * TILE_ROWS])
        starts = table[rows + lane + half, codes]
        residuals = arrays.residuals[tiles].to(device).view(torch.uint8).unflatten(-1, (4, 4))  # T, S, h, lane, s, byte
        magnitudes = (starts ^ _changes(arrays, tiles)) + residuals.permute(0, 1, 3, 4, 2, 5)
        if arrays.planes is not None:
            bits = torch.tensor(BIT_OF_PLANES, dtype=torch.uint8, device=device)
            for plane in range(arrays.num_planes):
                magnitudes += (arrays.planes[tiles, :, plane, :, :, None, None] >> bits & 1).int() << 8 + plane
    patterns = (magnitudes & 0x7FFF | signs << 15).to(torch.int16)
    # T, S, (g, t), (b, r), h, 2 k + e to (T, h, g), (S, b, t, r, 2 k + e)
    lanes = patterns.view(row_tiles, num_steps, 8, 4, 2, 2, 2, 4).permute(0, 6, 2, 1, 4, 3, 5, 7)
    whole: torch.Tensor = lanes.reshape(row_tiles * TILE_ROWS, num_steps * STEP_COLUMNS)
    return whole[:num_rows, : arrays.shape[1]]


def reference_product(
    arrays: FragmentArrays | FragmentDraft, x: torch.Tensor, routed: RoutedPairs | None = None
) -> torch.Tensor:
    """As `fragment_product`."""
    if routed is None:
        return _product(arrays, x)
    out = torch.empty((len(routed.experts), arrays.shape[0]), dtype=torch.float32, device=x.device)
    pairs, counts = routed.pairs.long(), torch.bincount(routed.experts, minlength=routed.num_experts).tolist()
    for number, of_expert in enumerate(pairs.split(counts)):
        if len(of_expert):
            rows = x[of_expert // (len(pairs) // len(x))]
            out[of_expert] = _product(arrays.expert(number, routed.num_experts), rows)
    return out


def _product(arrays: FragmentArrays | FragmentDraft, x: torch.Tensor) -> torch.Tensor:
    weights = rows_of_patterns(arrays, reference_patterns(arrays, 0, arrays.shape[0]), 0).float()
    return torch.stack([(weights * token).sum(1) for token in x.float()])


def _patterns_of_table(words: torch.Tensor) -> torch.Tensor:
    """(rows, 4) int32 of `pattern_table` to (rows, 8) int32 patterns."""
    planes = words.contiguous().view(torch.uint8).int()
    return planes[:, :8] | planes[:, 8:] << 8


def _changes(arrays: FragmentArrays, tiles: slice) -> torch.Tensor:
    """What the starts of escapes are XORed with, zeros elsewhere: (T, S, lane, s, h, 2 k + e) int32."""
    num_steps, row_tiles = arrays.codes.shape[1], len(arrays.codes[tiles])
    ends = arrays.firsts[tiles.start * num_steps * 2 :][: row_tiles * num_steps * 2 + 1].long()
    entries = arrays.escapes[int(ends[0]) : int(ends[-1])].int() & 0xFFFF
    half_steps = torch.repeat_interleave(torch.arange(len(ends) - 1, device=ends.device), ends.diff())
    made = torch.zeros((len(ends) - 1) * 512, dtype=torch.int32, device=ends.device)
    made[half_steps * 512 + (entries & 511)] = entries >> 9 << 8
    return made.view(row_tiles, num_steps, 2, 32, 4, 4).permute(0, 1, 3, 4, 2, 5)
