"""`mxconv bench --device cuda`: keys of its JSON, and words for what cannot be measured there."""

import os
from pathlib import Path
from typing import Any

import pytest

KERNEL_KEYS = {
    "kernel", "implementation", "out_features", "in_features", "num_tokens", "seconds", "gigabytes_per_second",
    "read_bandwidth", "fraction_of_bandwidth", "library_seconds", "times_library",
}  # fmt: skip
MACHINE_KEYS = {
    "gpu", "compute_capability", "memory_bytes", "l2_cache_bytes", "cuda", "torch", "triton", "cpu", "commit",
}  # fmt: skip
SMALL = ("--device", "cuda", "--out-features", 40, "--in-features", 64, "--samples", 20)


def need_triton() -> None:
    pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
    pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")


def test_kernels_prints_keys_parallel_to_the_cpus_a_table_and_a_picture(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_triton()
    monkeypatch.setattr("mxconv.bench.gpu_kernel_speed.SMALL_SHAPE", (20, 40))
    only = ("--only", "mxfp4-bf16", "--only", "bf16", "--num-tokens", 1)
    outcome = run("bench", "kernels", *SMALL, *only, "--plot", tmp_path / "bandwidth.svg", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    assert set(outcome.json) == {"machine", "results"}
    assert set(outcome.json["machine"]) == MACHINE_KEYS
    rows = outcome.json["results"]
    assert [(row["kernel"], row["implementation"]) for row in rows] == [("mxfp4-bf16", "triton"), ("bf16", "torch")]
    assert all(set(row) >= KERNEL_KEYS for row in rows)
    assert len(outcome.stdout.splitlines()) == 1
    assert "40 x 64, medians of 20" in outcome.stderr
    if os.environ["TRITON_INTERPRET"] != "0":
        assert "they say nothing of a GPU" in outcome.stderr
    assert "<svg" in (tmp_path / "bandwidth.svg").read_text()
    outcome = run("bench", "kernels", *SMALL, *only, "--plot", tmp_path / "bandwidth.svg")
    assert outcome.exit_code == 1 and "nothing is overwritten" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "cuda", "--kernel", "avx2"), "--kernel with --device cuda; it is for the CPU: leave"),
        (("--device", "cuda", "--threads", 2), "--threads with --device cuda"),
        (("--device", "cuda:1", "--roofline", "a.png"), "--roofline with --device cuda:1"),
        (("--device", "gpu"), "--device: 'gpu'; cpu, cuda or cuda:N is required"),
        (("--device", "cuda", "--num-tokens", "65"), "numbers from 1 to 64"),
    ],
)
def test_options_of_the_cpu_are_refused(run: Any, arguments: tuple[object, ...], message: str) -> None:
    outcome = run("bench", "kernels", *arguments)
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.stderr.split())


def test_kernels_of_the_cpu_alone_are_refused_by_name(run: Any) -> None:
    need_triton()
    outcome = run("bench", "kernels", *SMALL, "--only", "fp16")
    assert outcome.exit_code == 2
    assert "--only: 'fp16'; one of bf16, bsfp-full, bsfp-draft, mxfp4-bf16" in outcome.stderr


def test_without_torch_without_triton_and_without_a_gpu_the_message_says_what_is_missing(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    for missing, message in (
        ("mxconv.cli.bench_gpu", "device cuda: torch is not installed; a torch with CUDA is required."),
        ("mxconv.gpu.device", "device cuda: Triton is not installed; the kernels for GPUs are written in it."),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"{missing}.find_spec", lambda _: None)
            outcome = run("bench", "kernels", "--device", "cuda")
            assert outcome.exit_code == 1 and message in outcome.stderr
    monkeypatch.setattr("mxconv.gpu.device.find_spec", lambda _: object())
    monkeypatch.setattr(torch.version, "hip", None)
    outcome = run("bench", "kernels", "--device", "cuda")
    assert outcome.exit_code == 1 and "finds no GPU; one with its driver and a torch built with CUDA" in outcome.stderr
