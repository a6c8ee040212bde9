"""Convert, verify and inspect models on clusters of several nodes of this machine; compare with what threads do.

    python examples/cluster_nodes.py FOLDER... --nodes 1,2,3,started

A FOLDER is a checkpoint, or holds some. A number of nodes is simulated by Ray: each is processes and an object store of
its own. `started` is a head and a second node that `ray start` begins, on two addresses of loopback, with ports and
folders of their own. They end with this program.
"""

import contextlib
import json
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
import typer
from ray.cluster_utils import Cluster

from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.cluster.connection import ClusterAddress, cluster, import_ray
from mxconv.conversion.options import Codec, QuantizeOptions
from mxconv.convert import convert
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights
from mxconv.verify import verify

HOSTS = ("127.0.0.2", "127.0.0.3")  # for 127.0.0.1 Ray would take the address of the machine's network
CODECS: tuple[Codec, ...] = ("bsfp", "mxfp4")
START_SECONDS = 120  # on a busy machine Ray takes long
ONE = {"num_cpus": 1, "object_store_memory": 80_000_000}
HEAD = ONE | {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}


@contextlib.contextmanager
def simulated(count: int) -> Iterator[str]:
    """The address of a cluster of so many nodes."""
    nodes = Cluster(initialize_head=True, head_node_args=HEAD)
    try:
        for _ in range(count - 1):
            nodes.add_node(**ONE)
        yield nodes.address
    finally:
        nodes.shutdown()


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
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def answers(host: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"a node did not start within {START_SECONDS} seconds")
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


def compare(name: str, address: str, num_nodes: int, sources: list[Path], folder: Path) -> tuple[int, int, int]:
    """Packages of every source and codec: how many, how many other than those of threads, most bytes of a worker."""
    wrong = 0
    with cluster(ClusterAddress(address), 1) as make:
        wait_until(lambda: make().num_workers == num_nodes)
    with cluster(ClusterAddress(address), 1) as make:
        ray = import_ray()
        nap = ray.remote(num_cpus=1)(lambda: time.sleep(1))  # every node starts its worker
        wait_until(lambda: bool(ray.get([nap.remote() for _ in range(num_nodes)])) and len(peak_bytes()) == num_nodes)
        for source, codec in product(sources, CODECS):
            threads, package = folder / f"{source.name}-{codec}", folder / "ray"
            with open_checkpoint(source) as checkpoint:
                options = QuantizeOptions(codec=codec, num_threads=2)
                if not threads.exists():
                    convert(checkpoint, threads, options)
                begin = time.monotonic()
                convert(checkpoint, package, options, executor=make)
                seconds = time.monotonic() - begin
                verified = verify(package, checkpoint, executor=make())
                is_same = hashes_of(package) == hashes_of(threads)
                is_same &= verified.ok and verified == verify(threads, checkpoint, num_threads=2)
            with open_weights(str(package)) as weights:
                figures = inspect_weights(weights, executor=make()).to_json()
                is_same &= figures == inspect_weights(weights, num_threads=2).to_json()
            shutil.rmtree(package)
            wrong += not is_same
            print(f"{name}: {source.name} {codec}: {'same' if is_same else 'OTHER'}; {seconds:.1f} s", flush=True)
        peaks = peak_bytes()
    print(f"{name}: {len(peaks)} workers, {', '.join(f'{peak / 1e6:.0f}' for peak in peaks)} MB at most", flush=True)
    return len(sources) * len(CODECS), wrong, max(peaks)


def main(folders: list[Path], nodes: str = "1,2,3,started") -> None:
    paths = [path for folder in folders for path in (folder, *sorted(folder.iterdir()))]
    sources = [path for path in paths if any(path.glob("*.safetensors"))]
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a token that some other cluster left here would be required
    counts = []
    with tempfile.TemporaryDirectory() as folder:
        for count in nodes.split(","):
            is_started = count == "started"
            with started() if is_started else simulated(int(count)) as address:
                name = "ray start" if is_started else f"{count} node{'' if count == '1' else 's'}"
                counts.append(compare(name, address, 2 if is_started else int(count), sources, Path(folder)))
    packages, wrong, peaks = zip(*counts, strict=True)
    print(json.dumps({"packages": sum(packages), "wrong": sum(wrong), "largest_worker_bytes": max(peaks)}))
    sys.exit(sum(wrong) > 0)


if __name__ == "__main__":
    typer.run(main)
