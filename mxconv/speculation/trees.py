"""Trees of a model's guesses: a frontier a pass, or the runners-up of tokens that it has verified.

Source:
    Frontiers of the likeliest nodes, cut to the likeliest tree at the end: EAGLE-2 (arXiv 2406.16858), sections 4.1 and
    4.2. Runners-up of a chain as leaves: design §9.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count, takewhile
from math import inf
from typing import TypeVar

from mxconv.arrays import F32, F64
from mxconv.engine.tree import MOST_IN_FRONTIER, MOST_ROWS, MOST_SIBLINGS, GrownTree, Tree
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.guesses import Guesses
from mxconv.speculation.proposal import Proposal

Evaluate = Callable[[Sequence[int], Tree], F32]
"""The logits (num_rows, vocab_size) of a tree's new rows, whose tokens are given."""

GoesOn = Callable[[float, float], bool]
"""Whether a pass pays below some nodes, by the sum of the chances of their paths and the largest chance of one of them
after its parent."""


class GrowingTree:
    """Nodes with the chances of their paths.

    Whether a node that was drawn at random is kept must not depend on what was drawn: such nodes stay as they come,
    as many as the floors allow. All others are candidates, of which the likeliest stay at the end.

    Args:
        floors: as `TreeDraft.grow` takes them.
    """

    def __init__(self, floors: Sequence[float]) -> None:
        self.floors = floors
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
        return min(left, MOST_SIBLINGS)

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
        """The nodes that are worth their rows, parents before children and the likelier of siblings first."""
        if self.is_drawn:
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
    most_depth: int,
    floors: Sequence[float],
) -> Proposal:
    """The likeliest nodes: with true probabilities no other tree of as many expects more accepted tokens.

    Args:
        root: the state of the context.
        continuations: the different tokens that may follow a state, with their probabilities and states.
        most_depth: the most tokens of a path.
        floors: as `TreeDraft.grow` takes them.

    Source:
        DySpec (Daily Papers, October 2024): greedy expansion of the tree by the draft's own probabilities.
    """
    tokens: list[int] = []
    parents: list[int] = []
    probabilities: list[float] = []
    number = count()  # of equal ones the first found goes first
    heap: list[tuple[float, int, float, int, int, int, State]] = []

    def offer(state: State, chance: float, node: int, depth: int) -> None:
        for token, probability, then in continuations(state):
            along = chance * probability
            if along > 0 and along >= floors[min(len(tokens), len(floors) - 1)]:  # of a NaN neither holds
                heappush(heap, (-along, next(number), probability, token, node, depth, then))

    if floors and most_depth > 0:
        offer(root, 1.0, -1, 1)
    while heap and len(tokens) < len(floors) and -heap[0][0] >= floors[len(tokens)]:
        negative, _, probability, token, parent, depth, state = heappop(heap)
        tokens.append(token)
        parents.append(parent)
        probabilities.append(probability)
        if depth < most_depth:
            offer(state, -negative, len(tokens) - 1, depth + 1)
    return Proposal(tokens, probabilities=probabilities, parents=parents)


def grow_by_passes(
    first: F32,
    position: int,
    evaluate: Evaluate,
    acceptance: Acceptance,
    sharpness: float,
    most_depth: int,
    floors: Sequence[float],
    goes_on: GoesOn,
) -> tuple[Proposal, list[int]]:
    """Evaluate all nodes of a depth that may have children worth a row, and go on after them.

    Args:
        first: (vocab_size,) the logits after the context.
        position: of the first proposed token in the sequence.
        evaluate: a pass of the model.
        acceptance: the rule of the run.
        sharpness: as `Acceptance.guesses` takes it.
        most_depth: the most tokens of a path, at least one.
        floors: as `TreeDraft.grow` takes them, at least one.
        goes_on: whether a further pass pays.

    Returns:
        The proposal, and the rows that were evaluated on the path of the likeliest node of the last frontier.
    """
    tree = GrowingTree(floors)
    frontier, logits = [-1], first[None]
    for depth in range(most_depth):
        added: list[int] = []
        for node, row in zip(frontier, logits, strict=True):
            if most := tree.most_children(most_depth - depth - 1):
                guesses = acceptance.guesses(row, position + depth, tree.least_chance(node), most, sharpness)
                added += tree.add(node, guesses)
        able = tree.may_have_children(added)[: min(MOST_IN_FRONTIER, MOST_ROWS - len(tree.row_parents))]
        if not able or depth == most_depth - 1:
            break
        if not goes_on(sum(tree.chances[node] for node in able), max(tree.own_chances[node] for node in able)):
            break
        frontier, logits = able, tree.evaluate(able, evaluate)
    rows = tree.row_parents
    return tree.proposal(), Tree(rows).path(tree.row_of[frontier[0]]) if rows else []


def least_chances(confidence: float, floor: float | None) -> tuple[float, float]:
    """The two chances below which no pass pays, as `TreeLimits` has them, by a draft's own threshold or a floor."""
    return (confidence, -inf) if floor is None else (-inf, floor)


def of_grown(grown: GrownTree, floors: Sequence[float]) -> tuple[Proposal, list[int]]:
    """What `grow_by_passes` returns, of a tree that a decoder grew at once."""
    tree = GrowingTree(floors)
    tree.tokens, tree.parents, tree.own_chances, tree.chances = (
        grown.tokens,
        grown.parents,
        grown.own_chances,
        grown.chances,
    )
    row_of = {-1: -1} | {node: row for row, node in enumerate(grown.rows)}
    parents = [row_of[tree.parents[node]] for node in grown.rows]
    return tree.proposal(), Tree(parents).path(grown.first_of_last) if parents else []


def with_runners_up(
    said: Iterable[tuple[int, F32]],
    position: int,
    acceptance: Acceptance,
    sharpness: float,
    floors: Sequence[float],
    goes_on: GoesOn,
) -> Proposal:
    """The tokens that a model has chosen one after another, each with those that it nearly chose.

    Arguments are those of `grow_by_passes`; `said` are the tokens with the logits (vocab_size,) that chose them.
    """
    tree = GrowingTree(floors)
    node = -1
    for depth, (token, logits) in enumerate(said):
        least, most = tree.least_chance(node), tree.most_children()
        children = tree.add(node, acceptance.guesses(logits, position + depth, least, most, sharpness, token))
        spine = [child for child in children if tree.tokens[child] == token]
        if not spine or not tree.may_have_children(spine):
            break
        (node,) = spine
        if not goes_on(tree.chances[node], tree.own_chances[node]):
            break
    return tree.proposal()
