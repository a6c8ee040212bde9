"""A server under load: figures from moments that are known, and requests to a real server."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from http_servers import Running, chat_package, running

from mxconv.bench.http_client import Client, CompletionRequest, TimedAnswer
from mxconv.bench.serving_speed import LoadRound, OfferedLoad, Waiting, send_all, summarize
from mxconv.errors import ModelError

# two requests: three chunks of 1, 2 and 1 tokens; one chunk of 3
FIRST = TimedAnswer(10.0, [10.5, 11.1, 11.4], [1, 2, 1], [5, 6, 7, 8])
SECOND = TimedAnswer(10.2, [12.0], [3], [1, 2, 3])
FAILED = TimedAnswer(10.1, [10.2], [1], [9], error="the stream was cut")
EXPECTED = [[5, 6, 7, 8], [1, 2, 3]]
REQUEST = CompletionRequest("import os\n\ndef ", 16, seed=3, temperature=0.8)


def test_tokens_waiting_and_speed() -> None:
    plain = LoadRound([replace(FIRST, began=8.5), SECOND], 2e9)
    found = summarize(OfferedLoad(concurrency=2), True, [LoadRound([FIRST, SECOND], 3e9)], [plain], EXPECTED)
    assert (found.load, found.concurrency, found.rate, found.drafts) == ("2 at a time", 2, None, True)
    assert (found.num_ok, found.num_failed, found.num_tokens, found.errors) == (2, 0, 7, [])
    assert found.seconds == pytest.approx(2.0) and found.tokens_per_second == pytest.approx(3.5)
    assert found.speedup == pytest.approx(3.5 / 2)
    assert found.first_token is not None and found.first_token.median == pytest.approx((0.5 + 1.8) / 2)
    assert found.between_tokens is not None and found.between_tokens.median == pytest.approx(0.3)  # 0.3, 0.3, 0.3
    assert found.between_chunks is not None and found.between_chunks.median == pytest.approx(0.45)
    assert found.between_chunks.p99 == pytest.approx(0.6, rel=0.01)
    assert found.request is not None and found.request.median == pytest.approx((1.4 + 1.8) / 2)
    assert found.read_bandwidth == pytest.approx(3.0) and found.identical


def test_what_failed_counts_as_such_and_not_as_tokens() -> None:
    found = summarize(OfferedLoad(rate=2.0), False, [LoadRound([FAILED, SECOND], None)], None, EXPECTED)
    assert (found.load, found.concurrency, found.rate) == ("2 a second", None, 2.0)
    assert (found.num_ok, found.num_failed, found.num_tokens, found.errors) == (1, 1, 3, ["the stream was cut"])
    assert found.seconds == pytest.approx(1.9)  # from the first request
    assert (found.speedup, found.between_tokens, found.read_bandwidth) == (None, None, None)
    assert found.identical and found.first_token == Waiting(pytest.approx(1.8), pytest.approx(1.8))


@pytest.mark.parametrize("spoiled", [[5, 6, 7, 9], [5, 6, 7], [5, 6, 7, 8, 9]])
def test_one_other_token_in_any_round_is_seen(spoiled: list[int]) -> None:
    rounds = [LoadRound([FIRST, SECOND], None), LoadRound([replace(FIRST, token_ids=spoiled), SECOND], None)]
    assert not summarize(OfferedLoad(1), True, rounds, None, EXPECTED).identical
    assert summarize(OfferedLoad(1), True, rounds[:1], None, EXPECTED).identical
    assert summarize(OfferedLoad(1), True, rounds, None, [None, [1, 2, 3]]).identical  # nobody knows


def test_arrivals_at_random_are_the_same_each_time_and_have_the_rate() -> None:
    arrivals = OfferedLoad(rate=4.0).arrivals(2000)
    assert arrivals == OfferedLoad(rate=4.0).arrivals(2000) == sorted(arrivals)
    assert arrivals[0] == 0 and arrivals[-1] / 2000 == pytest.approx(1 / 4.0, rel=0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(chat_package(tmp_path_factory.mktemp("bench-serving"))) as found:
        yield found
        found.wait_until_idle()


def test_an_answer_has_the_tokens_of_generate_and_a_moment_a_chunk(server: Running) -> None:
    assert Client(server.url + "/v1/").levels() == [level.name for level in server.model.loaded.levels]
    answer = Client(server.url).complete(REQUEST)
    expected = server.model.generate(REQUEST.prompt, max_new_tokens=16, seed=3, temperature=0.8)
    assert answer.is_ok and answer.token_ids == expected.token_ids
    assert sum(answer.num_tokens) == 16 and len(answer.arrived) == len(answer.num_tokens)
    assert [answer.began, *answer.arrived] == sorted([answer.began, *answer.arrived])
    assert len(answer.token_gaps) == 16 - answer.num_tokens[0]
    assert sum(answer.token_gaps) == pytest.approx(answer.seconds - answer.first_token_seconds)
    refused = Client(server.url).complete(CompletionRequest("x " * 10_000, 4, 0))
    assert refused.token_ids == [] and (refused.error or "").startswith("status 400: ")


def test_answers_come_in_the_order_of_the_requests(server: Running) -> None:
    requests = [replace(REQUEST, max_tokens=6, seed=seed, temperature=1.0) for seed in range(7)]
    expected = [
        server.model.generate(REQUEST.prompt, max_new_tokens=6, seed=seed, temperature=1.0).token_ids
        for seed in range(7)
    ]
    assert len({tuple(tokens) for tokens in expected}) > 1
    for load in (OfferedLoad(concurrency=1), OfferedLoad(concurrency=3), OfferedLoad(rate=50.0)):
        assert [answer.token_ids for answer in send_all(Client(server.url), load, requests)] == expected


CHUNK = b'data: {"choices": [{"mxconv": {"tokens": [{"id": 7}]}}]}\n\n'


@pytest.mark.parametrize(
    ("sent", "tokens", "error"),
    [
        (CHUNK, [7], "the stream was cut"),
        (CHUNK + b'data: {"error": {"message": "too late"}}\n\n', [7], "too late"),
        (b"data: [DONE]\n\n", [], "no tokens"),
        (CHUNK + b"data: {broken\n\n", [7], "{broken"),
        (CHUNK + b": a comment\n\ndata: [DONE]\n\n", [7], None),
    ],
)
def test_streams_that_end_otherwise_are_reported(sent: bytes, tokens: list[int], error: str | None) -> None:
    with listening(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + sent) as url:
        answer = Client(url).complete(REQUEST)
    assert (answer.token_ids, answer.error) == (tokens, error)


def test_which_addresses_are_servers_and_on_this_machine() -> None:
    for url in ("ftp://127.0.0.1", "127.0.0.1:8000", "http://:8000", "http://127.0.0.1:port"):
        with pytest.raises(ModelError, match="no address of a server"):
            Client(url)
    not_found = listening(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n{}")
    with not_found as url, pytest.raises(ModelError, match=r"/v1/models: no levels in its answer \(status 404\)"):
        Client(url).levels()
    with pytest.raises(ModelError, match="no answer"):  # nobody listens there any more
        Client(url).levels()
    assert Client(url).complete(REQUEST).error is not None
    assert all(Client(f"http://{host}:1").is_here for host in ("127.0.0.1", "localhost", "[::1]"))
    assert not any(Client(f"https://{host}").is_here for host in ("10.0.0.1", "example.org"))


@contextmanager
def listening(sent: bytes) -> Iterator[str]:
    """A listener that sends this to the first client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(sent)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    pass

        thread = threading.Thread(target=send)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
