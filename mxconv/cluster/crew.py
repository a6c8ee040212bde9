"""The workers of a cluster: one actor a processor, as nodes come and go.

A worker that is lost is replaced, and what it did is given back to whoever asked. Nothing is lost by that: a piece
writes the same bytes to the same places whoever does it, however often.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mxconv import __version__
from mxconv.cluster.job import Job
from mxconv.cluster.member import Call, Forgotten, Member
from mxconv.cluster.remote import Outcome, Worker
from mxconv.errors import MxconvError

POLL_SECONDS = 2.0
PATIENCE_SECONDS = 120.0  # with a cluster on which no worker starts
MAX_LOST = 8  # workers in a row that never began


class Crew:
    """All workers, for as long as the command is connected."""

    def __init__(self, ray: Any, memory_bytes: int | None = None) -> None:
        """Ask for a worker a processor; they start meanwhile.

        Args:
            ray: the module, connected.
            memory_bytes: what a worker may need; Ray puts no more of them on a node than fit.
        """
        self._ray = ray
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        if memory_bytes is not None:
            options["memory"] = memory_bytes
        self._actor = ray.remote(**options)(Worker)
        self._members: list[Member] = []
        self._calls: dict[Any, Call] = {}
        self._num_processors, self._looked_seconds = 0, -POLL_SECONDS
        self._ready_seconds = time.monotonic()  # when somebody was last seen ready
        self._num_lost = 0
        self._grow()

    @property
    def num_processors(self) -> int:
        """Of the cluster now."""
        now = time.monotonic()
        if now - self._looked_seconds > POLL_SECONDS:
            self._num_processors = int(self._ray.cluster_resources().get("CPU", 0))
            self._looked_seconds = now
        return self._num_processors

    @property
    def has_calls(self) -> bool:
        """Whether somebody works for us; to begin is no work."""
        return any(not isinstance(call.job, _Start) for call in self._calls.values())

    @property
    def has_calls_in_time(self) -> bool:
        """Whether somebody works for us who is not late."""
        return any(not isinstance(call.job, _Start) and not call.member.is_late for call in self._calls.values())

    def forget(self) -> None:
        """Tell nobody of what is done at the moment."""
        for call in self._calls.values():
            if not isinstance(call.job, _Start):
                call.job = Forgotten()

    def hand_over(self) -> bool:
        """Let others have what late workers do; whether there is such a thing."""
        late = [member for member in self._members if member.is_late]
        return sum(call.job.hand_over() for member in late for call in member.calls) > 0

    def ready(self, max_calls: int) -> Iterator[Member]:
        """Workers that have fewer calls than this and are not late; those with the fewest first."""
        for num_calls in range(max_calls):
            for member in list(self._members):
                if member.is_ready and len(member.calls) == num_calls and not member.is_late:
                    yield member

    @property
    def num_ready(self) -> int:
        return sum(member.is_ready for member in self._members)

    def send(self, member: Member, job: Job, name: str, method: str, *arguments: Any) -> None:
        """Have a worker do something after what it was sent before.

        Args:
            member: who.
            job: is told what came of it.
            name: that Ray's dashboard shows.
            method: of `Worker`.
            arguments: of the method.
        """
        reference = getattr(member.actor, method).options(name=name).remote(*arguments)
        self._calls[reference] = call = Call(member, job)
        if not member.calls:
            member.since = time.monotonic()
        member.calls.append(call)

    def wait(self) -> None:
        """Until something ended or some seconds passed; jobs that ended are told.

        Raises:
            MxconvError: there has been no worker for long, or workers do not begin.
        """
        self._grow()
        if self._calls:
            pending = list(self._calls)
            ended, _ = self._ray.wait(pending, num_returns=len(pending), timeout=0)
            if not ended:
                ended, _ = self._ray.wait(pending, num_returns=1, timeout=POLL_SECONDS)
            for reference in ended:
                self._end(reference)
        else:
            time.sleep(POLL_SECONDS)
        if self.num_ready:
            self._ready_seconds = time.monotonic()
        elif time.monotonic() - self._ready_seconds > PATIENCE_SECONDS:
            raise MxconvError(
                f"--workers ray: no worker has been there for {PATIENCE_SECONDS:.0f} seconds, of "
                f"{self.num_processors} processors; one that is free is required. Start a node with `ray start`, or "
                "look at what else runs there, and run the same command again: it goes on where it stopped."
            )

    def _grow(self) -> None:
        """A worker for each processor that has none."""
        while len(self._members) < self.num_processors:
            member = Member(self._actor.remote())
            self._members.append(member)
            self.send(member, _Start(self, member), "start", "start", __version__)

    def _end(self, reference: Any) -> None:
        call = self._calls.pop(reference)
        member = call.member
        member.calls.remove(call)
        member.since = time.monotonic()
        try:
            outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if member in self._members:
                self._members.remove(member)
                self._ray.kill(member.actor)  # it may be out of reach, no more
            member.is_ready, member.is_gone = False, True
            call.job.give_back(" ".join(f"{type(error).__name__}: {error}".split())[:200])
            return
        call.job.take(outcome)


@dataclass
class _Start:
    """The first call of a worker."""

    crew: Crew
    member: Member
    patience = math.inf

    def take(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            raise outcome.error
        self.member.is_ready, self.crew._num_lost = True, 0

    def give_back(self, cause: str) -> None:
        self.crew._num_lost += 1
        if self.crew._num_lost > MAX_LOST:
            raise MxconvError(
                f"--workers ray: {self.crew._num_lost} workers, one after another, did not begin ({cause}); mxconv "
                "is required on every node. Install it there, the same version, and look at the memory of the nodes."
            )

    def hand_over(self) -> bool:
        return False
