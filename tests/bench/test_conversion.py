"""Conversions beside copies: arithmetic, clean-up, and encoders that are compared before they are timed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench import conversion, encoders
from mxconv.bench.conversion import Conversion, Sample, bench_conversion, summarize
from mxconv.bench.encoders import check_encoder
from mxconv.bench.random_checkpoint import write_random_checkpoint
from mxconv.errors import MxconvError


def test_rates_are_input_bytes_a_second_and_ratios_are_of_seconds() -> None:
    cold = [Sample(copy, 2 * copy, Conversion(3 * copy, 100)) for copy in (1.0, 2.0, 4.0)]
    warm = [Sample(0.5, 1.0, Conversion(1.0, 300))]
    result = summarize("mxfp4", 6 * 10**9, 2, cold, warm, encoder_bytes_per_second=5e9)
    assert result.seconds == 6
    assert result.input_gigabytes_per_second == pytest.approx(1)
    assert result.copy_gigabytes_per_second == pytest.approx(3)
    assert result.ratio_to_copy == pytest.approx(3)
    assert result.flushed_copy_gigabytes_per_second == pytest.approx(1.5)
    assert result.ratio_to_flushed_copy == pytest.approx(1.5)
    assert result.warm_input_gigabytes_per_second == pytest.approx(6)
    assert result.warm_copy_gigabytes_per_second == pytest.approx(12)
    assert result.warm_ratio_to_copy == pytest.approx(2)
    assert result.encoder_gigabytes_per_second == pytest.approx(5)
    assert result.peak_rss_bytes == 300


def test_a_conversion_is_measured_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "encoder_bytes_per_second", lambda codec: 1e9)
    source, workspace = tmp_path / "source", tmp_path / "workspace"
    source.mkdir()
    workspace.mkdir()
    write_random_checkpoint(source, 1 << 20)
    calls: list[tuple[str, int, int]] = []
    (result,) = bench_conversion(
        str(source), ["mxfp4"], 1, 1, workspace, lambda stage, done, total: calls.append((stage, done, total))
    )
    assert result.num_bytes == (source / "model.safetensors").stat().st_size
    assert min(result.seconds, result.copy_gigabytes_per_second, result.warm_seconds) > 0
    assert 20_000_000 < result.peak_rss_bytes < 600_000_000
    assert list(workspace.iterdir()) == []
    assert calls == [("convert", 0, 2), ("convert", 1, 2), ("convert", 2, 2)]


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_the_encoders_pass_and_one_that_differs_in_a_byte_is_refused(codec: str) -> None:
    encode, reference = encoders.ENCODERS[codec]
    patterns = np.random.default_rng(0).integers(0x3C00, 0x3E00, (32, 256)).astype(np.uint16)
    check_encoder(codec, encode, reference, patterns)

    def wrong(patterns: np.ndarray) -> Iterator[np.ndarray]:
        first, *others = encode(patterns)
        first[0, 0, 0] ^= 1
        yield from (first, *others)

    with pytest.raises(MxconvError, match=f"encoder {codec}: other bytes than the NumPy codec's"):
        check_encoder(codec, wrong, reference, patterns)


@pytest.mark.parametrize("num_bytes", [1, 8192 * 5, 40_000_000])
def test_a_random_checkpoint_has_about_the_size_asked_for(tmp_path: Path, num_bytes: int) -> None:
    write_random_checkpoint(tmp_path, num_bytes)
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    weights = sum(rows * columns for rows, columns in shapes)
    assert max(num_bytes, 8192) - 8192 < 2 * weights <= max(num_bytes, 8192)
