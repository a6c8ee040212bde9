import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mxconv.codecs.bsfp.draft import MAX_SCALE, decode_draft, fit_group_scales, group_values, scales_of
from mxconv.codecs.bsfp.planes import encode_planes
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16

LEVELS = (5.0, 20.0, 33.0, 46.0, 60.0, 77.0, 98.0, 120.0)
TABLE = SegmentTable(BF16, 8, ((0x3800, 0x3880, 0x3900, 0x3940, 0x3980, 0x39C0, 0x3A00, 0x3A80),), LEVELS)


def gaussian(rows: int, columns: int) -> np.ndarray:
    return BF16.encode(np.random.default_rng(columns).normal(0, 3e-4, (rows, columns)).astype(np.float32))


def test_scales_are_least_squares() -> None:
    patterns = gaussian(8, 300)
    nibbles = encode_planes(patterns, TABLE).nibbles
    scales = fit_group_scales(patterns, nibbles, TABLE)
    assert scales.shape == (8, 3)

    def error(candidate: np.ndarray) -> np.ndarray:
        difference = decode_draft(nibbles, candidate, TABLE).astype(np.float64) - BF16.decode(patterns)
        return (group_values(difference.astype(np.float32)) ** 2).sum(axis=-1)

    best = error(scales)
    assert (best <= error(scales + np.uint16(1))).all()
    assert (best <= error(scales - np.uint16(1))).all()


def test_the_order_of_the_sums_decides_a_bit_and_is_the_fold() -> None:
    """1 + 2^-8 + 2^-24 is a tie in float32 and beside one in BF16; 2^-54 counts where it meets its like first."""
    values = np.zeros((1, 128), np.float32)
    values[0, [27, 64, 92, 104, 106]] = 2.0**-54
    values[0, [10, 67, 69]] = [1, 2.0**-8, 2.0**-24]
    table = SegmentTable(BF16, 8, ((0,) * 8,), (1.0,) * 8)
    scale = fit_group_scales(BF16.encode(values), np.zeros((1, 128), np.uint8), table)
    assert scale.tolist() == [[0x3C01]]
    assert BF16.encode(np.array([values.astype(np.float64).cumsum()[-1] / 128], np.float32)).tolist() == [0x3C00]


def test_weights_that_are_not_finite_count_as_zero() -> None:
    patterns = gaussian(1, 128)
    patterns[0, :3] = [0x7F80, 0xFF80, 0x7FC0]
    nibbles = encode_planes(patterns, TABLE).nibbles
    zeroed = patterns.copy()
    zeroed[0, :3] = 0
    assert fit_group_scales(patterns, nibbles, TABLE) == fit_group_scales(zeroed, nibbles, TABLE)


def test_groups_whose_levels_are_all_zero_have_scale_zero() -> None:
    table = SegmentTable(BF16, 8, TABLE.starts, (0.0, *TABLE.levels[1:]))
    patterns = np.full((2, 128), 0x3800, np.uint16)
    assert not fit_group_scales(patterns, np.zeros((2, 128), np.uint8), table).any()


def test_scales_never_exceed_the_largest_finite_bf16() -> None:
    scales = scales_of(np.array([1e300, 1.0]), np.array([1e-5, 0.0]))
    assert BF16.decode(scales).tolist() == [MAX_SCALE, 0]
    assert scales[0] == BF16.infinity - 1


@given(st.integers(0, 15), st.integers(0, 0x7F7F))
def test_the_draft_is_level_times_scale(nibble: int, scale: int) -> None:
    nibbles, scales = np.full((1, 2), nibble, np.uint8), np.array([[scale]], np.uint16)
    with np.errstate(over="ignore"):
        expected = TABLE.signed_levels[nibble] * BF16.decode(scales)[0, 0]
        assert decode_draft(nibbles, scales, TABLE).tolist() == [[expected, expected]]
