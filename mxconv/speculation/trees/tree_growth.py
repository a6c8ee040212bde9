"""Growing a tree of guesses best first: the node whose path is likeliest is next."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TypeVar

from mxconv.speculation.draft import Proposal

State = TypeVar("State")  # what a draft continues from: the last token, the last two, a place in a text


def grow_best_first(
    root: State,
    continuations: Callable[[State], Iterable[tuple[int, float, State]]],
    most_depth: int,
    floors: Sequence[float],
) -> Proposal:
    """The likeliest nodes: with true probabilities no other tree of as many expects more accepted tokens.

    Args:
        root: the context's own state.
        continuations: the tokens that may follow a state, different ones, with their probabilities and states.
        most_depth: the most tokens of a path.
        floors: least probability of the first node's path, of the second one's, ..., ascending: as many at most.

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
