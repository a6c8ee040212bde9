"""Predicted against measured tokens a second, for every strategy that a trace shows.

The prediction takes acceptance and lengths from the trace and seconds from the models: so it errs where a pass does not
take as long as its bytes and multiply-adds say. A second one takes the seconds from the trace too: what remains is what
Eq. (1), applied recursively, leaves out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mxconv.cost.hardware import Hardware
from mxconv.cost.levels import CostLevel, Workload, pass_seconds, seconds_per_token
from mxconv.cost.speedup import LevelCost, hierarchy_seconds
from mxconv.cost.trace import Trace
from mxconv.errors import MxconvError


@dataclass(frozen=True)
class Prediction:
    """One strategy. Errors are predicted over measured, less one; seconds are of one forward pass."""

    strategy: str
    levels: list[str]
    acceptance: list[float]
    num_draft_tokens: list[float]
    num_tokens: int
    measured_tokens_per_second: float
    predicted_tokens_per_second: float
    error: float
    equation_tokens_per_second: float
    equation_error: float
    measured_pass_seconds: list[float]
    predicted_pass_seconds: list[float]


def predict(hardware: Hardware, levels: Sequence[CostLevel], trace: Trace, workload: Workload) -> Prediction:
    """Compare one trace with the models.

    Args:
        levels: of the package, by the names that the trace has.

    Raises:
        MxconvError: the trace names a level that the package lacks.
    """
    known = {level.name: level for level in levels}
    for found in trace.levels:
        if found.name not in known:
            raise MxconvError(
                f"trace {trace.name}: level {found.name!r}; one of {', '.join(known)} is required. "
                "Take the package that the trace was made with."
            )
    drafts = trace.levels[1:]
    lengths = [draft.num_draft_tokens for draft in drafts]
    own = [replace(known[found.name], acceptance=found.acceptance) for found in trace.levels]
    seconds = seconds_per_token(hardware, own, lengths, workload)
    widths = [*(1 + length for length in lengths), 1.0]
    # a trace has each level's passes at one width only: over what its draft proposes, which is what is asked here
    from_trace = [
        LevelCost(found.seconds_per_forward, found.acceptance, found.num_draft_tokens) for found in trace.levels
    ]
    equation = 1 / hierarchy_seconds(from_trace)
    measured = trace.tokens_per_second
    return Prediction(
        strategy=trace.name,
        levels=[found.name for found in trace.levels],
        acceptance=[draft.acceptance for draft in drafts],
        num_draft_tokens=lengths,
        num_tokens=trace.num_tokens,
        measured_tokens_per_second=measured,
        predicted_tokens_per_second=1 / seconds,
        error=1 / seconds / measured - 1,
        equation_tokens_per_second=equation,
        equation_error=equation / measured - 1,
        measured_pass_seconds=[found.seconds_per_forward for found in trace.levels],
        predicted_pass_seconds=[
            pass_seconds(hardware, level, workload, width) for level, width in zip(own, widths, strict=True)
        ],
    )


def mean_error(predictions: Sequence[Prediction]) -> float:
    """The mean of the errors' magnitudes."""
    return sum(abs(prediction.error) for prediction in predictions) / len(predictions)
