"""The passes that texts share: a round that needs rows evaluated waits here until the scheduler evaluates them.

The texts also share a budget of pages for the caches of all levels.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

import numpy as np
from greenlet import getcurrent, greenlet

from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import PAGE, KVPool
from mxconv.engine.sequence_rows import SequenceRows, States
from mxconv.engine.state_cache import most_bytes
from mxconv.engine.tree import MOST_ROWS
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.passes import ALONE, JointPass, Load, Meter, Passes
from mxconv.speculation.reader import StageRows


class KvBudget:
    """A pool of pages for each model with a cache of its own, within one limit in bytes; None is no limit.

    A sequence has a place for each of its tokens in every cache, one of each of `others` too, which are not shared, and
    recurrent states of a constant size. What sequences share is counted once, where it is shared already.
    """

    def __init__(self, decoders: Listed[Decoder], others: Listed[KVCache], num_bytes: int | None) -> None:
        self.num_bytes = num_bytes
        sizes = [KVPool(decoder.config, dtype=decoder.kv_dtype).page_bytes for decoder in decoders]
        self._page_bytes = sum(sizes) + sum(cache.pool.page_bytes for cache in others)
        self._most_pages = None if num_bytes is None or not self._page_bytes else num_bytes // self._page_bytes
        self._state_bytes = sum(map(_state_bytes, decoders))  # of a sequence
        self._has_others = bool(others)
        self._pools = {
            id(decoder): KVPool(
                decoder.config, None if self._most_pages is None else max(self._most_pages, 1) * size, decoder.kv_dtype
            )
            for decoder, size in zip(decoders, sizes, strict=True)
        }

    def pool_of(self, decoder: Decoder) -> KVPool:
        """The pool in which the caches of a model have their pages."""
        return self._pools[id(decoder)]

    def bytes_of(self, num_tokens: int) -> int:
        """Bytes of a sequence alone whose caches hold so many tokens and the rows of a round."""
        return _pages_of(num_tokens) * self._page_bytes + self._state_bytes

    def num_shared(self, tokens: list[int]) -> int:
        """Pages at the beginning of a text that running sequences have, in every cache."""
        if self._has_others:
            return 0
        found = ((pool, pool.prefixes.find(tokens[:-1])) for pool in self._pools.values())
        return min((sum(pool.is_shared(page) for page in pages) for pool, pages in found), default=0)

    def holds(self, lengths: Iterable[int], num_shared: int = 0) -> bool:
        """Whether sequences of so many tokens fit side by side, where one that has no pages yet can share some."""
        if self.num_bytes is None:
            return True
        saved = 0 if self._has_others else min((pool.num_saved for pool in self._pools.values()), default=0)
        return sum(map(self.bytes_of, lengths)) - (saved + num_shared) * self._page_bytes <= self.num_bytes


def divided(num_bytes: int, hierarchies: Mapping[str, Hierarchy]) -> dict[str, int]:
    """Shares of one limit by models' names, in proportion to the shortest sequence of each: all hold as many tokens.

    Raises:
        ModelError: a share does not hold one sequence.
    """
    budgets = {name: KvBudget(each.cached_decoders(), each.reader_caches(), None) for name, each in hierarchies.items()}
    least = {name: budget.bytes_of(1) for name, budget in budgets.items()}
    total = sum(least.values())
    shares = {name: num_bytes * need // total for name, need in least.items()}
    for name, share in shares.items():
        if share < least[name]:
            raise ModelError(
                f"--kv-bytes {num_bytes}: {share:,} bytes for {name!r}; a sequence takes at least {least[name]:,}. "
                f"Give at least {total:,}."
            )
    return shares


def _state_bytes(decoder: Decoder) -> int:
    sizes, num_layers = decoder.config.state_sizes, decoder.config.num_hidden_layers
    return 0 if sizes is None else most_bytes(sizes, num_layers - len(decoder.config.attentions))


def _pages_of(num_tokens: int) -> int:
    return -(-(num_tokens + MOST_ROWS) // PAGE)


PROMPT_ROWS = 128  # of a sequence in a pass that others wait for, or may come to

StageAnswer = tuple[F32, F32]  # states and logits, a row each
Evaluated = F32 | StageAnswer
Piece = SequenceRows | StageRows


@dataclass(eq=False)
class WantedRows:
    """Rows of a decoder that a text waits for. Those of a long chain are evaluated in pieces, the same bits."""

    decoder: Decoder
    rows: SequenceRows
    num_done: int = 0
    _states: list[F32] = field(default_factory=list)

    @property
    def model(self) -> tuple[int, int]:
        """An object's id and the number of its part; rows of the same model are evaluated together."""
        return id(self.decoder), 0

    @property
    def num_left(self) -> int:
        """Rows that are still to be evaluated."""
        return self.rows.num_rows - self.num_done

    def next_rows(self, most: int) -> SequenceRows:
        """The next piece: of a tree all; of a chain at most so many, and at least those that need logits."""
        rows = self.rows
        count = self.num_left if rows.tree is not None else min(max(most, 1), self.num_left)
        if self.num_done + count > rows.num_rows - rows.num_wanted:
            count = self.num_left
        states = None if rows.states is None else States(rows.states.layers, rows.states.normed_last)
        num_wanted = rows.num_wanted if count == self.num_left else 0
        token_ids = rows.token_ids[self.num_done : self.num_done + count]
        return SequenceRows(token_ids, rows.cache, rows.tree, num_wanted, states)

    def took(self, piece: SequenceRows) -> bool:
        """Count an evaluated piece; returns whether it was the last."""
        self.num_done += piece.num_rows
        if piece.states is not None:
            assert piece.states.values is not None
            self._states.append(piece.states.values)
        if self.num_left:
            return False
        if self.rows.states is not None:
            whole = self._states[0] if len(self._states) == 1 else np.concatenate(self._states, axis=1)
            self.rows.states.values = whole
        return True

    def evaluate(self, pieces: Sequence[SequenceRows]) -> Sequence[F32]:
        """Evaluate pieces of several texts for this model.

        Raises:
            MxconvError: one of them is to blame; nothing has changed.
        """
        return self.decoder.forward_batch(list(pieces))


