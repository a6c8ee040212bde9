"""What a draft is: anything that can guess how a context goes on."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mxconv.arrays import F32, F64
from mxconv.engine.tree import Tree, TreeLimits, depths_of
from mxconv.speculation.statistics import LevelStatistics


@dataclass(frozen=True)
class Proposal:
    """A tree of tokens that may follow a context; tokens without parents are a chain, one after another.

    Args:
        tokens: of the nodes, parents before children.
        distributions: (vocab_size,) float64 each, what token i was drawn from. Empty where tokens were not drawn at
            random; a verifier then takes each for certain.
        probabilities: each node's own, after its parent. Empty where the draft is no model of the same tokens.
        parents: each node's parent among the nodes, or -1 after the context. Siblings carry different tokens, the
            likelier first.
    """

    tokens: list[int]
    distributions: list[F64] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.parents:
            object.__setattr__(self, "parents", list(range(-1, len(self.tokens) - 1)))

    @cached_property
    def is_branched(self) -> bool:
        """Whether it is more than a chain."""
        return any(parent != node - 1 for node, parent in enumerate(self.parents))

    @cached_property
    def depths(self) -> list[int]:
        """The number of nodes above each node."""
        return depths_of(self.parents)

    @cached_property
    def widths(self) -> list[int]:
        """The number of nodes at each depth."""
        counts = Counter(self.depths)
        return [counts[depth] for depth in range(len(counts))]

    @property
    def depth(self) -> int:
        """Tokens of the longest path."""
        return len(self.widths)

    def rows(self, num_before: int) -> Tree:
        """The rows of a pass over `num_before` tokens of the context, at least one, and the proposal after them."""
        return Tree([*range(-1, num_before - 1), *(num_before + parent for parent in self.parents)])

    @property
    def chances(self) -> list[float]:
        """The chance of each node's path; empty where the draft has no probabilities."""
        chances: list[float] = []
        for probability, parent in zip(self.probabilities, self.parents, strict=False):
            chances.append(probability * (1.0 if parent < 0 else chances[parent]))
        return chances

    def within(self, vocab_size: int, most_depth: int) -> "Proposal":
        """The tree without the nodes that are too deep, or whose token or ancestor a vocabulary lacks."""
        pairs = zip(self.tokens, self.depths, strict=True)
        return self.where([0 <= token < vocab_size and depth < most_depth for token, depth in pairs])

    def where(self, kept: Sequence[bool]) -> "Proposal":
        """The same without nodes that are not kept, and those below them."""
        if all(kept):
            return self
        places: dict[int, int] = {-1: -1}
        for node, parent in enumerate(self.parents):
            if kept[node] and parent in places:
                places[node] = len(places) - 1
        nodes = list(places)[1:]
        return Proposal(
            [self.tokens[node] for node in nodes],
            [self.distributions[node] for node in nodes] if self.distributions else [],
            [self.probabilities[node] for node in nodes] if self.probabilities else [],
            [places[self.parents[node]] for node in nodes],
        )

    def after(self, tokens: list[int]) -> "Proposal":
        """The same below a chain of tokens that are certain."""
        count = len(tokens)
        return Proposal(
            [*tokens, *self.tokens],
            probabilities=[*[1.0] * count, *self.probabilities] if self.probabilities or not self.tokens else [],
            parents=[*range(-1, count - 1), *(count + parent for parent in self.parents)],
        )

    def children(self, node: int) -> list[int]:
        """The nodes after a node, or after the context where it is -1."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """The tokens from the context down to a node, its own included; none where it is -1."""
        tokens: list[int] = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]


NOTHING = Proposal([])


class Draft(ABC):
    """A level that can propose: a look-up, a reader of hidden states, or a model, perhaps with drafts of its own."""

    statistics: LevelStatistics

    @abstractmethod
    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """The likeliest tree below a context, of a chain's limits a chain; none where confidence is low.

        Args:
            context: all tokens so far, at least one. The next context may differ from its continuation.
            limits: of the proposal. A draft that knows no branches may make a chain of any.
        """

    def num_unread(self, context: Sequence[int]) -> int:
        """The number of tokens of a context that it has to read before it can propose."""
        return 0

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:  # noqa: B027 - most drafts learn nothing
        """See what the level above evaluated, after every verification.

        Args:
            context: all tokens before the proposal, at least one.
            proposal: what was judged, rejected tokens included; another draft may have made it.
            logits: (len(proposal.tokens) + 1, vocab_size): the first row follows the context, row i + 1 node i.
        """

    def learn(self, limits: TreeLimits, proposal: Proposal, tokens: Sequence[int]) -> None:  # noqa: B027
        """See what became of a proposal of its own, made within limits: the tokens that the level above chose."""
