"""Trees of a model's guesses: a frontier a pass, or the runners-up of tokens that it has verified.

Source:
    Frontiers of the likeliest nodes, cut to the likeliest tree at the end: EAGLE-2 (arXiv 2406.16858), sections 4.1 and
    4.2. Runners-up of a chain as leaves: design §9.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count, islice, takewhile
from typing import TypeVar

from mxconv.arrays import F32, F64
from mxconv.engine.tree import GrownTree, Tree, TreeLimits
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.proposal import Guesses, Proposal

Evaluate = Callable[[Sequence[int], Tree], F32]
"""The logits (num_rows, vocab_size) of a tree's new rows, whose tokens are given."""


class GrowingTree:
    """Nodes with the chances of their paths.

    Whether a node that was drawn at random is kept must not depend on what was drawn: such nodes stay as they come,
    as many as the floors allow. All others are candidates, of which the likeliest stay at the end.

    """

    def __init__(self, limits: TreeLimits) -> None:
        self.limits = limits
        self.floors = limits.floors
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.own_chances: list[float] = []
        self.chances: list[float] = []
        self.distributions: list[F64] = []
        self.row_parents: list[int] = []  # of the rows that were evaluated
        self.row_of = {-1: -1}  # by node

    @property
    def is_drawn(self) -> bool:
        return bool(self.distributions)

    def chance(self, node: int) -> float:
        """The chance that a node's path is accepted; -1 is the context."""
        return 1.0 if node < 0 else self.chances[node]

    def least_chance(self, node: int) -> float:
        """The chance below which a child of a node cannot be worth a row."""
        floor = self.floors[min(len(self.tokens), len(self.floors) - 1)] if self.is_drawn else self.floors[0]
        return floor / max(self.chance(node), 1e-300)

    def most_children(self, num_depths_left: int = 0) -> int:
        """The most children of a node; where nodes are drawn, one is left for every depth to come."""
        left = len(self.floors)
        if self.is_drawn:
            left = max(left - len(self.tokens) - num_depths_left, min(left - len(self.tokens), 1))
        return min(left, self.limits.most_siblings)

    def guess(
        self, node: int, logits: F32, position: int, rule: Acceptance, most: int, first: int | None = None
    ) -> list[int]:
        """Add children of a node by the logits (vocab_size,) after it; returns them.

        Args:
            node: evaluated; -1 is the context.
            logits: as rules changed them.
            position: of the children in the sequence.
            rule: of the run.
            most: children.
            first: as `Acceptance.guesses` takes it.
        """
        limits = self.limits
        guesses = rule.guesses(logits, position, self.least_chance(node), most, limits.sharpness, first)
        if limits.is_chain and guesses.tokens:
            guesses = replace(guesses, chances=[rule.chance(logits, position, limits.sharpness)])
        return self.add(node, guesses)

    def add(self, parent: int, guesses: Guesses) -> list[int]:
        """Add children of a node; returns them."""
        first, chance = len(self.tokens), self.chance(parent)
        self.tokens += guesses.tokens
        self.parents += [parent] * len(guesses.tokens)
        self.own_chances += guesses.chances
        self.chances += [chance * own for own in guesses.chances]
        if guesses.distribution is not None:
            self.distributions += [guesses.distribution] * len(guesses.tokens)
        return list(range(first, len(self.tokens)))

    def evaluate(self, nodes: Sequence[int], evaluate: Evaluate) -> F32:
        """The logits after nodes whose parents were evaluated, by a further pass."""
        num_cached = len(self.row_parents)
        for node in nodes:
            self.row_of[node] = len(self.row_parents)
            self.row_parents.append(self.row_of[self.parents[node]])
        return evaluate([self.tokens[node] for node in nodes], Tree(self.row_parents[:], num_cached))

    def may_have_children(self, nodes: Sequence[int]) -> list[int]:
        """Those of some nodes that could still have a child that is kept, the likeliest first."""
        if self.is_drawn:
            num_before = {node: len(self.tokens) for node in nodes}
        else:
            num_before = {node: rank + 1 for rank, node in enumerate(self.ranked())}
        able = [
            node
            for node in nodes
            if num_before[node] < len(self.floors) and self.chances[node] >= self.floors[num_before[node]]
        ]
        return sorted(able, key=lambda node: -self.chances[node])

    def proposal(self) -> Proposal:
        """The nodes that are worth their rows, parents before children and the likelier of siblings first.

        A chain took a pass for each, so all of them.
        """
        if self.is_drawn or self.limits.is_chain:
            return self.part(range(len(self.tokens)))
        ranked = zip(self.ranked(), self.floors, strict=False)
        return self.part([node for node, _ in takewhile(lambda pair: self.chances[pair[0]] >= pair[1], ranked)])

    def part(self, nodes: Sequence[int]) -> Proposal:
        """Some nodes, parents before children."""
        place = {-1: -1} | {node: index for index, node in enumerate(nodes)}
        return Proposal(
            [self.tokens[node] for node in nodes],
            [self.distributions[node] for node in nodes] if self.is_drawn else [],
            [self.own_chances[node] for node in nodes],
            [place[self.parents[node]] for node in nodes],
        )

    def ranked(self) -> list[int]:
        """All nodes, the likeliest first; no child is likelier than its parent, and of equal ones it comes later."""
        return sorted(range(len(self.tokens)), key=lambda node: -self.chances[node])


