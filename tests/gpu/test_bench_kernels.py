"""Nothing is timed on a GPU that computes something else than its bytes mean; then a row for every kernel and width."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE

from mxconv.bench import gpu_kernel_speed as kernels
from mxconv.bench.gpu_kernel_speed import (
    KERNELS,
    GpuOperand,
    Product,
    _activations,
    bench_gpu_kernels,
    check_gpu_exactness,
    check_gpu_weights,
    make_gpu_operand,
)
from mxconv.errors import MxconvError

SHAPE = (40, 64)


class Wrong:
    """A matrix whose results somebody spoils."""

    def __init__(self, operand: GpuOperand, spoil: Callable[[torch.Tensor], None]) -> None:
        self._right: Product = operand.copy()
        self._spoil = spoil

    def product(self, x: torch.Tensor) -> torch.Tensor:
        out = self._right.product(x)
        self._spoil(out)
        return out

    def rebuild(self) -> torch.Tensor:
        weights = self._right.rebuild().clone()
        self._spoil(weights)
        return weights


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_passes_and_one_that_is_wrong_in_one_number_is_refused(kernel: str) -> None:
    operand, x = make_gpu_operand(kernel, (50, 160), DEVICE), _activations(3, 160, DEVICE)
    check_gpu_weights(operand, operand.copy())
    check_gpu_exactness(operand, operand.copy(), x)
    check_gpu_exactness(operand, operand.copy(), _activations(17, 160, DEVICE))  # torch multiplies

    def spoil(out: torch.Tensor) -> None:
        out[2, 49] += 1

    name = rf"kernel {kernel} \({'torch' if kernel == 'bf16' else 'gluon'}\)"
    with pytest.raises(MxconvError, match=rf"{name}: .* at token 2, row 49; .* required"):
        check_gpu_exactness(operand, Wrong(operand, spoil), x)
    with pytest.raises(MxconvError, match=rf"{name}: weight .* at row 2, column 49; .* is required"):
        check_gpu_weights(operand, Wrong(operand, spoil))


def test_bits_that_depend_on_the_width_are_refused_of_our_kernels_alone() -> None:
    def spoil(out: torch.Tensor) -> None:
        if len(out) > 1:
            out[1, 7] = torch.nextafter(out[1, 7].float(), torch.tensor(torch.inf, device=out.device)).to(out.dtype)

    operand, library = (make_gpu_operand(kernel, SHAPE, DEVICE) for kernel in ("mxfp4-bf16", "bf16"))
    x = _activations(2, SHAPE[1], DEVICE)
    with pytest.raises(MxconvError, match=r"mxfp4-bf16 \(gluon\): token 1 has other bits alone than among 2"):
        check_gpu_exactness(operand, Wrong(operand, spoil), x)
    check_gpu_exactness(library, Wrong(library, spoil), x)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL_SHAPE", (20, 40))
    monkeypatch.setattr(kernels, "NUM_WARMUPS", 1)


def test_there_is_a_row_for_each_kernel_and_width(small: None) -> None:
    rows = list(bench_gpu_kernels(KERNELS, [1, 2], SHAPE, DEVICE, num_samples=2))
    assert [(row.kernel, row.num_tokens) for row in rows] == [(kernel, width) for kernel in KERNELS for width in (1, 2)]
    assert {row.implementation for row in rows} == {"torch", "gluon"}
    for row in rows:
        assert (row.out_features, row.in_features, row.num_samples) == (*SHAPE, 2)
        assert row.seconds_p10 <= row.seconds <= row.seconds_p90
        assert min(row.read_bandwidth, row.fraction_of_bandwidth, row.library_seconds, row.times_library) > 0
    num_bytes = {row.kernel: row.num_bytes for row in rows}
    assert num_bytes["bf16"] == 2 * 40 * 64
    assert num_bytes["bsfp-draft"] < num_bytes["bsfp-full"]
    assert all(row.times_library == 1 for row in rows if row.kernel == "bf16")


def test_fractions_compare_within_a_round_so_that_a_gpu_may_change_its_clocks() -> None:
    """Half of bandwidth and three times the library throughout, at two speeds."""
    operand = make_gpu_operand("bf16", SHAPE, DEVICE)
    rounds = [(2 * 5120 / rate, rate, 6 * 5120 / rate) for rate in (1e12, 3e12, 1e12, 3e12, 3e12)]
    row = kernels._summarize(operand, 4, rounds)
    assert row.fraction_of_bandwidth == pytest.approx(0.5)
    assert row.times_library == pytest.approx(3)
    assert (row.read_bandwidth, row.gigabytes_per_second) == (pytest.approx(3000), pytest.approx(1500))
    assert row.library_seconds == pytest.approx(6 * 5120 / 3e12)
    assert row.giga_multiply_adds_per_second == pytest.approx(4 * 40 * 64 / (2 * 5120 / 3e12) / 1e9)


def test_every_kernel_and_width_is_checked_on_both_shapes_before_it_is_timed(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_too_little_memory_is_said_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxconv.gpu.device.free_bytes", lambda _: 1000)
    monkeypatch.setattr(kernels, "make_gpu_operand", lambda *_: pytest.fail("made matrices"))
    with pytest.raises(MxconvError, match=r"bench kernels: .* are free\. Take fewer --out-features or --in-features"):
        list(bench_gpu_kernels(["bf16"], [1], SHAPE, DEVICE, num_samples=1))


def test_the_machine_names_its_gpu_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        major, minor, total_memory, L2_cache_size = 9, 0, 80 << 30, 50 << 20

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A GPU")
    found = kernels.gpu_machine(torch.device("cuda:0"))
    assert (found.described, found.compute_capability, found.memory_bytes) == ("A GPU", "9.0", 80 << 30)
    assert (found.l2_cache_bytes, found.torch, found.cuda) == (50 << 20, torch.__version__, torch.version.cuda)
    interpreted = kernels.gpu_machine(torch.device("cpu"))
    assert (interpreted.gpu, interpreted.l2_cache_bytes) == (kernels.NO_GPU, None)


def test_no_native_kernels_are_needed() -> None:
    """In a process where importing them fails, as where no compiler was."""
    lines = [
        "import sys",
        "sys.modules['mxconv.kernels._native'] = None",
        "from mxconv.bench import gpu_kernel_speed as kernels",
        "from mxconv.cli.main import main",
        "kernels.SMALL_SHAPE = (20, 40)",
        "import torch",
        "from mxconv.cli import bench_kernels_command as command",
        f"command._bench_device = lambda _: torch.device({DEVICE.type!r})",
        "main()",
    ]
    only = "--only mxfp4-bf16 --num-tokens 1 --out-features 20 --in-features 40 --samples 20"
    command = [sys.executable, "-c", "\n".join(lines), *f"bench kernels --device cuda --json {only}".split()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "20 x 40, medians of 20" in result.stderr
