"""What Ray makes is what threads make: packages, errors, proofs, figures and decoded texts, by one kernel a claim."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from checkpoints import write_safetensors, write_sharded, write_tiny_llama
from dying_workers import die, die_once
from packages import files_of, flip, patch_array, quantize
from s3_server import S3Server, running, store
from trained_levels import PROMPTS, write_noisy

from mxconv.checkpoint.source import open_checkpoint
from mxconv.cluster import RayExecutor, cluster, import_ray
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kinds import parse_draft
from mxconv.errors import CheckpointError, MxconvError, PackageError
from mxconv.kernels.engine import choose_kernel
from mxconv.package.manifest import DecodeRecord
from mxconv.package.staging import Target
from mxconv.rebuild import build, check_rebuild, write_recipe
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights
from mxconv.speculation.selection import Selection
from mxconv.system.processor import cpu_name
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import DecodeSettings, decode_by, joined, verify_decoding
from mxconv.verify import verify
from mxconv.workers import Workers

Make = Callable[[], RayExecutor]

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
HEAD = {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}  # tests beside it would go first


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def make(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes executors of a cluster of two nodes, which are processes with object stores of their own.

    Workers find the store, and scratch folders, by their environment.
    """
    try:
        import_ray()
    except MxconvError as error:
        pytest.skip(str(error))
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_ASSETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        environment.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # of workers: tasks that tests bring along
        for options in (HEAD, {}, {}):  # head, node, and another try where a machine was too busy
            with contextlib.suppress(Exception):  # Ray raises no other, and waits for 30 seconds at most
                nodes.add_node(**NODE, **options)
            if len(nodes.list_all_nodes()) == 2:
                break
    with cluster(nodes.address, 1) as make:
        yield make
    nodes.shutdown()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 MB: tensors of two slices."""
    rng = np.random.default_rng(0)
    tensors = {f"w{n:02}": (rng.standard_normal((2048, 1024)) * 0.02).astype(np.float16) for n in range(16)}
    return write_sharded(tmp_path_factory.mktemp("large") / "m", tensors, 4)


def by_ray(make: Make, source: Path, package: Target, **options: Any) -> None:
    """Convert as `mxconv quantize --workers ray` does."""
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, package, QuantizeOptions(**options), executor=make)


def workers() -> list[tuple[int, str]]:
    """Processes of the cluster that do pieces, and what they do."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append((each.pid, (each.cmdline() or [""])[0]))
    names = ("ray::IDLE", "ray::Encode", "ray::Survey", "ray::hash")
    return [(pid, title) for pid, title in found if title.startswith(names)]


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


