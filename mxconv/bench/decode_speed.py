"""Whole decodes of a package by every strategy, one text at a time or several side by side.

The strategies are those of ML-SpecQD (arXiv 2503.13565), Tables I and II, and more:

greedy              the target alone: the first of the run's levels, which need not be the 16-bit one
NAME                the target with one draft: the 4-bit copy, a small model, a look-up
NAME (trees)        the same by trees: as large as pays, or of a given number of nodes
NAME (fp32)         the same 4-bit draft multiplying float32 activations, for ML-SpecQD Table III
hierarchy           all levels, where there is more than one draft
hierarchy (fp32)    the same, all 4-bit weights multiplying float32 activations, for the table's other row
auto                all levels and look-ups of the prompt, choosing round by round how many tokens to ask of which

They take turns, forth and back, so that all see one state of the machine, between samples of read bandwidth. One text
at a time, a turn is a prompt; side by side it is a step of all texts, and all sequences are decoded twice. Whatever the
strategy and the number of texts side by side, the tokens must be those of greedy decoding.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice, zip_longest
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, Literal

from mxconv.bench.rates import ReadBandwidth, spread
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError, MxconvError
from mxconv.progress import Progress, silent
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.selection import Request
from mxconv.speculation.statistics import Generation, LevelStatistics
from mxconv.text.chat import encode_prompts
from mxconv.text.messages import Prompt

if TYPE_CHECKING:
    from mxconv.kernels import _native

DEFAULT_PROMPTS = (
    "The memory of a computer is",
    "Once upon a time there was a small village by the sea, and in it",
    "def read_lines(path):",
    "Question: why is the sky blue? Answer:",
)
GREEDY = "greedy"
WARM_TOKENS = 8
COUNTS = ("num_forwards", "num_proposed", "num_accepted", "num_nodes")
COUNTS_BY_PLACE = ("proposed_by_position", "accepted_by_position")

TreeSize = int | Literal["auto", "chain"]


@dataclass(frozen=True, kw_only=True)
class DecodeResult:
    """Figures of one strategy with so many texts at a time, prompts included. Lists of drafts leave the target out.

    `num_bytes` and `fraction_of_bandwidth` are None where texts share forward passes, which nobody counts then.
    """

    strategy: str
    batch: int  # texts at a time
    levels: list[str]
    num_prompts: int
    num_tokens: int
    seconds: float
    tokens_per_second: float
    speedup: float  # over greedy of the same batch, the geometric mean over turns
    decode_speedup: float | None  # the same after the prompts; None where texts have one token, or share passes
    scaling: float  # tokens a second over those of the smallest batch
    tokens_per_round: float  # of the target, the prompt's round included
    acceptance_rates: list[float | None]  # accepted over proposed; None where a level proposed nothing
    acceptance_by_prompt: list[list[float | None]]  # [draft level][text]
    acceptance_by_position: list[list[float]]  # [draft level][place in the proposal]
    num_nodes: list[int]  # by draft level: proposed, all branches of trees counted
    num_bytes: int | None  # of weights that all forward passes read
    read_bandwidth: float  # beside it, GB/s
    fraction_of_bandwidth: float | None  # weights read a second over read bandwidth
    identical_to_greedy: bool


@dataclass(frozen=True)
class TimedTexts:
    """Some texts, decoded, and the bytes a second that were read before and after."""

    generations: list[Generation]
    seconds: float
    bandwidth: float


def bench_decoding(
    loaded: LoadedPackage,
    engine: "_native.Engine",
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    batches: Sequence[int] = (1,),
    progress: Progress = silent,
    fp32: Sequence[LoadedLevel] = (),
    tree: TreeSize = "auto",
    only: Sequence[str] = (),
) -> list[DecodeResult]:
    """Decode every prompt with every strategy. The caller decides about texts that differ.

    Args:
        loaded: the package.
        engine: to measure bandwidth with.
        prompts: texts, or messages; they are repeated until they fill the largest batch.
        max_new_tokens: a text.
        batches: ascending numbers of texts at a time.
        progress: receives the number of turns.
        fp32: the same levels, 4-bit weights by float32 arithmetic, compared with those by int8.
        tree: of look-ups, as `Hierarchy` takes it.
        only: names of strategies to measure beside greedy decoding; all without.

    Raises:
        MxconvError: a prompt has no tokens, a text fails, or there is no such strategy.
    """
    bandwidth, stop = ReadBandwidth(engine), loaded.tokenizer.eos_token_ids
    strategies = strategies_of(loaded.levels, fp32, tree, loaded.auto_levels)
    if unknown := [name for name in only if name not in strategies]:
        raise MxconvError(f"--only: {', '.join(unknown)}; some of {', '.join(strategies)} are required.")
    if only:
        strategies = {name: each for name, each in strategies.items() if name in (GREEDY, *only)}
    ids = encode_prompts(loaded.tokenizer, loaded.folder, prompts)
    for text, tokens in zip(prompts, ids, strict=True):
        if not tokens:
            raise MxconvError(f"prompt {text!r}: no tokens; at least one is required. Leave it out.")
    num_sequences = -(-len(ids) // batches[-1]) * batches[-1]
    requests = [Request(prompt, max_new_tokens, stop) for prompt in islice(cycle(ids), num_sequences)]
    rounds = [(n, own) for n in batches for own in ([[r] for r in requests] if n == 1 else [requests, requests])]
    turns: dict[tuple[int, str], list[TimedTexts]] = {}
    done, total = 0, len(rounds) * len(strategies)
    few = min(max_new_tokens, WARM_TOKENS)
    for number, (batch, own) in enumerate(rounds):
        names = list(reversed(strategies) if number % 2 else strategies)
        for together in [names] if batch > 1 else [[name] for name in names]:
            progress("decode", done, total)
            chosen = [strategies[name] for name in together]
            if (batch, together[0]) not in turns:  # warms caches and threads
                decode(chosen, [Request(each.prompt, few, stop) for each in own[:batch]], batch)
            made, rate = bandwidth.beside(partial(decode, chosen, own, batch))
            for name, (generations, seconds) in zip(together, made, strict=True):
                turns.setdefault((batch, name), []).append(TimedTexts(generations, seconds, rate))
            done += len(together)
    progress("decode", total, total)
    num_bytes = {level.name: loaded.bytes_per_pass(level) for level in loaded.auto_levels}
    levels = {name: [level.name for level in hierarchy.levels] for name, hierarchy in strategies.items()}
    return [summarize(own, levels[own], batch, batches[0], turns, num_bytes) for batch in batches for own in levels]


def decode(
    hierarchies: Sequence[Hierarchy], requests: Sequence[Request], batch: int
) -> list[tuple[list[Generation], float]]:
    """Decode so many texts at a time; the texts of each strategy, and how long they took.

    Side by side, strategies take turns step by step, and every second time the other way round.
    """
    if batch == 1:
        return [_decode_alone(each, requests) for each in hierarchies]
    engines = [Engine(each, batch) for each in hierarchies]
    sequences = [[engine.submit(request) for request in requests] for engine in engines]
    seconds, places = [0.0] * len(engines), list(range(len(engines)))
    while not all(engine.is_idle for engine in engines):
        for place in places:
            begin = time.perf_counter()
            if not engines[place].is_idle:
                engines[place].step()
            seconds[place] += time.perf_counter() - begin
        places.reverse()
    for sequence in chain.from_iterable(sequences):
        if sequence.error is not None:
            raise sequence.error
    return [([each.generation for each in own], spent) for own, spent in zip(sequences, seconds, strict=True)]


def _decode_alone(hierarchy: Hierarchy, requests: Sequence[Request]) -> tuple[list[Generation], float]:
    begin = time.perf_counter()
    alone = [hierarchy.generate(each.prompt, each.max_new_tokens, each.stop_tokens) for each in requests]
    return alone, time.perf_counter() - begin


def summarize(
    strategy: str,
    names: Sequence[str],
    batch: int,
    smallest: int,
    turns: dict[tuple[int, str], list[TimedTexts]],
    num_bytes: dict[str, int],
) -> DecodeResult:
    """The figures of a strategy with so many texts at a time.

    Args:
        strategy: its name.
        names: of its levels, the target first.
        batch: texts at a time.
        smallest: the batch that this one is compared with.
        turns: by batch and strategy.
        num_bytes: of a pass, by level.
    """
    mine, plain, expected = turns[batch, strategy], turns[batch, GREEDY], _tokens(turns[smallest, GREEDY])
    generations, tokens = [text for turn in mine for text in turn.generations], _tokens(mine)
    levels = [text.trace.statistics for text in generations]
    drafts, traffic = summed(levels)[1:], None
    if batch == 1:
        traffic = [sum(level.num_forwards * num_bytes[level.name] for level in each) for each in levels]
    fractions = [read / turn.seconds / turn.bandwidth for read, turn in zip(traffic or (), mine, strict=False)]
    own_rate, plain_rate = (decode_rate(each) if batch == 1 else None for each in (mine, plain))
    num_prompts = len(expected) if smallest == 1 else len(expected) // 2
    return DecodeResult(
        strategy=strategy,
        batch=batch,
        levels=[*names],
        num_prompts=num_prompts,
        num_tokens=sum(map(len, tokens)),
        seconds=sum(turn.seconds for turn in mine),
        tokens_per_second=_rate(mine),
        speedup=geometric_mean([theirs.seconds / own.seconds for own, theirs in zip(mine, plain, strict=True)]),
        decode_speedup=own_rate / plain_rate if own_rate and plain_rate else None,
        scaling=_rate(mine) / _rate(turns[smallest, strategy]),
        tokens_per_round=sum(map(len, tokens)) / sum(text.trace.num_rounds for text in generations),
        acceptance_rates=[draft.acceptance_rate for draft in drafts],
        acceptance_by_prompt=[[each[i].acceptance_rate for each in levels] for i in range(1, len(levels[0]))],
        acceptance_by_position=[draft.acceptance_by_position for draft in drafts],
        num_nodes=[draft.num_nodes for draft in drafts],
        num_bytes=None if traffic is None else sum(traffic),
        read_bandwidth=spread([turn.bandwidth for turn in mine]).median / 1e9,
        fraction_of_bandwidth=spread(fractions).median if fractions else None,
        identical_to_greedy=all(each == expected[place % num_prompts] for place, each in enumerate(tokens)),
    )


def _tokens(turns: Sequence[TimedTexts]) -> list[list[int]]:
    return [text.token_ids for turn in turns for text in turn.generations]


def _rate(turns: Sequence[TimedTexts]) -> float:
    """Tokens a second of all turns."""
    return sum(map(len, _tokens(turns))) / sum(turn.seconds for turn in turns)


def summed(texts: Sequence[Sequence[LevelStatistics]]) -> list[LevelStatistics]:
    """The counts of each level over several texts."""
    totals = []
    for levels in zip(*texts, strict=True):
        counts: dict[str, Any] = {key: sum(getattr(level, key) for level in levels) for key in COUNTS}
        for key in COUNTS_BY_PLACE:
            counts[key] = [sum(at) for at in zip_longest(*(getattr(level, key) for level in levels), fillvalue=0)]
        totals.append(LevelStatistics(levels[0].name, **counts))
    return totals


def decode_rate(turns: Sequence[TimedTexts]) -> float | None:
    """Tokens a second after the first, which comes with the prompt; None where no text has a second one."""
    texts = [text for turn in turns for text in turn.generations]
    num_tokens = sum(len(text.token_ids) - 1 for text in texts)
    seconds = sum(text.seconds - text.prompt_seconds for text in texts)
    return num_tokens / seconds if num_tokens and seconds else None


def strategies_of(
    levels: Sequence[LoadedLevel],
    fp32: Sequence[LoadedLevel] = (),
    tree: TreeSize = "auto",
    auto_levels: Sequence[LoadedLevel] | None = None,
) -> dict[str, Hierarchy]:
    """Every strategy for these levels by its name, greedy first.

    Args:
        levels: the target first.
        fp32: the same levels once more, by float32 arithmetic: the 4-bit draft alone and all together come from them,
            each after its sibling.
        tree: as `Hierarchy` takes it; each draft alone drafts chains in any case.
        auto_levels: those that "auto" chooses from, None for the same.
    """
    target, *drafts = levels
    tree_lengths: Literal["auto"] | None = "auto" if tree == "auto" else None
    found = {GREEDY: Hierarchy([target])}
    for draft in drafts:
        found[draft.name] = Hierarchy([target, draft])
        if tree != "chain" and draft.shares_tokens(target):
            found[f"{draft.name} (trees)"] = Hierarchy([target, draft], tree_lengths, tree=tree)
        if fp32 and draft.record.kind == "self-draft":
            found[f"{draft.name} (fp32)"] = Hierarchy([fp32[0], four_bit_level(fp32)])
    if len(drafts) > 1:
        found["hierarchy"] = Hierarchy(levels)
        if fp32:
            found["hierarchy (fp32)"] = Hierarchy(fp32)
    if len(auto_levels := levels if auto_levels is None else auto_levels) > 1:
        found["auto"] = Hierarchy(auto_levels, num_draft_tokens="auto", tree=tree)
    return found


def four_bit_level(levels: Sequence[LoadedLevel]) -> LoadedLevel:
    """The package's own 4-bit draft.

    Raises:
        ModelError: it is not among the drafts.
    """
    for level in levels[1:]:
        if level.record.kind == "self-draft":
            return level
    raise ModelError(
        f"levels {', '.join(level.name for level in levels)}: no 4-bit draft of the target; one is required to compare "
        "activations. Name it in --levels, below the 16-bit level."
    )
