"""A server under load: how many tokens a second it gives, and how long its clients wait.

Everything goes through HTTP, as a client would see it. Loads are measured with and without drafts in turns, so that
both see one state of the machine. The tokens of a request are a function of the request alone, so the answers of all
loads, with drafts and without, are compared with the first one that there was.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryFile

import numpy as np

from mxconv.bench.http_client import Client, CompletionRequest, TimedAnswer
from mxconv.bench.rates import ReadBandwidth, spread
from mxconv.errors import ModelError
from mxconv.progress import Progress, silent

WARM_TOKENS = 8
LAST_SECONDS = 15.0  # a server promises to end in ten


@dataclass(frozen=True)
class OfferedLoad:
    """How requests arrive: so many at a time, each client sending its next one once it has its answer; or at random."""

    concurrency: int | None = None  # requests at a time; or
    rate: float | None = None  # requests a second in the mean, from clients that know nothing of each other (Poisson)

    @property
    def label(self) -> str:
        """The name in tables."""
        return f"{self.rate:g} a second" if self.concurrency is None else f"{self.concurrency} at a time"

    def arrivals(self, num_requests: int) -> list[float]:
        """Seconds after the first request, ascending: the same ones each time."""
        gaps = np.random.default_rng(0).exponential(1 / (self.rate or 1), num_requests)
        return [float(moment) for moment in np.cumsum(gaps) - gaps[0]]


@dataclass(frozen=True)
class Waiting:
    """Seconds: the median, and what one in a hundred exceeds."""

    median: float
    p99: float


@dataclass(frozen=True)
class LoadRound:
    """All requests of a load, once."""

    answers: list[TimedAnswer]  # in the order of the requests
    bandwidth: float | None  # bytes a second, before and after; None where the server is elsewhere

    @property
    def num_tokens(self) -> int:
        """Tokens of whole answers."""
        return sum(len(answer.token_ids) for answer in self.answers if answer.is_ok)

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        ended = [answer.arrived[-1] for answer in self.answers if answer.is_ok]
        return max(ended, default=0.0) - min(answer.began for answer in self.answers)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all whole answers a second."""
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
    errors: list[str]  # of failed requests, each once
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


def bench_serving(
    clients: Mapping[bool, Client],
    loads: Sequence[OfferedLoad],
    requests: Sequence[CompletionRequest],
    rounds: int,
    bandwidth: ReadBandwidth | None,
    progress: Progress = silent,
) -> list[ServeResult]:
    """Send all requests at every load. The caller decides about tokens that differ.

    Args:
        clients: of the server without drafts by False, of the one with drafts by True; either may be missing.
        loads: in the order in which they are measured.
        requests: at least one.
        rounds: how often each load is measured.
        bandwidth: of the machine that serves; None where that is another one.
        progress: receives the number of loads.

    Raises:
        ModelError: no request of a load succeeded.
    """
    modes = sorted(clients)
    for drafts in modes:  # weights come into memory, threads begin
        clients[drafts].complete(replace(requests[0], max_tokens=min(requests[0].max_tokens, WARM_TOKENS)))
    found: dict[tuple[OfferedLoad, bool], list[LoadRound]] = {(load, drafts): [] for load in loads for drafts in modes}
    done, total = 0, rounds * len(found)
    for number in range(rounds):
        for place, load in enumerate(loads):
            # nobody always comes first
            for drafts in modes if (number + place) % 2 == 0 else reversed(modes):
                progress("serve", done, total)
                send = partial(send_all, clients[drafts], load, requests)
                found[load, drafts].append(
                    LoadRound(*((send(), None) if bandwidth is None else bandwidth.beside(send)))
                )
                done += 1
    progress("serve", total, total)
    by_request = zip(*(each.answers for rounds_ in found.values() for each in rounds_), strict=True)
    # the tokens of the first whole answer, the lightest load without drafts first
    expected = [next((answer.token_ids for answer in answers if answer.is_ok), None) for answers in by_request]
    return [summarize(load, drafts, mine, found.get((load, False)), expected) for (load, drafts), mine in found.items()]


