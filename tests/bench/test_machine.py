"""A machine: its description, its rates, and the file that `mxconv cost` reads."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

import mxconv  # noqa: E402
from mxconv.bench.capability import Capability, Peak, to_toml  # noqa: E402
from mxconv.bench.machine import (  # noqa: E402
    DEFAULT_CACHE_BYTES,
    Machine,
    last_level_cache_bytes,
    listed_cache_bytes,
    this_machine,
)
from mxconv.bench.rates import MIN_BYTES, PIECE_BYTES, PeakArithmetic, ReadBandwidth, Spread, spread  # noqa: E402
from mxconv.cost.hardware import parse_hardware  # noqa: E402


def test_the_largest_listed_cache_is_the_last_level_and_one_that_nobody_lists_counts_as_64_mib(tmp_path: Path) -> None:
    assert listed_cache_bytes(tmp_path) is None
    assert last_level_cache_bytes(tmp_path / "absent") == DEFAULT_CACHE_BYTES == 64 << 20
    for index, text in enumerate(("32K\n", "1024K\n", "32M\n", "junk\n")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text)
    assert last_level_cache_bytes(tmp_path) == listed_cache_bytes(tmp_path) == 32 << 20


@pytest.mark.parametrize("cache", [37_486_592, None])
def test_a_description_has_the_cache_with_its_source_where_linux_lists_one(cache: int | None) -> None:
    peaks = [Peak("portable", "fp32", 100.0, 99.0, 101.0)]
    machine = Machine('a "fast" one', 2, "GCC 12", None)
    text = to_toml(Capability(Spread(20.0, 19.0, 21.0), peaks, cache), machine)
    found = parse_hardware(text, "this-machine.toml")
    assert (found.read_bandwidth, found.peaks, found.last_level_cache_bytes) == (20.0, {"fp32": 100.0}, cache)
    assert found.sources.get("last_level_cache_bytes") == (cache and "as Linux lists it for the first processor")
    assert ("cache" in text) == (cache is not None)


def test_a_machine_names_its_processor_compiler_and_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = this_machine(3)
    assert machine.cpu and machine.threads == 3 and _native.compiler() in machine.compiler
    root = Path(mxconv.__file__).parents[1]
    if (root / ".git").exists():
        head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        assert machine.commit is not None and machine.commit.rstrip("+") == head.stdout.strip()
    # an installed package has no commit, even inside another checkout
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(mxconv, "__file__", str(tmp_path / "site-packages" / "mxconv" / "__init__.py"))
    assert this_machine(1).commit is None


class Recorder:
    """Takes the place of an engine."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []  # address, bytes

    def read(self, part: np.ndarray) -> int:
        self.reads.append((part.ctypes.data, part.nbytes))
        return 0


def test_samples_go_on_where_the_last_one_stopped_in_whole_pieces_and_begin_again_at_the_end() -> None:
    engine: Any = Recorder()
    rate = ReadBandwidth(engine, 4 * MIN_BYTES)
    assert all(rate.sample(num_bytes) > 0 for num_bytes in (1, 2 * MIN_BYTES + 1, 1, 100 * MIN_BYTES))
    first, longer = engine.reads[0][0], 2 * MIN_BYTES + PIECE_BYTES
    assert [(address - first, size) for address, size in engine.reads] == [
        (0, MIN_BYTES), (MIN_BYTES, longer), (0, MIN_BYTES), (0, 4 * MIN_BYTES),
    ]  # fmt: skip


@pytest.mark.parametrize("name", _native.available())
def test_every_implementation_has_a_peak_of_each_form(name: str) -> None:
    assert all(PeakArithmetic(_native.Engine(name, 1), form).sample() > 0 for form in ("bf16", "float", "int8"))


def test_a_spread_is_the_median_and_the_tenths_around_it() -> None:
    assert spread(list(range(101))) == Spread(50, 10, 90)
