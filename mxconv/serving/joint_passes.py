"""The door between a text and the passes that it shares: a round that wants rows evaluated waits here for others."""

import time
from collections.abc import Sequence

from greenlet import getcurrent, greenlet

from mxconv.arrays import F32
from mxconv.drafts.passes import ALONE, JointPass, Load, Meter, StageRows
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.serving.kv_budget import KvBudget
from mxconv.serving.wanted import Answer, StageAnswer, WantedRows, WantedStage


class JointPasses:
    """Where one text's rows are evaluated: by whoever runs its rounds, together with those of other texts.

    A round runs in a greenlet. What it wants evaluated is handed to the greenlet that switched to it, which comes back
    with the logits, or throws what went wrong.

    Args:
        budget: where caches come from.
    """

    def __init__(self, budget: KvBudget) -> None:
        self._budget = budget
        self._caches: list[KVCache] = []
        self._taken = Meter(0.0)
        self._running_since: float | None = None
        self._loads: dict[int, Load] = {}
        self._load = ALONE

    def expect(self, load: Load, target: Decoder, of_target: Load) -> None:
        """What passes of the next round carry, and those of the target."""
        self._load, self._loads = load, {id(target): of_target}

    def load(self, decoder: Decoder) -> Load:
        return self._loads.get(id(decoder), self._load)

    def forward(self, decoder: Decoder, rows: SequenceRows) -> F32:
        logits: F32 = _scheduler().switch(WantedRows(decoder, rows))
        return logits

    def stage(self, rows: StageRows) -> StageAnswer:
        answer: StageAnswer = _scheduler().switch(WantedStage(rows))
        return answer

    def new_cache(self, decoder: Decoder) -> KVCache:
        self._caches.append(decoder.new_cache(pool=self._budget.pool_of(decoder)))
        return self._caches[-1]

    def adopt(self, cache: KVCache, tokens: Sequence[int]) -> int:
        return cache.adopt(tokens)

    def publish(self, cache: KVCache, tokens: Sequence[int]) -> None:
        cache.publish(tokens)

    def release(self) -> None:
        """Give back the pages of all caches that were asked for; nobody uses them any more."""
        for cache in self._caches:
            cache.release()
        self._caches.clear()

    def meter(self) -> Meter:
        own = 0.0 if self._running_since is None else time.perf_counter() - self._running_since
        taken = self._taken
        return Meter(taken.seconds + own, taken.shared, taken.joint_seconds, taken.joint_rows, taken.last_pass)

    def share(self, num_rows: int, joint: JointPass) -> None:
        """A pass of which so many rows are this text's."""
        taken, share = self._taken, joint.seconds * num_rows / joint.num_rows
        self._taken = Meter(
            taken.seconds + share,
            taken.shared + share,
            taken.joint_seconds + joint.seconds,
            taken.joint_rows + joint.num_rows,
            joint.number,
        )

    def run(self, round_: greenlet, answer: Answer | None) -> object:
        """Let a round go on until it wants rows evaluated or is over: what it wants, or what it returns."""
        round_.parent = getcurrent()
        self._running_since = time.perf_counter()
        try:
            return round_.switch(answer) if round_ else round_.switch()
        finally:
            self._taken = self.meter()
            self._running_since = None

    def fail(self, round_: greenlet, error: BaseException) -> object:
        """Throw an error where a round waits; otherwise as `run`."""
        round_.parent = getcurrent()
        self._running_since = time.perf_counter()
        try:
            return round_.throw(error)
        finally:
            self._taken = self.meter()
            self._running_since = None


def _scheduler() -> greenlet:
    """Who runs the round that is at its door."""
    scheduler = getcurrent().parent
    assert scheduler is not None
    return scheduler
