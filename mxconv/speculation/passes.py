"""How the levels of a text have their rows evaluated: at once, or in passes shared with other texts, the same bits."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.sequence_rows import SequenceRows

if TYPE_CHECKING:
    from mxconv.speculation.reader import StageRows


@dataclass(frozen=True)
class Load:
    """What a level's passes carry."""

    num_texts: int = 1  # decoded side by side, each with rows of its own in a pass
    other_rows: int = 0  # of prompts


ALONE = Load()


@dataclass(frozen=True)
class JointPass:
    """A pass that texts shared."""

    number: int
    num_rows: int  # of all texts
    seconds: float  # with those of the level's own work for every text


class Meter(NamedTuple):
    """The time of a text so far, waiting not counted."""

    seconds: float  # its own, and by rows its share of joint passes
    shared: float = 0.0  # of these, its share of joint passes
    joint_seconds: float = 0.0  # the whole time of the same passes
    joint_rows: int = 0  # the rows of all texts in them
    last_pass: int = 0  # the number of the last of them

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
        """The pass that a level shared with other texts, and its own work for each of them; None where it was alone."""
        if not self.joint_rows:
            return None
        own = max(self.seconds - self.shared, 0.0)
        return JointPass(self.last_pass, self.joint_rows, self.joint_seconds + load.num_texts * own)


class Passes:
    """Evaluates the rows of a text that is decoded alone, as they come; a server has passes that texts share."""

    clock = staticmethod(time.perf_counter)  # seconds of the text by now, as its levels' statistics count them

    def forward(self, decoder: Decoder, rows: SequenceRows) -> F32:
        """Evaluate rows as `Decoder.forward` does.

        Returns:
            (num_wanted, vocab_size) float32: of the rows that want logits.

        Raises:
            ModelError: as `Decoder.forward`; the cache is then as it was.
        """
        logits = decoder.forward(rows.token_ids, rows.cache, rows.num_wanted == 1, rows.tree, rows.states)
        return logits[len(logits) - rows.num_wanted :]

    def stage(self, rows: "StageRows") -> tuple[F32, F32]:
        """Evaluate rows of a reader's stage as `StageRows.evaluate` does."""
        return rows.evaluate()

    def are_at_once(self, decoder: Decoder, num_tokens: int) -> bool:
        """Whether several passes may be one call, as no other text waits for them; the first is over so many tokens."""
        return True

    def new_cache(self, decoder: Decoder) -> KVCache:
        """An empty one for rows of this text."""
        return decoder.new_cache()

    def adopt(self, cache: KVCache, tokens: Sequence[int]) -> int:
        """Begin with what another text has of these tokens; returns how many. See `KVCache.adopt`."""
        return 0

    def publish(self, cache: KVCache, tokens: Sequence[int]) -> None:
        """Let other texts begin with what a cache has of these tokens. See `KVCache.publish`."""

    def meter(self) -> Meter:
        """The time of the text by now."""
        return Meter(time.perf_counter())

    def load(self, decoder: Decoder) -> Load:
        """What a model's next passes carry."""
        return ALONE


OWN_PASSES = Passes()
