"""How a server samples: as a request says, else generation_config.json, else mxconv; the answer tells which."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from http_servers import NAME, Running, chat_package, running

PROMPT = "import os\n\ndef "
MOST = 16
HELLO = [{"role": "user", "content": "Which module?"}]
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
FILE = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1, "eos_token_id": 2}


def chunks(server: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = server.post(path, body | {"stream": True}).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_openais_client_gets_what_generate_writes_with_penalties_and_bias(server: Running, temperature: float) -> None:
    often = server.model.generate(PROMPT, max_new_tokens=4, temperature=0).token_ids[0]
    answer = server.client().completions.create(
        model=NAME, prompt=PROMPT, max_tokens=MOST, seed=4, n=2, temperature=temperature, logprobs=0,
        logit_bias={str(often): -100, "40": 2}, **PENALTIES, extra_body={"repetition_penalty": 1.2, "min_p": 0.02},
    )  # fmt: skip
    for index, choice in enumerate(answer.choices):
        expected = server.model.generate(
            PROMPT, max_new_tokens=MOST, seed=4 + index, temperature=temperature, repetition_penalty=1.2, min_p=0.02,
            logit_bias={often: -100, 40: 2}, drafts=[], **PENALTIES,  # type: ignore[typeddict-item]
        )  # fmt: skip
        assert often not in expected.token_ids
        assert choice.text == expected.text
        # of the target's own softmax: the likeliest token is still the one that may not be written
        assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
        assert choice.logprobs.token_logprobs[0] < -0.1


def test_a_chat_without_any_values_is_sampled_as_mxconv_does(server: Running) -> None:
    answer = server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": MOST, "seed": 3}).json()
    used = answer["mxconv"]["sampling"]
    shown = {name: used[name] for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
    assert shown == {"temperature": 0.7, "top_k": 0, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.0}
    assert set(used["from"].values()) == {"default"}
    expected = server.model.generate(HELLO, max_new_tokens=MOST, seed=3, temperature=0.7, top_p=0.95, min_p=0.05)
    assert answer["choices"][0]["message"]["content"] == expected.text
    (model,) = server.get("/v1/models").json()["data"]
    assert model["mxconv"]["sampling"] == used


def test_a_stream_says_it_in_its_last_chunk(server: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 6, "n": 2, "temperature": 1, "logit_bias": {"7": 1.5}}
    *before, last = chunks(server, "/v1/completions", body)
    assert all("sampling" not in chunk["mxconv"] for chunk in before)
    assert last["choices"][0]["finish_reason"] is not None
    used = last["mxconv"]["sampling"]
    assert used["logit_bias"] == {"7": 1.5}
    assert (used["temperature"], used["top_p"], used["min_p"]) == (1, 1, 0)  # what others would add is off
    assert used["from"]["temperature"] == used["from"]["logit_bias"] == "request"


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model whose makers recommend something."""
    with running(chat_package(tmp_path_factory.mktemp("advised"), FILE), levels=["target"]) as server:
        yield server


def test_a_models_recommendation_is_followed_and_named(advised: Running) -> None:
    answer = advised.post("/v1/completions", {"prompt": PROMPT, "max_tokens": MOST, "seed": 3, "top_k": 5}).json()
    used = answer["mxconv"]["sampling"]
    expected = {"temperature": 0.6, "top_k": 5, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.1}
    assert {name: used[name] for name in expected} == expected
    assert [used["from"][name] for name in expected] == [
        "generation_config.json",
        "request",
        "default",
        "default",
        "generation_config.json",
    ]
    written = advised.model.generate(PROMPT, max_new_tokens=MOST, seed=3, top_k=5)
    assert answer["choices"][0]["text"] == written.text
    assert advised.model.sampling({"top_k": 5}).members == used
    greedy = advised.post("/v1/completions", {"prompt": PROMPT, "max_tokens": MOST, "temperature": 0}).json()
    plain = advised.model.generate(PROMPT, max_new_tokens=MOST, temperature=0, repetition_penalty=1.1)
    assert greedy["choices"][0]["text"] == plain.text
