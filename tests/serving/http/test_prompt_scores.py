"""`echo` with `logprobs`: a prompt's tokens with the logprobs that they would have had as answers."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from http_servers import NAME, Running, running

from mxconv.engine.cache import KVCache
from mxconv.errors import ModelError
from mxconv.serving.http.prompt_scores import MOST_ROWS, Scorer, Scores, Unscored

PROMPT = "import os\n\ndef read(path):\n    with open(path) as file:\n        return file.read()\n\n\nclass " * 3
PATH = "/v1/completions"
NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def any_server(request: pytest.FixtureRequest, package: Path) -> Iterator[Running]:
    with running(package, kv_dtype=request.param) as found:
        yield found


def test_an_echoed_answer_has_the_logprobs_that_it_was_given(any_server: Running) -> None:
    server = any_server
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
    assert len(ids) > 2 * MOST_ROWS  # several pieces
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


def test_clients_that_leave_and_engines_that_fail_leave_no_prompt_behind(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}
    with running(package) as server:
        real = Scorer.step

        def slowly(self: Scorer) -> Any:
            time.sleep(0.3)
            return real(self)

        monkeypatch.setattr(Scorer, "step", slowly)
        with pytest.raises(TimeoutError), server.connect() as peer:
            peer.settimeout(0.2)
            raw = server.client()._client.build_request("POST", server.url + PATH, json=body)
            head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            peer.sendall(head.encode() + f"Content-Length: {len(raw.content)}\r\n\r\n".encode() + raw.content)
            peer.recv(1)
        server.wait_until_idle()

        def refuse(self: Scorer) -> Any:
            raise ArithmeticError("the weights melted")

        monkeypatch.setattr(Scorer, "step", refuse)
        for status in (500, 503):
            response = server.post(PATH, body)
            assert response.status_code == status and "the weights melted" in response.json()["error"]["message"]


class TestScorer:
    """Prompts one after the other."""

    def prompts(self, server: Running) -> list[Unscored]:
        return [Unscored(server.model.encode(PROMPT)[number:], 1, lambda _: None) for number in range(3)]

    def run(self, scorer: Scorer) -> list[tuple[Unscored, Scores]]:
        found = []
        while not scorer.is_idle:
            if (scored := scorer.step()) is not None:
                found.append(scored)
        return found

    def test_whoever_is_dropped_changes_no_other(self, server: Running) -> None:
        scorer = Scorer(server.model.loaded.levels[0].decoder)  # type: ignore[arg-type]
        first, second, third = self.prompts(server)
        scorer.add(third)
        alone = self.run(scorer)
        for prompt in (first, second, third):
            scorer.add(prompt)
        assert scorer.step() is None  # in the middle of the first
        scorer.drop(first)
        scorer.drop(second)
        scorer.drop(first)  # nobody knows it any more
        assert self.run(scorer) == alone and len(alone[0][1]) == len(third.tokens) - 1  # type: ignore[arg-type]
        assert scorer.drop_all() == []

    def test_what_fails_ends_alone(self, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        scorer = Scorer(server.model.loaded.levels[0].decoder)  # type: ignore[arg-type]
        first, second, _ = self.prompts(server)
        bad = Unscored([*first.tokens[:40], 10**6, 3], 1, first.hear)
        for prompt in (bad, second):
            scorer.add(prompt)
        (failed, why), (good, scores) = self.run(scorer)
        assert failed is bad and "token id 1000000" in str(why)
        assert good is second and isinstance(scores, list) and len(scores) == len(second.tokens) - 1
        with pytest.raises(ModelError):
            server.model.loaded.levels[0].decoder.forward([10**6], KVCache(server.model.loaded.config))  # type: ignore[union-attr]
