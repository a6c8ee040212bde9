"""Whatever a draft proposes, the target writes its own text."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_levels import (
    MAX_POSITIONS,
    VOCAB_SIZE,
    assert_lossless,
    decoder_of,
    greedy_by_hand,
    look_up,
    target_level,
)

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.round import Level
from mxconv.speculation.statistics import LevelStatistics

PROMPT = [3, 1, 4, 1, 5, 9]
TOKENS = st.integers(0, VOCAB_SIZE - 1)


@dataclass
class Fake(Draft):
    """Proposes what it was told to, and remembers what it was asked."""

    proposals: list[list[int]]
    statistics: LevelStatistics = field(default_factory=lambda: LevelStatistics("fake"))
    asked: list[tuple[list[int], int]] = field(default_factory=list)

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        self.asked.append((list(context), limits.most_depth))
        return Proposal(self.tokens_behind(list(context), limits.most_depth))

    def tokens_behind(self, context: list[int], num_tokens: int) -> list[int]:
        return list(self.proposals[len(self.asked) % len(self.proposals)]) if self.proposals else []


class WithDraft(Hierarchy):
    """A target whose draft is any object with the protocol's methods."""

    def __init__(self, target: LoadedLevel, draft: Fake, num_draft_tokens: int) -> None:
        super().__init__([target, look_up("prompt-lookup")], [num_draft_tokens])
        self.draft = draft

    def link(self, statistics: Sequence[LevelStatistics], *arguments: Any) -> Level:
        self.draft.statistics = statistics[1]
        return replace(super().link(statistics, *arguments), drafts=[self.draft])


@settings(max_examples=15, deadline=None)
@given(
    proposals=st.lists(st.lists(TOKENS, max_size=20), max_size=5),
    num_draft_tokens=st.integers(1, 16),
    prompt=st.lists(TOKENS, min_size=1, max_size=MAX_POSITIONS),
)
def test_no_tokens_that_a_draft_proposes_change_the_text(
    proposals: list[list[int]], num_draft_tokens: int, prompt: list[int]
) -> None:
    target, draft = target_level(), Fake(proposals)
    assert_lossless(WithDraft(target, draft, num_draft_tokens), prompt, 30)
    for context, num_tokens in draft.asked:
        assert 1 <= num_tokens <= num_draft_tokens
        assert len(context) + num_tokens <= MAX_POSITIONS
        assert len(context) - len(prompt) + num_tokens < 30  # the target's own token still fits


@pytest.mark.parametrize(("offset", "intruder"), [(0, VOCAB_SIZE), (1, -1), (3, VOCAB_SIZE + 1000), (5, 2**40)])
def test_ids_outside_the_vocabulary_end_a_proposal(offset: int, intruder: int) -> None:
    """What is right before them is still accepted: the draft knows the text."""
    target = target_level()
    truth = greedy_by_hand(decoder_of(target), PROMPT, 20).token_ids

    class Clairvoyant(Fake):
        def tokens_behind(self, context: list[int], num_tokens: int) -> list[int]:
            done = len(context) - len(PROMPT)
            tokens = truth[done : done + num_tokens]
            return [*tokens[:offset], intruder, *tokens[offset:]]

    generation = assert_lossless(WithDraft(target, Clairvoyant([]), 5), PROMPT, 20)
    assert (generation.trace.statistics[1].num_accepted > 0) == (offset > 0)


def test_a_draft_that_proposes_the_truth_and_then_nonsense_is_believed_as_far_as_the_truth_goes() -> None:
    target = target_level()
    truth = greedy_by_hand(decoder_of(target), PROMPT, 24).token_ids

    class HalfRight(Fake):
        def tokens_behind(self, context: list[int], num_tokens: int) -> list[int]:
            done = len(context) - len(PROMPT)
            return [*truth[done : done + 2], *((token + 1) % VOCAB_SIZE for token in truth[done + 2 : done + 4])]

    generation = assert_lossless(WithDraft(target, HalfRight([]), 4), PROMPT, 22)
    assert generation.trace.num_rounds == 1 + 7  # the prompt's token, then two accepted and one of its own
    assert generation.trace.statistics[1].num_accepted == 14
