"""Many machines: Ray runs the tasks that threads run on one. docs/scale.md says when that pays.

Ray decides where each task runs and runs it again when its worker dies. That changes no byte: a piece writes the same
bytes to the same places, whoever does it and however often. Nothing is reported to Ray's makers, a cluster of its own
binds to loopback, and what Ray prints stays off stdout.
"""

import contextlib
import importlib
import logging
import math
import os
import pickle
import re
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv import __version__
from mxconv.errors import MxconvError, install_line
from mxconv.workers import Advance, Piece, Result, uncounted

MAX_RETRIES = 8  # of a task whose worker died
AHEAD = 2  # tasks a worker that are submitted: one runs, one is there when it ends
BATCH_BYTES = 32_000_000  # a tenth of a second of work; the cost of a task does not matter beside it
BATCH_PIECES = 32
POLL_SECONDS = 2.0
NODE_PATIENCE_SECONDS = 120.0  # with a cluster on which no task can run

OBJECT_STORE_BYTES = 100_000_000  # results are kilobytes
ANSWER_SECONDS = 10.0
PATIENCE_SECONDS = 20.0  # with a cluster that does not answer: a head that starts, or one that just lost a node
FIRST_PAUSE_SECONDS = 0.5  # between two tries; each further one is twice as long
LOOPBACK = "127.0.0.1"

LOCAL = "local"  # of a cluster that is started here, as Ray calls it
WORKERS = re.compile(r"ray(?::(?P<address>auto|[\w.\-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}))?")


def parse_workers(text: str) -> str:
    """The address of a cluster: `local`, `auto` (the one of this machine) or HOST:PORT of its head.

    Raises:
        MxconvError: the text is none of these, nor `threads`, which needs no cluster.
    """
    found = WORKERS.fullmatch(text)
    if found is None:
        raise MxconvError(
            f"--workers {text}: threads, ray, ray:auto or ray:HOST:PORT is required. HOST:PORT is what `ray start` "
            "prints for other nodes."
        )
    return found["address"] or LOCAL


@contextlib.contextmanager
def cluster(address: str, num_threads: int, memory_bytes: int | None = None) -> Iterator[Callable[[], "RayExecutor"]]:
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


@dataclass(frozen=True)
class PieceOutcome:
    """The return value of a worker: a result, or the error that a thread would have raised."""

    result: Any = None
    num_bytes: int = 0  # that the task reported on the way
    error: Exception | None = None


