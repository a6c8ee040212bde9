"""`mxconv bench`: keys that other programs rely on, and words for what cannot be measured."""

import json
from pathlib import Path
from typing import Any

import pytest

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")


SMALL = ("--out-features", 48, "--in-features", 160, "--samples", 20)
MACHINE_KEYS = {"cpu", "threads", "compiler", "commit"}
KERNEL_KEYS = {
    "kernel", "implementation", "out_features", "in_features", "num_tokens", "seconds", "gigabytes_per_second",
    "read_bandwidth", "fraction_of_bandwidth", "compute_peak", "fraction_of_roofline",
}  # fmt: skip
DECODE_KEYS = {
    "strategy", "tokens_per_second", "speedup", "acceptance_rates", "fraction_of_bandwidth", "tokens_per_round",
    "acceptance_by_position", "acceptance_by_prompt", "batch", "scaling", "identical_to_greedy",
}  # fmt: skip
FORWARD_KEYS = {
    "level", "num_tokens", "seconds", "gigabytes_per_second", "read_bandwidth", "fraction_of_bandwidth",
}  # fmt: skip
CONVERT_KEYS = {
    "codec", "input_gigabytes_per_second", "copy_gigabytes_per_second", "ratio_to_copy", "peak_rss_bytes",
}  # fmt: skip


