"""What the decodes of one strategy on a GPU come to."""

from dataclasses import dataclass
from math import exp, log

from mxconv.bench.gpu.recorded_text import RecordedText
from mxconv.bench.samples import spread
from mxconv.interop.transformers.run import first_difference


@dataclass(frozen=True)
class TokenDifference:
    """The first token of a text that another strategy chose otherwise, each with its margin over the next best."""

    prompt: int  # its number
    compared_with: str  # the other strategy
    index: int  # among the new tokens
    token: int
    runner_up: int
    margin: float
    other_token: int
    other_runner_up: int
    other_margin: float


@dataclass(frozen=True)
class GpuDecodeResult:
    """One strategy over all prompts. Bytes of memory are None in the interpreter."""

    strategy: str
    num_prompts: int
    num_tokens: int
    tokens_per_second: float  # prompts included
    speedup: float  # over 16 bits: of tokens a second, geometric mean over prompts
    speedup_by_prompt: list[float]
    tokens_per_round: float  # of the target, the prompt's round included
    num_replays: int  # passes, of target and draft, that were replays of CUDA graphs
    acceptance_rates: list[float | None]  # of its drafts
    num_bytes: int | None  # of weights that all forward passes read; None where there are experts
    read_bandwidth: float  # beside it, GB/s
    fraction_of_bandwidth: float | None  # weights read a second over read bandwidth, median over prompts
    loading_peak_bytes: int | None
    peak_bytes: int | None  # while it decodes, weights included
    identical_to_greedy: bool  # to the 16-bit model's tokens
    identical_to_target: bool  # to those of the same weights without drafts
    differences: list[TokenDifference]  # at most one a prompt: without drafts from 16 bits, with them from the target


@dataclass(frozen=True)
class Decoded:
    """What a strategy did.

    Args:
        strategy: its name.
        texts: a prompt each.
        target_bytes: that a pass of the target reads.
        draft_bytes: that a pass of the draft reads; 0 without.
        loading_peak_bytes: while the model was loaded.
    """

    strategy: str
    texts: list[RecordedText]
    target_bytes: int | None
    draft_bytes: int | None
    loading_peak_bytes: int | None


def summarize(mine: Decoded, plain: Decoded, target: Decoded) -> GpuDecodeResult:
    """The figures of a strategy.

    Args:
        mine: what it did.
        plain: the model in 16 bits.
        target: the same weights as `mine` without drafts; `mine` itself where it has none.
    """
    texts = mine.texts
    num_tokens = sum(len(text.token_ids) for text in texts)
    ratios = [_rate(text) / _rate(other) for text, other in zip(texts, plain.texts, strict=True)]
    traffic = [_traffic(text, mine) for text in texts]
    known = [each for each in traffic if each is not None]
    fractions = [each / text.seconds / text.bandwidth for each, text in zip(known, texts, strict=False)]
    runs = [text.run for text in texts if text.run is not None]
    proposed = sum(level.num_proposed for run in runs for level in run.levels)
    accepted = sum(level.num_accepted for run in runs for level in run.levels)
    peaks = [text.peak_bytes for text in texts if text.peak_bytes is not None]
    other = plain if mine is target else target
    return GpuDecodeResult(
        strategy=mine.strategy,
        num_prompts=len(texts),
        num_tokens=num_tokens,
        tokens_per_second=num_tokens / sum(text.seconds for text in texts),
        speedup=exp(sum(map(log, ratios)) / len(ratios)),
        speedup_by_prompt=ratios,
        tokens_per_round=num_tokens / sum(_num_rounds(text) for text in texts),
        num_replays=sum(run.num_replays for run in runs),
        acceptance_rates=[accepted / proposed if proposed else None] if any(run.levels for run in runs) else [],
        num_bytes=sum(known) if len(known) == len(texts) else None,
        read_bandwidth=spread([text.bandwidth for text in texts]).median / 1e9,
        fraction_of_bandwidth=spread(fractions).median if len(known) == len(texts) else None,
        loading_peak_bytes=mine.loading_peak_bytes,
        peak_bytes=max(peaks, default=None),
        identical_to_greedy=_tokens(mine) == _tokens(plain),
        identical_to_target=_tokens(mine) == _tokens(target),
        differences=[] if other is mine else _differences(mine, other),
    )


def _rate(text: RecordedText) -> float:
    return len(text.token_ids) / text.seconds


def _num_rounds(text: RecordedText) -> int:
    return len(text.token_ids) if text.run is None else text.run.num_rounds


def _traffic(text: RecordedText, of: Decoded) -> int | None:
    if of.target_bytes is None or of.draft_bytes is None:
        return None
    drafted = 0 if text.run is None else sum(level.num_forwards for level in text.run.levels)
    return _num_rounds(text) * of.target_bytes + drafted * of.draft_bytes


def _tokens(of: Decoded) -> list[list[int]]:
    return [text.token_ids for text in of.texts]


def _differences(mine: Decoded, other: Decoded) -> list[TokenDifference]:
    found = []
    for number, (text, theirs) in enumerate(zip(mine.texts, other.texts, strict=True)):
        difference = first_difference(text.choices, theirs.choices)
        if difference is not None:
            own, their = difference.with_drafts, difference.without_drafts
            mine_said, they_said = (own.token, own.runner_up, own.margin), (their.token, their.runner_up, their.margin)
            found.append(TokenDifference(number, other.strategy, own.index, *mine_said, *they_said))
    return found
