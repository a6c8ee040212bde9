"""Block verification: a rule of acceptance that judges what is proposed from its end.

    block       speculative sampling by whole paths: a path that the target likes better than the draft does makes up
                for one token on it that it likes less. The output has the target's distribution, as under rejection,
                and of a chain at least as many tokens are accepted on average

The context has the chance 1, and a token min(1, c p/q), where c is the chance of its parent: its path is accepted down
to it or further with that very chance, whatever the draft proposes below it. A leaf is accepted with its chance. Once
a child is rejected with all below it, its parent's chance becomes R / (R + 1 - c), where R is the sum of
max(c p - q, 0), and p what is left: max(c p - q, 0) / R. The next sibling is judged against these. After the last one
the parent is accepted with the chance that it has then, and the token after it is drawn from what is left of p.

Source:
    Chains: arXiv 2403.10444, Algorithm 2. Trees: arXiv 2505.12398, which is the same rule on a chain.
"""

from dataclasses import dataclass, field

from mxconv.arrays import F64
from mxconv.speculation.acceptance import RejectionAcceptance, Verdict, drawn_from, excess
from mxconv.speculation.path_rules import Rows
from mxconv.speculation.proposal import Proposal
from mxconv.text.distribution import distribution


@dataclass
class _Place:
    """A node on the path that is being judged, and what its rejected children left of it."""

    node: int  # -1 is the context
    theirs: F64  # (vocab_size of the draft,), what its token was drawn from; not read of the context
    chance: float  # of the path down to it, or further
    ours: F64  # (vocab_size,), the target's distribution after it
    children: list[int]  # nodes not yet judged
    left: F64 = field(init=False)  # of `ours`
    rejected: list[int] = field(default_factory=list)  # tokens

    def __post_init__(self) -> None:
        self.left = self.ours

    def chance_of(self, token: int, theirs: F64) -> float:
        """The chance of the path down to a child with a token that was drawn from `theirs`."""
        weight: float = self.chance * self.left[token]
        return weight / max(weight, theirs[token]) if weight else 0

    def reject(self, token: int, theirs: F64) -> None:
        """Take from the chance and the distribution what a child had of them."""
        self.rejected.append(token)
        rest = excess(self.chance * self.left, theirs)
        total = rest.sum()
        if total:
            self.left, self.chance = rest / total, total / (total + (1 - self.chance))
        elif self.chance < 1:  # at 1 both are equal, and only rounding can have rejected the child
            self.chance = 0


class BlockAcceptance(RejectionAcceptance):
    """Speculative sampling by whole paths."""

    def judge(self, logits: Rows, proposal: Proposal, position: int) -> Verdict:
        ours = distribution(logits[0], self.sampling)
        path = [_Place(-1, ours, 1, ours, proposal.children(-1))]
        while True:
            last = path[-1]
            if last.chance and last.children:
                node = last.children.pop(0)
                token, theirs = proposal.tokens[node], drawn_from(proposal, node, last.rejected, len(last.ours))
                if chance := last.chance_of(token, theirs):
                    ours = distribution(logits[node + 1], self.sampling)
                    path.append(_Place(node, theirs, chance, ours, proposal.children(node)))
                else:
                    last.reject(token, theirs)
            elif len(path) == 1 or self.random.random() < last.chance:
                nodes = [place.node for place in path[1:]]
                tokens = [*(proposal.tokens[node] for node in nodes), self._draw(last.left)]
                return Verdict(tokens, [place.ours for place in path], nodes)
            else:
                path.pop()
                path[-1].reject(proposal.tokens[last.node], last.theirs)
