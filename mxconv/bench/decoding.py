"""Whole decodes of a package: greedy, each draft alone, and all levels together.

Strategies take turns prompt by prompt, each between samples of read bandwidth. Whatever the strategy, its tokens must
be those of greedy decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING

from mxconv.bench.machine import last_level_cache_bytes
from mxconv.bench.rates import ReadBandwidth
from mxconv.bench.samples import spread
from mxconv.bench.traffic import bytes_per_forward
from mxconv.errors import MxconvError
from mxconv.model.loader import LoadedLevel, LoadedPackage
from mxconv.progress import Progress, silent
from mxconv.speculative.hierarchy import Generation, Hierarchy

if TYPE_CHECKING:
    from mxconv.kernels import _native

BANDWIDTH_CACHES = 8  # the array that bandwidth is measured on, in last-level caches
BANDWIDTH_BYTES, BANDWIDTH_SAMPLES = 1 << 26, 4  # before each decode, and as many behind it
DEFAULT_PROMPTS = (
    "The memory of a computer is",
    "Once upon a time there was a small village by the sea, and in it",
    "def read_lines(path):",
    "Question: why is the sky blue? Answer:",
)


@dataclass(frozen=True)
class DecodeResult:
    """One strategy over all prompts."""

    strategy: str  # "greedy", a draft level's name, or "hierarchy"
    levels: list[str]
    num_prompts: int
    num_tokens: int
    tokens_per_second: float
    speedup: float  # over greedy, geometric mean over prompts
    acceptance_rates: list[float | None]  # a draft level each; None where it proposed nothing
    num_bytes: int  # of weights that all forward passes read
    read_bandwidth: float  # beside it, GB/s
    fraction_of_bandwidth: float  # weights read a second over read bandwidth, median over prompts
    identical_to_greedy: bool


@dataclass(frozen=True)
class _Run:
    generation: Generation
    bandwidth: float  # bytes a second, before and behind


def bench_decoding(
    loaded: LoadedPackage,
    engine: "_native.Engine",
    prompts: Sequence[str],
    max_new_tokens: int,
    progress: Progress = silent,
) -> list[DecodeResult]:
    """Decode every prompt with every strategy. The caller decides what a text that differs is worth."""
    strategies = strategies_of(loaded.levels)
    hierarchies = {name: Hierarchy(levels) for name, levels in strategies.items()}
    bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
    num_bytes = {level.name: bytes_per_forward(loaded, level) for level in loaded.levels}
    stop = loaded.tokenizer.eos_token_ids
    runs: dict[str, list[_Run]] = {name: [] for name in strategies}
    for number, text in enumerate(prompts):
        ids = loaded.tokenizer.encode(text)
        if not ids:
            raise MxconvError(f"prompt {text!r}: no tokens; at least one is required. Leave it out.")
        for name, hierarchy in hierarchies.items():
            progress("decode", number * len(strategies) + list(strategies).index(name), len(prompts) * len(strategies))
            if number == 0:
                hierarchy.generate(ids, min(max_new_tokens, 8), stop)  # warms caches and threads
            rates = _sample(bandwidth)
            generation = hierarchy.generate(ids, max_new_tokens, stop)
            runs[name].append(_Run(generation, spread([*rates, *_sample(bandwidth)]).median))
    progress("decode", len(prompts) * len(strategies), len(prompts) * len(strategies))
    return [_summarize(name, strategies[name], runs[name], runs["greedy"], num_bytes) for name in strategies]


def _sample(bandwidth: ReadBandwidth) -> list[float]:
    return [bandwidth.sample(BANDWIDTH_BYTES) for _ in range(BANDWIDTH_SAMPLES)]


def strategies_of(levels: Sequence[LoadedLevel]) -> dict[str, list[LoadedLevel]]:
    """Greedy, the target with each draft alone, and the whole hierarchy where it has more than one draft."""
    target, *drafts = levels
    strategies = {"greedy": [target]}
    for draft in drafts:
        strategies[draft.name] = [target, draft]
    if len(drafts) > 1:
        strategies["hierarchy"] = [target, *drafts]
    return strategies


def _summarize(
    name: str, levels: Sequence[LoadedLevel], runs: Sequence[_Run], greedy: Sequence[_Run], num_bytes: dict[str, int]
) -> DecodeResult:
    generations = [run.generation for run in runs]
    num_tokens = sum(len(generation.token_ids) for generation in generations)
    traffic = [
        sum(level.num_forwards * num_bytes[level.name] for level in generation.trace.statistics)
        for generation in generations
    ]
    ratios = [mine.generation.seconds / other.generation.seconds for mine, other in zip(runs, greedy, strict=True)]
    acceptance = []
    for index in range(1, len(levels)):
        proposed = sum(generation.trace.statistics[index].num_proposed for generation in generations)
        accepted = sum(generation.trace.statistics[index].num_accepted for generation in generations)
        acceptance.append(accepted / proposed if proposed else None)
    fractions = [read / run.generation.seconds / run.bandwidth for read, run in zip(traffic, runs, strict=True)]
    return DecodeResult(
        strategy=name,
        levels=[level.name for level in levels],
        num_prompts=len(runs),
        num_tokens=num_tokens,
        tokens_per_second=num_tokens / sum(generation.seconds for generation in generations),
        speedup=exp(-sum(map(log, ratios)) / len(ratios)),
        acceptance_rates=acceptance,
        num_bytes=sum(traffic),
        read_bandwidth=spread([run.bandwidth for run in runs]).median / 1e9,
        fraction_of_bandwidth=spread(fractions).median,
        identical_to_greedy=all(
            mine.generation.token_ids == other.generation.token_ids for mine, other in zip(runs, greedy, strict=True)
        ),
    )
