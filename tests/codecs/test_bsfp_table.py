import re

import numpy as np
import pytest

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


@both
def test_the_paper_table_spans_more_than_int8(kind: FloatFormat) -> None:
    assert not paper_table(kind).has_int8_levels


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


def test_no_rows_need_no_shifts_in_range() -> None:
    assert table((STARTS,) * 8).row_starts(0, np.zeros(0, np.int8)).shape == (0, 8)