def send_all(client: Client, load: OfferedLoad, requests: Sequence[CompletionRequest]) -> list[TimedAnswer]:
    """Send all requests as a load says, each from a thread that waits for the network most of the time.

    Returns:
        The answers, in the order of the requests.

    Raises:
        ModelError: none succeeded.
    """
    begin, never = time.perf_counter(), threading.Event()
    with ThreadPoolExecutor(load.concurrency or len(requests)) as pool:
        sent = []
        moments = load.arrivals(len(requests)) if load.concurrency is None else [0.0] * len(requests)
        for moment, request in zip(moments, requests, strict=True):
            never.wait(max(0.0, begin + moment - time.perf_counter()))
            sent.append(pool.submit(client.complete, request))
        answers = [answer.result() for answer in sent]
    if not any(answer.is_ok for answer in answers):
        raise ModelError(
            f"{client.url}: none of {len(answers)} requests succeeded at {load.label} ({answers[0].error}); at least "
            "one is required. Change the prompts, or the server's limits."
        )
    return answers


def summarize(
    load: OfferedLoad,
    drafts: bool,
    rounds: Sequence[LoadRound],
    plain: Sequence[LoadRound] | None,
    expected: Sequence[list[int] | None],
) -> ServeResult:
    """The figures of a load, with or without drafts, over its rounds.

    `plain` are the same rounds without drafts, if there were some; `expected` has the tokens of each request, or None
    where nobody knows them.
    """
    answers = [answer for each in rounds for answer in each.answers]
    good = [answer for answer in answers if answer.is_ok]
    rates = [each.tokens_per_second for each in rounds]
    bandwidths = [each.bandwidth for each in rounds if each.bandwidth is not None]
    seconds, num_tokens = sum(each.seconds for each in rounds), sum(each.num_tokens for each in rounds)
    speedup = None
    if drafts and plain is not None and all(each.num_tokens for each in plain):
        speedup = spread([mine / each.tokens_per_second for mine, each in zip(rates, plain, strict=True)]).median

    def waiting(seconds: Callable[[TimedAnswer], list[float]]) -> Waiting | None:
        found = [each for answer in good for each in seconds(answer)]
        return Waiting(*(float(value) for value in np.percentile(np.asarray(found), (50, 99)))) if found else None

    return ServeResult(
        load=load.label,
        concurrency=load.concurrency,
        rate=load.rate,
        drafts=drafts,
        num_ok=len(good),
        num_failed=len(answers) - len(good),
        errors=sorted({answer.error for answer in answers if answer.error is not None}),
        num_tokens=num_tokens,
        seconds=seconds,
        tokens_per_second=num_tokens / seconds if num_tokens else 0.0,
        tokens_per_second_by_round=rates,
        speedup=speedup,
        first_token=waiting(lambda answer: [answer.first_token_seconds]),
        between_tokens=waiting(lambda answer: answer.token_gaps),
        between_chunks=waiting(lambda answer: answer.chunk_gaps),
        request=waiting(lambda answer: [answer.seconds]),
        read_bandwidth=spread(bandwidths).median / 1e9 if bandwidths else None,
        identical=all(
            not answer.is_ok or tokens is None or answer.token_ids == tokens
            for each in rounds
            for answer, tokens in zip(each.answers, expected, strict=True)
        ),
    )


@contextmanager
def serving(package: str, flags: Sequence[str]) -> Iterator[str]:
    """Serve a package by `mxconv serve` in a process of its own, on a free loopback port; the URL.

    Raises:
        ModelError: it does not start; its own message is in this one.
    """
    command = [sys.executable, "-m", "mxconv.cli.main", "serve", package, "--port", "0", "--json", *flags]
    with TemporaryFile("w+") as errors:  # a pipe that nobody reads would stop it when it is full
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                process.wait()
                errors.seek(0)
                message = errors.read().strip().removeprefix("mxconv: ")
                raise ModelError(message or f"{package}: `mxconv serve` ended without a word; a server is required.")
            yield str(json.loads(line)["url"])
        finally:
            process.terminate()
            try:
                process.communicate(timeout=LAST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
