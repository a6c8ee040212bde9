"""Rows for every kernel and width, each against reads and the library's product of the same rounds."""

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE

from mxconv.bench import gpu_kernel_speed as kernels
from mxconv.bench.gpu_kernel_speed import KERNELS, GpuOperand, GpuOperands, bench_gpu_kernels
from mxconv.errors import MxconvError

SHAPE = (40, 64)
OURS = list(KERNELS)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL_SHAPE", (20, 40))
    monkeypatch.setattr(kernels, "NUM_WARMUPS", 1)


def test_there_is_a_row_for_each_kernel_and_width() -> None:
    rows = list(bench_gpu_kernels(OURS, [1, 2], SHAPE, DEVICE, num_samples=2))
    assert [(row.kernel, row.num_tokens) for row in rows] == [(kernel, width) for kernel in OURS for width in (1, 2)]
    assert {row.implementation for row in rows} == {"torch", "triton"}
    for row in rows:
        assert (row.out_features, row.in_features, row.num_samples) == (*SHAPE, 2)
        assert row.seconds_p10 <= row.seconds <= row.seconds_p90
        assert min(row.read_bandwidth, row.fraction_of_bandwidth, row.library_seconds, row.times_library) > 0
    num_bytes = {row.kernel: row.num_bytes for row in rows}
    assert num_bytes["bf16"] == 2 * 40 * 64
    assert num_bytes["mxfp4-int8"] == num_bytes["mxfp4-bf16"]
    assert num_bytes["bsfp-draft"] < num_bytes["bsfp-full"]
    assert all(row.times_library == 1 for row in rows if row.kernel == "bf16")


def test_fractions_compare_within_a_round_so_that_a_gpu_may_change_its_clocks() -> None:
    """Half of bandwidth and three times the library throughout, at two speeds."""
    operand = GpuOperands(SHAPE, DEVICE).make("bf16")
    rounds = [(2 * 5120 / rate, rate, 6 * 5120 / rate) for rate in (1e12, 3e12, 1e12, 3e12, 3e12)]
    row = kernels._summarize(operand, 4, rounds)
    assert row.fraction_of_bandwidth == pytest.approx(0.5)
    assert row.times_library == pytest.approx(3)
    assert row.read_bandwidth == pytest.approx(3000)
    assert row.gigabytes_per_second == pytest.approx(1500)
    assert row.library_seconds == pytest.approx(6 * 5120 / 3e12)
    assert row.giga_multiply_adds_per_second == pytest.approx(4 * 40 * 64 / (2 * 5120 / 3e12) / 1e9)


def test_every_kernel_and_width_is_checked_on_both_shapes_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[tuple[int, int], int]] = []
    decoded: list[tuple[int, int]] = []

    def refuse(operand: GpuOperand, matrix: Any, x: torch.Tensor) -> None:
        checked.append((operand.shape, len(x)))
        if operand.shape == SHAPE:
            raise MxconvError("wrong")

    monkeypatch.setattr(kernels, "check_gpu_exactness", refuse)
    monkeypatch.setattr(kernels, "check_gpu_weights", lambda operand, _: decoded.append(operand.shape))
    monkeypatch.setattr(kernels, "_measure", lambda *_: pytest.fail("timed a wrong kernel"))
    with pytest.raises(MxconvError, match="wrong"):
        list(bench_gpu_kernels(["mxfp4-bf16"], [1, 2], SHAPE, DEVICE, num_samples=1))
    assert checked == [((20, 40), 1), ((20, 40), 2), (SHAPE, 1)]
    assert decoded == [(20, 40), SHAPE]


def test_copies_exceed_the_cache_and_launches_take_them_in_whole_turns() -> None:
    operand = GpuOperands(SHAPE, DEVICE).make("bf16")
    assert len(kernels._copies(operand, 3 * operand.num_bytes + 1)) == 4
    assert len(kernels._copies(operand, 1)) == 2
    assert len(kernels._copies(operand, 1 << 40)) == kernels.MAX_COPIES
    on_gpu = torch.device("cuda:0")
    assert [kernels._num_launches(count, on_gpu) for count in (2, 3, 40)] == [32, 33, 40]
    assert kernels._num_launches(3, torch.device("cpu")) == 3


def test_too_little_memory_is_said_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxconv.gpu.device.free_bytes", lambda _: 1000)
    monkeypatch.setattr(kernels, "GpuOperands", lambda *_: pytest.fail("made matrices"))
    with pytest.raises(MxconvError, match=r"bench kernels: .* are free\. Take fewer --out-features or --in-features"):
        list(bench_gpu_kernels(["bf16"], [1], SHAPE, DEVICE, num_samples=1))


def test_no_native_kernels_are_needed() -> None:
    """In a process where importing them fails, as where no compiler was."""
    lines = [
        "import sys",
        "sys.modules['mxconv.kernels._native'] = None",
        "import mxconv.bench.gpu_decode_speed, mxconv.bench.plots",
        "from mxconv.cli.bench_gpu import kernels_on_gpu",
        "from mxconv.bench import gpu_kernel_speed as kernels",
        "kernels.SMALL_SHAPE = (20, 40)",
        "kernels_on_gpu('cuda', ['mxfp4-bf16'], [1], (20, 40), 1, None, False, False)",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "20 x 40, medians of 1" in result.stdout
