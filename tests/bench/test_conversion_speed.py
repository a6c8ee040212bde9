"""Conversions beside copies: arithmetic, clean-up, and encoders that are compared before they are timed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench import conversion_speed
from mxconv.bench.conversion_speed import (
    ConversionSample,
    bench_conversion,
    check_encoder,
    summarize,
    write_random_checkpoint,
)
from mxconv.errors import MxconvError


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


def test_a_conversion_is_measured_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion_speed, "encoder_bytes_per_second", lambda codec: 1e9)
    source, workspace = tmp_path / "source", tmp_path / "workspace"
    source.mkdir()
    workspace.mkdir()
    write_random_checkpoint(source, 1 << 20)
    calls: list[tuple[Any, ...]] = []
    (result,) = bench_conversion(str(source), ["mxfp4"], 1, 1, workspace, lambda *call: calls.append(call))
    assert result["num_bytes"] == (source / "model.safetensors").stat().st_size
    assert min(result["seconds"], result["copy_gigabytes_per_second"], result["warm_seconds"]) > 0
    assert 20_000_000 < result["peak_rss_bytes"] < 600_000_000
    assert list(workspace.iterdir()) == []
    assert calls == [("convert", done, 2) for done in range(3)]


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


@pytest.mark.parametrize("num_bytes", [1, 8192 * 5, 34_000_000])
def test_a_random_checkpoint_has_about_the_size_asked_for(tmp_path: Path, num_bytes: int) -> None:
    write_random_checkpoint(tmp_path, num_bytes)
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    weights = sum(rows * columns for rows, columns in shapes)
    assert max(num_bytes, 8192) - 8192 < 2 * weights <= max(num_bytes, 8192)