State = TypeVar("State")  # what a draft continues from: the last token, the last two, a place in a text


def grow_best_first(
    root: State,
    continuations: Callable[[State], Iterable[tuple[int, float, State]]],
    limits: TreeLimits,
    least: float = 0.0,
) -> Proposal:
    """The likeliest nodes: with true probabilities no other tree of as many expects more accepted tokens.

    Args:
        root: the state of the context.
        continuations: the different tokens that may follow a state, with their probabilities and states.
        limits: of the tree.
        least: the least probability of a token.

    Source:
        DySpec (Daily Papers, October 2024): greedy expansion of the tree by the draft's own probabilities.
    """
    floors = limits.floors
    tokens: list[int] = []
    parents: list[int] = []
    probabilities: list[float] = []
    number = count()  # of equal ones the first found goes first
    heap: list[tuple[float, int, float, int, int, int, State]] = []

    def offer(state: State, chance: float, node: int, depth: int) -> None:
        for token, probability, then in islice(continuations(state), limits.most_siblings if limits.is_chain else None):
            along, floor = chance * probability, floors[min(len(tokens), len(floors) - 1)]
            if along > 0 and along >= floor and probability >= least:  # of a NaN nothing holds
                heappush(heap, (-along, next(number), probability, token, node, depth, then))

    if floors and limits.most_depth > 0:
        offer(root, 1.0, -1, 1)
    while heap and len(tokens) < len(floors) and -heap[0][0] >= floors[len(tokens)]:
        negative, _, probability, token, parent, depth, state = heappop(heap)
        tokens.append(token)
        parents.append(parent)
        probabilities.append(probability)
        if depth < limits.most_depth:
            offer(state, -negative, len(tokens) - 1, depth + 1)
    return Proposal(tokens, probabilities=probabilities, parents=parents)


def grow_by_passes(
    first: F32, position: int, evaluate: Evaluate, rule: Acceptance, limits: TreeLimits
) -> tuple[Proposal, list[int]]:
    """Evaluate all nodes of a depth that may have children worth a row, and go on after them.

    Args:
        first: (vocab_size,) the logits after the context.
        position: of the first proposed token in the sequence.
        evaluate: a pass of the model.
        rule: of the run.
        limits: of the draft, of at least one token.

    Returns:
        The proposal, and the rows that were evaluated on the path of the likeliest node of the last frontier.
    """
    tree = GrowingTree(limits)
    frontier, logits = [-1], first[None]
    for depth in range(limits.most_depth):
        added: list[int] = []
        for node, row in zip(frontier, logits, strict=True):
            if most := tree.most_children(limits.most_depth - depth - 1):
                added += tree.guess(node, row, position + depth, rule, most)
        able = tree.may_have_children(added)[: min(limits.most_in_frontier, limits.most_rows - len(tree.row_parents))]
        if not able or depth == limits.most_depth - 1:
            break
        if not limits.go_on(sum(tree.chances[node] for node in able), max(tree.own_chances[node] for node in able)):
            break
        frontier, logits = able, tree.evaluate(able, evaluate)
    rows = tree.row_parents
    return tree.proposal(), Tree(rows).path(tree.row_of[frontier[0]]) if rows else []


def of_grown(grown: GrownTree, limits: TreeLimits) -> tuple[Proposal, list[int]]:
    """What `grow_by_passes` returns, of a tree that a decoder grew at once."""
    tree = GrowingTree(limits)
    tree.tokens, tree.parents, tree.own_chances, tree.chances = (
        grown.tokens,
        grown.parents,
        grown.own_chances,
        grown.chances,
    )
    row_of, path = {node: row for row, node in enumerate(grown.rows)}, list[int]()
    node = grown.rows[grown.first_of_last] if grown.rows else -1
    while node >= 0:
        path.append(row_of[node])
        node = tree.parents[node]
    return tree.proposal(), path[::-1]


def with_runners_up(chosen: Iterable[tuple[int, F32]], position: int, rule: Acceptance, limits: TreeLimits) -> Proposal:
    """The tokens that a model has chosen one after another, each with those that it nearly chose.

    Arguments are those of `grow_by_passes`; `chosen` are the tokens with the logits (vocab_size,) that chose them.
    """
    tree = GrowingTree(limits)
    node = -1
    for depth, (token, logits) in enumerate(chosen):
        children = tree.guess(node, logits, position + depth, rule, tree.most_children(), token)
        spine = [child for child in children if tree.tokens[child] == token]
        if not spine or not tree.may_have_children(spine):
            break
        (node,) = spine
        if not limits.go_on(tree.chances[node], tree.own_chances[node]):
            break
    return tree.proposal()
