"""What Ray makes is what threads make: packages, errors, proofs and figures."""

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from checkpoints import write_safetensors, write_sharded, write_tiny_llama
from packages import files_of, flip, quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.cluster.executor import RayExecutor
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.errors import CheckpointError
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights
from mxconv.verify import verify

Make = Callable[[], RayExecutor]


def by_ray(make: Make, source: Path, package: Path, **options: Any) -> None:
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, package, QuantizeOptions(**options), executor=make)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "m", num_shards=3)


@pytest.mark.parametrize(
    "options",
    [{"codec": "mxfp4", "max_shard_bytes": 9000}, {"codec": "bsfp", "max_shard_bytes": 60_000}],
    ids=lambda options: options["codec"],
)
def test_a_package_has_the_same_bytes(make: Make, source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    assert make().num_workers == 2
    quantize(source, tmp_path / "threads", **options)
    by_ray(make, source, tmp_path / "ray", **options)
    files = files_of(tmp_path / "ray")
    assert len([name for name in files if name.startswith(options["codec"])]) > 2
    assert files == files_of(tmp_path / "threads")


def test_rounded_weights_are_stored_by_workers_too(make: Make, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "m", dtype="F32")
    quantize(source, tmp_path / "threads", dtype="bf16")
    by_ray(make, source, tmp_path / "ray", dtype="bf16")
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "threads")


def test_the_first_weight_that_is_not_finite_is_named(make: Make, tmp_path: Path) -> None:
    tensors = {f"w{n}": np.zeros((64, 64), np.float16) for n in range(6)}
    for number in (2, 4):
        tensors[f"w{number}"][3, 5] = np.inf
    source = write_safetensors(tmp_path / "m.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"tensor w2 holds inf at index \[3, 5\]"):
        by_ray(make, source, tmp_path / "p")
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_source_that_changes_is_noticed(make: Make, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "m", num_shards=3)
    with open_checkpoint(source) as checkpoint:
        os.utime(checkpoint.weight_files[1], ns=(1, 1))
        with pytest.raises(CheckpointError, match=r"00002-of-00003.safetensors: changed in time while it was read"):
            convert(checkpoint, tmp_path / "p", QuantizeOptions(), executor=make)
    assert not (tmp_path / "p").exists()


def test_a_proof_finds_the_same(make: Make, source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p", codec="bsfp")
    with open_checkpoint(source) as checkpoint:
        good = verify(tmp_path / "p", checkpoint, executor=make())
        assert good.ok and good == verify(tmp_path / "p", checkpoint)
    shard = tmp_path / "p" / "bsfp.safetensors"
    flip(shard, shard.stat().st_size - 100)
    bad = verify(tmp_path / "p", executor=make())
    assert bad.damaged_files == ["bsfp.safetensors"] and bad == verify(tmp_path / "p")


def test_figures_are_the_same(make: Make, source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p")
    for subject in (source, tmp_path / "p"):
        with open_weights(str(subject)) as weights:
            found = inspect_weights(weights, executor=make())
            assert found.to_json() == inspect_weights(weights).to_json()


def kill_workers(stop: threading.Event, seed: int, killed: list[int]) -> None:
    """SIGKILL three workers of the cluster while they work."""
    dice, lines = random.Random(seed), [(0, "")]
    while len(killed) < 3 and not stop.wait(dice.uniform(0.01, 0.1)):
        with contextlib.suppress(psutil.NoSuchProcess):
            lines = [(each.pid, (each.cmdline() or [""])[0]) for each in psutil.Process().children(recursive=True)]
        workers = [pid for pid, line in lines if line.startswith(("ray::EncodeTensor", "ray::SurveyTensor"))]
        if workers:
            killed.append(dice.choice(workers))
            os.kill(killed[-1], signal.SIGKILL)


def test_workers_that_are_killed_cost_time_and_no_byte(make: Make, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {f"w{n:02}": (rng.standard_normal((2048, 1024)) * 0.02).astype(np.float16) for n in range(16)}
    source = write_sharded(tmp_path / "m", tensors, 4)
    quantize(source, tmp_path / "threads", codec="bsfp", max_shard_bytes=20_000_000)
    stop, killed = threading.Event(), []
    killer = threading.Thread(target=kill_workers, args=(stop, 0, killed))
    killer.start()
    try:
        by_ray(make, source, tmp_path / "ray", codec="bsfp", max_shard_bytes=20_000_000)
    finally:
        stop.set()
        killer.join()
    assert killed
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "threads")
