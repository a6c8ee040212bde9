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
    num_drafted: float  # a round by the outermost draft, on average: fewer than its length under a threshold
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
        verify = pass_seconds(hardware, levels[0], workload, 1 + plan.num_drafted * drafts[0].rows_per_token)
        even = break_even_acceptance(plan.num_drafted, inner / plain_seconds, verify / plain_seconds)
    return Choice(
        strategy=name,
        levels=[level.name for level in levels],
        acceptance=[level.acceptance for level in drafts],
        acceptance_sources=[level.acceptance_source for level in drafts],
        num_draft_tokens=list(plan.lengths),
        confidence=plan.threshold,
        num_drafted=plan.num_drafted,
        seconds_per_token=plan.seconds,
        tokens_per_second=workload.batch / plan.seconds,
        speedup=plain_seconds / plan.seconds,
        break_even_acceptance=even,
    )


def _given(hardware: Hardware, levels: Sequence[CostLevel], workload: Workload, given: Sequence[float]) -> _Plan:
    """With lengths as they are; the last one serves the levels below it."""
    lengths = tuple(given[min(index, len(given) - 1)] for index in range(len(levels) - 1))
    return _Plan(seconds_per_token(hardware, levels, lengths, workload), lengths, 0.0, lengths[0])


def _search(hardware: Hardware, levels: Sequence[CostLevel], workload: Workload) -> _Plan:
    """The fastest lengths, and the fastest threshold of the outermost draft."""
    drafts = levels[1:]
    inner_lengths = list(product(INNER_LENGTHS, repeat=len(drafts) - 1))
    inner = {lengths: seconds_per_token(hardware, drafts, lengths, workload) for lengths in inner_lengths}
    fastest = min(inner, key=lambda lengths: inner[lengths])
    plans = []
    for outer, threshold in product(OUTER_LENGTHS, THRESHOLDS):
        found = expected_round(drafts[0].acceptance, outer, threshold)
        verify = pass_seconds(hardware, levels[0], workload, 1 + found.num_drafted * drafts[0].rows_per_token)
        seconds = (found.num_drafted * inner[fastest] + verify) / found.num_tokens
        plans.append(_Plan(seconds, (float(outer), *map(float, fastest)), threshold, found.num_drafted))
    return min(plans, key=lambda plan: plan.seconds)


def _verdict(choices: Sequence[Choice]) -> tuple[bool, str]:
    """Whether the fastest with a draft beats the fastest without one, in words."""
    drafting = [choice for choice in choices if choice.num_draft_tokens]
    plain = next((choice for choice in choices if not choice.num_draft_tokens), None)
    if not drafting or plain is None:
        return False, "Do not speculate: there is no draft."
    top = drafting[0]
    gain = plain.seconds_per_token / top.seconds_per_token
    limit = top.break_even_acceptance
    if gain >= WORTH:
        even = "" if limit is None else f"; it pays down to an acceptance of {limit:.2f}"
        return True, f"Speculate with {top.strategy}: {top.speedup:.2f} times plain decoding{even}."
    if limit is None:
        reason = "even a draft that is always right would cost more than it saves"
    else:
        reason = f"it would pay from an acceptance of {limit:.2f}, and it has {top.acceptance[0]:.2f}"
    found = f"{top.strategy}, the best with a draft, is {gain:.2f} times as fast as {plain.strategy} alone"
    return False, f"Do not speculate: {found}; {reason}."
