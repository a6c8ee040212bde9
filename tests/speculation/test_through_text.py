"""Drafts with another tokenizer: whatever they say, the proposal's text is the beginning of theirs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_tokenizers import KINDS, SENTENCES, texts, token_lists, tokenizer

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.through_text import LONGEST_TAIL, MAX_DRAFT_TOKENS, Reencoding, ThroughText
from mxconv.text.text_stream import REPLACEMENT
from mxconv.text.tokenizer import Tokenizer

TURNED = [*KINDS[1:], KINDS[0], *KINDS[2:], *KINDS[:2]]
PAIRS = [f"{target} <- {draft}" for target, draft in zip(KINDS * 2, TURNED, strict=True)]


@dataclass
class Says(Draft):
    """A draft that says what it was given."""

    tokens: list[int]
    statistics: LevelStatistics = field(default_factory=lambda: LevelStatistics("says"))
    asked: list[tuple[list[int], int]] = field(default_factory=list)
    seconds: float = 0.0  # as it was when it last spoke

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        self.asked.append((list(context), limits.most_depth))
        with self.statistics.timed_pass():
            pass
        self.seconds = self.statistics.seconds
        return Proposal(self.tokens[: limits.most_depth])

    def observe(self, context: Sequence[int], proposal: Proposal, logits: np.ndarray) -> None:
        raise AssertionError("its own logits are not those of the target")


@dataclass
class GoesOn(Says):
    """A draft that knows the text and goes on with it, from wherever the context ends."""

    text: str = ""
    tokenizer: Tokenizer | None = None

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        assert self.tokenizer is not None
        known = self.tokenizer.decode(list(context))
        self.tokens = []
        for anchor in (known, "\n") if self.text.startswith(known) else ():  # a token of the text may span the place
            tokens = self.tokenizer.encode_from(anchor + self.text[len(known) :], len(anchor))
            if self.tokenizer.decode([*context, *tokens]) == self.text:
                self.tokens = tokens
                break
        return super().propose(context, limits)


def found(kind: str) -> Tokenizer:
    one = tokenizer(kind)
    if one is None:
        pytest.skip("MXCONV_TEST_MODELS is not set")
    return one


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Tokenizer]:
    target, draft = request.param.split(" <- ")
    return found(target), found(draft)


def through(inner: Says, target: Tokenizer, draft: Tokenizer, max_positions: int | None = None) -> ThroughText:
    return ThroughText(inner, target, draft, max_positions)


def assert_fits(target: Tokenizer, context: list[int], tokens: list[int], written: str) -> None:
    """The text of the proposal is the beginning of what was written: no byte is lost, none doubled."""
    before, after = target.decode(context), target.decode([*context, *tokens])
    # a context that ends inside a character: only its last characters may be completed, by what was written
    num_pending = len(before) - len(before.rstrip(REPLACEMENT))
    places = range(len(before) - min(num_pending, 3), len(before) + 1)
    if not tokens:
        return
    if num_pending == 0:
        assert after.startswith(before)
        assert written.startswith(after[len(before) :])
    else:
        assert any(written.startswith(after[place:]) and before[:place] == after[:place] for place in places)
    assert not any(target.is_silent(token) for token in tokens)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_proposals_say_what_the_draft_wrote(pair: tuple[Tokenizer, Tokenizer], data: st.DataObject) -> None:
    target, draft = pair
    inner = Says([])
    drafting = through(inner, target, draft)
    context: list[int] = []
    for _ in range(data.draw(st.integers(1, 3))):  # contexts that grow, are taken back, and have nothing in common
        context = context[: data.draw(st.integers(0, len(context)))] + data.draw(token_lists(target))
        inner.tokens = data.draw(token_lists(draft, 20))
        num_tokens = data.draw(st.integers(0, 12))
        asked = len(inner.asked)
        proposal = drafting.propose(context, TreeLimits.chain(num_tokens))
        assert len(proposal.tokens) <= num_tokens
        assert proposal.distributions == []
        if len(inner.asked) == asked:
            assert proposal.tokens == []
            continue
        seen, wanted = inner.asked[-1]
        assert 1 <= wanted <= MAX_DRAFT_TOKENS
        if not target.decode(context).endswith(REPLACEMENT):
            assert draft.decode(seen) == draft.decode(draft.encode(target.decode(context)))
        ends = [draft.is_silent(token) or token in draft.eos_token_ids for token in inner.tokens[:wanted]]
        heard = inner.tokens[: [*ends, True].index(True)]
        said = draft.decode([*seen, *heard])[len(draft.decode(seen)) :]
        assert_fits(target, context, proposal.tokens, said)


@pytest.mark.parametrize("text", SENTENCES[:2])
def test_a_draft_that_knows_the_text_proposes_the_targets_own_tokens(
    pair: tuple[Tokenizer, Tokenizer], text: str
) -> None:
    target, draft = pair
    if not all(one.decode(one.encode(text)) == text for one in pair):
        text = text.lower() if "def" not in text else "once upon a time, there was a dog named sam."
    if not all(one.decode(one.encode(text)) == text for one in pair):
        pytest.skip("a tokenizer of these does not know all characters of the text")
    truth = target.encode(text)
    drafting = through(GoesOn([], text=text, tokenizer=draft), target, draft)
    context, num_proposed, num_right = truth[:2], 0, 0
    while len(context) < len(truth):
        tokens = drafting.propose(context, TreeLimits.chain(4)).tokens
        agree = [token == true for token, true in zip(tokens, truth[len(context) :], strict=False)]
        accepted = [*agree, False].index(False)
        num_proposed, num_right = num_proposed + len(tokens), num_right + accepted
        context = truth[: len(context) + accepted + 1]
    assert num_right >= 0.6 * num_proposed  # words that a draft has not finished may have other tokens
    assert num_right >= 0.25 * len(truth)


def test_a_character_that_the_context_has_begun_is_completed() -> None:
    target, draft = found("byte-level"), found("sentencepiece")
    inner = Says(draft.encode("👧", add_special_tokens=False)[1:])
    whole = target.encode("a👧")
    for num_pending in (1, 2, 3):
        context = whole[: len(whole) - num_pending]
        assert through(inner, target, draft).propose(context, TreeLimits.chain(8)).tokens == whole[len(context) :]
        assert draft.decode(inner.asked[-1][0]) == "a"
        assert (
            through(inner, target, draft).propose(context, TreeLimits.chain(num_pending - 1)).tokens == []
        )  # no half characters
    inner.tokens = draft.encode("b")[1:]
    assert through(inner, target, draft).propose(whole[:-1], TreeLimits.chain(8)).tokens == []


@pytest.mark.parametrize("last", [1, 2, 0, 5000])
def test_a_draft_is_heard_up_to_a_token_without_text(last: int) -> None:
    target, draft = found("byte-level"), found("characters")
    word = draft.encode("go", add_special_tokens=False)[1:]
    proposal = through(Says([*word, last, *word]), target, draft).propose(target.encode("we "), TreeLimits.chain(9))
    assert target.decode(proposal.tokens) == "go"


def test_half_a_word_is_left_out_unless_it_is_all_there_is() -> None:
    target, draft = found("byte-level"), found("characters")
    drafting = through(inner := Says(draft.encode("ce upon a ti", add_special_tokens=False)[1:]), target, draft)
    assert target.decode(drafting.propose(target.encode("On"), TreeLimits.chain(50)).tokens) == "ce upon a"
    inner.tokens = inner.tokens[:2]
    assert target.decode(drafting.propose(target.encode("On"), TreeLimits.chain(50)).tokens) == "ce"


def test_the_name_of_a_special_token_in_a_text_is_not_proposed_as_the_token() -> None:
    target, draft = found("sentencepiece"), found("pylib")
    inner = Says(draft.encode(" end </s> more", add_special_tokens=False))
    tokens = through(inner, target, draft).propose(target.encode("the"), TreeLimits.chain(30)).tokens
    assert target.decode(tokens).strip() == "end"
    assert 2 not in tokens


# texts in a draft's tokens, as they grow


STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the sun.\n"


@pytest.fixture(scope="module", params=KINDS)
def one(request: pytest.FixtureRequest) -> Tokenizer:
    return found(request.param)


def test_a_story_has_the_tokens_that_it_has_as_a_whole(one: Tokenizer) -> None:
    reencoding = Reencoding(one)
    text = STORY * 60
    assert len(text) > 3 * LONGEST_TAIL
    for end in [*range(0, len(text), 149), len(text), 700, 2000]:
        assert reencoding.encode(text[:end]) == one.encode(text[:end])


@settings(max_examples=10, deadline=None)
@given(st.lists(texts(), max_size=5))
def test_any_text_keeps_every_character(one: Tokenizer, pieces: list[str]) -> None:
    reencoding = Reencoding(one)
    text = ""
    for piece in pieces:
        text += piece * 40
        assert one.decode(reencoding.encode(text)) == one.decode(one.encode(text))


@pytest.mark.parametrize(("limit", "text"), [(1, STORY * 5), (2, " " * 300), (30, "a" * 300), (100, STORY * 5)])
def test_a_text_that_is_too_long_loses_its_beginning(one: Tokenizer, limit: int, text: str) -> None:
    reencoding = Reencoding(one, limit)
    first = one.encode("")
    begins = set()
    for end in range(len(text) + 1):
        tokens = reencoding.encode(text[:end])
        assert len(tokens) <= max(limit, len(first))
        assert tokens[: len(first)] == first
        begins.add(reencoding._omitted)
    if limit == 100 and text == STORY * 5:
        assert one.decode(one.encode(text)).endswith(one.decode(tokens))
        assert len(begins) < 12  # not with every token, or a cache would be of no use
    assert reencoding.encode(text[:3]) == one.encode(text[:3]) or limit <= 2
