"""All requests of a load, each from a thread of its own that waits for the network most of the time."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mxconv.bench.serving.asked import Answered, Asked
from mxconv.bench.serving.client import Client
from mxconv.bench.serving.load import ClosedLoop, Load, Poisson


def send_all(client: Client, load: Load, requests: Sequence[Asked]) -> list[Answered]:
    """Send all as the load says; the answers, in the order of the requests."""
    if isinstance(load, ClosedLoop):
        with ThreadPoolExecutor(load.concurrency) as pool:
            return list(pool.map(client.ask, requests))
    return _at_random(client, load, requests)


def _at_random(client: Client, load: Poisson, requests: Sequence[Asked]) -> list[Answered]:
    begin = time.perf_counter()
    never = threading.Event()
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = []
        for moment, asked in zip(load.arrivals(len(requests)), requests, strict=True):
            never.wait(max(0.0, begin + moment - time.perf_counter()))
            answers.append(pool.submit(client.ask, asked))
        return [answer.result() for answer in answers]
