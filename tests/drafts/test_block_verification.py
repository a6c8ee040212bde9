"""Rejection and block verification, proved by enumeration: every draft over three tokens, and every outcome of a rule.

Chances are fractions, so what comes out equals the target's distribution and is not merely near it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import permutations, product
from random import Random
from typing import Any

import numpy as np
import pytest

from mxconv.speculation import acceptance, block_verification
from mxconv.speculation.acceptance import RejectionAcceptance, Verdict
from mxconv.speculation.block_verification import BlockAcceptance
from mxconv.speculation.proposal import Proposal
from mxconv.text.distribution import Sampling

VOCAB = range(3)
Tokens = tuple[int, ...]
Model = Mapping[Tokens, np.ndarray]  # the distribution after each text
RULES = (RejectionAcceptance, BlockAcceptance)


class Branches:
    """In place of random numbers: the outcomes of a script, then the first that is possible; others are kept."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.taken = list(script), list[int]()
        self.chance: Any = Fraction(1)
        self.others: list[list[int]] = []

    def choose(self, chances: Sequence[Any]) -> int:
        possible = np.flatnonzero(np.asarray(chances) > 0).tolist()
        if len(self.taken) < len(self.script):
            index = self.script[len(self.taken)]
        else:
            index = possible[0]
            self.others += [[*self.taken, other] for other in possible[1:]]
        self.chance *= chances[index]
        self.taken.append(index)
        return index

    def draw(self, weights: np.ndarray) -> int:
        return self.choose(weights / weights.sum())

    def random(self) -> "Uniform":
        return Uniform(self, Fraction(1))


class Uniform:
    """A number from 0 to `scale`, whose comparison has two outcomes."""

    def __init__(self, branches: Branches, scale: Any) -> None:
        self.branches, self.scale = branches, scale

    def __mul__(self, factor: Any) -> "Uniform":
        return Uniform(self.branches, self.scale * factor)

    def __lt__(self, limit: Any) -> bool:
        chance = min(1, limit / self.scale)
        return self.branches.choose([chance, 1 - chance]) == 0


