"""A Ray cluster of two nodes, which are processes with object stores of their own, for all tests of this folder."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_sharded
from s3_server import S3Server, running

from mxconv.cluster.connection import cluster, import_ray
from mxconv.cluster.executor import RayExecutor
from mxconv.errors import MxconvError

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
HEAD = {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}  # tests beside it would go first


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def address(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of its head; workers find the store, and scratch folders, by their environment."""
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
    yield nodes.address
    nodes.shutdown()


@pytest.fixture(scope="session")
def make(address: str) -> Iterator[Callable[[], RayExecutor]]:
    """Makes executors that are connected to it."""
    with cluster(address, 1) as make:
        yield make


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 MB: tensors of two slices."""
    rng = np.random.default_rng(0)
    tensors = {f"w{n:02}": (rng.standard_normal((2048, 1024)) * 0.02).astype(np.float16) for n in range(16)}
    return write_sharded(tmp_path_factory.mktemp("large") / "m", tensors, 4)
