"""The answer of every cost model to one question, as plain data for the terminal, `--json` and the page.

    report = cost_report(Question(architecture, strategies, hardware))

Each entry of report["models"] has model, inputs, outputs and source.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.accelerator import Accelerator, compare
from mxconv.cost.counts import active_parameters, count_parameters
from mxconv.cost.hardware import Hardware
from mxconv.cost.levels import CostLevel, Workload, can_run, costs, fastest_lengths, level_count, pass_seconds
from mxconv.cost.prediction import mean_error, predict
from mxconv.cost.roofline import pass_points
from mxconv.cost.speedup import acceptance_of, break_even_acceptance, expected_tokens, hierarchy_seconds
from mxconv.cost.surfaces import Surface, draft_surface, two_draft_surface
from mxconv.cost.throughput import SPIRE_DRAFT_TOKENS, SPIRE_DRAFTS, DecoderBody, throughput_multiplier, units_saved
from mxconv.cost.trace import TraceSummary

MODELS = ("speedup", "throughput", "accelerator", "roofline")
DEFAULT_NUM_DRAFT_TOKENS = 8.0  # as `mxconv generate`


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


@dataclass
class CostAnswer:
    """What one model answers.

    Args:
        source: paper and equation.
        inputs: what the answer depends on.
        outputs: a row of figures by the name of a strategy, draft, pass or level.
        note: why there are none.
        not_run: strategies that the hardware cannot run.
    """

    source: str
    inputs: dict[str, Any]
    outputs: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    not_run: list[str] | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


def cost_report(question: Question) -> dict[str, Any]:
    """Answer with every model of the question, in dicts, lists, numbers and texts that are ready for JSON.

    Raises:
        MxconvError: a probability or length out of range, hardware that lacks a peak, a trace of another package.
    """
    makers = {"speedup": _speedup, "throughput": _throughput, "accelerator": _accelerator, "roofline": _roofline}
    report: dict[str, Any] = {
        "hardware": asdict(question.hardware),
        "workload": asdict(question.workload),
        "counts": _counts(question).to_json(),
        "models": [
            {"model": name, **answer.to_json()}
            for name in question.models
            if (answer := makers[name](question)) is not None
        ],
    }
    if question.traces:
        levels = question.levels
        found = [predict(question.hardware, levels, trace, question.workload) for trace in question.traces]
        report["predictions"] = {
            "strategies": [asdict(prediction) for prediction in found],
            "mean_error": mean_error(found),
            "acceptance_by_position": {
                trace.name: trace.levels[1].acceptance_by_position for trace in question.traces if len(trace.levels) > 1
            },
        }
    if question.sweep:
        surfaces = [*speedup_surfaces(question, 1).values(), *speedup_surfaces(question, 2).values()]
        report["sweep"] = [asdict(surface) for surface in surfaces]
    return report


def _counts(question: Question) -> CostAnswer:
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
    return CostAnswer(source, asdict(a), outputs)


def _speedup(question: Question) -> CostAnswer:
    hardware, workload = question.hardware, question.workload
    baseline = pass_seconds(hardware, next(iter(question.strategies.values()))[0], workload)
    answer = CostAnswer(
        "Leviathan et al. (arXiv 2211.17192), Theorem 3.8, in SPEQ (arXiv 2510.18525) Eqs. (1)-(2); recursively, as "
        "ML-SpecQD (arXiv 2503.13565) section III-C applies its own Eq. (1)",
        {"hardware": hardware.name, **asdict(workload)},
        not_run=[name for name in question.strategies if name not in question.runnable],
    )
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
        answer.outputs[name] = {
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
    return answer


def _throughput(question: Question) -> CostAnswer:
    a, workload = question.architecture, question.workload
    if a.num_experts:
        note = "a mixture of experts: SPIRe's equation knows dense decoders only"
        return CostAnswer("SPIRe (arXiv 2504.06419)", asdict(workload), note=note)
    body = body_of(a)
    length = max(round(question.lengths(1)[0]), 1)
    intensity = intensity_of(question.hardware)
    inputs = asdict(workload) | {"num_draft_tokens": length, "flops_per_byte": intensity, "body": asdict(body)}
    answer = CostAnswer("SPIRe (arXiv 2504.06419), section Evaluation Metric and Table 1", inputs)
    for name, make in SPIRE_DRAFTS.items():
        draft = make(body, workload.window)
        acceptance = acceptance_of(draft.tokens_per_round - 1, SPIRE_DRAFT_TOKENS)
        tokens = expected_tokens(acceptance, length)
        multiplier = throughput_multiplier(body, draft, workload.batch, workload.context, length, intensity)
        multiplier *= tokens / draft.tokens_per_round
        answer.outputs[name] = {
            "draft_layers": draft.body.num_layers,
            "positions": draft.positions(workload.context),
            "acceptance": acceptance,
            "tokens_per_round": tokens,
            "throughput_multiplier": multiplier,
            "units_saved_of_10": units_saved(multiplier),
        }
    return answer


def _accelerator(question: Question) -> CostAnswer | None:
    hardware, context, length = question.hardware, question.workload.context, question.lengths(1)[0]
    if not hardware.accelerator and len(question.models) > 1:  # the only model: an error says what is missing
        return None
    machine = Accelerator.of(hardware)
    draft = next((level for level in question.levels if level.codec == "bsfp-draft"), None)
    answer = CostAnswer(
        "SPEQ (arXiv 2510.18525), section IV; assumptions in mxconv/cost/accelerator.py", asdict(machine)
    )
    if draft is None:
        answer.note = "no BSFP draft among the levels, the only one that it runs; convert with --codec bsfp"
        return answer
    answer.inputs |= {"acceptance": draft.acceptance, "acceptance_is_assumed": draft.is_assumed}
    answer.inputs |= {"num_draft_tokens": length, "context": context}
    found = compare(machine, question.architecture, draft.acceptance, length, context)
    answer.outputs |= asdict(found)
    for mode in ("plain", "draft", "verify"):
        made = getattr(found, mode)
        derived = {"joules": made.joules, "watts": made.watts(), "chip_watts": made.chip_joules / made.seconds}
        answer.outputs[mode] |= derived
    return answer


def _roofline(question: Question) -> CostAnswer:
    answer = CostAnswer(
        "Williams et al., Roofline, CACM 2009; ML-SpecQD (arXiv 2503.13565), Fig. 8",
        {"hardware": question.hardware.name, **asdict(question.workload)},
    )
    for level in question.levels:
        if level.architecture is not None and can_run(question.hardware, level):
            counts = [level_count(level, question.workload, num_tokens) for num_tokens in (1, 4, 8, 16)]
            points = [pass_points(question.hardware, level.codec, count) for count in counts]
            answer.outputs[f"{level.name} ({level.codec})"] = [asdict(point) for pair in points for point in pair]
    return answer


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
