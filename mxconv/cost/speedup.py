"""How much faster speculation decodes, from acceptance and relative cost, for any hierarchy of levels.

    expected_tokens(a, n) = (1 - a^(n+1)) / (1 - a)                    tokens a round, the target's own one included
    speedup = expected_tokens(a, n) / (n c + v)                        c: a draft token, v: the verification, both in
                                                                       passes of the target over one token

Sources:
    The two lines are Theorem 3.8 of Leviathan et al. (arXiv 2211.17192) with the verification's cost spelled out; the
    first is their Eq. (1). ML-SpecQD (arXiv 2503.13565) uses them as its Eq. (1) and applies them again to its draft;
    SPEQ (arXiv 2510.18525) as its Eqs. (1)-(2), with Td/Tar for c and the mean length under early exit for n. The
    texts of the latter two were not at hand when this was written, so their notation is not reproduced here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mxconv.errors import MxconvError

MOST_DRAFT_TOKENS = 1024


@dataclass(frozen=True)
class LevelCost:
    """A level of a hierarchy.

    Args:
        seconds: one forward pass over one token, in any unit that all levels share.
        acceptance: probability that the level above keeps a token of this one; unused for the target.
        num_draft_tokens: how many it proposes in a round, on average; may be fractional; unused for the target.
        verify_seconds: one pass over the tokens that the next level proposes; None takes `seconds`.
    """

    seconds: float
    acceptance: float = 0.0
    num_draft_tokens: float = 0.0
    verify_seconds: float | None = None


def expected_tokens(acceptance: float, num_draft_tokens: float) -> float:
    """Tokens a round yields, each draft token accepted with the same probability, independently.

    Raises:
        MxconvError: acceptance outside [0, 1], or a length outside [0, 1024].

    Source:
        Leviathan et al. (arXiv 2211.17192), Eq. (1).
    """
    check_acceptance(acceptance)
    check_num_draft_tokens(num_draft_tokens)
    if acceptance == 1:
        return num_draft_tokens + 1
    return float((1 - acceptance ** (num_draft_tokens + 1)) / (1 - acceptance))


def speedup(acceptance: float, num_draft_tokens: float, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Tokens a second over plain decoding.

    Args:
        acceptance: probability that a draft token is accepted.
        num_draft_tokens: drafted a round; the mean, under early exit.
        draft_cost: seconds of a draft token over those of a plain token of the target.
        verify_cost: seconds of the verification likewise.

    Source:
        ML-SpecQD Eq. (1); SPEQ Eqs. (1)-(2) with Td/Tar as `draft_cost` and Tv = Tar.
    """
    return expected_tokens(acceptance, num_draft_tokens) / (num_draft_tokens * draft_cost + verify_cost)


def hierarchy_seconds(levels: Sequence[LevelCost]) -> float:
    """Seconds a token, the target first and each level drafting for the one before: the same equation, recursively.

    A level with a draft costs, per token, one round of itself over the tokens that the round yields. A round is taken
    to be as long as its draft proposes; that the level above asks for a limited number at once is left out.

    Source:
        ML-SpecQD section III: speculation applied to the draft itself.
    """
    top, *drafts = levels
    if not drafts:
        return top.seconds
    draft = drafts[0]
    verify = top.seconds if top.verify_seconds is None else top.verify_seconds
    draft_seconds = draft.num_draft_tokens * hierarchy_seconds(drafts)
    return (draft_seconds + verify) / expected_tokens(draft.acceptance, draft.num_draft_tokens)


def hierarchy_speedup(levels: Sequence[LevelCost]) -> float:
    """Of all levels together over the target alone."""
    return levels[0].seconds / hierarchy_seconds(levels)


def break_even_acceptance(num_draft_tokens: float, draft_cost: float, verify_cost: float = 1.0) -> float | None:
    """The acceptance at which speculation is as fast as none; None where even acceptance 1 is not enough."""
    if speedup(1.0, num_draft_tokens, draft_cost, verify_cost) < 1:
        return None
    low, high = 0.0, 1.0  # the speed-up grows with acceptance
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if speedup(middle, num_draft_tokens, draft_cost, verify_cost) >= 1 else (middle, high)
    return high


def check_acceptance(value: float) -> None:
    """Raises MxconvError outside [0, 1]."""
    check_probability("acceptance", value)


def check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:  # a NaN fails too
        raise MxconvError(f"{name}: {value:g}; a probability from 0 to 1 is required. Give it as a fraction, 0.9.")


def check_num_draft_tokens(value: float) -> None:
    if not 0 <= value <= MOST_DRAFT_TOKENS:
        raise MxconvError(
            f"draft tokens: {value:g}; a number from 0 to {MOST_DRAFT_TOKENS} is required. Give a shorter length."
        )
