"""A full queue, clients that leave, time that runs out, engines that fail, and the end."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from http_servers import NAME, Running, events_of, post_head, running, wait_for

PATH = "/v1/completions"
LONG = {"prompt": "import os\n", "max_tokens": 100, "temperature": 1.2, "seed": 4}
SHORT = LONG | {"max_tokens": 4}


def test_a_full_queue_says_when_to_come_back_and_the_rest_is_unharmed(package: Path) -> None:
    with running(package, max_queue=1, max_sequences=1) as server:
        expected = server.post(PATH, LONG).json()["choices"]
        server.gate.clear()
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(server.post, PATH, LONG) for _ in range(2)]
            wait_for(lambda: server.serving.admission.num_open == 2)
            refused = server.post(PATH, SHORT)
            with pytest.raises(openai.RateLimitError) as caught:
                server.client().completions.create(model=NAME, **SHORT)
            with pytest.raises(anthropic.RateLimitError):
                server.anthropic().messages.create(
                    model=NAME, messages=[{"role": "user", "content": "x"}], max_tokens=1
                )
            server.gate.set()
            answers = [answer.result() for answer in waiting]
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == caught.value.code == "queue_full"
        assert [answer.json()["choices"] for answer in answers] == [expected] * 2
        assert server.post(PATH, SHORT).status_code == 200
        too_many = server.post(PATH, SHORT | {"n": 3})
        assert too_many.status_code == 400 and too_many.json()["error"]["param"] == "n"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_sequences_at_once(server: Running, stream: bool) -> None:
    server.gate.clear()
    body = httpx.Request("POST", server.url + PATH, json=LONG | {"n": 3, "stream": stream}).read()
    with server.connect() as peer:
        peer.sendall(post_head(PATH, len(body)) + body)
        wait_for(lambda: server.serving.admission.num_open == 3)
    wait_for(lambda: server.serving.admission.num_open == 0)  # although the engine stands still
    server.gate.set()
    server.wait_until_idle()
    text = server.get("/metrics").text
    assert 'mxconv_choices_total{ending="dropped"}' in text and "mxconv_sequences 0.0" in text


@pytest.mark.parametrize("stream", [False, True])
def test_time_that_runs_out_is_told(package: Path, stream: bool) -> None:
    with running(package, request_seconds=0.5) as server:
        if not stream:
            server.gate.clear()
            response = server.post(PATH, LONG)
            assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"
        else:
            _slow_down(server)
            with httpx.stream("POST", server.url + PATH, json=LONG | {"stream": True}, timeout=60) as response:
                *_, last = events_of(response)
            assert last["error"]["code"] == "timeout"
        server.gate.set()
        server.wait_until_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_is_told_to_those_who_wait_and_those_who_come(package: Path, stream: bool) -> None:
    with running(package) as server:

        def fail() -> Any:
            raise ArithmeticError("the weights melted")

        server.serving.admission.thread.engines[0].step = fail  # type: ignore[method-assign]
        for status in (500, 503):
            response = server.post(PATH, LONG | {"stream": stream})
            is_in_stream = stream and status == 500  # it began before
            assert response.status_code == (200 if is_in_stream else status)
            told = events_of(response)[-1] if is_in_stream else response.json()
            assert "the weights melted" in told["error"]["message"]
        health = server.get("/health")
        assert health.status_code == 503 and health.json()["status"] == "failed"


def test_at_the_end_requests_that_take_too_long_get_an_error(package: Path) -> None:
    with running(package, drain_seconds=0.3) as server:
        _slow_down(server)
        stream = httpx.stream("POST", server.url + PATH, json=LONG | {"stream": True}, timeout=60)
        with ThreadPoolExecutor() as pool, stream as response:
            whole = pool.submit(server.post, PATH, LONG)
            wait_for(lambda: server.serving.admission.num_open == 2)
            server.serving.server.stop()
            *_, last = events_of(response)
            assert last["error"]["code"] == "shutting_down"
            assert whole.result().status_code == 503
        server.thread.join(10)
        assert not server.thread.is_alive()


def _slow_down(server: Running) -> None:
    """A tenth of a second a step."""
    (engine,), waits = server.serving.admission.thread.engines, threading.Event()
    step = engine.step

    def slowly() -> Any:
        waits.wait(0.1)
        return step()

    engine.step = slowly  # type: ignore[method-assign]


def test_a_client_that_does_not_read_is_let_go(package: Path) -> None:
    with running(package, request_seconds=1.0) as server:
        body = httpx.Request("POST", server.url + PATH, json=LONG | {"n": 16, "logprobs": 20, "stream": True}).read()
        with server.connect() as peer:
            peer.sendall(post_head(PATH, len(body)) + body)
            wait_for(lambda: server.serving.admission.num_open == 16)
            server.wait_until_idle()
