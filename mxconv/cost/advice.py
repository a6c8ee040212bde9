"""Which hierarchy, which lengths, which threshold, and whether to speculate at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mxconv.cost.early_exit import expected_round
from mxconv.cost.hardware import Hardware
from mxconv.cost.levels import CostLevel, Workload, pass_seconds, seconds_per_token
from mxconv.cost.speedup import break_even_acceptance

OUTER_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
INNER_LENGTHS = (1, 2, 3, 4, 6, 8)
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)
WORTH = 1.05  # a smaller gain than this is within what such models get wrong


@dataclass(frozen=True)
class Choice:
    """A hierarchy with the lengths and threshold that make it fastest. `speedup` is over the plain baseline."""

    strategy: str
    levels: list[str]
    acceptance: list[float]
    acceptance_sources: list[str]
    num_draft_tokens: list[float]
    confidence: float | None  # of the outermost draft; None where nothing is drafted
    seconds_per_token: float
    tokens_per_second: float
    speedup: float
    break_even_acceptance: float | None  # of the outermost draft; None where no acceptance is enough


@dataclass(frozen=True)
class Advice:
    """All choices, the fastest first, and what follows from them."""

    choices: list[Choice]
    speculate: bool
    text: str


@dataclass(frozen=True)
class _Plan:
    seconds: float  # a token
    lengths: tuple[float, ...] = ()
    threshold: float | None = None
    num_drafted: float = 0.0  # a round, on average


def advise(
    hardware: Hardware,
    strategies: Mapping[str, Sequence[CostLevel]],
    workload: Workload,
    num_draft_tokens: Sequence[float] | None = None,
) -> Advice:
    """Rank hierarchies.

    Args:
        strategies: levels by name, plain decoding first: the baseline.
        num_draft_tokens: lengths to use, one a draft level; None searches. Thresholds are searched where lengths are.
    """
    baseline = next(iter(strategies.values()))
    plain_seconds = pass_seconds(hardware, baseline[0], workload)
    choices = [
        _best(name, hardware, levels, workload, num_draft_tokens, plain_seconds) for name, levels in strategies.items()
    ]
    choices.sort(key=lambda choice: choice.seconds_per_token)
    return Advice(choices, *_verdict(choices))


def _best(
    name: str,
    hardware: Hardware,
    levels: Sequence[CostLevel],
    workload: Workload,
    given: Sequence[float] | None,
    plain_seconds: float,
) -> Choice:
    drafts = levels[1:]
    plan, even = _Plan(pass_seconds(hardware, levels[0], workload)), None
    if drafts:
        plan = _given(hardware, levels, workload, given) if given else _search(hardware, levels, workload)
        inner = seconds_per_token(hardware, drafts, plan.lengths[1:], workload)
        verify = pass_seconds(hardware, levels[0], workload, 1 + plan.num_drafted)
        limit = top.break_even_acceptance
        even = "" if limit is None else f"; it pays down to an acceptance of {limit:.2f}"
        return True, f"Speculate with {top.strategy}: {top.speedup:.2f} times plain decoding{even}."
    if top.break_even_acceptance is None:
        reason = "even a draft that is always right costs more than it saves"
    else:
        reason = f"its break-even acceptance is {top.break_even_acceptance:.2f}, and it has {top.acceptance[0]:.2f}"
    found = f"{top.strategy}, the best with a draft, gives {gain:.2f} of plain {best.strategy}"
    return False, f"Do not speculate: {found}; {reason}."
