"""A repository on the Hub whose shards are on the disk only while they are read; clients are processes of their own."""

import json
import pickle
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_sharded, write_tiny_llama
from hub_client import Client
from hub_server import HubServer, commit_of
from packages import files_of

from mxconv.checkpoint.object_store import Store
from mxconv.checkpoint.ranged_file import RangedFile
from mxconv.checkpoint.spool import SMALL_BYTES, Spool, SpooledFile

NUM_SHARDS, SHAPE = 6, (512, 1024)
OPTIONS = "--codec", "bsfp", "--segments", "paper", "--max-shard-bytes", "4000000", "--threads", "2"


def write_remote(folder: Path, num_rounds: int) -> Path:
    """Four matrices a shard, whose names in their order go through the shards so often, and a norm beside each."""
    rng = np.random.default_rng(0)
    block = (rng.standard_normal(SHAPE) * 0.02).astype(ml_dtypes.bfloat16)
    assert block.nbytes >= SMALL_BYTES
    tensors: dict[str, Any] = {}
    for n in range(4 * NUM_SHARDS):  # dealt out to the shards in turn
        number, shard = divmod(n, NUM_SHARDS)
        name = f"layers.{number * num_rounds // 4}.{shard}.{number}"
        tensors[f"{name}.weight"] = np.roll(block, 1000 * n)
    tensors |= {name.replace("weight", "norm.weight"): np.ones(64, ml_dtypes.bfloat16) for name in tensors}
    return write_sharded(folder, tensors, NUM_SHARDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_remote(tmp_path_factory.mktemp("remote"), 2)


@pytest.fixture
def hub(folder: Path) -> Iterator[HubServer]:
    with HubServer({"org/large": {"main": folder, "v1": folder}}) as server:
        yield server


@pytest.fixture
def client(hub: HubServer, tmp_path: Path) -> Iterator[Client]:
    made = Client(hub, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The package of the same repository, downloaded whole."""
    place = tmp_path_factory.mktemp("whole")
    with HubServer({"org/large": {"main": folder}}) as server:
        Client(server, place)("quantize", "org/large", "-o", "p", *OPTIONS)
    return files_of(place / "p")


def shards_of(client: Client) -> list[str]:
    """The shards on the client's disk."""
    return sorted(path.name for path in client.folder.joinpath("cache").rglob("*.safetensors"))


def downloads_of(hub: HubServer) -> Counter[str]:
    """How often each shard was downloaded; headers and norms are read by ranges."""
    found = Counter(line.rpartition("/")[2] for line in hub.requests if line.startswith("GET ") and "/resolve/" in line)
    found.subtract(name for name, _ in hub.ranges)
    return Counter({name: number for name, number in found.items() if name.endswith(".safetensors") and number > 0})


def every_shard(times: int) -> dict[str, int]:
    return {f"model-{n:05}-of-{NUM_SHARDS:05}.safetensors": times for n in range(1, NUM_SHARDS + 1)}


def num_noted(package: Path) -> int:
    """How many shards the journal of a conversion has as whole."""
    journal = package.with_name(package.name + ".partial") / ".mxconv-journal"
    return len(journal.read_text().splitlines()) - 1 if journal.exists() else -1


def test_a_shard_is_downloaded_once_a_pass_and_gone_when_no_thread_is_in_it(
    hub: HubServer, client: Client, whole: dict[str, bytes]
) -> None:
    there: list[int] = []
    hub.on_request = lambda request: there.append(len(shards_of(client)))
    client("quantize", "hf://org/large", "-o", "p", *OPTIONS)
    assert files_of(client.folder / "p") == whole  # the manifest too, with the commit
    assert downloads_of(hub) == every_shard(2)
    assert 1 <= max(there) <= 2  # of two threads
    assert not [path for path in (client.folder / "cache" / "assets").rglob("*") if path.is_file()]

    hub.requests.clear()
    hub.ranges.clear()
    assert client("verify", "p", "--source", "hf://org/large")["num_derived"] == 4 * NUM_SHARDS
    assert downloads_of(hub) == every_shard(1)


def test_small_tensors_have_no_shard_downloaded(hub: HubServer, client: Client) -> None:
    """MXFP4 looks at norms before it encodes."""
    client("quantize", "hf://org/large@v1", "-o", "p", "--codec", "mxfp4", "--threads", "1")
    assert downloads_of(hub) == every_shard(1)
    assert json.loads((client.folder / "p" / "mxconv.json").read_text())["levels"][0]["location"] == "source"


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_killed_conversion_goes_on_where_it_stopped(
    hub: HubServer, client: Client, tmp_path: Path, num_shards: int
) -> None:
    hub.repositories["org/large"] = {"main": write_remote(tmp_path / "remote", 1)}
    client("quantize", "org/large", "-o", "whole", *OPTIONS)
    shutil.rmtree(client.folder / "cache")
    package = client.folder / "p"
    process = client.start("quantize", "hf://org/large", "-o", "p", *OPTIONS)
    while process.poll() is None and num_noted(package) < num_shards:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    noted, left = num_noted(package), shards_of(client)
    assert noted >= num_shards and len(left) <= 2
    hub.requests.clear()
    hub.ranges.clear()
    client("quantize", "hf://org/large", "-o", "p", *OPTIONS)
    assert files_of(package) == files_of(client.folder / "whole")
    first = next(iter(every_shard(1)))
    assert downloads_of(hub)[first] == 1 - (first in left)  # surveyed; its tensors are written
    assert shards_of(client) == []


def test_downloads_that_break_off_or_are_killed_cost_time_only(
    hub: HubServer, client: Client, whole: dict[str, bytes]
) -> None:
    first, second, *_ = every_shard(1)
    hub.cut.add(first)
    hub.stop_after = second, 2_000_000
    process = client.start("quantize", "hf://org/large", "-o", "p", *OPTIONS)
    assert hub.stopped.wait(60)
    process.kill()
    process.communicate()
    hub.go_on.set()
    client("quantize", "hf://org/large", "-o", "p", *OPTIONS)
    assert files_of(client.folder / "p") == whole
    assert not [path for path in (client.folder / "cache" / "assets").rglob("*") if path.is_file()]


def test_a_push_in_the_middle_changes_nothing(
    hub: HubServer, client: Client, folder: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    other = write_tiny_llama(tmp_path / "other")

    def push(request: str) -> None:
        if request.endswith(".safetensors"):
            hub.repositories["org/large"]["main"] = other

    hub.on_request = push
    client("quantize", "hf://org/large", "-o", "p", *OPTIONS)
    assert files_of(client.folder / "p") == whole
    client("quantize", "hf://org/large", "--revision", commit_of(folder), "-o", "q", *OPTIONS)
    assert files_of(client.folder / "q") == whole


def test_a_damaged_download_is_an_error_that_names_the_shard(
    hub: HubServer, client: Client, folder: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    """The server lists the SHA-256 of a file and sends another one."""
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    name = f"model-00004-of-{NUM_SHARDS:05}.safetensors"
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (damaged / name).write_bytes(content)
    hub.contents[name] = damaged / name
    error = client.error("quantize", "hf://org/large", "-o", "p", *OPTIONS)
    assert error.startswith(f"hf://org/large@{commit_of(folder)}/{name}: has the SHA-256 ")
    assert error.endswith("is required, as the Hub lists it. Run the same command again.")
    assert shards_of(client) == []
    hub.contents.clear()
    client("quantize", "hf://org/large", "-o", "p", *OPTIONS)
    assert files_of(client.folder / "p") == whole


def test_another_process_is_refused_while_one_reads(hub: HubServer, client: Client) -> None:
    hub.stop_after = next(iter(every_shard(1))), 1_000_000
    client.start("quantize", "hf://org/large", "-o", "p", *OPTIONS)
    assert hub.stopped.wait(60)
    error = client.error("quantize", "hf://org/large", "-o", "q", *OPTIONS)
    hub.go_on.set()
    assert "another process reads hf://org/large shard by shard; one at a time is required. Wait until it ends" in error


def test_another_process_that_it_is_sent_to_reads_by_ranges(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path))
    monkeypatch.setattr("mxconv.checkpoint.spool.file_hashes", lambda *_: {})
    store = Store(f"memory://{tmp_path.name}")
    name = next(iter(every_shard(1)))
    store.write(name, (folder / name).read_bytes())
    spool = Spool("org/large", "0" * 40, [name])
    file = spool.open_file(store, name, tmp_path / name)
    sent = pickle.loads(pickle.dumps(file))
    spool.close()
    assert type(file) is SpooledFile and type(sent) is RangedFile
    assert sent.view("layers.0.0.0.weight").tobytes() in (folder / name).read_bytes()
