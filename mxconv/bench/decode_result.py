"""What the decodes of one strategy come to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import exp, log
from typing import Literal

from mxconv.bench.samples import spread
from mxconv.bench.strategies import StrategyRecord
from mxconv.speculation.generation import Generation


@dataclass(frozen=True)
class Run:
    """One prompt."""

    generation: Generation
    bandwidth: float  # bytes a second, before and behind


@dataclass(frozen=True)
class DecodeResult:
    """One strategy over all prompts; lists over draft levels leave the target out."""

    strategy: str
    levels: list[str]
    num_prompts: int
    num_tokens: int
    tokens_per_second: float
    speedup: float  # over greedy, prompt and all, geometric mean over prompts
    speedup_by_prompt: list[float]
    tokens_per_round: float  # of the target, the prompt's round included
    acceptance_rates: list[float | None]  # a draft level each: accepted over proposed; None where it proposed nothing
    acceptance_by_prompt: list[list[float | None]]  # [draft level][prompt]
    acceptance_by_position: list[list[float]]  # [draft level][place in the proposal]
    decode_speedup: float | None  # over greedy, behind the prompts; None where texts have one token
    num_bytes: int  # of weights that all forward passes read
    read_bandwidth: float  # beside it, GB/s
    fraction_of_bandwidth: float  # weights read a second over read bandwidth, median over prompts
    identical_to_greedy: bool
    num_nodes: list[int] = field(default_factory=list)  # a draft level each: proposed, all branches of trees counted
    nodes_by_depth: list[list[int]] = field(default_factory=list)  # [draft level][depth]: of these
    has_trees: bool = False  # whether any draft proposed more nodes than its longest paths have


def summarize(
    strategy: StrategyRecord,
    runs: Sequence[Run],
    greedy: Sequence[Run],
    num_bytes: Mapping[str, int],
) -> DecodeResult:
    """The figures of a strategy.

    Args:
        strategy: which.
        runs: a prompt each.
        greedy: plain decoding of the same prompts.
        num_bytes: that a pass reads, by level.
    """
    generations = [run.generation for run in runs]
    num_tokens = sum(len(generation.token_ids) for generation in generations)
    traffic = [
        sum(level.num_forwards * num_bytes[level.name] for level in generation.trace.statistics)
        for generation in generations
    ]
    ratios = [other.generation.seconds / mine.generation.seconds for mine, other in zip(runs, greedy, strict=True)]
    fractions = [read / run.generation.seconds / run.bandwidth for read, run in zip(traffic, runs, strict=True)]
    drafts = range(1, len(strategy.levels))
    by_prompt = [[generation.trace.statistics[index].acceptance_rate for generation in generations] for index in drafts]
    mine, theirs = decode_rate(generations), decode_rate([run.generation for run in greedy])
    decode_speedup = mine / theirs if mine and theirs else None
    return DecodeResult(
        strategy=strategy.name,
        levels=strategy.levels,
        num_prompts=len(runs),
        num_tokens=num_tokens,
        tokens_per_second=num_tokens / sum(generation.seconds for generation in generations),
        speedup=geomean(ratios),
        speedup_by_prompt=ratios,
        tokens_per_round=tokens_per_round(generations),
        acceptance_rates=[acceptance_rate(generations, index) for index in drafts],
        acceptance_by_prompt=by_prompt,
        acceptance_by_position=[_acceptance_by_position(generations, index) for index in drafts],
        decode_speedup=decode_speedup,
        num_bytes=sum(traffic),
        read_bandwidth=spread([run.bandwidth for run in runs]).median / 1e9,
        fraction_of_bandwidth=spread(fractions).median,
        identical_to_greedy=all(
            mine.generation.token_ids == other.generation.token_ids for mine, other in zip(runs, greedy, strict=True)
        ),
        num_nodes=[_total(generations, index, "num_nodes") for index in drafts],
        nodes_by_depth=[_by_place(generations, index, "nodes_by_depth") for index in drafts],
        has_trees=any(
            _total(generations, index, "num_nodes") > _total(generations, index, "num_proposed") for index in drafts
        ),
    )


def geomean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def decode_rate(generations: Sequence[Generation]) -> float | None:
    """Tokens a second behind the first, which comes with the prompt; None where no text has a second one."""
    num_tokens = sum(len(generation.token_ids) - 1 for generation in generations)
    seconds = sum(generation.seconds - generation.prompt_seconds for generation in generations)
    return num_tokens / seconds if num_tokens and seconds else None


def tokens_per_round(generations: Sequence[Generation]) -> float:
    """Of the target, the prompts' rounds included."""
    num_tokens = sum(len(generation.token_ids) for generation in generations)
    return num_tokens / sum(generation.trace.num_rounds for generation in generations)


def acceptance_rate(generations: Sequence[Generation], level: int) -> float | None:
    """Accepted over proposed; None where nothing was proposed."""
    statistics = [generation.trace.statistics[level] for generation in generations]
    num_proposed = sum(level.num_proposed for level in statistics)
    return sum(level.num_accepted for level in statistics) / num_proposed if num_proposed else None


def _acceptance_by_position(generations: Sequence[Generation], level: int) -> list[float]:
    """Accepted over proposed, for each place in a proposal that ever held a token."""
    proposed, accepted = (
        _by_place(generations, level, key) for key in ("proposed_by_position", "accepted_by_position")
    )
    accepted += [0] * (len(proposed) - len(accepted))
    return [right / number for right, number in zip(accepted, proposed, strict=True)]


def _total(generations: Sequence[Generation], level: int, key: Literal["num_nodes", "num_proposed"]) -> int:
    return sum(getattr(generation.trace.statistics[level], key) for generation in generations)


def _by_place(
    generations: Sequence[Generation],
    level: int,
    key: Literal["proposed_by_position", "accepted_by_position", "nodes_by_depth"],
) -> list[int]:
    """Counts by place, summed over texts."""
    found: list[list[int]] = [getattr(generation.trace.statistics[level], key) for generation in generations]
    return [sum(places) for places in zip_longest(*found, fillvalue=0)]
