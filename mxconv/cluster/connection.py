"""The value of `--workers`, and the connection to a Ray cluster for as long as a command runs.

Nothing is reported to Ray's makers, a cluster of its own binds to loopback, and what Ray prints stays off stdout.
"""

import contextlib
import importlib
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from mxconv.cluster.executor import RayExecutor
from mxconv.errors import MxconvError, install_line

OBJECT_STORE_BYTES = 100_000_000  # results are kilobytes
ANSWER_SECONDS = 10.0
PATIENCE_SECONDS = 20.0  # with a cluster that does not answer: a head that starts, or one that just lost a node
FIRST_PAUSE_SECONDS = 0.5  # between two tries; each further one is twice as long
LOOPBACK = "127.0.0.1"

LOCAL = "local"  # of a cluster that is started here, as Ray calls it
WORKERS = re.compile(r"ray(?::(?P<address>auto|[\w.\-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}))?")


def parse_workers(text: str) -> str | None:
    """The address of a cluster: `local`, `auto` (the one of this machine) or HOST:PORT of its head; None for `threads`.
    Raises MxconvError where the text is none of these."""
    if text == "threads":
        return None
    found = WORKERS.fullmatch(text)
    if found is None:
        raise MxconvError(
            f"--workers {text}: threads, ray, ray:auto or ray:HOST:PORT is required. HOST:PORT is what `ray start` "
            "prints for other nodes."
        )
    return found["address"] or LOCAL


@contextlib.contextmanager
def cluster(address: str, num_threads: int, memory_bytes: int | None = None) -> Iterator[Callable[[], RayExecutor]]:
    """Connect, or start a cluster on this machine; meanwhile what is printed goes to stderr.

    Args:
        address: of the cluster, as `parse_workers` gives it.
        num_threads: workers of a cluster that is started here; another has a worker a processor.
        memory_bytes: what a worker may need; Ray starts no more of them on a node than fit.

    Yields:
        What makes an executor of its workers: one for each conversion or proof.

    Raises:
        MxconvError: Ray is not installed, or no cluster answers.
    """
    ray = import_ray()
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": "mxconv"}
    if address == LOCAL:
        options |= {
            "address": LOCAL,
            "num_cpus": num_threads,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_node_ip_address": LOOPBACK,
            "_system_config": {"worker_niceness": 0},  # Ray's own is 15: after whatever else runs here
        }
    # Ray prints what happens to workers, at any time; stdout is for results
    with contextlib.redirect_stdout(sys.stderr):
        _connect(ray, address, options)
        try:
            yield lambda: RayExecutor(ray, memory_bytes)
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str, options: dict[str, Any]) -> None:
    """Connect, again and again for some seconds: who resumes after a fault comes while the cluster still heals."""
    where = "this machine" if address == LOCAL else address
    end, pause = time.monotonic() + PATIENCE_SECONDS, FIRST_PAUSE_SECONDS
    while True:
        try:
            if address != LOCAL:
                options["address"] = _answering(ray, address)
            try:
                ray.init(**options)
                return
            except BaseException:
                ray.shutdown()  # what of it began
                raise
        except Exception as error:
            if _is_refused(error):
                raise MxconvError(
                    f"--workers ray: the cluster at {where} answers only whoever knows its token; the same token is "
                    "required here. Copy ~/.ray/auth_token from its first node, and set RAY_AUTH_MODE=token."
                ) from error
            if not isinstance(error, (OSError, OverflowError, ValueError, RuntimeError)):
                raise
            if time.monotonic() + pause > end:
                raise MxconvError(
                    f"--workers ray: no cluster at {where} ({str(error).splitlines()[0]}); a "
                    f"running one with Ray {ray.__version__} is required. Start it with `ray start --head`, and give "
                    "the address that it prints."
                ) from error
            print(f"mxconv: no cluster at {where} yet; trying again", file=sys.stderr)
        time.sleep(pause)
        pause *= 2


def _is_refused(error: BaseException | None) -> bool:
    """Whether Ray was not given the cluster's token; it says so in one of the causes, as a class or in the text."""
    while error is not None and "AuthenticationError" not in f"{type(error).__name__}: {error}":
        error = error.__cause__ or error.__context__
    return error is not None


def _answering(ray: Any, address: str) -> str:
    """The address of a head whose port is open: at one that is not Ray itself would wait for minutes. Raises OSError
    where nobody answers."""
    if address == "auto":  # what the last `ray start` noted, which may be gone; else what runs here
        from ray._private import services

        address = services.canonicalize_bootstrap_address_or_die("auto")
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"nobody answers at {address}: {error.strerror or error}") from error
    return address


def import_ray() -> Any:
    """Ray, which reports nothing. Raises MxconvError where it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what it would do from now on, and warns about
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MxconvError(
            f"--workers ray: Ray cannot be imported ({error}); the extra `ray` is required. Leave --workers out, or "
            f"install it. {install_line('ray')}"
        ) from error
