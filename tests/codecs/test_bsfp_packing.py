from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mxconv.codecs.bsfp.packing import PackedBsfp, decode_bsfp, encode_bsfp
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16, FP16
from mxconv.errors import CodecError

LEVELS = (5.0, 20.0, 33.0, 46.0, 60.0, 77.0, 98.0, 120.0)
STARTS = (0x3800, 0x3880, 0x3900, 0x3940, 0x3980, 0x39C0, 0x3A00, 0x3A80)
TABLE = SegmentTable(BF16, 8, (STARTS,), LEVELS)
SHIFTED = SegmentTable(BF16, 9, (STARTS,) * 8, LEVELS)


def gaussian(rows: int, columns: int, seed: int = 1) -> np.ndarray:
    return BF16.encode(np.random.default_rng(seed).normal(0, 3e-4, (rows, columns)).astype(np.float32))


def packed_with_escapes() -> PackedBsfp:
    packed = encode_bsfp(gaussian(40, 200), TABLE)
    assert len(packed.escape_high) > 100
    return packed


@pytest.mark.parametrize("shape", [(1, 1), (1, 172), (17, 129), (16, 128), (33, 257)])
def test_arrays_have_the_shapes_of_the_format(shape: tuple[int, int]) -> None:
    row_tiles, column_tiles = -(-shape[0] // 16), 4 * -(-shape[1] // 32)
    tables = [
        TABLE,
        SegmentTable(FP16, 12, ((0x1000, 0x1800, 0x2000, 0x2400, 0x2800, 0x2C00, 0x3000, 0x3400),), LEVELS),
    ]
    for table in tables:
        packed = encode_bsfp(gaussian(*shape), table)
        assert packed.codes.shape == (row_tiles, column_tiles, 64)
        assert packed.residual_low.shape == (row_tiles, column_tiles, 128)
        assert packed.residual_high.shape == (row_tiles, column_tiles, table.residual_bits - 8, 16)
        assert packed.scales.shape == (row_tiles, -(-shape[1] // 128), 16)
        assert packed.row_shifts is None
        assert packed.escape_counts.shape == (row_tiles, column_tiles)
        assert int(packed.escape_counts.sum()) == len(packed.escape_positions) == len(packed.escape_high)
        assert (decode_bsfp(packed, table, shape) == gaussian(*shape)).all()


def test_padding_is_zero_bytes_and_escapes_nowhere() -> None:
    packed = encode_bsfp(np.full((1, 1), 0xFFFF, np.uint16), SHIFTED, np.array([9], np.int8))
    assert packed.escape_counts.sum() == 1
    assert packed.escape_positions.tolist() == [0]
    assert packed.escape_high.tolist() == [0xFF]
    assert packed.row_shifts is not None
    assert packed.row_shifts.tolist() == [9] + [0] * 15
    assert np.count_nonzero(packed.codes) == 1
    assert np.count_nonzero(packed.scales) <= 1


def test_escape_lists_of_other_lengths_than_the_counts_say_are_an_error() -> None:
    packed = packed_with_escapes()
    total = len(packed.escape_high)
    counts = packed.escape_counts.copy()
    counts.flat[np.argmax(counts)] -= 1
    message = (
        r"^escapes: counts sum to {}, but {} positions and {} high bytes are there; all three must agree\. The file"
    )
    for damaged, numbers in [
        (replace(packed, escape_counts=counts), (total - 1, total, total)),
        (replace(packed, escape_positions=packed.escape_positions[:-1]), (total, total - 1, total)),
        (replace(packed, escape_high=packed.escape_high[:-2]), (total, total, total - 2)),
    ]:
        with pytest.raises(CodecError, match=message.format(*numbers)):
            decode_bsfp(damaged, TABLE, (40, 200))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: (a, 128), "position 128; 0 to 127 is required"),
        (lambda a, b: (a, a), "a position occurs twice in a tile; each must be named once"),
        (lambda a, b: (b, a), "positions in a tile do not ascend, which is required"),
    ],
)
def test_escape_positions_that_contradict_each_other_are_an_error(change: Any, message: str) -> None:
    packed = packed_with_escapes()
    tiles = np.repeat(np.arange(packed.escape_counts.size), packed.escape_counts.ravel())
    first = int(np.flatnonzero(np.diff(tiles) == 0)[0])  # its successor lies in the same tile
    positions = packed.escape_positions.copy()
    positions[first : first + 2] = change(*positions[first : first + 2])
    with pytest.raises(CodecError, match=rf"^escapes: {message}\. The file is damaged\.$"):
        decode_bsfp(replace(packed, escape_positions=positions), TABLE, (40, 200))


def test_row_shifts_that_are_missing_superfluous_or_too_far_are_errors() -> None:
    patterns, shifts = gaussian(20, 128), np.zeros(20, np.int8)
    plain, shifted = encode_bsfp(patterns, TABLE), encode_bsfp(patterns, SHIFTED, shifts)
    with pytest.raises(CodecError, match=r"row shifts missing; eight rows and row shifts go together\.$"):
        decode_bsfp(replace(shifted, row_shifts=None), SHIFTED, (20, 128))
    with pytest.raises(CodecError, match=r"row shifts present; eight rows and row shifts go together\.$"):
        decode_bsfp(replace(plain, row_shifts=np.zeros(32, np.int8)), TABLE, (20, 128))
    low = SegmentTable(BF16, 9, ((0,) * 8,) * 8, LEVELS)
    packed = encode_bsfp(patterns, low, shifts)
    with pytest.raises(CodecError, match=r"^segment table: start -128; 0 to 32128 is required, so that each residual"):
        decode_bsfp(replace(packed, row_shifts=np.full(32, -1, np.int8)), low, (20, 128))


def test_a_count_moved_to_another_tile_never_passes_unnoticed() -> None:
    """It decodes to an error or to other weights; file hashes tell the rest."""
    packed = packed_with_escapes()
    original = decode_bsfp(packed, TABLE, (40, 200))
    rng = np.random.default_rng(3)
    for _ in range(100):
        counts = packed.escape_counts.copy()
        source, target = rng.choice(np.flatnonzero(counts), 2, replace=False)
        counts.flat[source] -= 1
        counts.flat[target] += 1
        try:
            decoded = decode_bsfp(replace(packed, escape_counts=counts), TABLE, (40, 200))
        except CodecError:
            continue
        assert (decoded != original).any()
