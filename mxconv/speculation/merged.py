"""Several drafts as one: their trees laid over each other, so that what they have in common is evaluated once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mxconv.arrays import F32
from mxconv.speculation.proposal import Proposal, TreeDraft
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import grow_best_first

Path = tuple[int, ...]


@dataclass
class _Node:
    """A place in the trees; after it the tokens that any of them has there."""

    chances: dict[int, float] = field(default_factory=dict)
    children: dict[int, "_Node"] = field(default_factory=dict)


def merge(proposals: Sequence[Proposal], floors: Sequence[float]) -> Proposal:
    """The likeliest nodes of some trees, each path once.

    A node that several have is as probable as the surest of them says: they judge by the same text, so that two who
    agree are not the two independent witnesses of a noisy-or. Tokens that were drawn are certain from here on, which
    changes no output: a verifier's own draws know nothing of theirs.

    Args:
        proposals: trees with their nodes' probabilities, below the same context.
        floors: as `TreeDraft.grow` takes them; the result has the nodes whose path is probable enough, the likeliest
            first.

    Source:
        RASD: Retrieval-Augmented Speculative Decoding (arXiv 2503.03434), fusion of trees by their prefixes; nodes are
        left out by probability, and of all trees alike.
    """
    root = _Node()
    for proposal in proposals:
        assert proposal.parents is not None
        nodes = [root]
        for token, parent, chance in zip(proposal.tokens, proposal.parents, proposal.probabilities, strict=True):
            above = nodes[parent + 1]
            above.chances[token] = max(above.chances.get(token, 0.0), chance)
            nodes.append(above.children.setdefault(token, _Node()))

    def continuations(node: _Node) -> list[tuple[int, float, _Node]]:
        return [(token, chance, node.children[token]) for token, chance in node.chances.items()]

    return grow_best_first(root, continuations, sum(len(each.tokens) for each in proposals), floors)


class Merged:
    """Drafts side by side: one tree of them all, or the chain of the first that has something to say.

    A chain counts for the draft that proposed it. A tree counts for each with its own nodes: those of them on the
    accepted path are accepted, so that a token that two proposed counts for both. The time of each is its own; that of
    merging counts for none.
    """

    def __init__(self, drafts: Sequence[TreeDraft]) -> None:
        self.drafts = drafts
        self._speaker = drafts[0]  # that proposed the last chain
        self._grown: list[Proposal] = []  # their last trees

    @property
    def name(self) -> str:
        return " + ".join(draft.statistics.name for draft in self.drafts)

    @property
    def statistics(self) -> LevelStatistics:
        """The statistics of the draft that proposed the last chain; of the first where none did."""
        return self._speaker.statistics

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """The chain of the first draft that has one."""
        for draft in self.drafts:
            proposal = draft.propose(context, num_tokens, floor)
            if proposal.tokens:
                self._speaker = draft
                return proposal
        self._speaker = self.drafts[0]
        return Proposal([])

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """The likeliest nodes of all drafts' trees."""
        self._grown = [draft.grow(context, most_depth, floors, floor) for draft in self.drafts]
        return replace(merge(self._grown, floors), joint=self)

    def count(self, num_asked: int, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Count for each draft what became of the last tree, as `JointDraft` has it."""
        judged = set(_paths(proposal))
        accepted = {tuple(tokens[:length]) for length in range(1, len(tokens))}
        for draft, own in zip(self.drafts, self._grown, strict=True):
            paths = judged.intersection(_paths(own))
            counts = Counter(map(len, paths))
            widths = [counts[depth] for depth in range(1, len(counts) + 1)]
            draft.statistics.count(num_asked, len(widths), len(paths & accepted), widths)

    def guessers(self, tokens: Sequence[int]) -> list[str | None]:
        """The draft that proposed each accepted token of the last tree, the first of several."""
        named = [(draft.statistics.name, set(_paths(own))) for draft, own in zip(self.drafts, self._grown, strict=True)]
        accepted = [tuple(tokens[:length]) for length in range(1, len(tokens))]
        return [next((name for name, paths in named if path in paths), None) for path in accepted]

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        for draft in self.drafts:
            draft.observe(context, proposal, logits)


def _paths(proposal: Proposal) -> list[Path]:
    """The tokens of each node's path, from the top down."""
    assert proposal.parents is not None
    paths: list[Path] = []
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths
