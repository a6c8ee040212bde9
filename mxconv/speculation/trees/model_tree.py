"""Trees of a model's guesses: a frontier a pass, or the runners-up of tokens that it has verified.

Source:
    Frontiers of the likeliest nodes, cut to the likeliest tree at the end: EAGLE-2 (arXiv 2406.16858), sections 4.1 and
    4.2. Runners-up of a chain as leaves: design §9.
"""

from collections.abc import Callable, Iterable, Sequence

from mxconv.arrays import F32
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.draft import Proposal
from mxconv.speculation.trees.growing_tree import GrowingTree

MOST_IN_FRONTIER = 16

Evaluate = Callable[[Sequence[int], Tree], F32]
"""The logits (num_rows, vocab_size) of a tree's new rows, whose tokens are given."""


def grow_by_passes(
    first: F32,
    position: int,
    evaluate: Evaluate,
    acceptance: Acceptance,
    sharpness: float,
    most_depth: int,
    floors: Sequence[float],
    goes_on: Callable[[float, float], bool],
) -> tuple[Proposal, list[int]]:
    """Evaluate all nodes of a depth that may have children worth a row, and go on behind them.

    Args:
        first: (vocab_size,) the logits behind the context.
        position: of the first proposed token in the sequence.
        evaluate: a pass of the model.
        acceptance: the rule of the run.
        sharpness: as `Acceptance.guesses` takes it.
        most_depth: the most tokens of a path, at least one.
        floors: as `TreeDraft.grow` takes them, at least one.
        goes_on: whether a pass pays below nodes, of which are given the sum of the chances that their paths stand and
            the largest chance of one of them behind its parent.

    Returns:
        The proposal, and the rows that were evaluated on the path of the likeliest node of the last frontier.
    """
    tree = GrowingTree(floors)
    row_of = {-1: -1}
    parents: list[int] = []  # of the rows
    frontier, logits = [-1], first[None]
    for depth in range(most_depth):
        added: list[int] = []
        for node, row in zip(frontier, logits, strict=True):
            if most := tree.most_children(most_depth - depth - 1):
                guesses = acceptance.guesses(row, position + depth, tree.least_chance(node), most, None, sharpness)
                added += tree.add(node, guesses)
        able = tree.may_have_children(added)[: min(MOST_IN_FRONTIER, MOST_ROWS - len(parents))]
        if not able or depth == most_depth - 1:
            break
        if not goes_on(sum(tree.chances[node] for node in able), max(tree.own_chances[node] for node in able)):
            break
        num_cached = len(parents)
        for node in able:
            row_of[node] = len(parents)
            parents.append(row_of[tree.parents[node]])
        logits = evaluate([tree.tokens[node] for node in able], Tree(parents[:], num_cached))
        frontier = able
    return tree.proposal(), Tree(parents).path(row_of[frontier[0]]) if parents else []


def with_runners_up(
    said: Iterable[tuple[int, F32]],
    position: int,
    acceptance: Acceptance,
    sharpness: float,
    floors: Sequence[float],
    goes_on: Callable[[float, float], bool],
) -> Proposal:
    """The tokens that a model has chosen one after another, each with those that it nearly chose.

    Args:
        said: the tokens with the logits (vocab_size,) that chose them.
        position: of the first of them in the sequence.
        acceptance: the rule by which they were chosen.
        sharpness: as `Acceptance.guesses` takes it.
        floors: as `TreeDraft.grow` takes them, at least one.
        goes_on: whether a further token pays, as `grow_by_passes` takes it.
    """
    tree = GrowingTree(floors)
    node = -1
    for depth, (token, logits) in enumerate(said):
        most = tree.most_children()
        guesses = acceptance.guesses(logits, position + depth, tree.least_chance(node), most, token, sharpness)
        spine = [child for child in tree.add(node, guesses) if tree.tokens[child] == token]
        if not spine or not tree.may_have_children(spine):
            break
        (node,) = spine
        if not goes_on(tree.chances[node], tree.own_chances[node]):
            break
    return tree.proposal()
