"""A connection to a Ray cluster, for as long as a command runs.

Nothing is reported to Ray's makers, a cluster of its own binds to loopback, and what Ray prints stays off stdout.
"""

import contextlib
import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from mxconv.cluster.address import ClusterAddress
from mxconv.cluster.executor import RayExecutor
from mxconv.errors import MxconvError

OBJECT_STORE_BYTES = 100_000_000  # results are kilobytes
CONNECT_SECONDS = 10.0
LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def cluster(
    address: ClusterAddress, num_threads: int, memory_bytes: int | None = None
) -> Iterator[Callable[[], RayExecutor]]:
    """Connect, or start a cluster on this machine.

    Args:
        address: of the cluster.
        num_threads: workers of a cluster that is started here; another has a worker a processor.
        memory_bytes: what a worker may need; Ray starts no more of them on a node than fit.

    Meanwhile what is printed goes to stderr.

    Yields:
        What makes an executor of its workers: one for each conversion or proof.

    Raises:
        MxconvError: Ray is not installed, or no cluster answers.
    """
    ray = import_ray()
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": "mxconv"}
    if address.address is None:
        options |= {
            "address": "local",
            "num_cpus": num_threads,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_node_ip_address": LOOPBACK,
        }
    else:
        _check_answers(address.address)
        options["address"] = address.address
    # Ray prints what happens to workers, at any time; stdout is for results
    with contextlib.redirect_stdout(sys.stderr):
        try:
            ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = address.address or "this machine"
            raise MxconvError(
                f"--workers ray: no cluster at {where} ({str(error).splitlines()[0]}); a running one with Ray "
                f"{ray.__version__} is required. Start it with `ray start --head`, and give the address that it prints."
            ) from error
        try:
            yield lambda: RayExecutor(ray, memory_bytes)
        finally:
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Ask the head's port: Ray itself would wait for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise MxconvError(
            f"--workers ray:{address}: nobody answers there ({error}); the head of a running cluster is required. "
            "Start one with `ray start --head`, and give the address that it prints."
        ) from error


def import_ray() -> Any:
    """Ray, which reports nothing.

    Raises:
        MxconvError: it is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what it would do from now on, and warns about
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MxconvError(
            f"--workers ray: Ray cannot be imported ({error}); the extra `ray` is required. "
            "Install it with `pip install 'mxconv[ray]'`, or leave --workers out."
        ) from error
