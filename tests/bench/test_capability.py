"""A machine's description: what was measured, and the cache that Linux lists."""

from pathlib import Path

import pytest

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.capability import Capability, Peak, listed_cache_bytes, to_toml
from mxconv.bench.machine import Machine
from mxconv.bench.samples import Spread
from mxconv.cost.hardware import parse_hardware

MACHINE = Machine('a "fast" one', 2, "GCC 12", None)
PEAKS = [Peak("portable", "fp32", 100.0, 99.0, 101.0)]
READ = Spread(20.0, 19.0, 21.0)


def test_a_listed_cache_is_described_with_its_source() -> None:
    found = parse_hardware(to_toml(Capability(READ, PEAKS, 37_486_592), MACHINE), "this-machine.toml")
    assert (found.read_bandwidth, found.peaks, found.last_level_cache_bytes) == (20.0, {"fp32": 100.0}, 37_486_592)
    assert found.sources["last_level_cache_bytes"] == "as Linux lists it for the first processor"


def test_where_linux_lists_no_cache_none_is_described(tmp_path: Path) -> None:
    assert listed_cache_bytes(tmp_path) is None
    text = to_toml(Capability(READ, PEAKS, None), MACHINE)
    assert "cache" not in text
    assert parse_hardware(text, "this-machine.toml").last_level_cache_bytes is None


def test_the_largest_listed_cache_is_taken(tmp_path: Path) -> None:
    for index, text in enumerate(("32K\n", "36608K\n")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text)
    assert listed_cache_bytes(tmp_path) == 36608 << 10
