"""From seconds and acceptance to tokens a second: of every plan in every cell, measured and predicted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from batch_cells import Cell
from batch_levels import Levels
from batch_plans import Method, Plan

from mxconv.cost.levels import Workload


@dataclass(frozen=True)
class Outcome:
    """One plan in one cell. Rates are of all sequences together, over `plain` is by the rate of plain decoding."""

    label: str
    num_passes: int  # k
    candidates: int
    rows: float
    tokens_a_round: float
    draft_seconds: float
    verify_seconds: float
    tokens_per_second: float
    over_plain: float
    predicted_over_plain: float


@dataclass(frozen=True)
class MethodResult:
    """A method in one cell, with the plan that brings most and the one that was predicted to."""

    method: str
    outcomes: list[Outcome]
    best: int
    predicted_best: int

    @property
    def fastest(self) -> Outcome:
        return self.outcomes[self.best]

    @property
    def measured_over_predicted(self) -> float:
        """Of the fastest plan's speed-up."""
        return self.fastest.over_plain / self.fastest.predicted_over_plain


@dataclass(frozen=True)
class CellResult:
    """A cell. `plain_tokens_per_second` is batch / plain_seconds."""

    batch: int
    context: int
    read_bandwidth: float
    peaks: dict[str, float]
    plain_seconds: float
    predicted_plain_seconds: float
    plain_tokens_per_second: float
    verify_seconds: dict[str, float]  # by rows of each sequence
    methods: list[MethodResult]


def result_of(cell: Cell, methods: Sequence[Method], levels: Levels, kv_dtype: str) -> CellResult:
    """Of one cell; plans whose passes were not measured are left out."""
    workload = Workload(cell.batch, cell.context, kv_dtype)
    plain = levels.verify_seconds(cell.hardware, workload, 1)
    found = []
    for method in methods:
        outcomes = [_outcome(cell, method, plan, levels, workload, plain) for plan in measured(method, cell.verify)]
        best = max(range(len(outcomes)), key=lambda place: outcomes[place].over_plain)
        predicted = max(range(len(outcomes)), key=lambda place: outcomes[place].predicted_over_plain)
        found.append(MethodResult(method.name, outcomes, best, predicted))
    return CellResult(
        cell.batch,
        cell.context,
        cell.hardware.read_bandwidth,
        cell.hardware.peaks,
        cell.plain_seconds,
        plain,
        cell.batch / cell.plain_seconds,
        {str(width): seconds for width, seconds in cell.verify.items()},
        found,
    )


def measured(method: Method, widths: Iterable[int]) -> list[Plan]:
    """The plans that the target verifies in passes of at most the widest."""
    most = max(widths)
    return [plan for plan in method.plans if 1 + plan.rows <= most]


def to_json(results: Sequence[CellResult]) -> list[dict[str, Any]]:
    return [asdict(result) for result in results]


def from_json(members: Iterable[Mapping[str, Any]]) -> list[CellResult]:
    """The inverse of `to_json`."""
    return [
        CellResult(
            **{
                **cell,
                "methods": [
                    MethodResult(**{**method, "outcomes": [Outcome(**each) for each in method["outcomes"]]})
                    for method in cell["methods"]
                ],
            }
        )
        for cell in members
    ]


def _outcome(cell: Cell, method: Method, plan: Plan, levels: Levels, workload: Workload, plain: float) -> Outcome:
    drafting = cell.draft_seconds(method.draft, plan.draft_rows)
    verifying = cell.verify_seconds(1 + plan.rows)
    rate = cell.batch * plan.tokens_a_round / (drafting + verifying)
    predicted = levels.verify_seconds(cell.hardware, workload, 1 + plan.rows)
    predicted += levels.draft_seconds(cell.hardware, workload, method.draft, plan.draft_rows)
    return Outcome(
        plan.label,
        len(plan.draft_rows),
        plan.candidates,
        plan.rows,
        plan.tokens_a_round,
        drafting,
        verifying,
        rate,
        rate / (cell.batch / cell.plain_seconds),
        plan.tokens_a_round * plain / predicted,
    )
