"""How the levels of a text have their rows evaluated: at once, or in passes that it shares with other texts.

A level hands its rows to `Passes` and gets their logits back, whoever evaluates them and with whom. The bits are the
same: a row's depend on its path alone.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows


@dataclass(frozen=True)
class Load:
    """What a level's passes carry.

    Args:
        num_texts: that are decoded side by side, each with rows of its own in a pass.
        other_rows: of a pass, those that belong to none of these: of prompts.
    """

    num_texts: int = 1
    other_rows: int = 0


ALONE = Load()


@dataclass(frozen=True)
class JointPass:
    """A pass that texts shared.

    Args:
        number: tells it from others.
        num_rows: of all texts.
        seconds: of the pass, and of what a level does with it for every text.
    """

    number: int
    num_rows: int
    seconds: float


@dataclass(frozen=True)
class Meter:
    """What a text has taken so far.

    Args:
        seconds: its own time, and by rows its share of joint passes; no time is spent waiting.
        shared: of these, its share of such passes.
        joint_seconds: of the same passes, all of it.
        joint_rows: of the same passes, the rows of all texts.
        last_pass: the number of the last of them; no other pass has it.
    """

    seconds: float
    shared: float = 0.0
    joint_seconds: float = 0.0
    joint_rows: int = 0
    last_pass: int = 0

    def __sub__(self, earlier: "Meter") -> "Meter":
        return Meter(
            self.seconds - earlier.seconds,
            self.shared - earlier.shared,
            self.joint_seconds - earlier.joint_seconds,
            self.joint_rows - earlier.joint_rows,
            self.last_pass,
        )

    def sharers(self, load: Load) -> float:
        """How many texts shared the passes, by their time; where there was none, how many are decoded."""
        return self.joint_seconds / self.shared if self.shared > 0 else load.num_texts

    def joint(self, load: Load) -> JointPass | None:
        """The pass that a level took with other texts, and its own work for each of them; None where it was alone."""
        if not self.joint_rows:
            return None
        own = max(self.seconds - self.shared, 0.0)
        return JointPass(self.last_pass, self.joint_rows, self.joint_seconds + load.num_texts * own)


class StagedModel(Protocol):
    """A model whose passes are stages with weights of their own, such as an MLP speculator."""

    def advance(self, index: int, states: F32, tokens: Sequence[int]) -> F32:
        """The states after a stage, (n, inner_dim), from those that chose the n tokens."""
        ...

    def logits(self, index: int, states: F32) -> F32:
        """(n, vocab_size) float32: the logits of a stage's states."""
        ...


@dataclass(frozen=True, eq=False)
class StageRows:
    """Rows of one stage of an MLP speculator: each of a state and the token that it chose.

    Args:
        speculator: whose.
        index: of the stage.
        states: (num_rows, inner_dim) float32, of the first stage (num_rows, emb_dim).
        tokens: as many.
    """

    speculator: StagedModel
    index: int
    states: F32
    tokens: Sequence[int]

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    def evaluate(self) -> tuple[F32, F32]:
        """The states after these tokens, (num_rows, inner_dim), and what the stage says there, of all tokens."""
        states = self.speculator.advance(self.index, self.states, self.tokens)
        return states, self.speculator.logits(self.index, states)

    @staticmethod
    def joined(parts: Sequence["StageRows"]) -> "StageRows":
        """Rows of the same stage, one after the other."""
        tokens = [token for part in parts for token in part.tokens]
        return StageRows(parts[0].speculator, parts[0].index, np.concatenate([part.states for part in parts]), tokens)


class Passes(Protocol):
    """Where a text's rows are evaluated, and what that takes."""

    def forward(self, decoder: Decoder, rows: SequenceRows) -> F32:
        """Evaluate rows as `Decoder.forward` does.

        Returns:
            (num_wanted, vocab_size) float32: of the rows that want logits.

        Raises:
            ModelError: as `Decoder.forward`; the cache is then as it was.
        """
        ...

    def stage(self, rows: StageRows) -> tuple[F32, F32]:
        """Evaluate rows of a speculator's stage as `StageRows.evaluate` does."""
        ...

    def new_cache(self, decoder: Decoder) -> KVCache:
        """An empty one for rows of this text."""
        ...

    def adopt(self, cache: KVCache, tokens: Sequence[int]) -> int:
        """Begin with what another text has of these tokens; how many of them that is. See `KVCache.adopt`."""
        ...

    def publish(self, cache: KVCache, tokens: Sequence[int]) -> None:
        """Let other texts begin with what a cache has of these tokens. See `KVCache.publish`."""
        ...

    def meter(self) -> Meter:
        """What the text has taken by now."""
        ...

    def load(self, decoder: Decoder) -> Load:
        """What a model's next passes carry."""
        ...


class AtOnce:
    """A text that is decoded alone: rows are evaluated when they are handed over."""

    def forward(self, decoder: Decoder, rows: SequenceRows) -> F32:
        logits = decoder.forward(rows.token_ids, rows.cache, rows.num_wanted == 1, rows.tree, rows.states)
        return logits[len(logits) - rows.num_wanted :]

    def stage(self, rows: StageRows) -> tuple[F32, F32]:
        return rows.evaluate()

    def new_cache(self, decoder: Decoder) -> KVCache:
        return decoder.new_cache()

    def adopt(self, cache: KVCache, tokens: Sequence[int]) -> int:
        return 0  # there are no others

    def publish(self, cache: KVCache, tokens: Sequence[int]) -> None:
        pass

    def meter(self) -> Meter:
        return Meter(time.perf_counter())

    def load(self, decoder: Decoder) -> Load:
        return ALONE


AT_ONCE = AtOnce()
