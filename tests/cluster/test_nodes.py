"""Nodes with addresses, ports and folders of their own, as `ray start` begins them; what they make, threads make."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import psutil
import pytest

from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.cluster.connection import ClusterAddress, cluster, import_ray
from mxconv.conversion.options import Codec, QuantizeOptions
from mxconv.convert import convert
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights
from mxconv.verify import verify

MODELS = Path(__file__).parents[2] / "examples" / "models"
HOSTS = ("127.0.0.2", "127.0.0.3")  # for 127.0.0.1 Ray would take the address of the machine's network
CODECS: tuple[Codec, ...] = ("bsfp", "mxfp4")
START_SECONDS = 120  # on a busy machine Ray takes long
NUM_NODES = 2


@contextlib.contextmanager
def started() -> Iterator[str]:
    """The address of a head and a second node, as `ray start` begins them."""
    head, second = HOSTS
    port = free_port(head)
    with started_node(head, "--head", f"--port={port}", "--include-dashboard=false"):
        wait_until(lambda: answers(head, port))
        with started_node(second, f"--address={head}:{port}"):
            yield f"{head}:{port}"


@contextlib.contextmanager
def started_node(host: str, *options: str) -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="node", dir="/tmp")  # short: Ray makes sockets in it
    ports = ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port(host)}"]
    node = ["--num-cpus=1", "--object-store-memory=80000000", f"--node-ip-address={host}", "--disable-usage-stats"]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--temp-dir={folder}"]
    with Path(folder, "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, *node, *ports, *options],
            env=os.environ | {"RAY_worker_niceness": "0"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        ours = [psutil.Process(process.pid)]
        ours += ours[0].children(recursive=True)
        process.terminate()  # it ends what it began
        _, left = psutil.wait_procs(ours, timeout=30)
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def free_port(host: str) -> int:
    with socket.socket() as inputs:
        inputs.bind((host, 0))
        return int(inputs.getsockname()[1])


def answers(host: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"a node did not start within {START_SECONDS} seconds")
        time.sleep(0.2)


def hashes_of(package: Path) -> dict[str, str]:
    return {str(path.relative_to(package)): sha256_file(path) for path in package.rglob("*") if path.is_file()}


def peak_bytes() -> list[int]:
    """The most memory of each worker that is there."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            if (process.cmdline() or [""])[0].startswith("ray::IDLE"):
                status = Path(f"/proc/{process.pid}/status").read_text()
                found.append(int(status.split("VmHWM:")[1].split()[0]) * 1024)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="more than one address of loopback, and peaks of memory")
def test_packages_of_several_nodes_have_the_bytes_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # a token that some other cluster left here would be required
    with started() as address:
        with cluster(ClusterAddress(address), 1) as make:
            wait_until(lambda: make().num_workers == NUM_NODES)
        with cluster(ClusterAddress(address), 1) as make:
            ray = import_ray()
            nap = ray.remote(num_cpus=1)(lambda: time.sleep(1))  # every node starts its worker
            wait_until(
                lambda: bool(ray.get([nap.remote() for _ in range(NUM_NODES)])) and len(peak_bytes()) == NUM_NODES
            )
            for source, codec in product([MODELS / "pylib-0.2m"], CODECS):
                options = QuantizeOptions(codec=codec, num_threads=2)
                threads, package = tmp_path / f"threads-{codec}", tmp_path / f"ray-{codec}"
                with open_checkpoint(source) as checkpoint:
                    convert(checkpoint, threads, options)
                    convert(checkpoint, package, options, executor=make)
                    assert hashes_of(package) == hashes_of(threads)
                    verified = verify(package, checkpoint, executor=make())
                    assert verified.ok and verified == verify(threads, checkpoint, num_threads=2)
                with open_weights(str(package)) as weights:
                    figures = inspect_weights(weights, executor=make()).to_json()
                    assert figures == inspect_weights(weights, num_threads=2).to_json()
            assert len(peaks := peak_bytes()) == NUM_NODES and max(peaks) < 600_000_000
