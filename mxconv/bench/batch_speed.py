"""Sequences side by side in one engine, without HTTP: every strategy beside plain decoding of the same batch.

Strategies take turns, forth and back, so that a machine that drifts favours none. Whatever the batch and the strategy,
the tokens of a sequence must be those of plain decoding.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Literal

from mxconv.bench.decode_speed import (
    GREEDY,
    WARM_TOKENS,
    Strategy,
    StrategyResult,
    prompt_ids,
    strategies_of,
    strategy_members,
)
from mxconv.bench.rates import ReadBandwidth
from mxconv.drafts.loader import LoadedPackage
from mxconv.progress import Progress, silent
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.selection import Request
from mxconv.speculation.statistics import Generation
from mxconv.text.messages import Prompt

if TYPE_CHECKING:
    from mxconv.kernels import _native

NUM_TURNS = 2  # forth and back


@dataclass(frozen=True, kw_only=True)
class BatchResult(StrategyResult):
    """One strategy with so many sequences at a time. `num_tokens` is of a turn; passes are shared and not counted."""

    batch: int  # sequences at a time
    num_sequences: int
    seconds: float  # of all turns, prompts included
    scaling: float  # tokens a second over those of the smallest batch


@dataclass(frozen=True)
class BatchTurn:
    """All sequences, decoded once, and the bytes a second that were read before and after."""

    seconds: float
    generations: list[Generation]
    bandwidth: float


def bench_batches(
    loaded: LoadedPackage,
    engine: "_native.Engine",
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    batches: Sequence[int],
    progress: Progress = silent,
    tree: int | Literal["auto", "chain"] = "auto",
) -> list[BatchResult]:
    """Decode the same sequences with every strategy, so many at a time. The caller decides about texts that differ.

    Args:
        loaded: the package.
        engine: to measure bandwidth with.
        prompts: texts or messages; they are repeated until they fill the largest batch.
        max_new_tokens: of a sequence.
        batches: ascending numbers of sequences.
        progress: receives the number of turns.
        tree: of look-ups, as `Hierarchy` takes it.

    Raises:
        MxconvError: a prompt has no tokens, or a sequence fails.
    """
    strategies = strategies_of(loaded.levels, tree=tree)
    ids = prompt_ids(loaded.tokenizer, loaded.folder, prompts)
    num_sequences = -(-len(ids) // batches[-1]) * batches[-1]
    stop, bandwidth = loaded.tokenizer.eos_token_ids, ReadBandwidth(engine)
    requests = [Request(prompt, max_new_tokens, stop) for prompt in islice(cycle(ids), num_sequences)]
    turns: dict[tuple[int, str], list[BatchTurn]] = {}
    done, total = 0, NUM_TURNS * len(batches) * len(strategies)
    for batch in batches:
        for turn in range(NUM_TURNS):
            for strategy in strategies if turn == 0 else reversed(strategies):
                progress("decode", done, total)
                if turn == 0:  # warms caches and threads
                    warm = [Request(one.prompt, min(max_new_tokens, WARM_TOKENS), stop) for one in requests[:batch]]
                    _decode(strategy, warm, batch)
                (seconds, generations), rate = bandwidth.beside(partial(_decode, strategy, requests, batch))
                turns.setdefault((batch, strategy.name), []).append(BatchTurn(seconds, generations, rate))
                done += 1
    progress("decode", total, total)
    return [_summarize(strategy, batch, batches[0], turns) for batch in batches for strategy in strategies]


def _decode(strategy: Strategy, requests: Sequence[Request], batch: int) -> tuple[float, list[Generation]]:
    """Decode all requests; how long that took, and the texts."""
    begin = time.perf_counter()
    engine = Engine(strategy.hierarchy, batch)
    sequences = [engine.submit(request) for request in requests]
    while not engine.is_idle:
        engine.step()
    seconds = time.perf_counter() - begin
    for sequence in sequences:
        if sequence.error is not None:
            raise sequence.error
    return seconds, [sequence.generation for sequence in sequences]


def _summarize(
    strategy: Strategy, batch: int, smallest: int, turns: dict[tuple[int, str], list[BatchTurn]]
) -> BatchResult:
    mine, expected = turns[batch, strategy.name], _tokens(turns[smallest, GREEDY][0])
    generations = [each for turn in mine for each in turn.generations]
    rate = _rate(mine)
    return BatchResult(
        **strategy_members(strategy, generations, [turn.bandwidth for turn in mine])
        | {"num_tokens": sum(map(len, expected))},
        tokens_per_second=rate,
        speedup=rate / _rate(turns[batch, GREEDY]),
        fraction_of_bandwidth=None,
        identical_to_greedy=all(_tokens(turn) == expected for turn in mine),
        batch=batch,
        num_sequences=len(expected),
        seconds=sum(turn.seconds for turn in mine),
        scaling=rate / _rate(turns[smallest, strategy.name]),
    )


def _tokens(turn: BatchTurn) -> list[list[int]]:
    return [generation.token_ids for generation in turn.generations]


def _rate(turns: Sequence[BatchTurn]) -> float:
    """Tokens a second of all turns."""
    return sum(len(tokens) for turn in turns for tokens in _tokens(turn)) / sum(turn.seconds for turn in turns)
