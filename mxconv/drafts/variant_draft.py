"""A draft made of the target's own weights, whose parts are chosen while it decodes: `swift` and `early-exit`.

A set of parts to leave out is worth what its agreement with the level above and its bytes say; the best one drafts.
Now and then a pass of another set over the last tokens of the text, a study, adds to what is known: of the set that may
be worth most, unstudied ones first.

Source:
    SWIFT, arXiv 2410.06916, section 4: sets are optimized on the generated context. Its Bayesian steps are left out;
    as in its random search, a set that differs from the best one in a part is tried in every second study.
    DEL, arXiv 2504.05598: an exit by tokens per layer. There agreement comes from hidden states of every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import sqrt

import numpy as np

from mxconv.arrays import F32
from mxconv.drafts.pass_cost import PartBytes
from mxconv.engine.decoder import Decoder
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.skipped import Skipped
from mxconv.engine.tree import TreeLimits
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord
from mxconv.speculation.acceptance import Acceptance, CoupledAcceptance
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.session import Session, borrowed
from mxconv.speculation.statistics import Chance
from mxconv.text.distribution import greedy

LENGTH = 8  # tokens of a proposal, for which sets are compared
MOST_SETS = 64  # that are remembered
MOST_VARIANTS = 16  # decoders that are kept ready
SHARE_TO_STUDY, FIRST_ROUNDS = 0.05, 6.0  # of the time that decoding takes; rounds' worth of study from the start
MOST_TOKENS, FEWEST_TOKENS = 16, 4  # of a study


def speedup(agreement: float, price: float, most: int) -> float:
    """The most tokens in the time of a plain one, over all lengths of a proposal up to `most`.

    Args:
        agreement: the chance that a proposed token is accepted after accepted ones.
        price: of a proposed token, in passes of the level above.
        most: tokens of a proposal, at least one.

    Source:
        Leviathan et al., arXiv 2211.17192, Theorem 3.8; DEL, arXiv 2504.05598, counts layers in place of passes.
    """
    tokens = accumulate(agreement**length for length in range(most + 1))
    return max(expected / (1 + length * price) for length, expected in enumerate(tokens) if length)


class PartChoice:
    """The sets of parts that may be left out, with what is known of each.

    Args:
        parts: bytes of the target's parts.
        first: the sets to begin with, at least one.
        most_parts: of a further set, which a search finds; 0 where there are only the first ones.
    """

    def __init__(self, parts: PartBytes, first: Sequence[Skipped], most_parts: int = 0) -> None:
        self.num_studies = 0
        self._bytes = parts
        self._most_parts = most_parts
        self._random = np.random.default_rng(0)
        self._known = {skipped: Chance(self.share(skipped), weight=2.0) for skipped in first}
        layers = range(1, len(parts.attention) - 1)
        of_kind = {"a": parts.attention, "m": parts.mlp}
        self._parts = [(kind, layer) for layer in layers for kind in "am" if of_kind[kind][layer] > 0]

    def share(self, skipped: Skipped) -> float:
        """Bytes of a pass without some parts, as a share of those of the whole target."""
        return self._bytes.total(skipped) / self._bytes.total()

    @property
    def best(self) -> Skipped:
        """The set with the greatest known worth."""
        return max(self._known, key=lambda skipped: self._worth(skipped, self._known[skipped].value))

    def to_study(self) -> Skipped:
        """The set to study next."""
        if self._most_parts and self.num_studies % 2:
            self._add(self._neighbour(self.best))
        hopes = {skipped: min(known.value + 1 / sqrt(known.weight), 1.0) for skipped, known in self._known.items()}
        return max(hopes, key=lambda skipped: self._worth(skipped, hopes[skipped]))

    def learn(self, skipped: Skipped, num_agreed: int, num_compared: int) -> None:
        """Learn from a study of a set: it agreed in some of the compared places."""
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
    """Seconds of rounds and of studies."""

    first_rounds: float = FIRST_ROUNDS
    round_seconds: float = 0.0
    num_rounds: int = 0
    study_seconds: float = 0.0
    num_studies: int = 0

    @property
    def allows(self) -> bool:
        """Whether another study is expected to be covered; the first is taken to last as long as a round."""
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
    """The last tokens of a text, after keys and values that are there."""

    session: Session
    start: int  # position of the first token to evaluate
    tokens: Sequence[int]  # those to evaluate and one more: [i + 1] is what the level above chose after [i]

    @classmethod
    def of(cls, session: Session, context: Sequence[int], first_written: int) -> "Rehearsal | None":
        """The end of a context, as far as it continues a session; None where that is too little.

        `first_written` is the position of the first token that the level above has chosen.
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
        """The number of tokens that are compared."""
        return len(self.tokens) - 1

    def agreed(self, decoder: Decoder, acceptance: Acceptance, vocab_size: int) -> int:
        """The number of tokens that a decoder would have chosen, each after the ones before it, by one pass.

        Coupled draws are compared with the text, under other rules the likeliest tokens. The cache is left as it was.
        """
        with borrowed(self.session.cache, self.start, self.num_tokens) as cache:
            rows = SequenceRows(self.tokens[:-1], cache)
            logits = self.session.passes.forward(decoder, rows)[:, :vocab_size]
        agreed = 0
        for place, row in enumerate(logits):
            if (rules := acceptance.rules) is not None:
                row = rules.row(row, self.session.tokens[: self.start], self.tokens[: place + 1])
            if isinstance(acceptance, CoupledAcceptance):
                token = acceptance.draw(row, self.start + 1 + place)
            else:
                token = int(greedy(row))
            agreed += token == self.tokens[place + 1]
        return agreed


