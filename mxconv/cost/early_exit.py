"""Draft lengths under a confidence threshold: drafting stops behind the first token whose probability is below it.

The draft's top probability p is taken as calibrated (a token of probability p is accepted with probability p) and as
distributed with density k p^(k-1) on [0, 1], k = a / (1 - a): the one-parameter family whose mean is the acceptance a
and whose mass lies near 1, where language models put it. Then, with q tokens confident and m confident and accepted,

    q = 1 - t^k        m = a (1 - t^(k+1))
    drafted a round = (1 - q^N) / (1 - q)        tokens a round = 1 + a (1 - m^N) / (1 - m)

At t = 0 this is Eq. (1) of Leviathan et al. (arXiv 2211.17192). The family is an assumption of mxconv's, to rank
thresholds before there is a trace; a trace's measured lengths and acceptance replace it.
"""

from dataclasses import dataclass

from mxconv.cost.speedup import check_acceptance, check_num_draft_tokens, check_probability


@dataclass(frozen=True)
class Round:
    """Means of a speculative round."""

    num_drafted: float
    num_tokens: float  # that it yields, the target's own one included

    def speedup(self, draft_cost: float, verify_cost: float = 1.0) -> float:
        """See `speedup.speedup`."""
        return self.num_tokens / (self.num_drafted * draft_cost + verify_cost)


def expected_round(acceptance: float, most: int, threshold: float = 0.0) -> Round:
    """What a round drafts and yields.

    Args:
        acceptance: of all tokens, whatever their confidence.
        most: num_draft_tokens, where drafting ends anyhow.
        threshold: least probability to go on behind.

    Raises:
        MxconvError: a probability outside [0, 1], or a length out of range.
    """
    check_acceptance(acceptance)
    check_probability("confidence threshold", threshold)
    check_num_draft_tokens(most)
    if acceptance in (0, 1):  # p is 0, or 1, always
        confident = float(acceptance > 0 or threshold == 0)
        return Round(_geometric(confident, most), 1 + acceptance * most)
    k = acceptance / (1 - acceptance)
    confident = 1 - threshold**k
    accepted = acceptance * (1 - threshold ** (k + 1))
    return Round(_geometric(confident, most), 1 + acceptance * _geometric(accepted, most))


def _geometric(ratio: float, count: int) -> float:
    """1 + ratio + ... of `count` terms."""
    return float(count) if ratio == 1 else (1 - ratio**count) / (1 - ratio)
