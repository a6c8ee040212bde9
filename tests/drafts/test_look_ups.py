"""Prompt lookup against a search written out, and the n-gram draft against a walk through dictionaries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_levels import paths_of

from mxconv.drafts.ngram import NgramDraft
from mxconv.drafts.prompt_lookup import PromptLookup
from mxconv.engine.tree import TreeLimits
from mxconv.errors import ModelError
from mxconv.package.ngram_table import NgramEntries, NgramTable
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.statistics import LevelStatistics


def lookup(max_ngram: int = 3, min_ngram: int = 1) -> PromptLookup:
    return PromptLookup(LevelStatistics("prompt-lookup"), max_ngram, min_ngram)


def naive(context: list[int], num_tokens: int, max_ngram: int, min_ngram: int) -> list[int]:
    """Search every place, the latest first."""
    for n in range(max_ngram, min_ngram - 1, -1):
        for end in range(len(context) - 1, n - 1, -1):
            if context[end - n : end] == context[len(context) - n :]:
                text = list(context)
                for i in range(num_tokens):
                    text.append(text[end + i])
                return text[len(context) :]
    return []


tokens = st.integers(0, 3)


@given(
    st.integers(1, 4).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most))),
    st.lists(st.tuples(st.floats(0, 1), st.lists(tokens, max_size=6), st.integers(0, 5)), min_size=1, max_size=12),
)
def test_any_history_gives_what_a_search_of_the_context_gives(
    lengths: tuple[int, int], changes: list[tuple[float, list[int], int]]
) -> None:
    """Every step keeps some part of the last context and goes on: new tokens, rejected ones, new prompts."""
    draft = lookup(*lengths)
    context: list[int] = []
    for kept, added, num_tokens in changes:
        context = [*context[: round(kept * len(context))], *added]
        given_context = tuple(context)
        found = draft.propose(given_context, TreeLimits.chain(num_tokens))
        assert found.tokens == naive(context, num_tokens, *lengths)
        assert found.distributions == []
    assert draft.statistics.num_forwards == len(changes)
    assert draft.statistics.num_proposed == 0  # that is counted by whoever judges the proposals


def test_a_tree_goes_round_as_a_chain_does() -> None:
    context, depth = [5, 1, 2, 1, 2], 6
    tree = lookup().propose(context, TreeLimits(depth, [0.0] * 40))
    assert lookup().propose(context, TreeLimits.chain(depth)).tokens == [1, 2] * 3
    assert (1, 2) * 3 in paths_of(tree)


@pytest.mark.parametrize("lengths", [(3, 0), (2, 3), (0, 0)])
def test_lengths_that_are_none_are_refused(lengths: tuple[int, int]) -> None:
    message = f"prompt-lookup: n-grams of {lengths[1]} to {lengths[0]} tokens; 1 <= min_ngram <= max_ngram is required"
    with pytest.raises(ModelError, match=message):
        lookup(*lengths)


VOCAB_SIZE = 4
Best = tuple[int, float]


def table_of(trigrams: dict[tuple[int, int], Best], bigrams: dict[int, Best], unigram: Best) -> NgramTable:
    two, one = sorted(trigrams), sorted(bigrams)
    return NgramTable(
        tokenizer_sha256="0" * 64,
        vocab_size=VOCAB_SIZE,
        num_tokens=1,
        min_count=1,
        num_pruned=0,
        trigrams=NgramEntries(
            np.array([a * 2**32 + b for a, b in two], np.uint64),
            np.array([trigrams[key][0] for key in two], np.uint32),
            np.array([trigrams[key][1] for key in two], np.float32),
        ),
        bigrams=NgramEntries(
            np.array(one, np.uint32),
            np.array([bigrams[key][0] for key in one], np.uint32),
            np.array([bigrams[key][1] for key in one], np.float32),
        ),
        unigram=unigram,
    )


token = st.integers(0, VOCAB_SIZE - 1)
best = st.tuples(token, st.sampled_from([0.125, 0.25, 0.5, 1.0]))


@given(
    st.dictionaries(st.tuples(token, token), best),
    st.dictionaries(token, best),
    best,
    st.sampled_from([0.0, 0.25, 0.3, 0.6]),
    st.lists(token, min_size=1, max_size=4),
    st.integers(0, 6),
)
def test_the_chain_is_that_of_dictionaries(
    trigrams: dict[tuple[int, int], Best],
    bigrams: dict[int, Best],
    unigram: Best,
    confidence: float,
    context: list[int],
    num_tokens: int,
) -> None:
    draft: Draft = NgramDraft(LevelStatistics("ngram"), table_of(trigrams, bigrams, unigram), confidence)
    text = list(context)
    while len(text) < len(context) + num_tokens:
        found = bigrams.get(text[-1], unigram)
        if len(text) > 1:
            found = trigrams.get((text[-2], text[-1]), found)
        if found[1] < confidence:
            break
        text.append(found[0])
    proposal = draft.propose(tuple(context), TreeLimits.chain(num_tokens))
    assert proposal.tokens == text[len(context) :]
    assert proposal.distributions == []
    assert (draft.statistics.num_proposed, draft.statistics.num_forwards) == (0, 1)  # the level above counts proposals
    draft.observe([1], Proposal([]), np.zeros((1, VOCAB_SIZE), np.float32))
    assert draft.propose(context, TreeLimits.chain(num_tokens)).tokens == proposal.tokens


@pytest.mark.parametrize("context", [[], [VOCAB_SIZE], [-1, 2], [2, VOCAB_SIZE], [2**32, 1], [0, 2**32 + 1]])
def test_tokens_that_the_table_cannot_know_back_off_to_no_context(context: list[int]) -> None:
    """Ids of a padded vocabulary; none of them may be taken for another one's bits."""
    table = table_of(dict.fromkeys([(a, b) for a in range(4) for b in range(4)], (1, 1.0)), {}, (3, 0.5))
    assert table.best(context) == (3, 0.5)
