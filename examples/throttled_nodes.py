"""How a conversion gets faster with nodes where disks are what bounds it: 1 node of this machine, and 3.

    python examples/throttled_nodes.py --megabytes 300 --rate 30

Nodes are simulated by Ray, of one processor each. Each reads at most so many megabytes a second, of the source and of
what is hashed behind the writing; examples/throttle.py makes its workers wait. Nothing else is slowed down.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from cluster_nodes import hashes_of, peak_bytes, simulated, wait_until
from safetensors.numpy import save_file
from throttle import ThrottledExecutor

from mxconv.checkpoint.source import open_checkpoint
from mxconv.cluster.address import ClusterAddress
from mxconv.cluster.session import cluster
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert

ROWS, COLUMNS = 1024, 2048  # 4 MB a tensor
TENSORS_A_FILE = 6


def write_source(folder: Path, num_megabytes: int) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "throttled"}))
    rng, weight_map = np.random.default_rng(0), {}
    num_files = max(1, num_megabytes * 10**6 // (2 * ROWS * COLUMNS * TENSORS_A_FILE))
    for number in range(num_files):
        name = f"model-{number + 1:05}-of-{num_files:05}.safetensors"
        tensors = {
            f"layers.{number}.w{place}.weight": (rng.standard_normal((ROWS, COLUMNS)) * 0.02).astype(np.float16)
            for place in range(TENSORS_A_FILE)
        }
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def seconds_on(num_nodes: int, source: Path, package: Path, codec: str, rate: float) -> float:
    """Of a conversion, once the workers are there."""
    with simulated(num_nodes) as address, cluster(ClusterAddress(address), 1) as make:
        wait_until(lambda: len(peak_bytes()) == num_nodes)
        options = QuantizeOptions(codec=codec, max_shard_bytes=20_000_000)
        with open_checkpoint(source) as checkpoint:
            begin = time.monotonic()
            convert(checkpoint, package, options, executor=lambda: ThrottledExecutor(make(), rate))
            return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rate", type=float, default=30, help="megabytes a second of each node's disk")
    parser.add_argument("--codec", default="bsfp", choices=["bsfp", "mxfp4"])
    given = parser.parse_args()
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a token that some other cluster left here would be asked for
    folder = Path(tempfile.mkdtemp())
    write_source(folder / "source", given.megabytes)
    seconds = {
        num_nodes: seconds_on(num_nodes, folder / "source", folder / str(num_nodes), given.codec, given.rate * 1e6)
        for num_nodes in (1, 3)
    }
    same = hashes_of(folder / "1") == hashes_of(folder / "3")
    shutil.rmtree(folder)
    print(f"{seconds[1]:.1f} s on 1 node, {seconds[3]:.1f} s on 3: {seconds[1] / seconds[3]:.2f} times as fast")
    print(json.dumps({"seconds": seconds, "speedup": seconds[1] / seconds[3], "identical": same}))


if __name__ == "__main__":
    main()