def test_a_package_is_built_and_compared_from_its_recipe(make: Make, source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p", codec="bsfp")
    write_recipe(tmp_path / "p", tmp_path / "p.json")
    build(tmp_path / "p.json", tmp_path / "q", executor=make)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")
    check_rebuild(tmp_path / "p", executor=make)
    patch_array(tmp_path / "q" / "bsfp.safetensors", name := "model.layers.0.mlp.down_proj.weight.codes", 3, b"\x07")
    with pytest.raises(PackageError, match=f"array {name} differs; the package is not what its source gives"):
        check_rebuild(tmp_path / "q", executor=make)


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


def test_proofs_and_figures_are_the_same(make: Make, source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p", codec="bsfp")
    for subject in (source, tmp_path / "p"):
        with open_weights(str(subject)) as weights:
            found = inspect_weights(weights, executor=make())
            assert found.to_json() == inspect_weights(weights).to_json()
    with open_checkpoint(source) as checkpoint:
        good = verify(tmp_path / "p", checkpoint, executor=make())
        assert good.ok and good == verify(tmp_path / "p", checkpoint)
    shard = tmp_path / "p" / "bsfp.safetensors"
    flip(shard, shard.stat().st_size - 100)
    bad = verify(tmp_path / "p", executor=make())
    assert bad.damaged_files == ["bsfp.safetensors"] and bad == verify(tmp_path / "p")


def test_a_piece_whose_worker_is_gone_is_done_again(make: Make, tmp_path: Path) -> None:
    make().map(die_once, flags := [tmp_path / f"{number}" for number in range(4)])
    assert all(flag.exists() for flag in flags)


def test_a_piece_that_ends_every_worker_is_given_up(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxconv.cluster.MAX_RETRIES", 1)
    message = r"a piece of work failed 2 times \(WorkerCrashedError: .*; workers that stay alive"
    with pytest.raises(MxconvError, match=message):
        make().map(die, [tmp_path])


def kill_workers(stop: threading.Event, seed: int, killed: list[int]) -> None:
    """SIGKILL three workers of the cluster while they work."""
    dice = random.Random(seed)
    while len(killed) < 3 and not stop.wait(dice.uniform(0.01, 0.1)):
        busy = [pid for pid, title in workers() if "Tensor" in title]
        if busy:
            killed.append(dice.choice(busy))
            os.kill(killed[-1], signal.SIGKILL)


def test_workers_that_are_killed_cost_time_and_no_byte(make: Make, large: Path, tmp_path: Path) -> None:
    quantize(large, tmp_path / "threads", codec="bsfp", max_shard_bytes=20_000_000)
    stop, killed = threading.Event(), []
    killer = threading.Thread(target=kill_workers, args=(stop, 0, killed))
    killer.start()
    try:
        by_ray(make, large, tmp_path / "ray", codec="bsfp", max_shard_bytes=20_000_000)
    finally:
        stop.set()
        killer.join()
    assert killed
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "threads")


def test_workers_upload_to_a_store_and_need_no_folder(
    make: Make, s3: S3Server, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    options: dict[str, Any] = {"codec": "bsfp", "max_shard_bytes": 60_000}
    quantize(source, tmp_path / "threads", **options)
    by_ray(make, source, store("ray"), **options)
    assert s3.files("ray") == files_of(tmp_path / "threads")


# decoding

TEXTS = [f"{prompt} {number}" for number in range(4) for prompt in PROMPTS]
CHAT = [{"role": "system", "content": "import"}, {"role": "user", "content": "os"}]
ASKED = [*TEXTS, CHAT]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decode")
    source = write_noisy(folder / "source")
    (source / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    quantize(source, folder / "package")
    return folder / "package"


@pytest.mark.parametrize("batch", [None, 3])
def test_pieces_are_one_claim(make: Make, package: Path, batch: int | None) -> None:
    selection = Selection(Sampling(0.8), seed=5)
    drafts = [parse_draft("prompt-lookup")]
    settings = DecodeSettings(
        package, ["target", "mxfp4"], drafts, max_new_tokens=6, selection=selection, batch=batch, num_threads=1
    )
    loaded, hierarchy = settings.open()
    with loaded:
        whole = verify_decoding(loaded, hierarchy, ASKED, 6, selection, batch=batch)
    told: list[tuple[str, int, int]] = []
    for executor in (make(), Workers(2)):
        told.clear()
        assert decode_by(executor, settings, ASKED, lambda *each: told.append(each)) == whole
        assert told[-1] == ("decode", len(ASKED), len(ASKED))
    assert (whole.num_prompts, whole.num_token_mismatches, whole.num_logit_mismatches) == (len(ASKED), 0, 0)
    assert whole.num_chat_prompts == 1
    assert (whole.kernel, whole.processors) == (choose_kernel(), [cpu_name()])


def test_the_command_splits_prompts_over_workers(package: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    prompts = [*({"prompt": text} for text in TEXTS), {"messages": CHAT}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts))
    words = [sys.executable, "-m", "mxconv.cli.main", "verify", package, "--decode", tmp_path / "prompts.jsonl"]
    words += ["--max-new-tokens", "4", "--json"]
    alone, split = (
        json.loads(subprocess.run([*map(str, words), *more], check=True, capture_output=True).stdout)
        for more in ((), ("--workers", "ray", "--threads", "2"))  # a cluster of its own
    )
    assert split["ok"] and split == alone
    assert (split["decode"]["num_prompts"], split["decode"]["num_chat_prompts"]) == (len(ASKED), 1)


def test_a_prompt_that_cannot_be_decoded_is_an_error_of_the_command(make: Make, package: Path) -> None:
    with pytest.raises(MxconvError, match="positions"):
        decode_by(make(), DecodeSettings(package, ["target", "mxfp4"], num_threads=1), ["word " * 10_000])


def test_two_kernels_are_not_one_claim() -> None:
    def record(kernel: str, processor: str) -> DecodeRecord:
        return DecodeRecord(
            num_prompts=2, num_tokens=9, num_token_mismatches=1, num_logit_mismatches=3, kernel=kernel,
            processors=[processor],
        )  # fmt: skip

    one = joined([record("avx2", "B"), record("avx2", "A"), record("avx2", "B")])
    assert (one.num_prompts, one.num_tokens, one.num_token_mismatches, one.num_logit_mismatches) == (6, 27, 3, 9)
    assert (one.kernel, one.processors) == ("avx2", ["A", "B"])
    with pytest.raises(MxconvError, match="avx2 on B; avx512vnni on A; bits are promised for a kernel"):
        joined([record("avx512vnni", "A"), record("avx2", "B")])
