"""Segment tables, and the draft that their levels make."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.codecs.bsfp.draft import MAX_SCALE, decode_draft, fit_group_scales, group_values, scales_of
from mxconv.codecs.bsfp.planes import encode_planes
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import MAX_LEVEL, RESIDUAL_BITS, SegmentTable
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.errors import CodecError

STARTS = (0, 256, 512, 768, 1024, 1280, 1536, 1792)
LEVELS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
both = pytest.mark.parametrize("kind", [BF16, FP16], ids=lambda kind: kind.name)


def table(
    starts: tuple[tuple[int, ...], ...] = (STARTS,),
    levels: tuple[float, ...] = LEVELS,
    residual_bits: int = 8,
    kind: FloatFormat = BF16,
) -> SegmentTable:
    return SegmentTable(kind, residual_bits, starts, levels)


@both
def test_each_format_takes_its_residual_widths_and_no_other(kind: FloatFormat) -> None:
    for residual_bits in range(16):
        if residual_bits in RESIDUAL_BITS[kind.name]:
            assert table(residual_bits=residual_bits, kind=kind).num_patterns == 1 << residual_bits
        else:
            message = rf"^segment table: residual width {residual_bits}; {kind.name} takes one of \(.*\)\.$"
            with pytest.raises(CodecError, match=message):
                table(residual_bits=residual_bits, kind=kind)


@pytest.mark.parametrize("starts", [(), (STARTS,) * 2, (STARTS,) * 9, (STARTS[:7],), (STARTS,) * 7 + (STARTS[:7],)])
def test_starts_of_another_shape_are_an_error(starts: tuple[tuple[int, ...], ...]) -> None:
    message = r"^segment table: starts are no 1 x 8 or 8 x 8 table; one start a code is required\.$"
    with pytest.raises(CodecError, match=message):
        table(starts)


@pytest.mark.parametrize(
    "levels",
    [LEVELS[:7], (*LEVELS[:7], float("nan")), (*LEVELS[:7], float("inf")), (-1.0, *LEVELS[1:]), (1e300, *LEVELS[1:])],
)
def test_levels_that_no_kernel_could_multiply_with_are_an_error(levels: tuple[float, ...]) -> None:
    message = f"segment table: levels {levels}; eight numbers from 0 to {MAX_LEVEL} are required."
    with pytest.raises(CodecError, match=f"^{re.escape(message)}$"):
        table(levels=levels)


@pytest.mark.parametrize("start", [-1, 0x7F80 - 256 + 1, 1 << 70, -(1 << 70)])
def test_a_start_whose_residuals_leave_the_finite_patterns_is_an_error(start: int) -> None:
    message = rf"^segment table: start {start}; 0 to 32384 is required, so that each residual stays finite\.$"
    with pytest.raises(CodecError, match=message):
        table(((*STARTS[:7], start),))
    table(((*STARTS[:7], 0x7F80 - 256),))


def test_phases_that_order_the_codes_differently_are_an_error() -> None:
    swapped = (STARTS[1], STARTS[0], *STARTS[2:])
    with pytest.raises(CodecError, match=r"^segment table: starts \(256, 0, .*one order is required\.$"):
        table((STARTS,) * 7 + (swapped,))
    table((swapped,) * 8)
    table((STARTS,) * 7 + ((5,) * 8,))  # equal starts are in any order


def test_the_order_is_by_start_and_equal_starts_are_by_code() -> None:
    assert table(((5, 3, 5, 3, 0, 9, 9, 1),)).order.tolist() == [4, 7, 1, 3, 0, 2, 5, 6]
    assert paper_table(FP16).order.tolist() == [1, 3, 4, 0, 5, 2, 6, 7]


def test_signed_levels_are_by_nibble() -> None:
    assert table().signed_levels.tolist() == [*LEVELS, *(-level for level in LEVELS)]
    assert np.signbit(table(levels=(0.0,) * 8).signed_levels).tolist() == [False] * 8 + [True] * 8


@pytest.mark.parametrize(("level", "expected"), [(0.0, True), (127.0, True), (128.0, False), (0.5, False)])
def test_int8_levels_are_integers_up_to_127(level: float, expected: bool) -> None:
    assert table(levels=(level, *LEVELS[1:])).has_int8_levels is expected


def test_row_shifts_select_a_phase_and_add_octaves() -> None:
    starts = tuple(tuple(4096 + 1000 * code + phase for code in range(8)) for phase in range(8))
    shifts = np.array([0, 7, 8, -1, -8, 17], np.int8)
    rows = table(starts).row_starts(6, shifts)
    assert rows[:, 0].tolist() == [4096, 4103, 4096 + 128, 4103 - 128, 4096 - 128, 4097 + 256]
    assert (np.diff(rows, axis=1) == 1000).all()


def test_row_shifts_and_eight_phases_go_together() -> None:
    shifts = np.zeros(3, np.int8)
    with pytest.raises(
        CodecError, match=r"^segment table with 8 rows of starts, row shifts missing; eight rows and row"
    ):
        table((STARTS,) * 8).row_starts(3, None)
    with pytest.raises(
        CodecError, match=r"^segment table with 1 rows of starts, row shifts present; eight rows and row"
    ):
        table().row_starts(3, shifts)


@pytest.mark.parametrize(("shift", "found"), [(-8, -128), (127, 32384 + 15 * 128)])
def test_a_shift_that_leaves_the_finite_patterns_is_an_error(shift: int, found: int) -> None:
    wide = ((*STARTS[:7], 32384),) * 8
    with pytest.raises(CodecError, match=rf"^segment table: start {found}; 0 to 32384 is required"):
        table(wide).row_starts(2, np.array([0, shift], np.int8))


DRAFT_LEVELS = (5.0, 20.0, 33.0, 46.0, 60.0, 77.0, 98.0, 120.0)
TABLE = SegmentTable(BF16, 8, ((0x3800, 0x3880, 0x3900, 0x3940, 0x3980, 0x39C0, 0x3A00, 0x3A80),), DRAFT_LEVELS)


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
