import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.codecs.fold import fold, fold_in_place


def folded_one_by_one(values: list[float]) -> float:
    while len(values) > 1:
        half = len(values) // 2
        upper = values[len(values) - half :]
        values = [v + upper[i] if i < half else v for i, v in enumerate(values[: len(values) - half])]
    return values[0] if values else 0.0


@given(st.lists(st.floats(-1e9, 1e9), max_size=400))
def test_the_order_is_upper_half_onto_lower_half(values: list[float]) -> None:
    assert fold(np.array(values, np.float64)) == folded_one_by_one(values)


@pytest.mark.parametrize("length", [1, 2, 7, 16, 17, 64, 172])
@pytest.mark.parametrize("axis", [-1, -2, 0, 1])
def test_the_bits_are_the_same_along_any_axis(length: int, axis: int) -> None:
    values = np.random.default_rng(0).standard_normal((5, 3, length), np.float32)
    expected = fold(values)
    assert (fold_in_place(np.ascontiguousarray(np.moveaxis(values, -1, axis)), axis) == expected).all()


@pytest.mark.parametrize("width", [0, 1, 2, 3, 31, 32, 33, 127, 128, 1000])
def test_a_row_sums_to_the_same_bits_alone_and_among_others(width: int) -> None:
    rows = np.random.default_rng(width).normal(0, 1, (3, 5, width)).astype(np.float32)
    together = fold(rows)
    assert together.dtype == np.float32
    assert together.shape == (3, 5)
    assert all(fold(rows[i, j]) == together[i, j] for i, j in np.ndindex(3, 5))
