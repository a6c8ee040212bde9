"""A machine, as `mxconv cost` reads it; conversions beside copies, their encoders compared before."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

import mxconv  # noqa: E402
from mxconv.bench import conversion_speed  # noqa: E402
from mxconv.bench.capability import Capability, Peak, to_toml  # noqa: E402
from mxconv.bench.conversion_speed import ConversionSample, check_encoder, summarize  # noqa: E402
from mxconv.bench.machine import (  # noqa: E402
    DEFAULT_CACHE_BYTES,
    Machine,
    last_level_cache_bytes,
    listed_cache_bytes,
    this_machine,
)
from mxconv.bench.rates import Spread  # noqa: E402
from mxconv.cost.hardware import parse_hardware  # noqa: E402
from mxconv.errors import MxconvError  # noqa: E402


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


# ---- conversions ----


def test_rates_are_input_bytes_a_second_and_ratios_are_of_seconds() -> None:
    cold = [ConversionSample(copy, 2 * copy, 3 * copy, 100) for copy in (1.0, 2.0, 4.0)]
    warm = [ConversionSample(0.5, 1.0, 1.0, 300)]
    result = summarize("mxfp4", 6 * 10**9, 2, cold, warm, encoder_rate=5e9)
    expected = {
        "seconds": 6, "input_gigabytes_per_second": 1, "copy_gigabytes_per_second": 3, "ratio_to_copy": 3,
        "flushed_copy_gigabytes_per_second": 1.5, "ratio_to_flushed_copy": 1.5, "warm_input_gigabytes_per_second": 6,
        "warm_copy_gigabytes_per_second": 12, "warm_ratio_to_copy": 2, "encoder_gigabytes_per_second": 5,
        "peak_rss_bytes": 300,
    }  # fmt: skip
    assert {key: result[key] for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_the_encoders_pass_and_one_that_differs_in_a_byte_is_refused(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns = np.random.default_rng(0).integers(0x3C00, 0x3E00, (32, 256)).astype(np.uint16)
    check_encoder(codec, patterns)
    encode = getattr(conversion_speed, f"stored_{codec}")

    def wrong(patterns: np.ndarray) -> Any:
        stored = encode(patterns)
        getattr(stored, "packed", stored).codes[0, 0, 0] ^= 1
        return stored

    monkeypatch.setattr(conversion_speed, f"stored_{codec}", wrong)
    with pytest.raises(MxconvError, match=f"encoder {codec}: other weights than the NumPy codec's"):
        check_encoder(codec, patterns)