def test_kernels_has_the_keys_of_the_contract_a_table_and_pictures(run: Any, tmp_path: Path) -> None:
    pictures = ("--plot", tmp_path / "bandwidth.png", "--roofline", tmp_path / "roofline.svg")
    outcome = run("bench", "kernels", *SMALL, "--num-tokens", 2, "--threads", 2, *pictures, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    assert set(outcome.json["machine"]) == MACHINE_KEYS
    assert outcome.json["machine"]["threads"] == 2
    rows = outcome.json["results"]
    assert all(set(row) >= KERNEL_KEYS for row in rows)
    kernels = ["bf16", "fp16", "bsfp-full", "bsfp-draft", "mxint8", "mxfp4-int8", "mxfp4-fp32"]
    assert [(row["kernel"], row["num_tokens"]) for row in rows] == [(k, 2) for k in kernels]
    assert {row["implementation"] for row in rows} == {_native.available()[0]}
    assert {(row["out_features"], row["in_features"]) for row in rows} == {(48, 160)}
    assert "of roofline" in outcome.stderr and len(outcome.stdout.splitlines()) == 1
    assert (tmp_path / "bandwidth.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "roofline.svg").read_text()
    outcome = run("bench", "kernels", *SMALL, "--only", "bf16", *pictures)
    assert outcome.exit_code == 1 and "nothing is overwritten" in outcome.stderr


@pytest.mark.parametrize("command", ["kernels", "decode", "convert"])
def test_without_the_extension_each_command_says_what_is_missing(
    run: Any, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxconv.bench.machine.native_names", tuple)
    outcome = run("bench", command, *([tmp_path] if command == "decode" else []))
    assert outcome.exit_code == 1
    assert "native kernels: not built; they are required to measure them" in outcome.stderr


def test_decode_has_the_keys_of_the_contract_compares_activations_and_draws(
    run: Any, package: Path, prompts: Path, tmp_path: Path
) -> None:
    pictures = tmp_path / "pictures"
    arguments = ("bench", "decode", package, "--prompts", prompts, "--max-new-tokens", 6, "--levels", "target,mxfp4")
    arguments += ("--draft", "prompt-lookup", "--ablation", "--plot", pictures, "--threads", 1)
    outcome = run(*arguments, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    members = outcome.json
    assert set(members["machine"]) == MACHINE_KEYS and members["machine"]["threads"] == 1
    assert (members["implementation"], members["target"]) == (_native.available()[0], "target")
    drafts = ["mxfp4", "mxfp4 (trees)", "mxfp4 (fp32)", "prompt-lookup", "prompt-lookup (trees)"]
    strategies = ["greedy", *drafts, "hierarchy", "hierarchy (fp32)", "auto"]
    assert [row["strategy"] for row in members["results"]] == strategies
    assert all(set(row) >= DECODE_KEYS and row["identical_to_greedy"] for row in members["results"])
    assert all(set(row) >= FORWARD_KEYS for row in members["forwards"])
    assert [row["num_tokens"] for row in members["forwards"]] == [1, 4, 8] * 2
    assert "speed-up" in outcome.stderr
    for name in ("acceptance_by_prompt", "acceptance_by_position"):
        assert (pictures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    outcome = run(*arguments)
    assert outcome.exit_code == 1 and "nothing is overwritten" in outcome.stderr
    (tmp_path / "file").touch()
    outcome = run("bench", "decode", package, "--plot", tmp_path / "file")
    assert f"{tmp_path / 'file'}: cannot be made (File exists); a folder is required." in outcome.stderr


def test_decode_of_batches_has_the_same_keys_and_fails_where_tokens_differ(
    run: Any, package: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mxconv.bench import decode_speed

    real = decode_speed.decode

    def spoiled(hierarchies: Any, requests: Any, batch: int) -> Any:
        made = real(hierarchies, requests, batch)
        for hierarchy, (generations, _) in zip(hierarchies, made, strict=True):
            if [level.name for level in hierarchy.levels] == ["target", "small"] and batch == 2:
                generations[0].token_ids[-1] ^= 1
        return made

    monkeypatch.setattr(decode_speed, "decode", spoiled)
    arguments = ("bench", "decode", package, "--prompts", prompts, "--max-new-tokens", 2, "--threads", 1)
    outcome = run(*arguments, "--batch", "2,1", "--json")
    assert outcome.exit_code == 1
    assert "tokens of small (2), small (trees) (2) differ from those of greedy" in outcome.stderr
    rows = json.loads(outcome.stdout)["results"]
    assert {row["batch"] for row in rows} == {1, 2} and all(set(row) >= DECODE_KEYS for row in rows)
    outcome = run(*arguments, "--batch", 2, "--only", "auto", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    assert [row["strategy"] for row in outcome.json["results"]] == ["greedy", "auto"]
    outcome = run(*arguments, "--only", "best")
    assert outcome.exit_code == 1 and "--only: best; some of greedy, " in outcome.stderr


def test_convert_has_the_keys_of_the_contract(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxconv.bench.conversion_speed.ENCODED_SHAPE", (64, 1024))
    arguments = ("--num-bytes", 1 << 20, "--samples", 1, "--threads", 1, "--workspace", tmp_path)
    outcome = run("bench", "convert", *arguments, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    assert set(outcome.json["machine"]) == MACHINE_KEYS
    rows = outcome.json["results"]
    assert [row["codec"] for row in rows] == ["mxfp4", "bsfp"]
    assert all(set(row) >= CONVERT_KEYS for row in rows)
    assert list(tmp_path.iterdir()) == []


GPU_KERNEL_KEYS = {
    "kernel", "implementation", "out_features", "in_features", "num_tokens", "seconds", "gigabytes_per_second",
    "read_bandwidth", "fraction_of_bandwidth", "library_seconds", "times_library",
}  # fmt: skip
GPU_MACHINE_KEYS = {
    "gpu", "compute_capability", "memory_bytes", "l2_cache_bytes", "cuda", "torch", "triton", "cpu", "commit",
}  # fmt: skip
ON_GPU = ("--device", "cuda", "--out-features", 40, "--in-features", 64, "--samples", 20)


def need_triton() -> None:
    pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
    pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")


def device_of_tests(monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the command take the CPU for a GPU, where there is none."""
    from gpu_weights import DEVICE

    if DEVICE.type == "cpu":
        monkeypatch.setattr("mxconv.cli.bench_kernels_command._bench_device", lambda _: DEVICE)
    return DEVICE.type


def test_kernels_prints_keys_parallel_to_the_cpus_a_table_and_a_picture(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_triton()
    device = device_of_tests(monkeypatch)
    monkeypatch.setattr("mxconv.bench.gpu_kernel_speed.SMALL_SHAPE", (20, 40))
    only = ("--only", "mxfp4-bf16", "--only", "bf16", "--num-tokens", 1)
    outcome = run("bench", "kernels", *ON_GPU, *only, "--plot", tmp_path / "bandwidth.svg", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    assert set(outcome.json) == {"machine", "results"}
    assert set(outcome.json["machine"]) == GPU_MACHINE_KEYS
    rows = outcome.json["results"]
    assert [(row["kernel"], row["implementation"]) for row in rows] == [("mxfp4-bf16", "gluon"), ("bf16", "torch")]
    assert all(set(row) >= GPU_KERNEL_KEYS for row in rows)
    assert len(outcome.stdout.splitlines()) == 1
    assert "40 x 64, medians of 20" in outcome.stderr
    if device == "cpu":
        assert "they say nothing of a GPU" in outcome.stderr
    assert "<svg" in (tmp_path / "bandwidth.svg").read_text()
    outcome = run("bench", "kernels", *ON_GPU, *only, "--plot", tmp_path / "bandwidth.svg")
    assert outcome.exit_code == 1 and "nothing is overwritten" in outcome.stderr


def test_kernels_of_the_cpu_alone_are_refused_by_name(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    need_triton()
    device_of_tests(monkeypatch)
    outcome = run("bench", "kernels", *ON_GPU, "--only", "fp16")
    assert outcome.exit_code == 2
    assert "--only: 'fp16'; one of bf16, bsfp-full, bsfp-draft, mxfp4-bf16" in outcome.stderr


def test_without_torch_without_triton_and_without_a_gpu_the_message_says_what_is_missing(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for missing, message in (
        ("mxconv.cli.bench_kernels_command", "device cuda: torch is not installed; a torch with CUDA is required."),
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