class Variants:
    """The choice of parts and the budget of studies of a level, which outlive a text.

    Args:
        first: the sets to begin with, as `PartChoice` takes them and `most_parts`.

    Raises:
        ModelError: the level does not share the target's cache.
    """

    def __init__(self, record: LevelRecord, target: Decoder, first: Sequence[Skipped], most_parts: int = 0) -> None:
        if "kv_cache" not in record.shares:
            raise ModelError(
                f"level {record.name}: {record.kind} with a cache of its own; its layers change, so it must read "
                "the target's keys and values. Leave it out, or use layer-skip, where the target's are out of reach."
            )
        self.choice = PartChoice(PartBytes.of(target), first, most_parts)
        self.budget = StudyBudget()
        self.decoder = lru_cache(MOST_VARIANTS)(lambda skipped: target.variant(skipped, name=record.name))

    def of_text(self, draft: ModelDraft) -> "VariantDraft":
        """The draft of one text."""
        return VariantDraft(draft, self)


class VariantDraft(Draft):
    """A level whose decoder is another variant of the target from round to round, with studies in between.

    Studies use the shared cache and leave it as it was. They count and are timed as the level's own forward passes.
    """

    def __init__(self, draft: ModelDraft, variants: Variants) -> None:
        self.statistics = draft.statistics
        self._draft = draft
        self._level = draft.level
        self._variants = variants
        self._first_written: int | None = None
        self._last_end: float | None = None  # of a round of this text
        self._studied_since = 0.0

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """The level's proposal by the variant of this round, perhaps after a study."""
        return self._level_of_this_round(context).propose(context, limits)

    def learn(self, limits: TreeLimits, proposal: Proposal, tokens: Sequence[int]) -> None:
        self._draft.learn(limits, proposal, tokens)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """Pay for a round of the level above, perhaps with another draft."""
        now = self._now()
        if self._last_end is not None:
            self._variants.budget.pay(max(now - self._last_end - self._studied_since, 0.0))
        self._last_end, self._studied_since = now, 0.0

    def _level_of_this_round(self, context: Sequence[int]) -> ModelDraft:
        if self._first_written is None:
            self._first_written = len(context) - 1  # the level above has chosen one token after the prompt
        if self._variants.budget.allows and (text := Rehearsal.of(self._level.session, context, self._first_written)):
            self._study(text)
        level = replace(self._level, decoder=self._variants.decoder(self._variants.choice.best))
        return ModelDraft(level, self._draft.inputs.confidence, self._draft.inputs.sharpness)

    def _now(self) -> float:
        """Seconds of the text's own clock."""
        return self._level.session.passes.meter().seconds

    def _study(self, text: Rehearsal) -> None:
        begin, level, choice = self._now(), self._level, self._variants.choice
        skipped = choice.to_study()
        agreed = text.agreed(self._variants.decoder(skipped), level.acceptance, level.vocab_size)
        choice.learn(skipped, agreed, text.num_tokens)
        seconds = self._now() - begin
        self._variants.budget.spend(seconds)
        self._studied_since += seconds
        self.statistics.num_forwards += 1
        self.statistics.seconds += seconds
