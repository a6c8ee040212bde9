"""Rates of the machine, from an engine that only counts what it is asked."""

from typing import Any

import numpy as np
import pytest

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.rates import MIN_BYTES, PIECE_BYTES, PeakArithmetic, ReadBandwidth  # noqa: E402
from mxconv.bench.samples import spread  # noqa: E402


class Recorder:
    """Stands in for an engine."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []  # address, bytes

    def read(self, part: np.ndarray) -> int:
        self.reads.append((part.ctypes.data, part.nbytes))
        return 0


def bandwidth(engine: Any, num_bytes: int) -> ReadBandwidth:
    return ReadBandwidth(engine, num_bytes)


def test_samples_go_on_where_the_last_one_stopped_and_begin_again_at_the_end() -> None:
    engine = Recorder()
    rate = bandwidth(engine, 3 * MIN_BYTES + PIECE_BYTES)
    for _ in range(4):
        assert rate.sample(1) > 0
    first = engine.reads[0][0]
    assert [(address - first, size) for address, size in engine.reads] == [
        (0, MIN_BYTES), (MIN_BYTES, MIN_BYTES), (2 * MIN_BYTES, MIN_BYTES), (0, MIN_BYTES),
    ]  # fmt: skip


def test_a_sample_reads_as_much_as_what_it_stands_beside_in_whole_pieces() -> None:
    engine = Recorder()
    rate = bandwidth(engine, 4 * MIN_BYTES)
    rate.sample(2 * MIN_BYTES + 1)
    rate.sample(100 * MIN_BYTES)
    assert [size for _, size in engine.reads] == [2 * MIN_BYTES + PIECE_BYTES, 4 * MIN_BYTES]


@pytest.mark.parametrize("form", ["bf16", "float", "int8"])
@pytest.mark.parametrize("name", _native.available())
def test_every_implementation_has_a_peak_of_each_form(name: str, form: str) -> None:
    assert PeakArithmetic(_native.Engine(name, 1), form).sample() > 0


def test_a_spread_is_the_median_and_the_tenths_around_it() -> None:
    found = spread(list(range(101)))
    assert (found.p10, found.median, found.p90) == (10, 50, 90)
