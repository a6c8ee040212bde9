"""How a run chooses its tokens, greedily or at random with a seed; and the request of a text."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from mxconv.errors import ModelError
from mxconv.speculation.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance, RejectionAcceptance
from mxconv.speculation.block_verification import BlockAcceptance
from mxconv.speculation.path_rules import PathMask, PathPenalties, PathRules
from mxconv.text.constraint import Grammar
from mxconv.text.distribution import Sampling
from mxconv.text.penalties import Penalties

MAX_SEED = 2**64 - 1
NO_PENALTIES = Penalties()
Accept = Literal["coupled", "rejection", "block"]
RULES: Mapping[str, Callable[[Sampling, int], Acceptance]] = {
    "coupled": CoupledAcceptance,
    "rejection": RejectionAcceptance,
    "block": BlockAcceptance,
}


@dataclass(frozen=True)
class Selection:
    """How tokens are chosen. Raises ModelError for a rule that there is not, or a seed of more than 64 bits."""

    sampling: Sampling | None = None  # greedy without
    accept: Accept = "coupled"  # how drafts are verified when tokens are drawn at random
    seed: int = 0  # of all draws
    penalties: Penalties = NO_PENALTIES  # what is held against tokens before they are chosen, greedily too
    constraint: Grammar | None = None  # what the answer must look like

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ModelError(f"seed: {self.seed}; a number from 0 to {MAX_SEED} is required. Choose another.")
        if self.accept not in RULES:
            raise ModelError(f"accept: {self.accept!r}; one of {', '.join(RULES)} is required. Choose one.")

    def acceptance(self, num_prompt_tokens: int = 0) -> Acceptance:
        """The rule, fresh for a run after a prompt of so many tokens."""
        rule = GreedyAcceptance() if self.sampling is None else RULES[self.accept](self.sampling, self.seed)
        penalties = None if self.penalties.is_neutral else PathPenalties(self.penalties, num_prompt_tokens)
        grammar = self.constraint
        mask = None if grammar is None else PathMask(grammar.matcher(), grammar.ends, num_prompt_tokens)
        if penalties is not None or mask is not None:
            rule.rules = PathRules(penalties, mask)
        return rule


GREEDY = Selection()


@dataclass(frozen=True)
class Request:
    """A prompt, and how it is to go on.

    Args:
        prompt: token ids, at least one.
        max_new_tokens: at least one.
        stop_tokens: ids that end the text; the one that does is part of it.
        selection: how tokens are chosen.
        uses_drafts: whether drafts propose tokens; without them the same text takes a pass of the target a token.
    """

    prompt: list[int]
    max_new_tokens: int
    stop_tokens: Collection[int] = ()
    selection: Selection = GREEDY
    uses_drafts: bool = True

    def acceptance(self) -> Acceptance:
        """The rule, fresh for the text."""
        return self.selection.acceptance(len(self.prompt))
