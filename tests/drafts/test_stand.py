"""N-grams of probabilities against lists of everything that was ever seen after them."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plug_ins import STAND, plug_in_module

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.acceptance import CoupledAcceptance
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.statistics import LevelStatistics
from mxconv.text.distribution import Sampling

Stand = plug_in_module(STAND).Stand
ALL = [0.0] * 12
TOKENS = st.integers(0, 3)


def stand(vocab_size: int = 4, max_ngram: int = 3, num_candidates: int | None = None, confidence: float = 0.0) -> Any:
    return Stand(LevelStatistics("stand"), vocab_size, max_ngram, num_candidates or vocab_size, confidence)


def logits_of(*rows: list[float]) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(rows, np.float32))


@st.composite
def passes(draw: st.DrawFn) -> list[tuple[list[int], Proposal, np.ndarray]]:
    """Contexts, trees or chains after them, and what followed."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        context = draw(st.lists(TOKENS, min_size=1, max_size=6))
        tokens = draw(st.lists(TOKENS, max_size=6))
        parents = [draw(st.integers(-1, node - 1)) for node in range(len(tokens))] if draw(st.booleans()) else []
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        logits = rng.standard_normal((len(tokens) + 1, 4)).astype(np.float32)
        found.append((context, Proposal(tokens, parents=parents), logits))
    return found


def means(seen: list[tuple[list[int], Proposal, np.ndarray]], max_ngram: int) -> dict[tuple[int, ...], np.ndarray]:
    """By n-gram the mean of all rows whose path ends with it, every path written out."""
    rows: dict[tuple[int, ...], list[np.ndarray]] = {}
    for context, proposal, logits in seen:
        paths = [context]
        for node, token in enumerate(proposal.tokens):
            parent = proposal.parents[node]
            paths.append([*paths[parent + 1], token])
        for path, row in zip(paths, logits, strict=True):
            powers = np.exp(row.astype(np.float64))
            for n in range(1, min(max_ngram, len(path)) + 1):
                rows.setdefault(tuple(path[-n:]), []).append(powers / powers.sum())
    return {ngram: np.mean(own, axis=0) for ngram, own in rows.items()}


@given(passes(), st.integers(1, 3), st.lists(TOKENS, min_size=1, max_size=4), st.floats(0, 0.9))
def test_the_longest_n_gram_says_the_mean_of_all_that_followed_it(
    seen: list[tuple[list[int], Proposal, np.ndarray]], max_ngram: int, context: list[int], confidence: float
) -> None:
    draft = stand(max_ngram=max_ngram, confidence=confidence)
    for each in seen:
        draft.observe(*each)
    table = means(seen, max_ngram)

    def after(text: list[int]) -> np.ndarray | None:
        ends = (tuple(text[-n:]) for n in range(min(max_ngram, len(text)), 0, -1))
        return next((table[end] for end in ends if end in table), None)

    tree = draft.propose(context, TreeLimits(1, ALL))
    expected = after(context)
    if expected is None:
        assert tree.tokens == []
    else:
        assert sorted(tree.tokens) == [0, 1, 2, 3]
        np.testing.assert_allclose(tree.probabilities, expected[tree.tokens], rtol=1e-5)
        assert tree.probabilities == sorted(tree.probabilities, reverse=True)
    text, chain = list(context), draft.propose(context, TreeLimits.chain(5)).tokens
    for token in chain:
        shares = after(text)
        assert shares is not None
        assert shares[token] >= shares.max() - 1e-6
        assert shares[token] >= confidence - 1e-6
        text.append(token)
    left = after(text)
    assert len(chain) == 5 or left is None or left.max() < confidence + 1e-6


def test_rows_of_siblings_are_remembered_behind_their_own_paths() -> None:
    draft = stand()
    proposal = Proposal([1, 2, 3], parents=[-1, -1, 1])
    rows = logits_of([0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0])
    draft.observe([0], proposal, rows)
    assert [draft.propose([0, *path], TreeLimits.chain(1)).tokens for path in ([], [1], [2], [2, 3])] == [
        [1],
        [0],
        [3],
        [2],
    ]


# drawn tokens


@given(st.integers(0, 2**64 - 1), st.integers(1, 60), st.sampled_from([Sampling(), Sampling(0.6), Sampling(1.5)]))
def test_candidates_come_in_the_order_in_which_the_noise_draws_them(seed: int, length: int, sampling: Sampling) -> None:
    """With what the target believes in the table, the first candidate is what the target draws, at any depth."""
    draft, rule = stand(), CoupledAcceptance(sampling, seed)
    draft.acceptance = rule
    rows = np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32)
    for token in range(4):
        draft.observe([token], Proposal([]), rows[token : token + 1])
    context = [seed % 4] * length
    text = list(context)
    for _ in range(4):
        text.append(CoupledAcceptance(sampling, seed).draw(rows[text[-1]], len(text)))
    assert draft.propose(context, TreeLimits.chain(4)).tokens == text[length:]
    tree = draft.propose(context, TreeLimits(1, ALL))
    scores = CoupledAcceptance(sampling, seed).ranking(rows[context[-1]], length)
    np.testing.assert_array_equal(tree.tokens, np.argsort(-scores))
    np.testing.assert_allclose(tree.probabilities, np.sort(np.exp(scores) / np.exp(scores).sum())[::-1], rtol=1e-3)
