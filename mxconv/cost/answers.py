"""The answer of every cost model to one question, as plain data for the terminal, `--json` and the page.

    report = cost_report(Question(architecture, strategies, hardware))

Each entry of report["models"] has model, inputs, source and outputs: a row of figures by the name of a strategy, draft,
pass or level.

Traces are compared with the models. A prediction takes from a trace how many passes each level made over how many rows
(the nodes of trees and the last token), and their seconds from the models: so it errs where a pass does not take as
long as its bytes and multiply-adds say. A second one takes the seconds from the trace and the passes from Leviathan's
equation, applied recursively: so it errs by what that leaves out. A roofline knows the speed of memory. A target that
fits the processor's last-level cache is read from there, at a speed that nobody described, so its error does not count
in the mean. Neither does that of a trace from another processor.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.accelerator import Accelerator, compare
from mxconv.cost.counts import active_parameters, count_parameters
from mxconv.cost.hardware import Hardware
from mxconv.cost.levels import (
    CostLevel,
    Workload,
    can_run,
    costs,
    fastest_lengths,
    level_count,
    pass_points,
    pass_seconds,
)
from mxconv.cost.speedup import LevelCost, acceptance_of, break_even_acceptance, expected_tokens, hierarchy_seconds
from mxconv.cost.surfaces import Surface, draft_surface, two_draft_surface
from mxconv.cost.throughput import SPIRE_DRAFT_TOKENS, SPIRE_DRAFTS, DecoderBody, throughput_multiplier, units_saved
from mxconv.cost.trace import TraceSummary
from mxconv.errors import MxconvError

MODELS = ("speedup", "throughput", "accelerator", "roofline")
DEFAULT_NUM_DRAFT_TOKENS = 8.0  # as `mxconv generate`
Answer = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A question to the cost models: a model, its levels, hardware and a workload.

    Args:
        strategies: levels by name; the first is plain decoding, the baseline.
        num_draft_tokens: of each draft level; None takes the fastest lengths for the speed-up, and 8 elsewhere.
        models: which of `MODELS` answer.
        traces: runs to compare the models with.
        sweep: also answer over ranges of acceptance and length.
    """

    architecture: ModelSizes
    strategies: dict[str, list[CostLevel]]
    hardware: Hardware
    workload: Workload = field(default_factory=Workload)
    num_draft_tokens: Sequence[float] | None = None
    models: Sequence[str] = MODELS
    traces: Sequence[TraceSummary] = ()
    sweep: bool = False

    @property
    def levels(self) -> list[CostLevel]:
        """All levels of all strategies, each name and codec once."""
        return list({level.name + level.codec: level for own in self.strategies.values() for level in own}.values())

    @property
    def runnable(self) -> dict[str, list[CostLevel]]:
        """The strategies whose every level the hardware can run, and plain decoding."""
        first, *drafted = self.strategies
        able = [name for name in drafted if all(can_run(self.hardware, level) for level in self.strategies[name])]
        return {name: self.strategies[name] for name in (first, *able)}

    def lengths(self, num_drafts: int) -> list[float]:
        """Draft tokens of each draft level; the last given number also serves the levels below it."""
        given = list(self.num_draft_tokens or [DEFAULT_NUM_DRAFT_TOKENS])
        return [given[min(index, len(given) - 1)] for index in range(num_drafts)]


def cost_report(question: Question) -> dict[str, Any]:
    """Answer with every model of the question, in dicts, lists, numbers and texts that are ready for JSON.

    Raises:
        MxconvError: a probability or length out of range, hardware that lacks a peak, a trace of another package.
    """
    makers = {"speedup": _speedup, "throughput": _throughput, "accelerator": _accelerator, "roofline": _roofline}
    report: dict[str, Any] = {
        "hardware": asdict(question.hardware),
        "workload": asdict(question.workload),
        "counts": _counts(question),
        "models": [
            {"model": name, **answer} for name in question.models if (answer := makers[name](question)) is not None
        ],
    }
    if question.traces:
        levels = question.levels
        found = [predict(question.hardware, levels, trace, question.workload) for trace in question.traces]
        report["predictions"] = {
            "strategies": found,
            "mean_error": mean_error(found),
            "acceptance_by_position": {
                trace.name: trace.levels[1].acceptance_by_position for trace in question.traces if len(trace.levels) > 1
            },
        }
    if question.sweep:
        surfaces = [*speedup_surfaces(question, 1).values(), *speedup_surfaces(question, 2).values()]
        report["sweep"] = [asdict(surface) for surface in surfaces]
    return report


