"""Levels of a hierarchy as the cost models see them: bytes and seconds of a pass, and the acceptance of its tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.accelerator import Accelerator, Mode, run_pass
from mxconv.cost.counts import PassCount, count_pass, multiplied_weights
from mxconv.cost.hardware import Hardware
from mxconv.cost.speedup import LevelCost, hierarchy_seconds
from mxconv.cost.throughput import WINDOW
from mxconv.errors import MxconvError

FOUR_BIT = ("mxfp4", "bsfp draft")  # names of the 4-bit levels of a model without a package
SMALL = "small model"
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # that are tried where none is given
STREAMED_LENGTHS = (*LENGTHS, 24, 32, 48)  # where passes of the level above wait for a disk
ACCELERATED: dict[str, Mode] = {"bf16": "full", "fp16": "full", "bsfp": "full", "bsfp-draft": "draft"}  # SPEQ's machine
SMALL_FRACTION = 1 / 8  # of the target's layers: the size of SPIRe's vanilla draft
# the kernel that multiplies each codec's weights, and the form of its products, as `mxconv bench kernels` names them
KERNELS = {
    "bf16": ("bf16", "bf16"),
    "fp16": ("fp16", "fp16"),
    "int8": ("int8", "int8"),
    "bsfp": ("bsfp-full", "bf16"),
    "mxfp4": ("mxfp4-int8", "int8"),
    "bsfp-draft": ("bsfp-draft", "int8"),
}


@dataclass(frozen=True)
class CostLevel:
    """A level of a hierarchy.

    `is_assumed` tells an acceptance that was published of other models from one that was given or measured.
    `num_bytes` is what a pass reads of the weights as files have them; None takes the typical bits of the codec.
    `rows_per_token` is the number of rows that the verification of a draft token takes: more than 1 of trees.
    `read_seconds` gives those in which a disk delivers what a pass over so many rows lacks in memory; None: nothing.
    """

    name: str
    codec: str
    architecture: ModelSizes | None  # None for what costs nothing: a table, a look-up
    acceptance: float = 0.0
    acceptance_source: str = ""
    num_bytes: int | None = None
    rows_per_token: float = 1.0
    is_assumed: bool = False
    read_seconds: Callable[[float], float] | None = None


@dataclass(frozen=True)
class Workload:
    """Sequences decoded together, positions in each cache, the type of its numbers, positions that sparse ones keep."""

    batch: int = 1
    context: int = 1024
    kv_dtype: str = "bf16"
    window: int = WINDOW


# Probabilities. ML-SpecQD prints shares of the drafted tokens, of rounds of 8 at most that end early at a threshold; at
# the lengths here Eq. (1) gives its Tables I and II, and `acceptance_of` turns share and length into probability.
TYPICAL_ACCEPTANCE = {
    "bsfp-draft": (0.977, "SPEQ (arXiv 2510.18525), Table II, mean of its fifteen entries"),
    "mxfp4": (0.909, "ML-SpecQD (arXiv 2503.13565): 71.2% of rounds of 3.9 tokens (QA), 91% of rounds of 2.8 (code)"),
    "mtp": (0.875, "DeepSeek-V3 (arXiv 2412.19437), section 5.4.3: 85% to 90% of the second tokens"),
    "spire": (0.806, "SPIRe (arXiv 2504.06419), Table 1: 3.401 tokens a round of 4"),
    "speculator": (0.61, "MLP speculators (arXiv 2404.19124), Table 1: 2.21 tokens a step of three, one candidate"),
    "small": (0.68, "SPIRe (arXiv 2504.06419), Table 1: 2.647 tokens a round of 4 from a draft of an eighth"),
}


def strategies_of(target: ModelSizes, target_codec: str = "bf16") -> dict[str, list[CostLevel]]:
    """Hierarchies by name that a model could have which is not converted yet; the first is plain decoding."""
    plain = CostLevel("target", target_codec, target)
    shared = CostLevel("target", "bsfp", target)
    four_bit = _typical(FOUR_BIT[0], "mxfp4", "mxfp4", target)
    bsfp = _typical(FOUR_BIT[1], "bsfp-draft", "bsfp-draft", target)
    small = _typical(SMALL, target_codec, "small", _shallower(target, SMALL_FRACTION))
    found = [[plain], [plain, small], [plain, four_bit], [plain, four_bit, small]]
    found += [[shared], [shared, bsfp], [shared, bsfp, small]]
    return {" <- ".join([levels[0].codec, *(level.name for level in levels[1:])]): levels for levels in found}


def with_acceptance(
    levels: Sequence[CostLevel], by_name: Mapping[str, float], source: str, rows: Mapping[str, float] | None = None
) -> list[CostLevel]:
    """The levels with the acceptances that `by_name` has, `source` as where they come from, and the rows a token."""
    found = []
    for level in levels:
        if level.name in by_name:
            level = replace(level, acceptance=by_name[level.name], acceptance_source=source, is_assumed=False)
        found.append(replace(level, rows_per_token=(rows or {}).get(level.name, level.rows_per_token)))
    return found


def level_count(level: CostLevel, workload: Workload, num_tokens: float = 1) -> PassCount:
    """Bytes and multiply-adds of one pass of a level; `num_tokens` may be a mean."""
    a = level.architecture
    assert a is not None
    bits = None if level.num_bytes is None else 8 * level.num_bytes / multiplied_weights(a, inf)  # of all experts
    return count_pass(a, level.codec, num_tokens, workload.batch, workload.context, workload.kv_dtype, bits)


@dataclass(frozen=True)
class RooflinePoint:
    """One kernel of one pass. Rates are in 10^9 a second, intensity in multiply-adds a byte."""

    kernel: str
    form: str
    num_tokens: float
    num_bytes: float
    multiply_adds: float
    intensity: float
    peak: float
    attainable: float
    seconds: float
    bound: str  # memory or compute


def point(
    hardware: Hardware, kernel: str, form: str, num_tokens: float, num_bytes: float, multiply_adds: float
) -> RooflinePoint:
    """Place a kernel under the roof; measured shares of it lower the roof where the description has them.

    Source:
        Williams et al., Roofline, CACM 2009; per kernel and level as in ML-SpecQD (arXiv 2503.13565), Fig. 8.
    """
    peak = hardware.peak(form)
    by_memory = num_bytes / hardware.read_bandwidth / 1e9
    by_compute = multiply_adds / peak / 1e9
    seconds = max(by_memory, by_compute) / hardware.fraction(kernel, num_tokens)
    intensity = multiply_adds / num_bytes if num_bytes else 0.0
    attainable = multiply_adds / seconds / 1e9 if seconds else 0.0
    bound = "memory" if by_memory >= by_compute else "compute"
    sizes = num_tokens, num_bytes, multiply_adds
    return RooflinePoint(kernel, form, *sizes, intensity, peak, attainable, seconds, bound)


def pass_points(hardware: Hardware, codec: str, count: PassCount) -> tuple[RooflinePoint, RooflinePoint]:
    """The products with the weights, and attention over the cache with recurrent states, of one pass."""
    kernel, form = KERNELS[codec]
    tokens = count.num_tokens * count.batch
    widest = next(form for form in ("fp32", "fp16", "bf16") if form in hardware.peaks)
    return (
        point(hardware, kernel, form, tokens, count.weight_bytes + count.scale_bytes, count.matrix_multiply_adds),
        point(hardware, "attention", widest, tokens, count.kv_bytes + count.state_bytes, count.attention_multiply_adds),
    )


def can_run(hardware: Hardware, level: CostLevel) -> bool:
    """Whether the hardware multiplies the level's weights: an accelerator has modes for 16 bits and BSFP's draft."""
    return not hardware.accelerator or level.architecture is None or level.codec in ACCELERATED


def pass_seconds(hardware: Hardware, level: CostLevel, workload: Workload, num_tokens: float = 1) -> float:
    """Seconds of one pass: by the accelerator's model where `hardware` describes one, else by the roofline.

    Raises:
        MxconvError: the accelerator has no mode for the level's weights.
    """
    if level.architecture is None:
        return 0.0
    if not can_run(hardware, level):
        raise MxconvError(
            f"hardware {hardware.name}: level {level.name!r} has weights in {level.codec}; one of "
            f"{', '.join(ACCELERATED)} is required. Choose other hardware, or convert with --codec bsfp."
        )
    if hardware.accelerator and workload.batch == 1:
        machine, mode = Accelerator.of(hardware), ACCELERATED[level.codec]
        return run_pass(machine, level.architecture, mode, num_tokens, workload.context).seconds
    points = pass_points(hardware, level.codec, level_count(level, workload, num_tokens))
    seconds = sum(point.seconds for point in points)
    return seconds if level.read_seconds is None else max(seconds, level.read_seconds(num_tokens * workload.batch))


def costs(
    hardware: Hardware, levels: Sequence[CostLevel], lengths: Sequence[float], workload: Workload
) -> list[LevelCost]:
    """The seconds of each level's passes over one token and over what its draft proposes, for `hierarchy_seconds`."""
    drafts = zip(lengths, levels[1:], strict=True)
    widths = [1 + length * draft.rows_per_token for length, draft in drafts] + [1.0]
    return [
        LevelCost(
            seconds=pass_seconds(hardware, level, workload),
            acceptance=level.acceptance,
            num_draft_tokens=0.0 if index == 0 else lengths[index - 1],
            verify_seconds=pass_seconds(hardware, level, workload, widths[index]),
        )
        for index, level in enumerate(levels)
    ]


