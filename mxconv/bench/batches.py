"""Sequences side by side in one engine, without HTTP: every strategy beside plain decoding of the same batch.

Strategies take turns, forth and back, so that a machine that drifts favours none. Whatever the batch and the strategy,
the tokens of a sequence must be those of plain decoding.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Literal

from mxconv.bench.decode_result import acceptance_rate, tokens_per_round
from mxconv.bench.decoding import BANDWIDTH_CACHES, WARM_TOKENS, sample_bandwidth
from mxconv.bench.machine import last_level_cache_bytes
from mxconv.bench.prompts import prompt_ids
from mxconv.bench.rates import ReadBandwidth
from mxconv.bench.samples import spread
from mxconv.bench.strategies import GREEDY, Strategy, strategies_of
from mxconv.drafts.loader import LoadedPackage
from mxconv.progress import Progress, silent
from mxconv.serving.engine import Engine
from mxconv.serving.request import Request
from mxconv.speculation.generation import Generation
from mxconv.text.messages import Prompt

if TYPE_CHECKING:
    from mxconv.kernels import _native

NUM_TURNS = 2  # forth and back


@dataclass(frozen=True)
class BatchResult:
    """One strategy with so many sequences at a time; lists over draft levels leave the target out."""

    strategy: str
    levels: list[str]
    batch: int  # sequences at a time
    num_sequences: int
    num_tokens: int  # of a turn
    seconds: float  # of all turns, prompts included
    tokens_per_second: float  # of all sequences together
    speedup: float  # over greedy with as many at a time
    scaling: float  # tokens a second over those of the smallest batch
    tokens_per_round: float  # of the target and a sequence, the prompt's round included
    acceptance_rates: list[float | None]  # a draft level each; None where it proposed nothing
    read_bandwidth: float  # beside it, GB/s
    fraction_of_bandwidth: float | None  # None: passes are shared, and sequences do not know how many there were
    identical_to_greedy: bool  # to that of the smallest batch


@dataclass(frozen=True)
class Run:
    """All sequences, once."""

    seconds: float
    generations: list[Generation]
    bandwidth: float  # bytes a second, before and behind

    @property
    def tokens(self) -> list[list[int]]:
        return [generation.token_ids for generation in self.generations]


def bench_batches(
    loaded: LoadedPackage,
    engine: "_native.Engine",
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    batches: Sequence[int],
    progress: Progress = silent,
    tree: int | Literal["auto", "chain"] = "auto",
) -> list[BatchResult]:
    """Decode the same sequences with every strategy, so many at a time. The caller judges texts that differ.

    Args:
        loaded: the package.
        engine: to measure bandwidth with.
        prompts: texts or messages; they are repeated until they fill the largest batch.
        max_new_tokens: of a sequence.
        batches: ascending numbers of sequences.
        progress: told about every run.
        tree: of look-ups, as `Hierarchy` takes it.

    Raises:
        MxconvError: a prompt has no tokens, or a sequence fails.
    """
    strategies = strategies_of(loaded.levels, tree=tree)
    ids = prompt_ids(loaded.tokenizer, loaded.folder, prompts)
    num_sequences = -(-len(ids) // batches[-1]) * batches[-1]
    stop = loaded.tokenizer.eos_token_ids
    requests = [Request(prompt, max_new_tokens, stop) for prompt in islice(cycle(ids), num_sequences)]
    bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
    runs: dict[tuple[int, str], list[Run]] = {}
    total = NUM_TURNS * len(batches) * len(strategies)
    for batch in batches:
        for turn in range(NUM_TURNS):
            for strategy in strategies if turn == 0 else reversed(strategies):
                progress("decode", sum(map(len, runs.values())), total)
                if turn == 0:  # warms caches and threads
                    warm = [Request(one.prompt, min(max_new_tokens, WARM_TOKENS), stop) for one in requests[:batch]]
                    _run(strategy, warm, batch, bandwidth)
                runs.setdefault((batch, strategy.name), []).append(_run(strategy, requests, batch, bandwidth))
    progress("decode", total, total)
    return [_result(strategy, batch, batches[0], runs) for batch in batches for strategy in strategies]


def _run(strategy: Strategy, requests: Sequence[Request], batch: int, bandwidth: ReadBandwidth) -> Run:
    rates = sample_bandwidth(bandwidth)
    begin = time.perf_counter()
    engine = Engine(strategy.hierarchy, batch)
    sequences = [engine.submit(request) for request in requests]
    while not engine.is_idle:
        engine.step()
    seconds = time.perf_counter() - begin
    for sequence in sequences:
        if sequence.error is not None:
            raise sequence.error
    generations = [sequence.generation for sequence in sequences]
    return Run(seconds, generations, spread([*rates, *sample_bandwidth(bandwidth)]).median)


def _result(strategy: Strategy, batch: int, smallest: int, runs: dict[tuple[int, str], list[Run]]) -> BatchResult:
    mine = runs[batch, strategy.name]
    expected = runs[smallest, GREEDY][0].tokens
    generations = [generation for run in mine for generation in run.generations]
    rate = _rate(mine)
    return BatchResult(
        strategy=strategy.name,
        levels=strategy.levels,
        batch=batch,
        num_sequences=len(expected),
        num_tokens=sum(map(len, expected)),
        seconds=sum(run.seconds for run in mine),
        tokens_per_second=rate,
        speedup=rate / _rate(runs[batch, GREEDY]),
        scaling=rate / _rate(runs[smallest, strategy.name]),
        tokens_per_round=tokens_per_round(generations),
        acceptance_rates=[acceptance_rate(generations, index) for index in range(1, len(strategy.levels))],
        read_bandwidth=spread([run.bandwidth for run in mine]).median / 1e9,
        fraction_of_bandwidth=None,
        identical_to_greedy=all(run.tokens == expected for run in mine),
    )


def _rate(runs: Sequence[Run]) -> float:
    return sum(len(tokens) for run in runs for tokens in run.tokens) / sum(run.seconds for run in runs)
