"""What a draft is: anything that can guess how a context goes on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from mxconv.arrays import F32, F64
from mxconv.engine.tree import Tree
from mxconv.speculation.statistics import LevelStatistics


@dataclass(frozen=True)
class Proposal:
    """Tokens that may follow a context: one after another, or a tree.

    Args:
        tokens: in order; of a tree, its nodes, parents before children.
        distributions: (vocab_size,) float64 each, what token i was drawn from. Empty where tokens were not drawn at
            random; a verifier then takes each for certain.
        probabilities: of a chain, the highest of the distribution that chose each token; of a tree, each node's own.
            Empty where the draft is no model of the same tokens.
        parents: of a tree, each node's parent among the nodes, or -1 after the context; None for a chain. Siblings
            carry different tokens, the likelier first.
    """

    tokens: list[int]
    distributions: list[F64] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    parents: Sequence[int] | None = None

    @property
    def links(self) -> Sequence[int]:
        """The parent of each node, or -1 after the context; a chain has parents too."""
        return range(-1, len(self.tokens) - 1) if self.parents is None else self.parents

    @property
    def depth(self) -> int:
        """Tokens of the longest path."""
        return len(self.widths)

    @property
    def widths(self) -> list[int]:
        """The number of nodes at each depth."""
        if self.parents is None:
            return [1] * len(self.tokens)
        counts = Counter(self.rows(1).depths[1:])
        return [counts[depth] for depth in range(1, len(counts) + 1)]

    def rows(self, num_before: int) -> Tree:
        """The rows of a pass over `num_before` tokens of the context, at least one, and the proposal after them."""
        return Tree([*range(-1, num_before - 1), *(num_before + parent for parent in self.links)])

    @property
    def chances(self) -> list[float]:
        """Each token's probability; of a tree, that of each node's path."""
        if self.parents is None:
            return self.probabilities
        chances: list[float] = []
        for probability, parent in zip(self.probabilities, self.parents, strict=True):
            chances.append(probability * (1.0 if parent < 0 else chances[parent]))
        return chances

    def with_tokens_below(self, vocab_size: int) -> "Proposal":
        """A tree without the nodes whose token or ancestor a vocabulary lacks."""
        return self.where([0 <= token < vocab_size for token in self.tokens])

    def where(self, kept: Sequence[bool]) -> "Proposal":
        """The same without nodes that are not kept, and those below them; a chain stays one."""
        places: dict[int, int] = {-1: -1}
        for node, parent in enumerate(self.links):
            if kept[node] and parent in places:
                places[node] = len(places) - 1
        nodes = list(places)[1:]
        return Proposal(
            [self.tokens[node] for node in nodes],
            [self.distributions[node] for node in nodes] if self.distributions else [],
            [self.probabilities[node] for node in nodes] if self.probabilities else [],
            None if self.parents is None else [places[self.links[node]] for node in nodes],
        )

    def after(self, tokens: list[int]) -> "Proposal":
        """The same below a chain of tokens that are certain."""
        count = len(tokens)
        return Proposal(
            [*tokens, *self.tokens],
            probabilities=[*[1.0] * count, *self.probabilities] if self.probabilities or not self.tokens else [],
            parents=None if self.parents is None else [*range(-1, count - 1), *(count + link for link in self.links)],
        )

    def children(self, node: int) -> list[int]:
        """The nodes after a node, or after the context where it is -1."""
        if self.parents is None:
            return [node + 1] if node + 1 < len(self.tokens) else []
        return [child for child, parent in enumerate(self.parents) if parent == node]


class Draft(Protocol):
    """A level that can propose: a look-up, a reader of hidden states, or a model, perhaps with drafts of its own."""

    @property
    def statistics(self) -> LevelStatistics: ...

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """A chain of at most `num_tokens` tokens; fewer, or none, where confidence is low.

        Args:
            context: all tokens so far, at least one. The next context may differ from its continuation.
            num_tokens: the most to propose.
            floor: a model stops after the token with which the product of its probabilities falls below this; None
                leaves it at the draft's own confidence threshold, token by token. Look-ups ignore it.
        """
        ...

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """See what the level above evaluated, after every verification.

        Args:
            context: all tokens before the proposal, at least one.
            proposal: what was judged, rejected tokens included; another draft may have made it.
            logits: (len(proposal.tokens) + 1, vocab_size): the first row follows the context, row i + 1 node i.
        """
        ...


@runtime_checkable
class TreeDraft(Draft, Protocol):
    """A draft that can propose several continuations at once."""

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """The likeliest tree below a context, with parents and each node's own probability.

        Args:
            context: all tokens so far, at least one.
            most_depth: the most tokens of a path.
            floors: ascending: the least probability of the first node's path, of the second's, and so on. There are at
                most as many nodes.
            floor: a model makes no further pass for nodes whose chances sum up to less than this; None leaves it at
                the draft's own confidence threshold. Look-ups ignore it.
        """
        ...
