"""A draft made of the target's own weights, whose parts are chosen while it decodes: `swift` and `early-exit`.

Of some sets of parts to leave out it is known how often a draft without them agrees with the level above. The set that
by this and by its bytes is worth most drafts. Now and then a pass of another set over the last tokens of the text adds
to what is known: of the set that may be worth most, unstudied ones first.

Source:
    SWIFT, arXiv 2410.06916, section 4: sets are optimized on the generated context. Its Bayesian steps are left out;
    as in its random search, a set that differs from the best one in a part is tried in every second study.
    DEL, arXiv 2504.05598: an exit by tokens per layer. There agreement comes from hidden states of every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import sqrt
from typing import Protocol

import numpy as np

from mxconv.arrays import F32
from mxconv.drafts.acceptance import Acceptance, CoupledAcceptance
from mxconv.drafts.guesses import Sharpness
from mxconv.drafts.pass_cost import PartBytes
from mxconv.drafts.proposal import Proposal, TreeDraft
from mxconv.drafts.session import Session, borrowed
from mxconv.drafts.statistics import Chance, LevelStatistics
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.engine.skipped import Skipped
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord
from mxconv.text.distribution import greedy

LENGTH = 8  # tokens of a proposal, for which sets are compared
MOST_SETS = 64  # that are remembered
MOST_VARIANTS = 16  # decoders that are kept ready
SHARE_TO_STUDY, FIRST_ROUNDS = 0.05, 6.0  # of the time that decoding takes; rounds' worth of study from the start
MOST_TOKENS, FEWEST_TOKENS = 16, 4  # of a study


def speedup(agreement: float, price: float, most: int) -> float:
    """The most tokens for the time of one plain token, over all lengths of a proposal.

    Args:
        agreement: the chance that a proposed token is accepted, those before it being accepted.
        price: of a proposed token, in passes of the level above.
        most: tokens of a proposal, at least one.

    Source:
        Leviathan et al., arXiv 2211.17192, Theorem 3.8; DEL, arXiv 2504.05598, counts layers in place of passes.
    """
    tokens = accumulate(agreement**length for length in range(most + 1))
    return max(expected / (1 + length * price) for length, expected in enumerate(tokens) if length)


class PartChoice:
    """The sets of parts that may be left out, with what is known of each; it outlives a text.

    Args:
        parts: bytes of the target's parts.
        first: the sets to begin with, at least one.
        most_parts: of a further set, which a search finds; 0 where there are only the first ones.
        whole: bytes of a pass of the target; None where `parts` are all of them.
        seed: of the search.
    """

    def __init__(
        self,
        parts: PartBytes,
        first: Sequence[Skipped],
        most_parts: int = 0,
        whole: float | None = None,
        seed: int = 0,
    ) -> None:
        self.num_studies = 0
        self._bytes = parts
        self._whole = parts.total() if whole is None else whole
        self._most_parts = most_parts
        self._random = np.random.default_rng(seed)
        self._known = {skipped: Chance(self.share(skipped), weight=2.0) for skipped in first}
        layers = range(1, len(parts.attention) - 1)
        of_kind = {"a": parts.attention, "m": parts.mlp}
        self._parts = [(kind, layer) for layer in layers for kind in "am" if of_kind[kind][layer] > 0]

    def share(self, skipped: Skipped) -> float:
        """Bytes of the weights that a pass reads without some parts, in those of a pass of the whole target."""
        return self._bytes.total(skipped) / self._whole

    @property
    def best(self) -> Skipped:
        """The set that is worth most by what is known."""
        return max(self._known, key=lambda skipped: self._worth(skipped, self._known[skipped].value))

    def to_study(self) -> Skipped:
        """The set whose agreement should be known better."""
        if self._most_parts and self.num_studies % 2:
            self._add(self._neighbour(self.best))
        hopes = {skipped: min(known.value + 1 / sqrt(known.weight), 1.0) for skipped, known in self._known.items()}
        return max(hopes, key=lambda skipped: self._worth(skipped, hopes[skipped]))

    def learn(self, skipped: Skipped, num_agreed: int, num_compared: int) -> None:
        """Learn from a study of a set: in how many of the compared places it agreed."""
        self.num_studies += 1
        for known in self._known.values():
            known.fade()
        self._known[skipped].add(num_agreed, num_compared)

    def _worth(self, skipped: Skipped, agreement: float) -> float:
        return speedup(agreement, self.share(skipped), LENGTH)

    def _add(self, skipped: Skipped) -> None:
        if skipped in self._known or not len(skipped):
            return
        self._known[skipped] = Chance(self._known[self.best].value, weight=2.0)
        if len(self._known) > MOST_SETS:
            del self._known[min(self._known, key=lambda known: self._worth(known, self._known[known].value))]

    def _neighbour(self, skipped: Skipped) -> Skipped:
        """A set with a part more, with a part less, or with one part for another."""
        left_out = [(k, n) for k, n in self._parts if n in (skipped.attention if k == "a" else skipped.mlp)]
        kept = [part for part in self._parts if part not in left_out]
        change = self._random.choice(["more", "less", "other"])
        if change != "more" and left_out:
            del left_out[self._random.integers(len(left_out))]
        if change != "less" and kept and len(left_out) < self._most_parts:
            left_out.append(kept[self._random.integers(len(kept))])
        return Skipped.of(left_out)


@dataclass
class StudyBudget:
    """Seconds of rounds and of studies; no study begins that is not expected to be covered."""

    first_rounds: float = FIRST_ROUNDS
    round_seconds: float = 0.0
    num_rounds: int = 0
    study_seconds: float = 0.0
    num_studies: int = 0

    @property
    def allows(self) -> bool:
        """Whether another study is covered; the first is expected to take as long as a round."""
        if not self.num_rounds:
            return False
        a_round = self.round_seconds / self.num_rounds
        expected = self.study_seconds / self.num_studies if self.num_studies else a_round
        saved = SHARE_TO_STUDY * self.round_seconds + self.first_rounds * a_round
        return self.study_seconds + expected <= saved

    def pay(self, seconds: float) -> None:
        """Add a round, without its study."""
        self.round_seconds += seconds
        self.num_rounds += 1

    def spend(self, seconds: float) -> None:
        """Add a study."""
        self.study_seconds += seconds
        self.num_studies += 1


@dataclass(frozen=True)
class Rehearsal:
    """The last tokens of a text, after keys and values that are there.

    Args:
        session: the cache, and its tokens.
        start: position of the first token to evaluate.
        tokens: those to evaluate and one more: `tokens[i + 1]` is what the level above said after `tokens[i]`.
    """

    session: Session
    start: int
    tokens: Sequence[int]

    @classmethod
    def of(cls, session: Session, context: Sequence[int], first_written: int) -> "Rehearsal | None":
        """The end of a context as far as a session has it; None while that is too little.

        Args:
            session: of which the context is a continuation, or it is None.
            context: all tokens so far.
            first_written: position of the first token that the level above has chosen.
        """
        stop = len(session.tokens)
        if not stop < len(context) or list(context[:stop]) != session.tokens:
            return None
        start = max(first_written - 1, stop - MOST_TOKENS, 0)
        if stop - start < FEWEST_TOKENS or session.cache.reachable(start) < start:
            return None
        return cls(session, start, context[start : stop + 1])

    @property
    def num_tokens(self) -> int:
        """How many are compared."""
        return len(self.tokens) - 1

    def agreed(self, decoder: Decoder, acceptance: Acceptance, vocab_size: int) -> int:
        """How many of the tokens a decoder would have chosen, each after the ones before it; one pass.

        The cache is left as it was. Draws that hear common noise are compared with the text; where each level draws for
        itself, the likeliest tokens are.
        """
        with borrowed(self.session.cache, self.start, self.num_tokens) as cache:
            rows = SequenceRows(self.tokens[:-1], cache)
            logits = self.session.passes.forward(decoder, rows)[:, :vocab_size]
        if (penalties := acceptance.penalties) is not None:
            before, after = self.session.tokens[: self.start], self.tokens
            logits = np.stack([penalties.row(row, before, after[: place + 1]) for place, row in enumerate(logits)])
        choices = self._choices(logits, acceptance)
        return sum(ours == theirs for ours, theirs in zip(choices, self.tokens[1:], strict=True))

    def _choices(self, logits: F32, acceptance: Acceptance) -> list[int]:
        if isinstance(acceptance, CoupledAcceptance):
            return [acceptance.draw(row, self.start + 1 + place) for place, row in enumerate(logits)]
        return [int(token) for token in np.atleast_1d(greedy(logits))]


class ModelDraft(TreeDraft, Protocol):
    """A draft that is a model with a cache, whose decoder can be exchanged for a variant of it."""

    @property
    def session(self) -> Session: ...

    @property
    def acceptance(self) -> Acceptance: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def sharpness(self) -> Sharpness: ...

    def with_decoder(self, decoder: Decoder) -> "ModelDraft":
        """The same draft with another decoder."""
        ...


class Variants:
    """What a draft of this kind keeps from text to text: its choice, and the account of its studies.

    Args:
        record: of a level whose parts are chosen while it decodes.
        target: whose parts are left out.
        first: the sets to begin with.
        most_parts: as `PartChoice` takes it.
        head_of: a view of the target with the output head of all variants; None is the target's own.

    Raises:
        ModelError: the level does not share the target's cache.
    """

    def __init__(
        self,
        record: LevelRecord,
        target: Decoder,
        first: Sequence[Skipped],
        most_parts: int = 0,
        head_of: Decoder | None = None,
    ) -> None:
        if "kv_cache" not in record.shares:
            raise ModelError(
                f"level {record.name}: {record.kind} with a cache of its own; its layers change, so it must read "
                "the target's keys and values. Leave it out, or use layer-skip, where the target's are out of reach."
            )
        view = head_of or target
        self.choice = PartChoice(PartBytes.of(view), first, most_parts, PartBytes.of(target).total())
        self.budget = StudyBudget()
        self.decoder = lru_cache(MOST_VARIANTS)(lambda skipped: view.variant(skipped, name=record.name))

    def of_text(self, level: ModelDraft) -> "VariantDraft":
        """The draft of one text."""
        return VariantDraft(level, self)


class VariantDraft:
    """A level whose decoder is another variant of the target from round to round.

    Between rounds it may study: a pass of some variant over the last tokens of the text, on the shared cache, which is
    left as it was. Studies count and are timed as this level's own forward passes.

    Args:
        level: with any decoder; it shares the target's session.
        variants: what outlives this text.
    """

    def __init__(self, level: ModelDraft, variants: Variants) -> None:
        self._level = level
        self._variants = variants
        self._first_written: int | None = None
        self._last_end: float | None = None  # of a round of this text
        self._studied_since = 0.0

    @property
    def statistics(self) -> LevelStatistics:
        return self._level.statistics

    @property
    def sharpness(self) -> Sharpness:
        return self._level.sharpness

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """What the level proposes, by the variant of this round; perhaps a study first."""
        return self._level_of_this_round(context).propose(context, num_tokens, floor)

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """What the level grows, likewise."""
        return self._level_of_this_round(context).grow(context, most_depth, floors, floor)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """The level above has verified something, perhaps another draft's."""
        now = self._now()
        if self._last_end is not None:
            self._variants.budget.pay(max(now - self._last_end - self._studied_since, 0.0))
        self._last_end, self._studied_since = now, 0.0

    def _level_of_this_round(self, context: Sequence[int]) -> ModelDraft:
        if self._first_written is None:
            self._first_written = len(context) - 1  # the level above has chosen one token after the prompt
        self._study(context, self._first_written)
        return self._level.with_decoder(self._variants.decoder(self._variants.choice.best))

    def _now(self) -> float:
        """Seconds of the text's own clock."""
        return self._level.session.passes.meter().seconds

    def _study(self, context: Sequence[int], first_written: int) -> None:
        budget, choice, level = self._variants.budget, self._variants.choice, self._level
        text = Rehearsal.of(level.session, context, first_written) if budget.allows else None
        if text is None:
            return
        begin = self._now()
        skipped = choice.to_study()
        choice.learn(
            skipped,
            text.agreed(self._variants.decoder(skipped), level.acceptance, level.vocab_size),
            text.num_tokens,
        )
        seconds = self._now() - begin
        budget.spend(seconds)
        self._studied_since += seconds
        self.statistics.num_forwards += 1
        self.statistics.seconds += seconds
