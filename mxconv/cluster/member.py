"""A worker of a crew, and the calls that it was sent."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

from mxconv.cluster.job import Job


@dataclass(eq=False)
class Member:
    """A worker."""

    actor: Any
    is_ready: bool = False
    is_gone: bool = False
    calls: list["Call"] = field(default_factory=list)  # on their way: the first is what it does now
    since: float = 0.0  # when it began that

    @property
    def is_late(self) -> bool:
        """Whether it takes longer than others would."""
        return bool(self.calls) and time.monotonic() - self.since > self.calls[0].job.patience


@dataclass(eq=False)
class Call:
    """What a worker was sent."""

    member: Member
    job: Job


class Forgotten:
    """Of somebody who has gone."""

    patience = -math.inf  # it gets nothing else before it answers

    def take(self, outcome: Any) -> None: ...
    def give_back(self, cause: str) -> None: ...
    def hand_over(self) -> bool:
        return False