class RayExecutor:
    """The workers of a cluster, for one conversion or proof."""

    def __init__(self, ray: Any, memory_bytes: int | None = None) -> None:
        """Submit nothing yet; `memory_bytes` is what a worker may need: Ray runs no more tasks on a node than fit."""
        self._ray, self._memory_bytes = ray, memory_bytes or 0
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": MAX_RETRIES}
        if memory_bytes is not None:
            options["memory"] = memory_bytes
        self._run_pieces = ray.remote(**options)(run_pieces)

    @property
    def num_workers(self) -> int:
        """Number of processors of the cluster now; nodes may come and go."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    @property
    def beside(self) -> "RayExecutor":
        """The same: Ray takes tasks of several threads."""
        return self

    def map(
        self,
        task: Callable[[Piece, Advance], Result],
        pieces: Sequence[Piece],
        advance: Advance = uncounted,
        done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Do a task to every piece, see `Executor.map`."""
        name = getattr(task, "__name__", type(task).__name__)  # that Ray's dashboard shows
        key, sent, run = uuid.uuid4().bytes, pickle.dumps(task), self._run_pieces.options(name=name)
        batches = deque(_batches(pieces, self.num_workers))
        running: dict[Any, list[int]] = {}
        results: dict[int, Result] = {}
        errors: dict[int, Exception] = {}
        while running or (batches and not errors):
            num_workers = max(self.num_workers, 1)
            while batches and not errors and len(running) < AHEAD * num_workers:
                indexes = batches.popleft()
                reference = run.remote(__version__, key, sent, [pickle.dumps(pieces[index]) for index in indexes])
                running[reference] = indexes
            reference = self._wait(list(running))
            for index, outcome in zip(running.pop(reference), self._get(reference), strict=False):
                if outcome.error is not None:
                    errors[index] = outcome.error
                    break
                advance(outcome.num_bytes)
                if done is not None:
                    done(outcome.result)
                results[index] = outcome.result
        if errors:
            raise errors[min(errors)]
        return [results[index] for index in range(len(pieces))]

    def _wait(self, references: list[Any]) -> Any:
        """The first reference that is ready.

        Raises:
            MxconvError: for two minutes the cluster has had no node on which a task fits.
        """
        fitting = time.monotonic()
        while True:
            ready, _ = self._ray.wait(references, num_returns=1, timeout=POLL_SECONDS)
            if ready:
                return ready[0]
            if self._has_fitting_node():
                fitting = time.monotonic()
            elif time.monotonic() - fitting > NODE_PATIENCE_SECONDS:
                raise MxconvError(
                    f"--workers ray: for {NODE_PATIENCE_SECONDS:.0f} seconds no node has had a processor and "
                    f"{self._memory_bytes:,} bytes of memory for a worker; one is required. Start a node with "
                    "`ray start`, and run the same command again: it goes on where it stopped."
                )

    def _has_fitting_node(self) -> bool:
        resources = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return any(r.get("CPU", 0) >= 1 and r.get("memory", 0) >= self._memory_bytes for r in resources)

    def _get(self, reference: Any) -> Any:
        """The return value of a Ray task.

        Raises:
            MxconvError: its worker died, again and again, or mxconv cannot be imported there.
        """
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise MxconvError(
                f"--workers ray: a piece of work failed {MAX_RETRIES + 1} times ({cause}); workers that stay alive, "
                f"and mxconv {__version__} on every node, are required. Look at the memory of the nodes (--memory), "
                "and run the same command again: it goes on where it stopped."
            ) from error


def _batches(pieces: Sequence[Any], num_workers: int) -> Iterator[list[int]]:
    """Indexes of pieces in batches of up to 32 MB: so few that every worker gets several batches."""
    most = min(BATCH_PIECES, math.ceil(len(pieces) / (4 * max(num_workers, 1))))
    batch: list[int] = []
    num_bytes = 0
    for index, piece in enumerate(pieces):
        batch.append(index)
        num_bytes += BATCH_BYTES if isinstance(piece, Path) else getattr(piece, "num_bytes", 0)  # a whole file
        if len(batch) >= most or num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


# What follows runs in a worker.

_latest: tuple[bytes, Any] = (b"", None)  # the task that this process did last: it keeps files open


def run_pieces(version: str, key: bytes, task: bytes, pieces: list[bytes]) -> list[PieceOutcome]:
    """Do a pickled task to pickled pieces, up to the first error; `version` is the command's, `key` names the task."""
    outcomes: list[PieceOutcome] = []
    for piece in pieces:
        outcomes.append(_run_piece(version, key, task, piece))
        if outcomes[-1].error is not None:
            break
    return outcomes


def _run_piece(version: str, key: bytes, task: bytes, piece: bytes) -> PieceOutcome:
    global _latest
    num_bytes = 0

    def advance(done: int) -> None:
        nonlocal num_bytes
        num_bytes += done

    try:
        if version != __version__:
            raise MxconvError(
                f"a worker runs mxconv {__version__}, this command {version}; the same version is required on every "
                "node. Install it there."
            )
        if _latest[0] != key:
            _latest = (key, pickle.loads(task))
        return PieceOutcome(_latest[1](pickle.loads(piece), advance), num_bytes)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # some exceptions cannot be sent
            return PieceOutcome(error=MxconvError(f"{type(error).__name__} in a worker: {error}"))
        return PieceOutcome(error=error)