@dataclass(eq=False)
class WantedStage:
    """Rows of a stage of a reader, few enough to be one piece; as `WantedRows`."""

    rows: StageRows

    @property
    def model(self) -> tuple[int, int]:
        return id(self.rows.reader), self.rows.index

    @property
    def num_left(self) -> int:
        return self.rows.num_rows

    def next_rows(self, most: int) -> StageRows:
        return self.rows

    def took(self, piece: StageRows) -> bool:
        return True

    def evaluate(self, pieces: Sequence[StageRows]) -> Sequence[StageAnswer]:
        states, logits = StageRows.joined(pieces).evaluate()
        ends = np.cumsum([piece.num_rows for piece in pieces])[:-1]
        return list(zip(np.split(states, ends), np.split(logits, ends), strict=True))


Wanted = WantedRows | WantedStage


class JointPasses(Passes):
    """The passes of one text: the scheduler evaluates its rows together with those of other texts.

    A round runs in a greenlet. Rows to evaluate are handed to the greenlet that switched to it, which comes back with
    the logits, or throws what went wrong.
    """

    def __init__(self, budget: KvBudget) -> None:
        self._budget = budget
        self._caches: list[KVCache] = []
        self._taken = Meter(0.0)
        self._running_since: float | None = None
        self._loads: dict[int, Load] = {}
        self._load = ALONE

    def expect(self, load: Load, target: Decoder, of_target: Load) -> None:
        """Set what passes of the next round carry, and those of the target."""
        self._load, self._loads = load, {id(target): of_target}

    def load(self, decoder: Decoder) -> Load:
        return self._loads.get(id(decoder), self._load)

    def forward(self, decoder: Decoder, rows: SequenceRows) -> F32:
        logits: F32 = _scheduler().switch(WantedRows(decoder, rows))
        return logits

    def stage(self, rows: StageRows) -> StageAnswer:
        answer: StageAnswer = _scheduler().switch(WantedStage(rows))
        return answer

    def are_at_once(self, decoder: Decoder, num_tokens: int) -> bool:
        return self.load(decoder).num_texts == 1 and num_tokens <= PROMPT_ROWS

    def new_cache(self, decoder: Decoder) -> KVCache:
        self._caches.append(decoder.new_cache(pool=self._budget.pool_of(decoder)))
        return self._caches[-1]

    def adopt(self, cache: KVCache, tokens: Sequence[int]) -> int:
        return cache.adopt(tokens)

    def publish(self, cache: KVCache, tokens: Sequence[int]) -> None:
        cache.publish(tokens)

    def release(self) -> None:
        """Give back the pages of all caches; nobody uses them any more."""
        for cache in self._caches:
            cache.release()
        self._caches.clear()

    def meter(self) -> Meter:
        own = 0.0 if self._running_since is None else time.perf_counter() - self._running_since
        taken = self._taken
        return Meter(taken.seconds + own, taken.shared, taken.joint_seconds, taken.joint_rows, taken.last_pass)

    def clock(self) -> float:
        return self.meter().seconds

    def share(self, num_rows: int, joint: JointPass) -> None:
        """Count a pass in which so many rows were this text's."""
        taken, share = self._taken, joint.seconds * num_rows / joint.num_rows
        seconds, rows = taken.joint_seconds + joint.seconds, taken.joint_rows + joint.num_rows
        self._taken = Meter(taken.seconds + share, taken.shared + share, seconds, rows, joint.number)

    def run(self, current: greenlet, answer: Evaluated | BaseException | None) -> object:
        """Let a round go on until it needs rows evaluated, and return these, or what it returns at its end.

        `answer` is what it waits for, or an error to throw there; None begins it.
        """
        current.parent = getcurrent()
        self._running_since = time.perf_counter()
        try:
            if isinstance(answer, BaseException):
                return current.throw(answer)
            return current.switch(answer) if current else current.switch()
        finally:
            self._taken = self.meter()
            self._running_since = None


def _scheduler() -> greenlet:
    """The greenlet that runs the current round."""
    scheduler = getcurrent().parent
    assert scheduler is not None
    return scheduler
