"""Whole decodes of a package: every strategy, prompt by prompt.

Strategies take turns, each between samples of read bandwidth, so that all see one state of the machine. Whatever the
strategy, its tokens must be those of greedy decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mxconv.bench.decode_result import DecodeResult, Run, summarize
from mxconv.bench.machine import last_level_cache_bytes
from mxconv.bench.prompts import prompt_ids
from mxconv.bench.rates import ReadBandwidth
from mxconv.bench.samples import spread
from mxconv.bench.strategies import GREEDY, Strategy, StrategyRecord, strategies_of
from mxconv.drafts.kind import LoadedLevel
from mxconv.drafts.loader import LoadedPackage
from mxconv.progress import Progress, silent
from mxconv.text.messages import Prompt

if TYPE_CHECKING:
    from mxconv.kernels import _native

BANDWIDTH_CACHES = 8  # the array that bandwidth is measured on, in last-level caches
BANDWIDTH_BYTES, BANDWIDTH_SAMPLES = 1 << 26, 4  # before each decode, and as many behind it
WARM_TOKENS = 8


def bench_decoding(
    loaded: LoadedPackage,
    engine: "_native.Engine",
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    progress: Progress = silent,
    fp32_draft: LoadedLevel | None = None,
    tree: int | Literal["auto", "chain"] = "auto",
) -> list[DecodeResult]:
    """Decode every prompt with every strategy. The caller decides what a text that differs is worth.

    Args:
        loaded: the package.
        engine: to measure bandwidth with.
        prompts: texts, or messages.
        max_new_tokens: a prompt.
        progress: told about every decode.
        fp32_draft: its 4-bit level by float32 arithmetic, to stand beside the one by int8.
        tree: of look-ups, as `Hierarchy` takes it.

    Raises:
        MxconvError: a prompt has no tokens.
    """
    bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
    timer = DecodeTimer(loaded, strategies_of(loaded.levels, fp32_draft, tree), bandwidth)
    return results_of([timer.decode(prompts, max_new_tokens, progress)])


@dataclass(frozen=True)
class Decodes:
    """Prompts, decoded with every strategy."""

    strategies: list[StrategyRecord]
    runs: dict[str, list[Run]]  # by strategy, a prompt each
    num_bytes: dict[str, int]  # that a pass reads, by level


class DecodeTimer:
    """Decodes prompts by all strategies in turns."""

    def __init__(self, loaded: LoadedPackage, strategies: Sequence[Strategy], bandwidth: ReadBandwidth) -> None:
        """Of an open package."""
        self._loaded, self._strategies, self._bandwidth = loaded, strategies, bandwidth
        self._is_warm = False

    def decode(self, prompts: Sequence[Prompt], max_new_tokens: int, progress: Progress = silent) -> Decodes:
        """Every prompt.

        Raises:
            MxconvError: a prompt has no tokens.
        """
        strategies, stop = self._strategies, self._loaded.tokenizer.eos_token_ids
        ids = prompt_ids(self._loaded.tokenizer, self._loaded.folder, prompts)
        runs: dict[str, list[Run]] = {strategy.name: [] for strategy in strategies}
        total = len(ids) * len(strategies)
        for number, prompt in enumerate(ids):
            for place, strategy in enumerate(strategies):
                progress("decode", number * len(strategies) + place, total)
                if not self._is_warm:  # caches and threads
                    strategy.hierarchy.generate(prompt, min(max_new_tokens, WARM_TOKENS), stop)
                rates = sample_bandwidth(self._bandwidth)
                generation = strategy.hierarchy.generate(prompt, max_new_tokens, stop)
                rate = spread([*rates, *sample_bandwidth(self._bandwidth)]).median
                runs[strategy.name].append(Run(generation, rate))
            self._is_warm = True
        progress("decode", total, total)
        num_bytes = {level.name: self._loaded.bytes_per_pass(level) for level in self._loaded.levels}
        return Decodes([strategy.record for strategy in strategies], runs, num_bytes)


def results_of(parts: Sequence[Decodes]) -> list[DecodeResult]:
    """The figures of each strategy, over the prompts of all parts in order."""
    strategies = parts[0].strategies
    runs = {each.name: [run for part in parts for run in part.runs[each.name]] for each in strategies}
    return [summarize(each, runs[each.name], runs[GREEDY], parts[0].num_bytes) for each in strategies]


def sample_bandwidth(bandwidth: ReadBandwidth) -> list[float]:
    """Bytes a second, some samples."""
    return [bandwidth.sample(BANDWIDTH_BYTES) for _ in range(BANDWIDTH_SAMPLES)]
