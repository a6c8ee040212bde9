"""Speed-ups over ranges of acceptance, length, batch and context, for `--sweep` and pictures.

Acceptance is the share of the drafted tokens that are accepted, as in Eq. (1) of ML-SpecQD (arXiv 2503.13565).
"""

from dataclasses import dataclass

from mxconv.cost.speedup import LevelCost, accepted_tokens, hierarchy_speedup
from mxconv.cost.throughput import SPIRE_DRAFT_TOKENS, SPIRE_DRAFTS, DecoderBody, throughput_multiplier

ACCEPTANCES = [step / 50 for step in range(51)]
LENGTHS = list(range(1, 17))
BATCHES = [2**power for power in range(11)]


@dataclass(frozen=True)
class Surface:
    """`values[row][column]` at `rows[row]` and `columns[column]`."""

    title: str
    row_name: str
    column_name: str
    rows: list[float]
    columns: list[float]
    values: list[list[float]]


def draft_surface(draft_cost: float, verify_cost: float = 1.0) -> Surface:
    """Speed-ups by one draft, over its acceptance and length.

    Source:
        ML-SpecQD (arXiv 2503.13565), Fig. 2.
    """

    def at(acceptance: float, length: int) -> float:
        top = LevelCost(1.0, verify_seconds=verify_cost)
        return hierarchy_speedup([top, LevelCost(draft_cost, acceptance, length)], accepted_tokens)

    values = [[at(acceptance, length) for length in LENGTHS] for acceptance in ACCEPTANCES]
    return Surface(
        f"target <- draft at {draft_cost:.3f} of a target pass",
        "share of the draft's tokens accepted",
        "draft tokens a round",
        ACCEPTANCES,
        [*map(float, LENGTHS)],
        values,
    )


def two_draft_surface(costs: tuple[float, float], lengths: tuple[float, float] = (8.0, 4.0)) -> Surface:
    """Speed-ups by two drafts, over both acceptances.

    Args:
        costs: of a pass of the outer and of the inner draft, in passes of the target.
        lengths: draft tokens of the outer and of the inner draft.

    Source:
        ML-SpecQD (arXiv 2503.13565), Fig. 3.
    """

    def at(outer: float, inner: float) -> float:
        drafts = LevelCost(costs[0], outer, lengths[0]), LevelCost(costs[1], inner, lengths[1])
        return hierarchy_speedup([LevelCost(1.0), *drafts], accepted_tokens)

    values = [[at(outer, inner) for inner in ACCEPTANCES] for outer in ACCEPTANCES]
    return Surface(
        f"target <- draft ({costs[0]:.3f}, {lengths[0]:g} tokens) <- draft ({costs[1]:.3f}, {lengths[1]:g} tokens)",
        "share of the outer draft's tokens accepted",
        "share of the inner draft's tokens accepted",
        ACCEPTANCES,
        ACCEPTANCES,
        values,
    )


def throughput_surface(target: DecoderBody, draft: str, contexts: list[int], intensity: float) -> Surface:
    """SPIRe's throughput multiplier of one of its drafts, over batch and context.

    Source:
        SPIRe (arXiv 2504.06419), Figs. 4 and 6.
    """
    made = SPIRE_DRAFTS[draft](target)
    values = [
        [throughput_multiplier(target, made, batch, context, SPIRE_DRAFT_TOKENS, intensity) for context in contexts]
        for batch in BATCHES
    ]
    return Surface(draft, "batch", "context", [*map(float, BATCHES)], [*map(float, contexts)], values)


def throughput_curves(
    target: DecoderBody, contexts: list[int], intensity: float, batch: int = 64
) -> dict[str, list[float]]:
    """SPIRe's throughput multiplier of each of its drafts, over the context.

    Source:
        SPIRe (arXiv 2504.06419), Fig. 1.
    """
    return {
        name: [
            throughput_multiplier(target, make(target), batch, context, SPIRE_DRAFT_TOKENS, intensity)
            for context in contexts
        ]
        for name, make in SPIRE_DRAFTS.items()
    }
