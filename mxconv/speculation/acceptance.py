"""Which proposed tokens stand: the rule by which a level chooses its own tokens and compares them with its draft's.

    greedy      the most likely token; a proposal stands where it is that token
    coupled     a draw whose noise depends on the seed and the position alone; a proposal stands where it is what the
                level draws. The output is the same tokens with any hierarchy or none, and drafts that share the noise
                agree more often than two independent draws would
    rejection   Leviathan et al.: accept with probability min(1, p/q), else draw from what is left of p. The output
                has the target's distribution, but other tokens with other drafts

A proposal may be a tree: the walk goes on into the child that stands, and ends where none does. Under the first two the
level's token at a node is what it would be without any tree. Under rejection the siblings are judged in their order,
each against what those before it left of p and q.

Each is a file in `mxconv/speculation/rules/`, with its source.
"""

from dataclasses import dataclass, field
from typing import Protocol

from mxconv.arrays import F32, F64, I64
from mxconv.speculation.draft import Proposal
from mxconv.speculation.guesses import SHARPNESS, Guesses
from mxconv.speculation.path_penalties import PathPenalties, Rows


@dataclass(frozen=True)
class Verdict:
    """The tokens of a round: those of the proposal that stand, and one more of the level's own.

    Args:
        tokens: at least one.
        distributions: what each was drawn from, (vocab_size,) float64; empty under rules that draw nothing at random
            or make the draw again wherever it is needed.
        path: the nodes of the proposal that stand, one less than the tokens.
    """

    tokens: list[int]
    distributions: list[F64] = field(default_factory=list)
    path: list[int] = field(default_factory=list)


class Acceptance(Protocol):
    """A rule; one object serves all levels of a hierarchy during one run.

    `penalties` are what levels put their logits through before they hand them to the rule; None where nothing is held
    against tokens.
    """

    penalties: PathPenalties | None

    def judge(self, logits: Rows, proposal: Proposal, position: int) -> Verdict:
        """Judge a proposal.

        Args:
            logits: len(proposal.tokens) + 1 rows of (vocab_size,) float32; the first row follows the context, row i + 1
                node i.
            proposal: the draft's guess.
            position: of the first proposed token in the sequence, the prompt counted.
        """
        ...

    def guesses(
        self,
        logits: F32,
        position: int,
        least: float,
        most: int,
        first: int | None = None,
        sharpness: float = SHARPNESS,
    ) -> Guesses:
        """What a draft with these logits says at one position: several tokens, as siblings of a tree.

        How many there are is decided before any of them is drawn.

        Args:
            logits: (vocab_size,) float32.
            position: in the sequence, the prompt counted.
            least: a token is less likely than this to be chosen and is left out.
            most: tokens.
            first: a token that the draft has chosen there already by this rule, and that is the first.
            sharpness: how many times as large the logits are to be taken; what is drawn at random heeds it not.
        """
        ...

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        """What decides between tokens: the greatest is chosen, minus infinity never is.

        A draft that ranks by it what it believes the logits to be hears the noise of the rule, where there is one that
        it may hear. The order is then that of drawing without replacement, and its softmax the chance that a level is
        right to choose each whose own logits differ from the draft's by standard Gumbel noise once more.

        Args:
            logits: (n,) float32, of all tokens or of some, as far as they are known.
            position: of the token to be chosen in the sequence, the prompt counted.
            tokens: (n,) ids of which the logits are; None where they are of all, in order.
        """
        ...
