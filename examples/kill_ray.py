"""Convert on a Ray cluster of two nodes, kill something at random, and compare the package with that of threads.

    python examples/kill_ray.py SOURCE --runs 100

Killed with SIGKILL, at a random moment: a worker, a node, or the command itself. The command may then be given once
more; after that the package must be there, byte for byte.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
HEAD = NODE | {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}
SERVANTS = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")  # a node ends when one of its agents is gone


def command(source: str, package: Path, workers: str) -> list[str]:
    options = ["--codec", "bsfp", "--workers", workers]
    return [sys.executable, "-m", "mxconv.cli.main", "quantize", source, "-o", str(package), *options]


def files_of(package: Path) -> dict[str, bytes]:
    return {str(path.relative_to(package)): path.read_bytes() for path in package.rglob("*") if path.is_file()}


def add_node(cluster: Cluster) -> None:
    """Ray gives a node 30 seconds to start; on a busy machine it may need another try."""
    for _ in range(5):
        with contextlib.suppress(Exception):  # it raises no other
            cluster.add_node(**NODE)
            return


def kill_worker(dice: random.Random) -> bool:
    """Kill a process that runs a piece, if there is one."""
    workers = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            line = process.cmdline()
            if line and line[0].startswith("ray::") and not line[0].startswith(SERVANTS):
                workers.append(process)
    if workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            dice.choice(workers).kill()
            return True
    return False


def disturbed(source: str, package: Path, cluster: Cluster, seconds: float, dice: random.Random) -> str:
    """One conversion; what was killed, and how often the command was given."""
    victim = dice.choice(["worker", "node", "command"])
    driver = subprocess.Popen(command(source, package, f"ray:{cluster.address}"), stderr=subprocess.DEVNULL)
    time.sleep(dice.uniform(0, seconds))
    if driver.poll() is not None:
        victim = "nothing (it was over)"
    elif victim == "command":
        driver.kill()
    elif victim == "node":
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        add_node(cluster)
    else:
        while not kill_worker(dice) and driver.poll() is None:
            time.sleep(0.02)
    if driver.wait() == 0 or package.exists():  # a command may be killed when all is done
        return f"{victim}, finished"
    subprocess.run(command(source, package, f"ray:{cluster.address}"), check=True, stdout=subprocess.DEVNULL)
    return f"{victim}, resumed once"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60, help="no further run is begun after this")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a token that some other cluster left here would be asked for
    dice, outcomes = random.Random(given.seed), Counter[str]()
    begin, num_wrong = time.monotonic(), 0
    folder = Path(tempfile.mkdtemp())
    subprocess.run(command(given.source, folder / "threads", "threads"), check=True)
    expected = files_of(folder / "threads")
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    add_node(cluster)
    for run in range(-2, given.runs):  # the first two warm up, and tell how long one takes
        if time.monotonic() - begin > 60 * given.minutes:
            break
        package, begun = folder / f"ray{run}", time.monotonic()
        if run < 0:
            subprocess.run(command(given.source, package, f"ray:{cluster.address}"), check=True)
            seconds = time.monotonic() - begun
        else:
            outcomes[disturbed(given.source, package, cluster, seconds, dice)] += 1
        num_wrong += files_of(package) != expected
        shutil.rmtree(package)
        print(run, dict(outcomes), f"{num_wrong} wrong", flush=True)
    cluster.shutdown()
    shutil.rmtree(folder)
    print(json.dumps({"runs": outcomes.total(), "wrong": num_wrong, "outcomes": outcomes}))


if __name__ == "__main__":
    main()
