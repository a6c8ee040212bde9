"""One round as a picture has it: what was proposed, what stood, and what was written."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mxconv.speculation.draft import Proposal


@dataclass(frozen=True)
class RoundTree:
    """A proposal to a level and what became of it; a chain is a tree too.

    Args:
        draft: the name of the level that proposed; None where none was asked.
        tokens: of the proposal's nodes, parents before children.
        parents: each node's parent among them, or -1.
        probabilities: each node's own; empty where the draft tells none.
        emitted: the level's own tokens: those that stand, and one more.
    """

    draft: str | None
    tokens: Sequence[int]
    parents: Sequence[int]
    probabilities: Sequence[float]
    emitted: Sequence[int]

    @classmethod
    def of(cls, draft: str | None, proposal: Proposal, emitted: Sequence[int]) -> "RoundTree":
        parents = range(-1, len(proposal.tokens) - 1) if proposal.parents is None else proposal.parents
        return cls(draft, proposal.tokens, parents, proposal.probabilities, emitted)

    @cached_property
    def path(self) -> list[int]:
        """The nodes that stand: siblings carry different tokens, so the emitted ones say which."""
        nodes = {
            (parent, token): node for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True))
        }
        path: list[int] = []
        for token in self.emitted[:-1]:
            path.append(nodes[path[-1] if path else -1, token])
        return path
