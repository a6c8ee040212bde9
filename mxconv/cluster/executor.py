"""Tasks and streams on a Ray cluster: an `Executor` of `mxconv.conversion.executor`.

Pieces are sent a few more at a time than there are processors; Ray sends a piece again whose worker or node is gone.
Nothing is lost by that: a piece writes the same bytes to the same places whoever does it, however often.
"""

import pickle
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mxconv import __version__
from mxconv.cluster.remote import Outcome, do_piece, do_whole
from mxconv.conversion.executor import Advance, Piece, Result, Stream, Task, uncounted
from mxconv.errors import MxconvError

MAX_RETRIES = 8  # of a piece whose worker or node is gone
AHEAD = 2  # pieces a processor that are sent: one is done, one is there when it ends
POLL_SECONDS = 2.0
PATIENCE_SECONDS = 120.0  # with a cluster that has no processor
STREAM = -1  # the index of what is no piece


class RayExecutor:
    """The workers of a cluster, for one conversion or proof."""

    def __init__(self, ray: Any, memory_bytes: int | None = None) -> None:
        """Use the cluster that Ray is connected to.

        Args:
            ray: the module.
            memory_bytes: what a worker may need.
        """
        self._ray = ray
        options: dict[str, Any] = {"max_retries": MAX_RETRIES, "num_cpus": 1}
        if memory_bytes is not None:
            options["memory"] = memory_bytes
        self._do_piece, self._do_whole = ray.remote(**options)(do_piece), ray.remote(**options)(do_whole)
        self._streams: list[Stream] = []
        self._hashing: dict[Any, Stream] = {}  # by the reference to what will come of it
        self._slots, self._slots_seconds = 0, 0.0

    @property
    def num_workers(self) -> int:
        """Processors that the cluster has now; nodes may come and go."""
        now = time.monotonic()
        if not self._slots or now - self._slots_seconds > POLL_SECONDS:
            self._slots = int(self._ray.cluster_resources().get("CPU", 0))
            self._slots_seconds = now
        return self._slots

    def add_stream(self, stream: Stream) -> None:
        """Have a worker do this whole stream, as soon as it can be done."""
        self._streams.append(stream)

    def map(
        self,
        task: Task[Piece, Result],
        pieces: Sequence[Piece],
        advance: Advance = uncounted,
        done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Do a task to every piece, see `Executor.map`."""
        key, stored = uuid.uuid4().bytes, [self._ray.put(pickle.dumps(task))]
        running: dict[Any, int] = {}
        results: dict[int, Result] = {}
        errors: dict[int, BaseException] = {}
        following = 0
        while not errors and len(results) < len(pieces):
            self._send_streams()
            while following < len(pieces) and len(running) + len(self._hashing) < self._capacity():
                name = f"{_name(task)} {_name(pieces[following])}"
                send = self._do_piece.options(name=name)
                running[send.remote(__version__, key, stored, pickle.dumps(pieces[following]))] = following
                following += 1
            for reference in self._wait(running):
                index = running.pop(reference)
                outcome = self._outcome(reference)
                if outcome.error is not None:
                    errors[index] = outcome.error
                    continue
                advance(outcome.num_bytes)
                if done is not None:
                    done(outcome.result)
                results[index] = outcome.result
        if errors:
            self._let_end(running, errors)
            self._stop_streams()
            raise errors[min(errors)]
        return [results[index] for index in range(len(pieces))]

    def finish_streams(self) -> None:
        """Have workers do the streams to their ends."""
        while self._streams or self._hashing:
            self._send_streams()
            assert self._hashing, "a stream waits for nothing"
            self._wait({})

    def _stop_streams(self) -> None:
        """Stop what nobody waits for any longer."""
        for reference in self._hashing:
            self._ray.cancel(reference, force=True)
        self._hashing.clear()
        self._streams.clear()

    def _capacity(self) -> int:
        """How many pieces and streams may be on their way."""
        begin = time.monotonic()
        while not self.num_workers:
            if time.monotonic() - begin > PATIENCE_SECONDS:
                raise MxconvError(
                    f"--workers ray: the cluster has had no processor for {PATIENCE_SECONDS:.0f} seconds; one node "
                    "that can work is required. Start one with `ray start`, and run the same command again: it goes "
                    "on where it stopped."
                )
            time.sleep(POLL_SECONDS)
        return AHEAD * self.num_workers

    def _send_streams(self) -> None:
        """At most half of the workers do streams, so that others read tensors while the file is in the page cache."""
        waiting = []
        for stream in self._streams:
            whole = stream.whole() if len(self._hashing) < max(1, self.num_workers // 2) else None
            if whole is None:
                waiting.append(stream)
            else:
                reference = self._do_whole.options(name=_name(whole)).remote(__version__, pickle.dumps(whole))
                self._hashing[reference] = stream
        self._streams = waiting

    def _wait(self, running: dict[Any, int]) -> list[Any]:
        """References of pieces that ended; streams that ended are taken. Ctrl-C stops everything."""
        pending = [*running, *self._hashing]
        try:
            ended, _ = self._ray.wait(pending, num_returns=len(pending), timeout=0)
            if not ended:
                ended, _ = self._ray.wait(pending, num_returns=1, timeout=POLL_SECONDS)
        except BaseException:
            for reference in running:
                self._ray.cancel(reference, force=True)
            raise
        for reference in ended:
            stream = self._hashing.pop(reference, None)
            if stream is not None:
                outcome = self._outcome(reference)
                if outcome.error is not None:
                    raise outcome.error
                stream.accept(outcome.result)
        return [reference for reference in ended if reference in running]

    def _let_end(self, running: dict[Any, int], errors: dict[int, BaseException]) -> None:
        """Wait for what has begun before an error is raised: one of an earlier piece is the one that counts."""
        for reference in [r for r, index in running.items() if index > min(errors)]:
            self._ray.cancel(reference, force=False)
        for reference, index in running.items():
            try:
                outcome = self._outcome(reference)
            except MxconvError:
                continue
            if outcome.error is not None:
                errors[index] = outcome.error

    def _outcome(self, reference: Any) -> Outcome:
        try:
            outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise MxconvError(
                f"--workers ray: a piece of work was lost {MAX_RETRIES + 1} times ({cause[:200]}); workers that stay "
                "alive are required. Look at the memory of the nodes (--memory), and run the same command again: it "
                "goes on where it stopped."
            ) from error
        assert isinstance(outcome, Outcome)
        return outcome


def _name(of: Any) -> str:
    """What Ray's dashboard shows."""
    if isinstance(of, partial):
        return f"{_name(of.func)} {' '.join(str(arg) for arg in of.args if isinstance(arg, str | Path))}"
    name = getattr(of, "name", None) or getattr(of, "__name__", None)
    return name if isinstance(name, str) else type(of).__name__
