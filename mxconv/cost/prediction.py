"""Predicted against measured tokens a second, for every strategy that a trace shows.

The prediction takes from the trace how many passes each level made over how many rows (the nodes of trees and the last
token), and their seconds from the models: so it errs where a pass does not take as long as its bytes and multiply-adds
say. A second one takes the seconds from the trace and the passes from Leviathan's equation, applied recursively: so it
errs by what that leaves out.

A roofline knows the speed of memory. A target that fits the processor's last-level cache is read from there, at a speed
that nobody described, so its error does not count in the mean. Neither does that of a trace from another processor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mxconv.cost.hardware import Hardware
from mxconv.cost.levels import CostLevel, Workload, level_count, pass_seconds
from mxconv.cost.speedup import LevelCost, hierarchy_seconds
from mxconv.cost.trace import TraceSummary
from mxconv.errors import MxconvError


@dataclass(frozen=True)
class Prediction:
    """One strategy. Errors are predicted over measured, less one; seconds are of one forward pass.

    `num_bytes` is what a pass of the target reads, keys and values included; it fits the cache if that is no larger.
    """

    strategy: str
    levels: list[str]
    acceptance: list[float]
    num_draft_tokens: list[float]
    num_nodes: list[float]  # per pass of the level above: of trees all, where draft tokens are their longest paths
    num_tokens: int
    measured_tokens_per_second: float
    predicted_tokens_per_second: float
    error: float
    equation_tokens_per_second: float
    equation_error: float
    measured_pass_seconds: list[float]
    predicted_pass_seconds: list[float]
    num_bytes: float
    last_level_cache_bytes: int | None  # of the hardware; None where its description has none
    fits_cache: bool  # False where the cache is not known
    other_processor: str | None  # that the trace is from, where the hardware is another one

    @property
    def counts(self) -> bool:
        """Whether the error is one of the model: the target comes from memory, and of the hardware described."""
        return not self.fits_cache and self.other_processor is None


def predict(hardware: Hardware, levels: Sequence[CostLevel], trace: TraceSummary, workload: Workload) -> Prediction:
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
    widths = [*(1 + draft.num_rows for draft in drafts), 1.0]
    predicted = [
        pass_seconds(hardware, known[found.name], workload, width)
        for found, width in zip(trace.levels, widths, strict=True)
    ]
    seconds = sum(found.num_forwards * each for found, each in zip(trace.levels, predicted, strict=True))
    # a trace has each level's passes at one width only: over what its draft proposes, as the prediction needs it
    from_trace = [
        LevelCost(found.seconds_per_forward, found.acceptance, found.num_draft_tokens) for found in trace.levels
    ]
    equation = 1 / hierarchy_seconds(from_trace)
    measured = trace.tokens_per_second
    num_bytes = level_count(known[trace.levels[0].name], workload, widths[0]).num_bytes
    cache = hardware.last_level_cache_bytes
    return Prediction(
        strategy=trace.name,
        levels=[found.name for found in trace.levels],
        acceptance=[draft.acceptance for draft in drafts],
        num_draft_tokens=lengths,
        num_nodes=[draft.num_rows for draft in drafts],
        num_tokens=trace.num_tokens,
        measured_tokens_per_second=measured,
        predicted_tokens_per_second=trace.num_tokens / seconds,
        error=trace.num_tokens / seconds / measured - 1,
        equation_tokens_per_second=equation,
        equation_error=equation / measured - 1,
        measured_pass_seconds=[found.seconds_per_forward for found in trace.levels],
        predicted_pass_seconds=predicted,
        num_bytes=num_bytes,
        last_level_cache_bytes=cache,
        fits_cache=cache is not None and num_bytes <= cache,
        other_processor=None if not trace.cpu or hardware.is_of(trace.cpu) else trace.cpu,
    )


def mean_error(predictions: Sequence[Prediction]) -> float | None:
    """The mean of the errors' magnitudes, of the predictions that count; None where none does."""
    errors = [abs(prediction.error) for prediction in predictions if prediction.counts]
    return sum(errors) / len(errors) if errors else None
