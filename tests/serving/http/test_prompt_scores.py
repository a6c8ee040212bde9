"""`echo` with `logprobs`: a prompt's tokens with the logprobs that they would have had as answers."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from http_servers import NAME, Running, post_head, running, wait_for

from mxconv.engine.cache import KVCache
from mxconv.errors import ModelError
from mxconv.serving.http import engine_thread
from mxconv.serving.http.logprobs import MOST_PROMPT_ROWS, prompt_logprobs

PROMPT = "import os\n\ndef read(path):\n    with open(path) as file:\n        return file.read()\n\n\nclass " * 3
PATH = "/v1/completions"
NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture(scope="module")
def half_server(package: Path) -> Iterator[Running]:
    with running(package, kv_dtype="fp16") as found:
        yield found


@pytest.mark.parametrize("name", ["server", "half_server"])
def test_an_echoed_answer_has_the_logprobs_that_it_was_given(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    options: dict[str, Any] = {"model": NAME, "temperature": 0, "logprobs": 3}
    ids = server.model.encode(PROMPT)
    answer = server.client().completions.create(prompt=ids, max_tokens=40, **options).choices[0]
    told = server.post(PATH, {"prompt": ids, "max_tokens": 40, "temperature": 0, "mxconv": {"trace": True}}).json()
    new = [token["id"] for token in told["choices"][0]["mxconv"]["tokens"]]
    echoed = server.client().completions.create(prompt=[*ids, *new], max_tokens=0, echo=True, **options)
    (choice,) = echoed.choices
    assert (choice.text, choice.finish_reason) == (PROMPT + answer.text, "length")
    assert echoed.usage is not None and echoed.usage.completion_tokens == 0
    assert choice.logprobs is not None and answer.logprobs is not None
    for name in NAMES:
        assert getattr(choice.logprobs, name)[len(ids) :] == getattr(answer.logprobs, name) or name == "text_offset"
        assert len(getattr(choice.logprobs, name)) == len(ids) + len(new)
    offsets = [offset - len(PROMPT) for offset in choice.logprobs.text_offset[len(ids) :]]
    assert offsets == answer.logprobs.text_offset


def test_a_prompts_logprobs_are_those_of_the_targets_softmax(server: Running) -> None:
    ids = server.model.encode(PROMPT)
    assert len(ids) > 2 * MOST_PROMPT_ROWS  # several pieces
    decoder = server.model.loaded.levels[0].decoder
    assert decoder is not None
    logits = decoder.forward(ids, KVCache(decoder.config)).astype(np.longdouble)
    exact = logits - logits.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    (choice,) = server.post(PATH, {"prompt": PROMPT, "max_tokens": 4, "echo": True, "logprobs": 2}).json()["choices"]
    found = choice["logprobs"]
    assert choice["text"].startswith(PROMPT)
    assert (found["token_logprobs"][0], found["top_logprobs"][0], found["text_offset"][0]) == (None, None, 0)
    for place in range(1, len(ids)):
        assert found["token_logprobs"][place] == pytest.approx(float(exact[place - 1, ids[place]]), abs=1e-12)
        best = sorted(found["top_logprobs"][place].values(), reverse=True)
        assert best == pytest.approx(np.sort(exact[place - 1])[::-1][: len(best)].astype(float).tolist(), abs=1e-12)
    for place in range(1, len(ids)):  # after the token that begins all texts
        assert PROMPT.startswith(found["tokens"][place], found["text_offset"][place])


@pytest.mark.parametrize("most", [0, 6])
def test_a_stream_says_the_same_in_pieces(server: Running, most: int) -> None:
    options: dict[str, Any] = {
        "model": NAME, "prompt": ["import ", PROMPT], "max_tokens": most, "seed": 2, "n": 2, "echo": True,
        "logprobs": 1,
    }  # fmt: skip
    whole = server.client().completions.create(**options)
    pieces = list(server.client().completions.create(stream=True, **options))
    assert len(whole.choices) == 4
    for choice in whole.choices:
        mine = [piece.choices[0] for piece in pieces if piece.choices[0].index == choice.index]
        assert "".join(piece.text for piece in mine) == choice.text
        for name in NAMES:
            parts = [getattr(piece.logprobs, name) for piece in mine]
            assert [one for part in parts for one in part] == getattr(choice.logprobs, name), name


def test_a_prompt_of_one_token_and_no_alternatives(server: Running) -> None:
    ids = server.model.encode("import")[:1]
    body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}
    found = server.post(PATH, body).json()["choices"][0]["logprobs"]
    assert (found["token_logprobs"], found["top_logprobs"], found["text_offset"]) == ([None], None, [0])


def test_clients_that_leave_and_prompts_that_fail_change_no_other(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}
    with running(package) as server:
        expected = server.post(PATH, body).json()["choices"]
        entered, leave = threading.Event(), threading.Event()

        def slowly(*given: Any) -> Iterator[Any]:
            for piece in prompt_logprobs(*given):
                entered.set()
                assert leave.wait(60)
                yield piece

        monkeypatch.setattr(engine_thread, "prompt_logprobs", slowly)
        raw = json.dumps(body).encode()
        with ThreadPoolExecutor() as pool:
            with server.connect() as peer:
                peer.sendall(post_head(PATH, len(raw)) + raw)
                assert entered.wait(60)  # in the middle of the first
                other = pool.submit(server.post, PATH, body)
                wait_for(lambda: server.serving.admission.num_open == 2)
            wait_for(lambda: server.serving.admission.num_open == 1)
            leave.set()
            assert other.result().json()["choices"] == expected
        server.wait_until_idle()

        def refuse(*_: Any) -> Iterator[Any]:
            raise ModelError("no room")
            yield

        monkeypatch.setattr(engine_thread, "prompt_logprobs", refuse)
        response = server.post(PATH, body)
        assert response.status_code == 500 and response.json()["error"]["message"] == "no room"
        assert server.get("/health").status_code == 200
