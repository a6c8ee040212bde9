"""`bench decode` on a cluster: what nodes count adds up to what one process counts, and two kernels are refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages import quantize
from trained_levels import PROMPTS, write_noisy

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.decode_nodes import Timed, bench_nodes
from mxconv.bench.decoding import bench_decoding
from mxconv.cluster.executor import RayExecutor
from mxconv.errors import MxconvError
from mxconv.kernels.engine import choose_kernel
from mxconv.system.processor import cpu_name
from mxconv.verification.decode_proof import DecodeSettings
from mxconv.workers import Workers

TEXTS = [f"{prompt} {number}" for number in range(4) for prompt in PROMPTS]
FIXED = ("greedy", "mxfp4")  # the others choose by what passes take


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decode")
    quantize(write_noisy(folder / "source"), folder / "package")
    return folder / "package"


def test_nodes_add_up(make: Callable[[], RayExecutor], package: Path) -> None:
    settings = DecodeSettings(package, ["target", "mxfp4"], max_new_tokens=6, num_threads=1)
    loaded, _ = settings.open()
    with loaded:
        engine = loaded.matrices.engine
        assert engine is not None
        whole = {result.strategy: result for result in bench_decoding(loaded, engine, TEXTS, 6)}
    told: list[tuple[str, int, int]] = []
    results, nodes = bench_nodes(make(), settings, TEXTS, lambda *each: told.append(each))
    assert told[-1] == ("decode", len(TEXTS), len(TEXTS))
    assert len({node.node for node in nodes}) == len(nodes) <= 2
    assert sum(node.num_prompts for node in nodes) == len(TEXTS)
    assert {(node.kernel, node.cpu, node.num_workers) for node in nodes} == {(choose_kernel(), cpu_name(), 1)}
    assert [result.strategy for result in results] == list(whole)
    for place, result in enumerate(results):
        parts = [node.results[place] for node in nodes]
        assert {part.strategy for part in parts} == {result.strategy}
        assert result.identical_to_greedy and all(part.identical_to_greedy for part in parts)
        assert result.num_tokens == sum(part.num_tokens for part in parts) == whole[result.strategy].num_tokens
        assert result.tokens_per_second == pytest.approx(sum(part.tokens_per_second for part in parts))
        assert len(result.speedup_by_prompt) == len(TEXTS)
        if result.strategy in FIXED:
            assert result.acceptance_by_prompt == whole[result.strategy].acceptance_by_prompt
            assert result.acceptance_rates == whole[result.strategy].acceptance_rates


class TwoKernels(Workers):
    """Says of its last piece that another kernel did it."""

    def map(self, *arguments: Any) -> list[Any]:
        *rest, last = super().map(*arguments)
        assert isinstance(last, Timed)
        return [*rest, replace(last, kernel="abacus")]


def test_two_kernels_are_not_one_benchmark(package: Path) -> None:
    settings = DecodeSettings(package, ["target"], max_new_tokens=1, num_threads=1)
    with pytest.raises(MxconvError, match=r"decoded by abacus on .*; .* on .*; bits are promised for a kernel"):
        bench_nodes(TwoKernels(1), settings, TEXTS)


def test_the_command_names_nodes(package: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    command = [sys.executable, "-m", "mxconv.cli.main", "bench", "decode", str(package), "--prompts", str(prompts)]
    command += ["--max-new-tokens", "4", "--workers", "ray", "--threads", "2"]
    done = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    members = json.loads(done.stdout)
    assert (members["implementation"], members["machine"]["threads"]) == (choose_kernel(), 1)
    (node,) = members["nodes"]
    assert (node["cpu"], node["kernel"], node["num_prompts"]) == (cpu_name(), choose_kernel(), len(TEXTS))
    assert [row["strategy"] for row in node["results"]] == [row["strategy"] for row in members["results"]]
    assert members["forwards"] == []
    assert "acceptance" in done.stderr and choose_kernel() in done.stderr
    refused = subprocess.run([*command, "--ablation"], check=False, capture_output=True, text=True)
    assert refused.returncode == 2 and "no --ablation, --plot or --batch" in " ".join(refused.stderr.split())
