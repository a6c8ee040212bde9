"""Speed-ups over ranges of acceptance, length, batch and context, for `--sweep` and pictures.

Acceptance is the share of the drafted tokens that are accepted, as in Eq. (1) of ML-SpecQD (arXiv 2503.13565).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mxconv.cost.speedup import LevelCost, accepted_tokens, hierarchy_speedup
from mxconv.cost.throughput import SPIRE_DRAFT_TOKENS, SPIRE_DRAFTS, WINDOW, DecoderBody, throughput_multiplier

ACCEPTANCES = [step / 50 for step in range(51)]
LENGTHS = [float(length) for length in range(1, 17)]
BATCHES = [2**power for power in range(11)]


@dataclass(frozen=True)
class Surface:
    """`values[row][column]` at `rows[row]` and `columns[column]`."""

    title: str
    row_name: str
    column_name: str
    rows: Sequence[float]
    columns: Sequence[float]
    values: list[list[float]]


def draft_surface(cost: float) -> Surface:
    """Speed-ups by one draft, `cost` passes of the target a draft token, over its acceptance and length.

    Source:
        ML-SpecQD (arXiv 2503.13565), Fig. 2.
    """
    title = f"target <- draft at {cost:.3f} of a target pass"
    names = "share of the draft's tokens accepted", "draft tokens a round"
    values = [[_speedup(LevelCost(cost, share, length)) for length in LENGTHS] for share in ACCEPTANCES]
    return Surface(title, *names, ACCEPTANCES, LENGTHS, values)


def two_draft_surface(costs: Sequence[float], lengths: Sequence[float]) -> Surface:
    """Speed-ups by two drafts, over both acceptances.

    Args:
        costs: of a pass of the outer and of the inner draft, in passes of the target.
        lengths: draft tokens of the outer and of the inner draft.

    Source:
        ML-SpecQD (arXiv 2503.13565), Fig. 3.
    """
    title = "target" + "".join(f" <- draft ({c:.3f}, {n:g} tokens)" for c, n in zip(costs, lengths, strict=True))
    names = "share of the outer draft's tokens accepted", "share of the inner draft's tokens accepted"
    values = []
    for outer in ACCEPTANCES:
        first = LevelCost(costs[0], outer, lengths[0])
        values.append([_speedup(first, LevelCost(costs[1], inner, lengths[1])) for inner in ACCEPTANCES])
    return Surface(title, *names, ACCEPTANCES, ACCEPTANCES, values)


def throughput_surface(
    target: DecoderBody, draft: str, contexts: list[int], intensity: float, window: int = WINDOW
) -> Surface:
    """SPIRe's throughput multiplier of one of its drafts, over batch and context.

    Source:
        SPIRe (arXiv 2504.06419), Figs. 4 and 6.
    """
    made = SPIRE_DRAFTS[draft](target, window)
    values = [
        [throughput_multiplier(target, made, batch, context, SPIRE_DRAFT_TOKENS, intensity) for context in contexts]
        for batch in BATCHES
    ]
    return Surface(draft, "batch (sequences)", "context (positions; K is 1,024)", BATCHES, contexts, values)


def _speedup(*drafts: LevelCost) -> float:
    return hierarchy_speedup([LevelCost(1.0), *drafts], accepted_tokens)
