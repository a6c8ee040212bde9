"""Down a proposal by a level's own choices."""

from collections.abc import Callable

from mxconv.speculation.acceptance import Verdict
from mxconv.speculation.draft import Proposal


def walk(proposal: Proposal, choose: Callable[[int, int], int]) -> Verdict:
    """Follow a level's own choices down the proposal, as far as it has them.

    Args:
        choose: the level's token behind a node (-1: the context) at a depth (0: the first proposed place).
    """
    tokens: list[int] = []
    path: list[int] = []
    node: int | None = -1
    while node is not None:
        tokens.append(choose(node, len(tokens)))
        node = next((child for child in proposal.children(node) if proposal.tokens[child] == tokens[-1]), None)
        if node is not None:
            path.append(node)
    return Verdict(tokens, path=path)
