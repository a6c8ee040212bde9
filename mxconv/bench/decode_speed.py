"""Whole decodes of a package by every strategy, prompt by prompt.

The strategies are those of ML-SpecQD (arXiv 2503.13565), Tables I and II, and more:

greedy              the target alone: the first of the run's levels, which need not be the 16-bit one
NAME                the target with one draft: the 4-bit copy, a small model, a look-up
NAME (trees)        the same by trees: as large as pays, or of a given number of nodes
NAME (fp32)         the same 4-bit draft multiplying float32 activations, for ML-SpecQD Table III
hierarchy           all levels, where there is more than one draft
hierarchy (fp32)    the same, all 4-bit weights multiplying float32 activations, for the table's other row
auto                all levels, each choosing round by round how many tokens to ask of which

They take turns, each between samples of read bandwidth, so that all see one state of the machine. Whatever the
strategy, its tokens must be those of greedy decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mxconv.bench.rates import ReadBandwidth, spread
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError, MxconvError
from mxconv.progress import Progress, silent
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.statistics import Generation, LevelStatistics
from mxconv.text.chat import encode_prompts
from mxconv.text.messages import Prompt
from mxconv.text.tokenizer import Tokenizer

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


@dataclass(frozen=True, kw_only=True)
class StrategyResult:
    """Figures of one strategy; lists over draft levels leave the target out."""

    strategy: str
    levels: list[str]
    num_tokens: int
    tokens_per_second: float
    speedup: float  # over greedy
    tokens_per_round: float  # of the target, the prompt's round included
    acceptance_rates: list[float | None]  # accepted over proposed; None where a level proposed nothing
    read_bandwidth: float  # beside it, GB/s
    fraction_of_bandwidth: float | None  # weights read a second over read bandwidth; None where nobody counts passes
    identical_to_greedy: bool


@dataclass(frozen=True, kw_only=True)
class DecodeResult(StrategyResult):
    """One strategy over all prompts, one after another. `speedup` is a geometric mean over prompts, their time too."""

    num_prompts: int
    speedup_by_prompt: list[float]
    decode_speedup: float | None  # over greedy, after the prompts; None where texts have one token
    acceptance_by_prompt: list[list[float | None]]  # [draft level][prompt]
    acceptance_by_position: list[list[float]]  # [draft level][place in the proposal]
    num_bytes: int  # of weights that all forward passes read
    num_nodes: list[int]  # a draft level each: proposed, all branches of trees counted


@dataclass(frozen=True)
class Strategy:
    """A way to decode."""

    name: str
    hierarchy: Hierarchy

    @property
    def levels(self) -> list[str]:
        """Names of the levels, the target first."""
        return [level.name for level in self.hierarchy.levels]


@dataclass(frozen=True)
class TimedText:
    """One prompt, decoded, and the bytes a second that were read before and after."""

    generation: Generation
    bandwidth: float


def bench_decoding(
    loaded: LoadedPackage,
    engine: "_native.Engine",
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    progress: Progress = silent,
    fp32: Sequence[LoadedLevel] = (),
    tree: int | Literal["auto", "chain"] = "auto",
) -> list[DecodeResult]:
    """Decode every prompt with every strategy. The caller decides about texts that differ.

    Args:
        loaded: the package.
        engine: to measure bandwidth with.
        prompts: texts, or messages.
        max_new_tokens: a prompt.
        progress: receives the number of decodes.
        fp32: the same levels, 4-bit weights by float32 arithmetic, compared with those by int8.
        tree: of look-ups, as `Hierarchy` takes it.

    Raises:
        MxconvError: a prompt has no tokens.
    """
    bandwidth, stop = ReadBandwidth(engine), loaded.tokenizer.eos_token_ids
    strategies = strategies_of(loaded.levels, fp32, tree)
    ids = prompt_ids(loaded.tokenizer, loaded.folder, prompts)
    texts: dict[str, list[TimedText]] = {strategy.name: [] for strategy in strategies}
    total = len(ids) * len(strategies)
    for number, prompt in enumerate(ids):
        for place, strategy in enumerate(strategies):
            progress("decode", number * len(strategies) + place, total)
            decode = partial(strategy.hierarchy.generate, prompt)
            if not number:  # warms caches and threads
                decode(min(max_new_tokens, WARM_TOKENS), stop)
            texts[strategy.name].append(TimedText(*bandwidth.beside(partial(decode, max_new_tokens, stop))))
    progress("decode", total, total)
    num_bytes = {level.name: loaded.bytes_per_pass(level) for level in loaded.levels}
    return [summarize(strategy, texts[strategy.name], texts[GREEDY], num_bytes) for strategy in strategies]


def summarize(
    strategy: Strategy, texts: Sequence[TimedText], greedy: Sequence[TimedText], num_bytes: Mapping[str, int]
) -> DecodeResult:
    """The figures of a strategy, from its text of each prompt, plain decoding's, and the bytes of a pass by level."""
    generations, plain = ([text.generation for text in each] for each in (texts, greedy))
    levels = [each.trace.statistics for each in generations]
    drafts = summed(levels)[1:]
    traffic = [sum(level.num_forwards * num_bytes[level.name] for level in each) for each in levels]
    ratios = [theirs.seconds / mine.seconds for mine, theirs in zip(generations, plain, strict=True)]
    fractions = [read / text.generation.seconds / text.bandwidth for read, text in zip(traffic, texts, strict=True)]
    mine, theirs = decode_rate(generations), decode_rate(plain)
    return DecodeResult(
        **strategy_members(strategy, generations, [text.bandwidth for text in texts]),
        tokens_per_second=sum(len(each.token_ids) for each in generations) / sum(each.seconds for each in generations),
        speedup=geomean(ratios),
        fraction_of_bandwidth=spread(fractions).median,
        identical_to_greedy=[each.token_ids for each in generations] == [each.token_ids for each in plain],
        num_prompts=len(texts),
        speedup_by_prompt=ratios,
        decode_speedup=mine / theirs if mine and theirs else None,
        acceptance_by_prompt=[[each[i].acceptance_rate for each in levels] for i in range(1, len(levels[0]))],
        acceptance_by_position=[draft.acceptance_by_position for draft in drafts],
        num_bytes=sum(traffic),
        num_nodes=[draft.num_nodes for draft in drafts],
    )


