"""A stream that stays with one worker, which has its state."""

import math
import pickle
import uuid
from dataclasses import dataclass

from mxconv.cluster import job
from mxconv.cluster.crew import Crew
from mxconv.cluster.member import Member
from mxconv.cluster.pace import Pace
from mxconv.cluster.remote import Outcome
from mxconv.workers import Stream

CALL_BYTES = 32_000_000  # about what half a second of hashing gets to, and all that `Pace` is told


class SentStream:
    """A stream, and who has its state. When that worker is gone, or late, another one begins at the beginning."""

    def __init__(self, crew: Crew, stream: Stream) -> None:
        self._crew, self._stream = crew, stream
        self._key, self._pace = uuid.uuid4().bytes, Pace()
        self._num_lost = self._num_late = 0
        self._member: Member | None = None
        self._call: _Carrying | None = None
        self.is_finished = False
        self.error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        """Whether somebody carries it on, who is not given up."""
        return self._call is not None

    def is_ready(self) -> bool:
        """Whether somebody can carry it on now."""
        return not self.is_finished and not self.is_running and self._stream.is_ready()

    def is_for(self, member: Member) -> bool:
        """Whether this worker can: nobody else has what was done so far, or whoever has it does not answer."""
        ours = self._member
        return ours is None or ours is member or ours.is_gone or ours.is_late

    def send(self, member: Member) -> None:
        """Have a worker carry it on."""
        sent = pickle.dumps(self._stream) if self._member is not member else None
        self._member, self._call = member, _Carrying(self)
        name = f"hash {job.name_of(self._stream)}"
        self._crew.send(member, self._call, name, "carry_on", self._key, sent, self._stream.ready)

    def patience(self, call: "_Carrying") -> float:
        """Of `Job`; nobody waits for a call that was handed over."""
        return self._pace.patience(CALL_BYTES, self._num_late) if call is self._call else -math.inf

    def take(self, call: "_Carrying", outcome: Outcome) -> None:
        """Take what was found so far, unless somebody else has begun again."""
        if call is not self._call:
            return
        self._call, self.error = None, outcome.error
        self._pace.note(CALL_BYTES, outcome.seconds)
        if self.error is None:
            report, self.is_finished = outcome.result
            self._stream.accept(report)

    def give_back(self, call: "_Carrying", cause: str) -> None:
        """Its worker is gone."""
        if call is not self._call:
            return
        self._member = self._call = None
        self._num_lost += 1
        if self._num_lost > job.MAX_RETRIES:
            self.error = job.lost_too_often(cause)

    def hand_over(self, call: "_Carrying") -> bool:
        """Its worker is late."""
        if call is not self._call:
            return False
        self._member = self._call = None
        self._num_late += 1
        return True


@dataclass(eq=False)
class _Carrying:
    """A call: half a second of a stream."""

    stream: SentStream

    @property
    def patience(self) -> float:
        return self.stream.patience(self)

    def take(self, outcome: Outcome) -> None:
        self.stream.take(self, outcome)

    def give_back(self, cause: str) -> None:
        self.stream.give_back(self, cause)

    def hand_over(self) -> bool:
        return self.stream.hand_over(self)
