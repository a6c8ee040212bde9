"""How much faster speculation decodes, from acceptance and relative cost, for any hierarchy of levels.

Two equations, which call two things acceptance:

    Leviathan    E(a, n) = (1 - a^(n+1)) / (1 - a)          tokens a round, the target's own one included
                 speedup = E(a, n) / (n c + v)              a: probability of each token, independently
    ML-SpecQD    speedup = (G + 1) / (1 + N / S) = (a + 1/N) / (1/N + 1/S)
                                                            a = G / N: share of the drafted tokens that are accepted

c is the cost of a draft token and v that of the verification, both in passes of the target over one token; S = 1 / c. A
round in which G tokens are accepted yields G + 1, so both give the same speed-up (at v = 1) where the share is
(E(a, n) - 1) / n. At one and the same number they differ: the share counts tokens after the first
wrong one as wrong.

Sources:
    Leviathan et al. (arXiv 2211.17192), Eq. (1) and Theorem 3.8; SPEQ (arXiv 2510.18525) has them as its Eqs. (1)-(2),
    with Td/Tar for c and the mean length under early exit for n.
    ML-SpecQD (arXiv 2503.13565), Eq. (1), of one round, and section III-C for drafts of drafts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mxconv.errors import MxconvError

MOST_DRAFT_TOKENS = 1024
TokensPerRound = Callable[[float, float], float]  # from acceptance and draft tokens: what sets the equations apart


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
    check_round("acceptance", acceptance, num_draft_tokens)
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
        Leviathan et al. (arXiv 2211.17192), Theorem 3.8; SPEQ Eqs. (1)-(2), `draft_cost` being Td/Tar, with Tv = Tar.
    """
    return expected_tokens(acceptance, num_draft_tokens) / (num_draft_tokens * draft_cost + verify_cost)


def accepted_tokens(share: float, num_draft_tokens: float) -> float:
    """Tokens a round yields where that share of the drafted ones is accepted: G + 1 of ML-SpecQD.

    Raises:
        MxconvError: a share outside [0, 1], or a length outside [0, 1024].
    """
    check_round("accepted share", share, num_draft_tokens)
    return share * num_draft_tokens + 1


def round_speedup(share: float, num_draft_tokens: float, draft_speed: float, verify_cost: float = 1.0) -> float:
    """Tokens a second over plain decoding, of a round in which that share of the drafted tokens is accepted.

    Args:
        share: G / N, accepted over drafted.
        num_draft_tokens: N, drafted a round.
        draft_speed: S, how many draft tokens take as long as one token of the target.
        verify_cost: seconds of the verification over those of a plain pass; 1 in the printed equation.

    Raises:
        MxconvError: a share outside [0, 1], a length outside [0, 1024], or a speed that is not above 0.

    Source:
        ML-SpecQD (arXiv 2503.13565), Eq. (1).
    """
    if not draft_speed > 0:
        raise MxconvError(
            f"draft speed: {draft_speed:g}; a number above 0 is required. Give target over draft seconds."
        )
    return accepted_tokens(share, num_draft_tokens) / (verify_cost + num_draft_tokens / draft_speed)


def hierarchy_seconds(levels: Sequence[LevelCost], tokens_per_round: TokensPerRound = expected_tokens) -> float:
    """Seconds a token, the target first and each level drafting for the one before: either equation, recursively.

    A level with a draft costs, per token, one round of itself over the tokens that the round yields. A round is taken
    to be as long as its draft proposes; that the level above takes a limited number at once is left out.

    Args:
        tokens_per_round: `expected_tokens` where acceptance is a probability, `accepted_tokens` where it is a share.

    Source:
        ML-SpecQD section III-C: speculation applied to the draft itself, S' in place of S in its Eq. (1).
    """
    top, *drafts = levels
    if not drafts:
        return top.seconds
    draft = drafts[0]
    verify = top.seconds if top.verify_seconds is None else top.verify_seconds
    draft_seconds = draft.num_draft_tokens * hierarchy_seconds(drafts, tokens_per_round)
    return (draft_seconds + verify) / tokens_per_round(draft.acceptance, draft.num_draft_tokens)


def hierarchy_speedup(levels: Sequence[LevelCost], tokens_per_round: TokensPerRound = expected_tokens) -> float:
    """Speed-up of all levels together over the target alone."""
    return levels[0].seconds / hierarchy_seconds(levels, tokens_per_round)


def break_even_acceptance(num_draft_tokens: float, draft_cost: float, verify_cost: float = 1.0) -> float | None:
    """The acceptance at which speculation is as fast as none; None where even acceptance 1 is not enough."""
    if speedup(1.0, num_draft_tokens, draft_cost, verify_cost) < 1:
        return None
    return _least(lambda acceptance: speedup(acceptance, num_draft_tokens, draft_cost, verify_cost) >= 1)


def acceptance_of(num_accepted: float, num_draft_tokens: float) -> float:
    """The probability that yields so many accepted tokens a round: the inverse of `expected_tokens`."""
    if num_draft_tokens == 0:
        return 0.0
    return _least(lambda acceptance: expected_tokens(acceptance, num_draft_tokens) - 1 >= num_accepted)


def _least(reaches: Callable[[float], bool]) -> float:
    """The least probability from which on `reaches` is true, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def check_round(name: str, probability: float, num_draft_tokens: float) -> None:
    """Check the acceptance (a probability, called `name` in messages) and the length of a round.

    Raises:
        MxconvError: one is out of range.
    """
    if not 0 <= probability <= 1:  # a NaN fails too
        raise MxconvError(
            f"{name}: {probability:g}; a probability from 0 to 1 is required. Give it as a fraction, 0.9."
        )
    if not 0 <= num_draft_tokens <= MOST_DRAFT_TOKENS:
        raise MxconvError(
            f"draft tokens: {num_draft_tokens:g}; a number from 0 to {MOST_DRAFT_TOKENS} is required. Give a shorter "
            "length."
        )
