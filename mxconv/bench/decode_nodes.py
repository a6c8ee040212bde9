"""Whole decodes on the nodes of a cluster: each worker times some of the prompts, by every strategy.

Workers have a thread each and run side by side, so the tokens a second of a node are the sum over its workers, and
those of a cluster the sum over its nodes. A prompt's speed-up is over greedy decoding by the same worker.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

from mxconv.bench.decode_result import DecodeResult, acceptance_rate
from mxconv.bench.decoding import BANDWIDTH_BYTES, BANDWIDTH_CACHES, Decodes, DecodeTimer, results_of
from mxconv.bench.machine import last_level_cache_bytes
from mxconv.bench.rates import ReadBandwidth
from mxconv.bench.strategies import GREEDY, strategies_of
from mxconv.cluster.node import node_name
from mxconv.errors import MxconvError
from mxconv.kernels.engine import NUMPY
from mxconv.progress import Progress, silent
from mxconv.system.processor import cpu_name, usable_processors
from mxconv.text.messages import Prompt
from mxconv.verification.decode_proof import DecodeSettings, Prompts, check_one_kernel, pieces_of
from mxconv.workers import Advance, ByteCounter, Executor


@dataclass(frozen=True)
class NodeStrategy:
    """One strategy over the prompts of one node."""

    strategy: str
    num_tokens: int
    tokens_per_second: float  # of all its workers together
    acceptance_rates: list[float | None]  # a draft level each; None where it proposed nothing
    identical_to_greedy: bool


@dataclass(frozen=True)
class NodeResult:
    """One node."""

    node: str
    cpu: str
    kernel: str
    num_workers: int  # that decoded a prompt
    num_prompts: int
    results: list[NodeStrategy]


@dataclass(frozen=True)
class Timed:
    """What a worker reports of some prompts."""

    node: str
    process: int
    cpu: str
    kernel: str
    decodes: Decodes

    @property
    def worker(self) -> tuple[str, int]:
        return self.node, self.process


class TimePrompts:
    """A task: decode prompts by every strategy. A process opens the package once, and times one piece at a time."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._settings = settings
        self._kernel = ""
        self._timer: DecodeTimer | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return TimePrompts, (self._settings,)

    def __call__(self, piece: Prompts, advance: Advance) -> Timed:
        with self._lock:
            self._timer = self._timer or self._open()
            decodes = self._timer.decode(piece.texts, self._settings.max_new_tokens)
        advance(len(piece.texts))
        return Timed(node_name(), os.getpid(), cpu_name(), self._kernel, decodes)

    def _open(self) -> DecodeTimer:
        loaded, _ = self._settings.open()
        engine = loaded.matrices.engine
        if engine is None:
            raise MxconvError(
                f"kernels {NUMPY} on {node_name()}: native ones are required. Install mxconv again there."
            )
        self._kernel = engine.name
        # all workers of a node together read through as much as one alone would
        num_bytes = max(BANDWIDTH_CACHES * last_level_cache_bytes() // usable_processors(), 2 * BANDWIDTH_BYTES)
        strategies = strategies_of(loaded.levels, tree=self._settings.tree)
        return DecodeTimer(loaded, strategies, ReadBandwidth(engine, num_bytes))


def bench_nodes(
    executor: Executor, settings: DecodeSettings, prompts: Sequence[Prompt], progress: Progress = silent
) -> tuple[list[DecodeResult], list[NodeResult]]:
    """Decode every prompt with every strategy. The caller decides what a text that differs is worth.

    Args:
        executor: who does it.
        settings: what is decoded; its lengths, thresholds and selection do not matter.
        prompts: texts, or messages.
        progress: told about prompts.

    Returns:
        The figures over all prompts, tokens a second summed over workers, and those of each node.

    Raises:
        MxconvError: a prompt has no tokens, a node has no native kernels, or nodes have different ones.
    """
    task = TimePrompts(settings.from_anywhere())
    timed = executor.map(task, pieces_of(settings, prompts), ByteCounter("decode", len(prompts), progress))
    check_one_kernel((each.kernel, each.cpu) for each in timed)
    nodes = [_node([each for each in timed if each.node == node]) for node in sorted({each.node for each in timed})]
    results = results_of([each.decodes for each in timed])
    return [replace(r, tokens_per_second=_tokens_per_second(timed, r.strategy)) for r in results], nodes


def _node(timed: Sequence[Timed]) -> NodeResult:
    first, strategies = timed[0], timed[0].decodes.strategies
    return NodeResult(
        node=first.node,
        cpu=first.cpu,
        kernel=first.kernel,
        num_workers=len({each.worker for each in timed}),
        num_prompts=sum(len(each.decodes.runs[GREEDY]) for each in timed),
        results=[_strategy(timed, strategy.name, len(strategy.levels) - 1) for strategy in strategies],
    )


def _strategy(timed: Sequence[Timed], name: str, num_drafts: int) -> NodeStrategy:
    generations = [run.generation for each in timed for run in each.decodes.runs[name]]
    greedy = [run.generation.token_ids for each in timed for run in each.decodes.runs[GREEDY]]
    return NodeStrategy(
        strategy=name,
        num_tokens=sum(len(generation.token_ids) for generation in generations),
        tokens_per_second=_tokens_per_second(timed, name),
        acceptance_rates=[acceptance_rate(generations, level) for level in range(1, num_drafts + 1)],
        identical_to_greedy=[generation.token_ids for generation in generations] == greedy,
    )


def _tokens_per_second(timed: Sequence[Timed], strategy: str) -> float:
    """Summed over workers, which run side by side."""
    counts: dict[tuple[str, int], tuple[int, float]] = {}
    for each in timed:
        for run in each.decodes.runs[strategy]:
            num_tokens, seconds = counts.get(each.worker, (0, 0.0))
            counts[each.worker] = num_tokens + len(run.generation.token_ids), seconds + run.generation.seconds
    return sum(num_tokens / seconds for num_tokens, seconds in counts.values() if seconds)
