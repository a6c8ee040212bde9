"""What the requests of one load come to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.bench.samples import spread
from mxconv.bench.serving.asked import Answered
from mxconv.bench.serving.load import ClosedLoop, Load


@dataclass(frozen=True)
class Waiting:
    """Seconds: the median, and what one in a hundred exceeds."""

    median: float
    p99: float


@dataclass(frozen=True)
class Turn:
    """All requests of a load, once.

    Args:
        answers: in the order of the requests.
        bandwidth: bytes a second, before and behind; None where the server is elsewhere.
    """

    answers: list[Answered]
    bandwidth: float | None

    @property
    def num_tokens(self) -> int:
        """Of whole answers."""
        return sum(len(answer.token_ids) for answer in self.answers if answer.is_ok)

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        ended = [answer.arrived[-1] for answer in self.answers if answer.is_ok]
        return max(ended, default=0.0) - min(answer.began for answer in self.answers)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.num_tokens else 0.0


@dataclass(frozen=True)
class ServeResult:
    """One load, with or without drafts, all rounds together."""

    load: str
    concurrency: int | None  # requests at a time; None where they arrive at random
    rate: float | None  # requests a second; None in a closed loop
    drafts: bool
    num_ok: int
    num_failed: int
    errors: list[str]  # what failed requests were told, each once
    num_tokens: int  # of requests that did not fail
    seconds: float  # from the first request to the last token, all rounds
    tokens_per_second: float
    tokens_per_second_by_round: list[float]
    speedup: float | None  # over the same load without drafts, median over rounds; None without drafts
    first_token: Waiting | None  # from request to first token; None where all failed
    between_tokens: Waiting | None  # those of a chunk share the time since the last one; None: one chunk each
    between_chunks: Waiting | None  # likewise: how long nothing came
    request: Waiting | None  # from request to last token
    read_bandwidth: float | None  # beside it, GB/s; None where the server is elsewhere
    identical: bool  # whether every answer has the tokens of the first load without drafts


def summarize(
    load: Load, drafts: bool, turns: Sequence[Turn], plain: Sequence[Turn] | None, expected: Sequence[list[int] | None]
) -> ServeResult:
    """The figures of a load.

    Args:
        load: which.
        drafts: whether there were any.
        turns: one a round.
        plain: those without drafts, in the same rounds; None where there were none.
        expected: the tokens of each request; None where nobody knows.
    """
    answers = [answer for turn in turns for answer in turn.answers]
    good = [answer for answer in answers if answer.is_ok]
    rates = [turn.tokens_per_second for turn in turns]
    bandwidths = [turn.bandwidth for turn in turns if turn.bandwidth is not None]
    seconds = sum(turn.seconds for turn in turns)
    num_tokens = sum(turn.num_tokens for turn in turns)
    speedup = None
    if drafts and plain is not None and all(turn.num_tokens for turn in plain):
        ratios = [mine / other.tokens_per_second for mine, other in zip(rates, plain, strict=True)]
        speedup = spread(ratios).median
    return ServeResult(
        load=load.label,
        concurrency=load.concurrency if isinstance(load, ClosedLoop) else None,
        rate=None if isinstance(load, ClosedLoop) else load.rate,
        drafts=drafts,
        num_ok=len(good),
        num_failed=len(answers) - len(good),
        errors=sorted({answer.error for answer in answers if answer.error is not None}),
        num_tokens=num_tokens,
        seconds=seconds,
        tokens_per_second=num_tokens / seconds if num_tokens else 0.0,
        tokens_per_second_by_round=rates,
        speedup=speedup,
        first_token=_waiting([answer.first_token_seconds for answer in good]),
        between_tokens=_waiting([gap for answer in good for gap in answer.token_gaps]),
        between_chunks=_waiting([gap for answer in good for gap in answer.chunk_gaps]),
        request=_waiting([answer.seconds for answer in good]),
        read_bandwidth=spread(bandwidths).median / 1e9 if bandwidths else None,
        identical=all(_is_as_expected(turn.answers, expected) for turn in turns),
    )


def _is_as_expected(answers: Sequence[Answered], expected: Sequence[list[int] | None]) -> bool:
    return all(
        not answer.is_ok or tokens is None or answer.token_ids == tokens
        for answer, tokens in zip(answers, expected, strict=True)
    )


def _waiting(seconds: Sequence[float]) -> Waiting | None:
    if not seconds:
        return None
    median, p99 = (float(value) for value in np.percentile(np.asarray(seconds), (50, 99)))
    return Waiting(median, p99)
