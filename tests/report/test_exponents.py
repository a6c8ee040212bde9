import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.report.exponents import MARGIN, ExponentCounts


def counts_of(float_format: FloatFormat, patterns: np.ndarray) -> ExponentCounts:
    magnitudes = np.asarray(patterns, np.uint16) & 0x7FFF
    return ExponentCounts.from_patterns(float_format, np.bincount(magnitudes, minlength=32768).astype(np.int64))


@pytest.mark.parametrize("float_format", [BF16, FP16])
def test_every_pattern_is_counted_in_its_field(float_format: FloatFormat) -> None:
    found = counts_of(float_format, np.arange(65536))
    per_field = 2 * float_format.patterns_per_octave
    assert set(found.fields.tolist()) == {per_field}
    assert len(found.fields) == 2**float_format.exponent_bits
    assert found.num_weights == 65536
    assert found.num_zero == 2
    assert found.num_nonfinite == per_field
    assert found.nonzero[0] == per_field - 2  # subnormals
    assert found.max_abs == float(
        np.finfo(float_format.numpy_dtype).max if float_format == FP16 else 2.0**127 * 1.9921875
    )


@given(st.sampled_from([BF16, FP16]), st.lists(st.integers(0, 65535), max_size=60))
def test_the_window_is_the_highest_of_the_best_ones(float_format: FloatFormat, patterns: list[int]) -> None:
    found = counts_of(float_format, np.array(patterns, np.uint16))
    values = float_format.decode(np.array(patterns, np.uint16))
    weights = [
        (pattern & 0x7FFF) >> float_format.mantissa_bits
        for pattern, value in zip(patterns, values, strict=True)
        if np.isfinite(value) and value != 0
    ]
    last = 2**float_format.exponent_bits - 2
    held = {low: sum(low <= field <= low + 15 for field in weights) for low in range(last - 14)}
    if not weights:
        assert found.window is None
        assert found.num_outside_window == 0
        return
    best = max(low for low, count in held.items() if count == max(held.values()))
    assert found.window == (best, best + 15)
    assert found.num_outside_window == len(weights) - held[best]


@given(st.lists(st.integers(0, 65535), max_size=40), st.lists(st.integers(0, 65535), max_size=40))
def test_counts_add_up(first: list[int], second: list[int]) -> None:
    added = counts_of(BF16, np.array(first, np.uint16)) + counts_of(BF16, np.array(second, np.uint16))
    together = counts_of(BF16, np.array(first + second, np.uint16))
    assert (added.fields == together.fields).all()
    assert (added.num_zero, added.max_abs) == (together.num_zero, together.max_abs)


@given(st.dictionaries(st.integers(0, 254), st.integers(1, 10**9), min_size=1, max_size=60))
def test_bars_hold_every_weight_once_and_the_window_field_by_field(counts: dict[int, int]) -> None:
    fields = np.zeros(256, np.int64)
    for field, count in counts.items():
        fields[field] = count
    found = ExponentCounts(BF16, fields, 0, 1.0)
    assert found.window is not None
    low, high = found.window
    ranges = found.ranges
    assert sum(int(fields[first : last + 1].sum()) for first, last in ranges) == sum(counts.values())
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]
    assert [(field, field) for field in range(low, high + 1)] == [pair for pair in ranges if low <= pair[0] <= high]
    assert len(ranges) <= 16 + 2 * (MARGIN + 1)


def test_the_scale_is_linear_only_where_small_bars_stay_visible() -> None:
    for largest, scale in ((40, "linear"), (41, "log")):
        fields = np.zeros(256, np.int64)
        fields[[100, 101]] = largest, 1
        assert ExponentCounts(BF16, fields, 0, 1.0).scale == scale