def _counts(question: Question) -> Answer:
    a = question.architecture
    parameters, passes = count_parameters(a), {}
    for level in question.levels:
        if level.architecture is not None:
            count = level_count(level, question.workload)
            derived = {"num_bytes": count.num_bytes, "multiply_adds": count.multiply_adds}
            passes[f"{level.name} ({level.codec})"] = asdict(count) | derived
    outputs = {
        "parameters": asdict(parameters),
        "num_parameters": parameters.total,
        "num_active_parameters": active_parameters(a),
        "passes": passes,
    }
    source = "config.json; bits a weight: OCP MX v1.0, formats/bsfp.md, or the package's own files"
    return {"source": source, "inputs": asdict(a), "outputs": outputs}


def _speedup(question: Question) -> Answer:
    hardware, workload = question.hardware, question.workload
    baseline = pass_seconds(hardware, next(iter(question.strategies.values()))[0], workload)
    outputs = {}
    for name, levels in question.runnable.items():
        drafts = levels[1:]
        lengths = question.lengths(len(drafts))
        if question.num_draft_tokens is None:
            lengths = fastest_lengths(hardware, levels, workload)
        top, *below = costs(hardware, levels, lengths, workload)
        seconds = hierarchy_seconds([top, *below])
        draft_cost = hierarchy_seconds(below) / top.seconds if below else None
        verify_cost = (top.verify_seconds or top.seconds) / top.seconds if below else None
        pays_from = None
        if draft_cost is not None and verify_cost is not None:
            ratio = top.seconds / baseline  # as fast as the baseline from this acceptance on
            pays_from = break_even_acceptance(lengths[0], draft_cost * ratio, verify_cost * ratio)
        outputs[name] = {
            "acceptance": [level.acceptance for level in drafts],
            "acceptance_is_assumed": [level.is_assumed for level in drafts],
            "acceptance_sources": [level.acceptance_source for level in drafts],
            "num_draft_tokens": lengths,
            "draft_cost": draft_cost,
            "verify_cost": verify_cost,
            "tokens_per_round": expected_tokens(below[0].acceptance, lengths[0]) if below else 1.0,
            "tokens_per_second": workload.batch / seconds,
            "speedup": top.seconds / seconds,
            "speedup_over_baseline": baseline / seconds,
            "break_even_acceptance": pays_from,
        }
    return {
        "source": "Leviathan et al. (arXiv 2211.17192), Theorem 3.8, in SPEQ (arXiv 2510.18525) Eqs. (1)-(2); "
        "recursively, as ML-SpecQD (arXiv 2503.13565) section III-C applies its own Eq. (1)",
        "inputs": {"hardware": hardware.name, **asdict(workload)},
        "outputs": outputs,
        "not_run": [name for name in question.strategies if name not in question.runnable],
    }


def _throughput(question: Question) -> Answer:
    a, workload = question.architecture, question.workload
    if a.num_experts:
        note = "a mixture of experts: SPIRe's equation knows dense decoders only"
        return {"source": "SPIRe (arXiv 2504.06419)", "inputs": asdict(workload), "outputs": {}, "note": note}
    body = body_of(a)
    length = max(round(question.lengths(1)[0]), 1)
    intensity = intensity_of(question.hardware)
    inputs = asdict(workload) | {"num_draft_tokens": length, "flops_per_byte": intensity, "body": asdict(body)}
    outputs = {}
    for name, make in SPIRE_DRAFTS.items():
        draft = make(body, workload.window)
        acceptance = acceptance_of(draft.tokens_per_round - 1, SPIRE_DRAFT_TOKENS)
        tokens = expected_tokens(acceptance, length)
        multiplier = throughput_multiplier(body, draft, workload.batch, workload.context, length, intensity)
        multiplier *= tokens / draft.tokens_per_round
        outputs[name] = {
            "draft_layers": draft.body.num_layers,
            "positions": draft.positions(workload.context),
            "acceptance": acceptance,
            "tokens_per_round": tokens,
            "throughput_multiplier": multiplier,
            "units_saved_of_10": units_saved(multiplier),
        }
    source = "SPIRe (arXiv 2504.06419), section Evaluation Metric and Table 1"
    return {"source": source, "inputs": inputs, "outputs": outputs}


