"""Every load, with and without drafts in turns, so that both see one state of the machine.

The tokens of a request are a function of the request alone. So the answers of all loads, with drafts and without, are
compared with the first one that there was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mxconv.bench.decoding import WARM_TOKENS, sample_bandwidth
from mxconv.bench.rates import ReadBandwidth
from mxconv.bench.samples import spread
from mxconv.bench.serving.arriving import send_all
from mxconv.bench.serving.asked import Asked
from mxconv.bench.serving.client import Client
from mxconv.bench.serving.load import Load
from mxconv.bench.serving.result import ServeResult, Turn, summarize
from mxconv.errors import ModelError
from mxconv.progress import Progress, silent


def bench_serving(
    clients: Mapping[bool, Client],
    loads: Sequence[Load],
    requests: Sequence[Asked],
    rounds: int,
    bandwidth: ReadBandwidth | None,
    progress: Progress = silent,
) -> list[ServeResult]:
    """Send all requests at every load. The caller decides what tokens that differ are worth.

    Args:
        clients: False asks the server without drafts, True the one with; either may be missing.
        loads: in the order in which they are measured.
        requests: at least one.
        rounds: how often each load is measured.
        bandwidth: of the machine that serves; None where that is another one.
        progress: told about every load.

    Raises:
        ModelError: no request of a load succeeded.
    """
    modes = sorted(clients)
    for drafts in modes:  # weights come into memory, threads begin
        clients[drafts].ask(replace(requests[0], max_tokens=min(requests[0].max_tokens, WARM_TOKENS)))
    turns: dict[tuple[int, bool], list[Turn]] = {(place, drafts): [] for place in range(len(loads)) for drafts in modes}
    total = rounds * len(turns)
    for number in range(rounds):
        for place, load in enumerate(loads):
            # nobody always comes first
            for drafts in modes if (number + place) % 2 == 0 else reversed(modes):
                progress("serve", sum(map(len, turns.values())), total)
                turns[place, drafts].append(_turn(clients[drafts], load, requests, bandwidth))
    progress("serve", total, total)
    expected = _expected([turn for place in range(len(loads)) for drafts in modes for turn in turns[place, drafts]])
    return [
        summarize(load, drafts, turns[place, drafts], turns.get((place, False)), expected)
        for place, load in enumerate(loads)
        for drafts in modes
    ]


def _turn(client: Client, load: Load, requests: Sequence[Asked], bandwidth: ReadBandwidth | None) -> Turn:
    rates = [] if bandwidth is None else sample_bandwidth(bandwidth)
    answers = send_all(client, load, requests)
    if not any(answer.is_ok for answer in answers):
        raise ModelError(
            f"{client.url}: none of {len(answers)} requests succeeded at {load.label} ({answers[0].error}); at least "
            "one is required. Change the prompts, or the server's limits."
        )
    rates += [] if bandwidth is None else sample_bandwidth(bandwidth)
    return Turn(answers, spread(rates).median if rates else None)


def _expected(turns: Sequence[Turn]) -> list[list[int] | None]:
    """Of each request the tokens of its first whole answer, the lightest load without drafts first."""
    by_request = zip(*(turn.answers for turn in turns), strict=True)
    return [next((answer.token_ids for answer in answers if answer.is_ok), None) for answers in by_request]
