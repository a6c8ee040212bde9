"""The tree of the MLP speculators: the best few of every head's tokens, cut to the likeliest whole paths.

Source:
    arXiv 2404.19124, sections 3.1 and 4.1: 6 x 3 x 2 candidates, of which the k of the highest confidence are kept.
"""

from collections.abc import Sequence

from mxconv.arrays import F32
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.draft import Proposal
from mxconv.speculation.trees.growing_tree import GrowingTree
from mxconv.speculation.trees.model_tree import Evaluate


def grow_candidates(
    first: F32,
    position: int,
    evaluate: Evaluate,
    acceptance: Acceptance,
    top_k: Sequence[int],
    num_candidates: int,
) -> Proposal:
    """Expand every node of each depth, then keep the likeliest paths of full length.

    Where all nodes of all depths are more than a pass has rows, every depth has its share of them, for the likeliest.

    Args:
        first: (vocab_size,) the logits behind the context.
        position: of the first proposed token in the sequence.
        evaluate: a pass of the draft over new rows of a tree.
        acceptance: the rule of the run; none that draws at random, since what it drew may not be left out.
        top_k: children of each node, by depth; at least one depth.
        num_candidates: paths to keep, at least one.
    """
    tree = GrowingTree([0.0])
    row_of = {-1: -1}
    parents: list[int] = []
    frontier, logits = [-1], first[None]
    for depth, most in enumerate(top_k):
        added: list[int] = []
        for node, row in zip(frontier, logits, strict=True):
            added += tree.add(node, acceptance.guesses(row, position + depth, 0.0, most))
        if depth == len(top_k) - 1:
            leaves = _likeliest(tree, added, num_candidates)
            break
        frontier = _likeliest(tree, added, (MOST_ROWS - len(parents)) // (len(top_k) - 1 - depth))  # rows for all
        leaves = frontier[:num_candidates]
        if not frontier:
            break
        num_cached = len(parents)
        for node in frontier:
            row_of[node] = len(parents)
            parents.append(row_of[tree.parents[node]])
        logits = evaluate([tree.tokens[node] for node in frontier], Tree(parents[:], num_cached))
    return _with_ancestors(tree, leaves)


def _likeliest(tree: GrowingTree, nodes: Sequence[int], most: int) -> list[int]:
    return sorted(nodes, key=lambda node: -tree.chances[node])[:most]


def _with_ancestors(tree: GrowingTree, leaves: Sequence[int]) -> Proposal:
    """Some nodes and all above them, in the order in which they grew; of those the first that fit into a pass."""
    kept: set[int] = set()
    for leaf in leaves:
        path, node = [], leaf
        while node >= 0 and node not in kept:
            path.append(node)
            node = tree.parents[node]
        if len(kept) + len(path) >= MOST_ROWS:
            break
        kept.update(path)
    nodes = sorted(kept)
    place = {-1: -1} | {node: index for index, node in enumerate(nodes)}
    return Proposal(
        [tree.tokens[node] for node in nodes],
        [],
        [tree.own_chances[node] for node in nodes],
        [place[tree.parents[node]] for node in nodes],
    )