def _accelerator(question: Question) -> Answer | None:
    hardware, context, length = question.hardware, question.workload.context, question.lengths(1)[0]
    if not hardware.accelerator and len(question.models) > 1:  # the only model: an error says what is missing
        return None
    machine = Accelerator.of(hardware)
    draft = next((level for level in question.levels if level.codec == "bsfp-draft"), None)
    source, inputs = "SPEQ (arXiv 2510.18525), section IV; assumptions in mxconv/cost/accelerator.py", asdict(machine)
    if draft is None:
        note = "no BSFP draft among the levels, the only one that it runs; convert with --codec bsfp"
        return {"source": source, "inputs": inputs, "outputs": {}, "note": note}
    inputs |= {"acceptance": draft.acceptance, "acceptance_is_assumed": draft.is_assumed}
    inputs |= {"num_draft_tokens": length, "context": context}
    found = compare(machine, question.architecture, draft.acceptance, length, context)
    outputs = asdict(found)
    for mode in ("plain", "draft", "verify"):
        made = getattr(found, mode)
        derived = {"joules": made.joules, "watts": made.watts(), "chip_watts": made.chip_joules / made.seconds}
        outputs[mode] |= derived
    return {"source": source, "inputs": inputs, "outputs": outputs}


def _roofline(question: Question) -> Answer:
    outputs = {}
    for level in question.levels:
        if level.architecture is not None and can_run(question.hardware, level):
            counts = [level_count(level, question.workload, num_tokens) for num_tokens in (1, 4, 8, 16)]
            points = [pass_points(question.hardware, level.codec, count) for count in counts]
            outputs[f"{level.name} ({level.codec})"] = [asdict(point) for pair in points for point in pair]
    return {
        "source": "Williams et al., Roofline, CACM 2009; ML-SpecQD (arXiv 2503.13565), Fig. 8",
        "inputs": {"hardware": question.hardware.name, **asdict(question.workload)},
        "outputs": outputs,
    }


def predict(hardware: Hardware, levels: Sequence[CostLevel], trace: TraceSummary, workload: Workload) -> Answer:
    """Compare one trace with the models; seconds are of a pass, an error is predicted over measured, less one.

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
    return {
        "strategy": trace.name,
        "levels": [found.name for found in trace.levels],
        "acceptance": [draft.acceptance for draft in drafts],
        "num_draft_tokens": lengths,
        "num_nodes": [draft.num_rows for draft in drafts],  # of trees all, where draft tokens are their longest paths
        "num_tokens": trace.num_tokens,
        "measured_tokens_per_second": measured,
        "predicted_tokens_per_second": trace.num_tokens / seconds,
        "error": trace.num_tokens / seconds / measured - 1,
        "equation_tokens_per_second": equation,
        "equation_error": equation / measured - 1,
        "measured_pass_seconds": [found.seconds_per_forward for found in trace.levels],
        "predicted_pass_seconds": predicted,
        "num_bytes": num_bytes,  # of a pass of the target, keys and values included
        "last_level_cache_bytes": cache,
        "fits_cache": cache is not None and num_bytes <= cache,
        "other_processor": None if not trace.cpu or hardware.is_of(trace.cpu) else trace.cpu,
    }


def counted(predictions: Sequence[Answer]) -> list[Answer]:
    """Select the predictions whose error is the model's: the target comes from memory, of the hardware described."""
    return [each for each in predictions if not each["fits_cache"] and each["other_processor"] is None]


def mean_error(predictions: Sequence[Answer]) -> float | None:
    """The mean of the errors' magnitudes, of the predictions that count; None where none does."""
    errors = [abs(prediction["error"]) for prediction in counted(predictions)]
    return sum(errors) / len(errors) if errors else None


def speedup_surfaces(question: Question, num_drafts: Literal[1, 2]) -> dict[str, Surface]:
    """Speed-ups over the accepted shares at the costs of the question: of its strategies with so many drafts."""
    found = {}
    for name, levels in question.runnable.items():
        if len(levels) == num_drafts + 1:
            target, *drafts = (pass_seconds(question.hardware, level, question.workload) for level in levels)
            costs = [seconds / target for seconds in drafts]
            one = num_drafts == 1
            found[name] = draft_surface(costs[0]) if one else two_draft_surface(costs, question.lengths(2))
    return found


def body_of(a: ModelSizes) -> DecoderBody:
    """A dense decoder's body, as SPIRe's equation takes it."""
    return DecoderBody(
        a.num_layers, a.hidden_size, a.num_attention_heads, a.num_key_value_heads, a.head_dim, max(a.dense_sizes)
    )


def intensity_of(hardware: Hardware) -> float:
    """FLOPs a byte in the narrowest form that the machine lists: SPIRe's values take one byte."""
    form = next(form for form in ("int8", "fp8", "bf16", "fp16", "fp32") if form in hardware.peaks)
    return hardware.intensity(form)