def outcomes(
    kind: type[RejectionAcceptance], rows: Sequence[np.ndarray], proposal: Proposal
) -> Iterator[tuple[Any, Verdict]]:
    """Every verdict on a proposal, with its chance."""
    pending: list[list[int]] = [[]]
    while pending:
        rule, branches = kind(Sampling(), 0), Branches(pending.pop())
        rule.random, rule._draw = branches, branches.draw  # type: ignore[assignment, method-assign]
        verdict = rule.judge(rows, proposal, 0)  # type: ignore[arg-type]
        pending += branches.others
        yield branches.chance, verdict


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are distributions already, of fractions."""
    for module in (acceptance, block_verification):
        monkeypatch.setattr(module, "distribution", lambda row, sampling: row)


def shares(weights: Sequence[int]) -> np.ndarray:
    return np.array([Fraction(weight, sum(weights)) for weight in weights], object)


def model(random: Random, length: int) -> Model:
    """Any distribution after every text of at most `length` tokens; some tokens never come."""
    texts = [text for count in range(length + 1) for text in product(VOCAB, repeat=count)]
    return {text: shares([random.choice((0, 1, 1, 2, 5)) for _ in VOCAB[1:]] + [1]) for text in texts}


def law(target: Model, length: int, begin: Tokens = ()) -> dict[Tokens, Any]:
    """The texts of so many tokens that begin in one way, with their chances given that they do."""
    found: dict[Tokens, Any] = {begin: Fraction(1)}
    for _ in range(length - len(begin)):
        found = {
            (*text, token): chance * target[text][token]
            for text, chance in found.items()
            for token in VOCAB
            if target[text][token]
        }
    return found


def chains(draft: Model, length: int) -> Iterator[tuple[Any, Proposal]]:
    """Every chain that may be proposed."""
    for tokens, chance in law(draft, length).items():
        yield chance, Proposal(list(tokens), [draft[tokens[:place]] for place in range(length)])


def paths(proposal: Proposal) -> list[Tokens]:
    """The texts after the context and after each node."""
    found: list[Tokens] = [()]
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        found.append((*found[parent + 1], token))
    return found


def written(
    kind: type[RejectionAcceptance], target: Model, proposals: Iterator[tuple[Any, Proposal]], length: int
) -> tuple[dict[Tokens, Any], Any]:
    """The chance of every text that a round and then the target alone write, and the accepted tokens on average."""
    texts: dict[Tokens, Any] = defaultdict(Fraction)
    accepted: Any = Fraction(0)
    for proposed, proposal in proposals:
        begins = paths(proposal)
        for chance, verdict in outcomes(kind, [target[text] for text in begins], proposal):
            *above, _ = tokens = tuple(verdict.tokens)
            assert [begins[node + 1] for node in [-1, *verdict.path]] == [tokens[:n] for n in range(len(above) + 1)]
            drawn_from = zip(verdict.distributions, verdict.tokens, strict=True)
            assert all(row is target[tokens[:place]] for place, (row, _) in enumerate(drawn_from))
            accepted += proposed * chance * len(verdict.path)
            for text, rest in law(target, length, tokens).items():
                texts[text] += proposed * chance * rest
    return texts, accepted


def by_formula(target: Model, draft: Model, length: int, carries: bool) -> Any:
    """Accepted tokens on average: the sum of the chances of all paths, which carry a surplus over 1 nowhere."""
    total: Any = 0
    for count in range(1, length + 1):
        for text, chance in law(draft, count).items():
            kept: Any = Fraction(1)
            for place in range(count):
                ratio = target[text[:place]][text[place]] / draft[text[:place]][text[place]]
                kept = min(1, kept * ratio) if carries else kept * min(1, ratio)
            total += chance * kept
    return total


@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.usefixtures("exact")
def test_texts_have_the_targets_distribution_and_no_fewer_tokens_are_accepted_than_one_by_one(length: int) -> None:
    gains = []
    for seed in range(16):
        random = Random(seed)
        target, draft = model(random, length), model(random, length - 1)
        accepted = []
        for kind in RULES:
            texts, mean = written(kind, target, chains(draft, length), length + 1)
            assert texts == law(target, length + 1)
            assert mean == by_formula(target, draft, length, kind is BlockAcceptance)
            accepted.append(mean)
        gains.append(accepted[1] - accepted[0])
    assert min(gains) >= 0 and sum(gain > 0 for gain in gains) >= 8


@pytest.mark.usefixtures("exact")
def test_the_papers_example_comes_out() -> None:
    """Two tokens, two models without memory: 10/9 tokens of two are accepted one by one, and 11/9 as a block."""
    texts = [text for count in VOCAB for text in product(VOCAB, repeat=count)]
    target, draft = dict.fromkeys(texts, shares([1, 2, 0])), dict.fromkeys(texts, shares([2, 1, 0]))
    means = [written(kind, target, chains(draft, 2), 3)[1] for kind in RULES]
    assert means == [Fraction(10, 9), Fraction(11, 9)]


@pytest.mark.usefixtures("exact")
def test_a_draft_may_stop_by_what_it_has_drawn() -> None:
    """As confidence does: after some tokens, and before the next is drawn."""
    target, draft = model(Random(1), 3), model(Random(3), 2)
    stopped = [
        (chance, proposal.where([count < 3 - proposal.tokens[0] for count in VOCAB]))
        for chance, proposal in chains(draft, 3)
    ]
    assert {len(proposal.tokens) for _, proposal in stopped} == {1, 2, 3}
    assert written(BlockAcceptance, target, iter(stopped), 4)[0] == law(target, 4)


def trees(draft: Model, num_depths: int, width: Callable[[Proposal, int], int]) -> list[tuple[Any, Proposal]]:
    """Every tree of draws without replacement; how many come below a node depends on all that is above its children."""
    found: list[tuple[Any, Proposal]] = [(Fraction(1), Proposal([], [], parents=[]))]
    for depth in range(num_depths):
        deeper: list[tuple[Any, Proposal]] = []
        for chance, above in found:
            frontier = [node for node, text in enumerate(paths(above), -1) if len(text) == depth]
            grown = [(chance, above)]
            for node in frontier:
                count = width(above, node)
                grown = [each for item in grown for each in with_children(draft, *item, node, count)]
            deeper += grown
        found = deeper
    return found


def with_children(draft: Model, chance: Any, tree: Proposal, node: int, count: int) -> Iterator[tuple[Any, Proposal]]:
    drawn_from = draft[paths(tree)[node + 1]]
    for tokens in permutations(VOCAB, min(count, int((drawn_from > 0).sum()))):
        along, left = chance, Fraction(1)
        for token in tokens:
            along, left = along * drawn_from[token] / left, left - drawn_from[token]
        if along:
            distributions = [*tree.distributions, *[drawn_from] * len(tokens)]
            yield (
                along,
                Proposal([*tree.tokens, *tokens], distributions, parents=[*tree.parents, *[node] * len(tokens)]),
            )


WIDTHS: dict[str, tuple[int, Callable[[Proposal, int], int]]] = {
    "all alike": (2, lambda above, node: 2),
    "by the path": (2, lambda above, node: 3 if node < 0 else above.tokens[node]),
    "by other branches": (2, lambda above, node: 2 if node < 0 else (above.tokens[0] + node) % 3),
    "three deep": (3, lambda above, node: 2 if node == 0 else 1),
}


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.usefixtures("exact")
def test_trees_have_the_targets_distribution(name: str) -> None:
    num_depths, width = WIDTHS[name]
    has_siblings, gains = [], []
    for seed in range(8):
        random = Random(seed)
        target, draft = model(random, num_depths), model(random, num_depths - 1)
        grown = trees(draft, num_depths, width)
        assert sum(chance for chance, _ in grown) == 1
        has_siblings.append(any(len(set(tree.parents)) < len(tree.parents) for _, tree in grown))
        means = []
        for kind in RULES:
            texts, mean = written(kind, target, iter(grown), num_depths + 1)
            assert texts == law(target, num_depths + 1)
            means.append(mean)
        gains.append(means[1] - means[0])
    assert sum(has_siblings) >= 6 and min(gains) >= 0 and max(gains) > 0


@pytest.mark.parametrize("parents", [[], [-1, -1, 0, 1]], ids=["chain", "tree"])
@pytest.mark.usefixtures("exact")
def test_what_is_proposed_as_certain_is_judged_as_drawn_from_itself(parents: list[int]) -> None:
    target = {text: row.astype(float) for text, row in model(Random(5), 4).items()}
    proposal = Proposal([2, 1, 2, 0], parents=parents)
    expected = law(target, 3 if parents else 5)
    length, means = len(next(iter(expected))), []
    for kind in RULES:
        texts, mean = written(kind, target, iter([(Fraction(1), proposal)]), length)
        assert {text: texts[text] for text in expected} == pytest.approx(expected, abs=1e-12)
        means.append(mean)
    assert means[0] > 0 and (parents or means[1] == pytest.approx(means[0]))  # a chain gains nothing
