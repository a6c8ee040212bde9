"""One request: the tokens that decoding gives, the moments at which they came, and words for what went wrong."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from http_servers import Running

from mxconv.bench.serving.arriving import send_all
from mxconv.bench.serving.asked import Asked
from mxconv.bench.serving.client import Client
from mxconv.bench.serving.load import ClosedLoop, Load, Poisson
from mxconv.errors import ModelError

ASKED = Asked("import os\n\ndef ", 16, seed=3, temperature=0.8)


def test_an_answer_has_the_tokens_of_generate_and_a_moment_a_chunk(server: Running) -> None:
    answered = Client(server.url).ask(ASKED)
    expected = server.model.generate(ASKED.prompt, max_new_tokens=16, seed=3, temperature=0.8)
    assert answered.is_ok and answered.token_ids == expected.token_ids
    assert sum(answered.num_tokens) == 16 and len(answered.arrived) == len(answered.num_tokens)
    assert [answered.began, *answered.arrived] == sorted([answered.began, *answered.arrived])
    assert len(answered.token_gaps) == 16 - answered.num_tokens[0]
    assert sum(answered.token_gaps) == pytest.approx(answered.seconds - answered.first_token_seconds)


@pytest.mark.parametrize("load", [ClosedLoop(1), ClosedLoop(3), Poisson(50.0)], ids=lambda load: load.label)
def test_answers_come_in_the_order_of_the_requests(server: Running, load: Load) -> None:
    requests = [Asked(ASKED.prompt, 6, seed, 1.0) for seed in range(7)]
    found = [answer.token_ids for answer in send_all(Client(server.url), load, requests)]
    expected = [
        server.model.generate(ASKED.prompt, max_new_tokens=6, seed=seed, temperature=1.0).token_ids for seed in range(7)
    ]
    assert found == expected and len({tuple(tokens) for tokens in found}) > 1


def test_arrivals_at_random_are_the_same_each_time_and_have_the_rate() -> None:
    arrivals = Poisson(4.0).arrivals(2000)
    assert arrivals == Poisson(4.0).arrivals(2000) == sorted(arrivals)
    assert arrivals[0] == 0 and arrivals[-1] / 2000 == pytest.approx(1 / 4.0, rel=0.1)


def test_levels_are_those_of_the_server(server: Running) -> None:
    assert Client(server.url + "/v1/").levels() == [level.name for level in server.model.loaded.levels]


def test_refusals_are_told(server: Running) -> None:
    answered = Client(server.url).ask(Asked("x", 10_000, 0))
    assert not answered.is_ok and answered.token_ids == []
    assert answered.error is not None and answered.error.startswith("status 400: max_tokens: 10000; at most")


CHUNK = b'data: {"choices": [{"mxconv": {"tokens": [{"id": 7}]}}]}\n\n'


@pytest.mark.parametrize(
    ("said", "tokens", "error"),
    [
        (CHUNK, [7], "the stream was cut"),
        (CHUNK + b'data: {"error": {"message": "too late"}}\n\n', [7], "too late"),
        (b"data: [DONE]\n\n", [], "no tokens"),
        (CHUNK + b"data: {broken\n\n", [7], "{broken"),
        (CHUNK + b": a comment\n\ndata: [DONE]\n\n", [7], None),
    ],
)
def test_streams_that_end_otherwise_are_told(said: bytes, tokens: list[int], error: str | None) -> None:
    with speaking(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + said) as url:
        answered = Client(url).ask(ASKED)
    assert (answered.token_ids, answered.error) == (tokens, error)


def test_who_is_no_server_of_mxconvs_is_told(server: Running) -> None:
    for url in ("ftp://127.0.0.1", "127.0.0.1:8000", "http://:8000", "http://127.0.0.1:port"):
        with pytest.raises(ModelError, match="no address of a server"):
            Client(url)
    not_found = speaking(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n{}")
    with not_found as url, pytest.raises(ModelError, match=r"/v1/models: no levels in its answer \(status 404\)"):
        Client(url).levels()
    with pytest.raises(ModelError, match="no answer"):  # nobody listens there any more
        Client(url).levels()
    assert Client(url).ask(ASKED).error is not None


def test_which_servers_are_on_this_machine() -> None:
    assert all(Client(f"http://{host}:1").is_here for host in ("127.0.0.1", "localhost", "[::1]"))
    assert not any(Client(f"https://{host}").is_here for host in ("10.0.0.1", "example.org"))


@contextmanager
def speaking(said: bytes) -> Iterator[str]:
    """A listener that says this to the first who asks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(said)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    pass

        thread = threading.Thread(target=speak)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
