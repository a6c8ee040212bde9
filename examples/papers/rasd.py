"""Trees of several look-ups merged by their prefixes, as RASD merges retrieved continuations: one draft of two.

    mxconv generate PACKAGE --draft examples/papers/rasd.py:MergedKind --tree 16 --prompt TEXT --check

Source:
    RASD: Retrieval-Augmented Speculative Decoding (arXiv 2503.03434), fusion of trees by their prefixes. What is
    retrieved is of the text itself and of earlier ones, not of an index; nodes are left out by probability.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mxconv.arrays import F32
from mxconv.drafts.kind import LookUp, LookUpKind
from mxconv.drafts.kinds import KINDS
from mxconv.engine.tree import TreeLimits
from mxconv.package.level_record import LevelBase
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.loaded_level import LoadedLevel, Proposer
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import grow_best_first

MEMBERS = ("prompt-lookup", f"{Path(__file__).with_name('stand.py')}:StandKind")


@dataclass
class Node:
    """A place in the trees; after it the tokens that any of them has there."""

    chances: dict[int, float] = field(default_factory=dict)
    children: dict[int, "Node"] = field(default_factory=dict)


def merge(proposals: Sequence[Proposal], limits: TreeLimits) -> Proposal:
    """Return the likeliest nodes of some trees, each path once, as probable as the surest of them says."""
    root = Node()
    for proposal in proposals:
        nodes = [root]
        for token, parent, chance in zip(proposal.tokens, proposal.parents, proposal.probabilities, strict=True):
            above = nodes[parent + 1]
            above.chances[token] = max(above.chances.get(token, 0.0), chance)
            nodes.append(above.children.setdefault(token, Node()))

    def continuations(node: Node) -> list[tuple[int, float, Node]]:
        return [(token, chance, node.children[token]) for token, chance in node.chances.items()]

    return grow_best_first(root, continuations, limits)


class Merged(Draft):
    """One tree of all drafts, or the chain of the first that has one; the members' time counts as its own."""

    def __init__(self, statistics: LevelStatistics, drafts: Sequence[Draft]) -> None:
        self.statistics, self._drafts = statistics, drafts

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """The likeliest nodes of all trees, or the chain of the first draft that has one."""
        with self.statistics.timed_pass():
            proposals = [draft.propose(context, limits) for draft in self._drafts]
            if limits.is_chain:
                return next((chain for chain in proposals if chain.tokens), Proposal([]))
            return merge(proposals, limits)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """Show every draft what was verified."""
        for draft in self._drafts:
            draft.observe(context, proposal, logits)


class MergedKind(LookUpKind):
    """`rasd.py:MergedKind`: prompt-lookup and STAND's n-grams."""

    name = "merged"
    record_type = LevelBase

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        members = [KINDS[word].proposer(loaded, vocab_size, confidence) for word in MEMBERS]

        def draft(statistics: LevelStatistics, acceptance: Acceptance) -> Merged:
            made = [member(LevelStatistics(loaded.name), acceptance) for member in members]
            return Merged(statistics, [each for each in made if isinstance(each, LookUp)])

        return draft