def seconds_per_token(
    hardware: Hardware, levels: Sequence[CostLevel], lengths: Sequence[float], workload: Workload
) -> float:
    """Seconds a token of one sequence that a hierarchy decodes; `lengths` has the draft tokens of each draft level."""
    return hierarchy_seconds(costs(hardware, levels, lengths, workload))


def fastest_lengths(hardware: Hardware, levels: Sequence[CostLevel], workload: Workload) -> list[float]:
    """The draft tokens of each draft level, of `LENGTHS`, at which a hierarchy takes the fewest seconds a token.

    A level needs no more of its draft than the draft's seconds a token, so the innermost length is chosen first.
    """
    lengths: list[float] = []
    for top in reversed(range(len(levels) - 1)):
        own = levels[top:]
        rest = lengths
        tried = LENGTHS if own[0].read_seconds is None else STREAMED_LENGTHS
        best = min(tried, key=lambda length: seconds_per_token(hardware, own, [length, *rest], workload))
        lengths = [float(best), *rest]
    return lengths


def _typical(name: str, codec: str, key: str, architecture: ModelSizes) -> CostLevel:
    acceptance, source = TYPICAL_ACCEPTANCE[key]
    return CostLevel(name, codec, architecture, acceptance, source, is_assumed=True)


def _shallower(a: ModelSizes, fraction: float) -> ModelSizes:
    """The architecture with a fraction of its layers, at least one."""
    count = max(round(a.num_layers * fraction), 1)
    return replace(
        a,
        mixers=a.mixers[:count],
        norms=a.norms[:count],
        dense_sizes=a.dense_sizes[:count],
        has_experts=a.has_experts[:count],
    )