def strategy_members(
    strategy: Strategy, generations: Sequence[Generation], bandwidths: Sequence[float]
) -> dict[str, Any]:
    """The members of a `StrategyResult` that do not depend on how its texts were timed."""
    num_tokens = sum(len(each.token_ids) for each in generations)
    return {
        "strategy": strategy.name,
        "levels": strategy.levels,
        "num_tokens": num_tokens,
        "tokens_per_round": num_tokens / sum(each.trace.num_rounds for each in generations),
        "acceptance_rates": [d.acceptance_rate for d in summed([each.trace.statistics for each in generations])[1:]],
        "read_bandwidth": spread(bandwidths).median / 1e9,
    }


def summed(texts: Sequence[Sequence[LevelStatistics]]) -> list[LevelStatistics]:
    """The counts of each level over several texts."""
    totals = []
    for levels in zip(*texts, strict=True):
        counts: dict[str, Any] = {key: sum(getattr(level, key) for level in levels) for key in COUNTS}
        for key in COUNTS_BY_PLACE:
            counts[key] = [sum(at) for at in zip_longest(*(getattr(level, key) for level in levels), fillvalue=0)]
        totals.append(LevelStatistics(levels[0].name, **counts))
    return totals


def geomean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


def decode_rate(generations: Sequence[Generation]) -> float | None:
    """Tokens a second after the first, which comes with the prompt; None where no text has a second one."""
    num_tokens = sum(len(generation.token_ids) - 1 for generation in generations)
    seconds = sum(generation.seconds - generation.prompt_seconds for generation in generations)
    return num_tokens / seconds if num_tokens and seconds else None


def prompt_ids(tokenizer: Tokenizer, folder: Path, prompts: Sequence[Prompt]) -> list[list[int]]:
    """The prompts as tokens; messages as the chat template of the model in `folder` puts them.

    Raises:
        MxconvError: one of them has none, or the template refuses one.
    """
    ids = encode_prompts(tokenizer, folder, prompts)
    for text, tokens in zip(prompts, ids, strict=True):
        if not tokens:
            raise MxconvError(f"prompt {text!r}: no tokens; at least one is required. Leave it out.")
    return ids


def strategies_of(
    levels: Sequence[LoadedLevel],
    fp32: Sequence[LoadedLevel] = (),
    tree: int | Literal["auto", "chain"] = "auto",
) -> list[Strategy]:
    """Every strategy for these levels, greedy first.

    Args:
        levels: the target first.
        fp32: the same levels once more, by float32 arithmetic: the 4-bit draft alone and all together come from them,
            each after its sibling.
        tree: as `Hierarchy` takes it; each draft alone drafts chains in any case.
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
    if drafts:
        found["auto"] = Hierarchy(levels, num_draft_tokens="auto", tree=tree)
    return [Strategy(name, hierarchy) for name, hierarchy in found.items()]


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
