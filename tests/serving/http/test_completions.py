"""/v1/completions, /v1/chat/completions and /tokenize through OpenAI's own client: what `mxconv generate` writes."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from http_servers import NAME, Running, chat_package, running

from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling

PROMPT = "import os\n\ndef "
MOST = 24


def test_a_greedy_completion_is_what_generate_writes(server: Running) -> None:
    expected = server.model.generate(PROMPT, max_new_tokens=MOST)
    answer = server.client().completions.create(model=NAME, prompt=PROMPT, max_tokens=MOST, temperature=0)
    assert answer.object == "text_completion" and answer.model == NAME and answer.id.startswith("cmpl-")
    (choice,) = answer.choices
    assert choice.text == expected.text and choice.finish_reason == expected.generation.ending
    assert choice.logprobs is None
    num_prompt = len(server.model.encode(PROMPT))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == num_prompt
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.total_tokens == num_prompt + len(expected.token_ids)


def test_a_seed_gives_generates_tokens_and_each_choice_has_the_next_seed(server: Running) -> None:
    options = {"temperature": 0.8, "top_p": 0.9, "top_k": 50}
    answer = server.client().completions.create(
        model=NAME, prompt=PROMPT, max_tokens=MOST, seed=41, n=3, temperature=0.8, top_p=0.9, extra_body={"top_k": 50}
    )
    for index, choice in enumerate(answer.choices):
        expected = server.model.generate(PROMPT, max_new_tokens=MOST, seed=41 + index, **options)
        assert choice.index == index and choice.text == expected.text
    assert len({choice.text for choice in answer.choices}) > 1


def test_without_a_seed_the_one_that_was_drawn_is_told_and_gives_the_same_again(server: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": MOST}
    first = server.post("/v1/completions", body).json()
    other = server.post("/v1/completions", body).json()
    again = server.post("/v1/completions", body | {"seed": first["mxconv"]["seed"]}).json()
    assert first["mxconv"]["seed"] != other["mxconv"]["seed"]
    assert again["choices"] == first["choices"] and again["system_fingerprint"] == first["system_fingerprint"]


def test_a_negative_seed_is_one_of_64_bits(server: Running) -> None:
    bodies = [{"prompt": PROMPT, "max_tokens": MOST, "seed": seed} for seed in (-1, 2**64 - 1)]
    texts = [server.post("/v1/completions", body).json()["choices"][0]["text"] for body in bodies]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("stop", [None, ["\n    ", "("]])
def test_a_stream_says_the_same_in_pieces(server: Running, stop: list[str] | None) -> None:
    options = {"prompt": [PROMPT, "class "], "max_tokens": MOST, "seed": 5, "n": 2, "stop": stop, "logprobs": 2}
    whole = server.client().completions.create(model=NAME, **options)
    pieces = list(
        server.client().completions.create(model=NAME, stream=True, stream_options={"include_usage": True}, **options)
    )
    assert pieces[-1].choices == [] and pieces[-1].usage == whole.usage
    assert len(whole.choices) == 4
    for choice in whole.choices:
        mine = [piece.choices[0] for piece in pieces[:-1] if piece.choices[0].index == choice.index]
        assert "".join(piece.text for piece in mine) == choice.text
        assert [piece.finish_reason for piece in mine if piece.finish_reason] == [choice.finish_reason]
        assert choice.logprobs is not None
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            parts = [getattr(piece.logprobs, name) for piece in mine]
            assert [one for part in parts for one in part] == getattr(choice.logprobs, name), name


def test_texts_ids_and_lists_of_either_are_the_same_prompt(server: Running) -> None:
    ids = server.model.encode(PROMPT)
    given = [PROMPT, [PROMPT], ids, [ids]]
    bodies = [{"prompt": prompt, "max_tokens": 8, "temperature": 0} for prompt in given]
    texts = [server.post("/v1/completions", body).json()["choices"][0]["text"] for body in bodies]
    assert len(set(texts)) == 1


def test_a_stop_string_ends_the_text_and_is_no_part_of_it(server: Running) -> None:
    full = server.model.generate(PROMPT, max_new_tokens=64).text
    stop = full[10:13]
    answer = server.client().completions.create(model=NAME, prompt=PROMPT, max_tokens=64, temperature=0, stop=stop)
    assert answer.choices[0].text == full[: full.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.completion_tokens < 64


def test_logprobs_are_those_of_the_targets_softmax(server: Running) -> None:
    rows: list[np.ndarray] = []
    ids = server.model.encode(PROMPT)
    selection = Selection(Sampling(0.7), seed=3)
    hierarchy = server.model.hierarchy({"drafts": []})
    plain = hierarchy.generate(ids, 8, (), lambda _, row: rows.append(row.copy()), selection)
    body = {"prompt": PROMPT, "max_tokens": 8, "seed": 3, "temperature": 0.7, "logprobs": 3, "mxconv": {"trace": True}}
    (choice,) = server.post("/v1/completions", body).json()["choices"]
    assert [token["id"] for token in choice["mxconv"]["tokens"]] == plain.token_ids
    found = choice["logprobs"]
    assert "".join(token["text"] for token in choice["mxconv"]["tokens"]) == choice["text"]
    for place, (token, row) in enumerate(zip(plain.token_ids, rows, strict=True)):
        exact = row.astype(np.longdouble) - row.max()
        exact -= np.log(np.exp(exact).sum())
        assert found["token_logprobs"][place] == pytest.approx(float(exact[token]), abs=1e-12)
        best = sorted(found["top_logprobs"][place].values(), reverse=True)
        assert best == pytest.approx(np.sort(exact)[::-1][: len(best)].astype(float).tolist(), abs=1e-12)
        assert choice["text"].startswith(found["tokens"][place], found["text_offset"][place])


def test_the_trace_says_who_guessed_each_token(server: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 64, "temperature": 0, "mxconv": {"trace": True}}
    (choice,) = server.post("/v1/completions", body).json()["choices"]
    trace = choice["mxconv"]
    names = [level.name for level in server.model.loaded.levels[1:]]
    assert [level["name"] for level in trace["levels"]] == names
    guessers = {token["guessed_by"] for token in trace["tokens"]}
    assert None in guessers and guessers <= {None, *names}
    assert trace["num_tokens"] == len(trace["tokens"]) >= trace["num_rounds"] > 0
    for level in trace["levels"]:
        assert 0 <= level["num_accepted"] <= level["num_proposed"]


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


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which module?"}]
TEXT = "import os\n\ndef é"


def test_a_chat_is_what_generate_writes_behind_the_template(server: Running) -> None:
    expected = server.model.generate(MESSAGES, max_new_tokens=MOST)
    answer = server.client().chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=MOST, temperature=0, response_format={"type": "text"}
    )
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == expected.text
    assert choice.finish_reason == expected.generation.ending
    assert answer.usage is not None and answer.usage.prompt_tokens == len(server.model.encode(MESSAGES))


def test_a_chats_stream_says_the_same_in_pieces_logprobs_included(server: Running) -> None:
    options = {
        "messages": MESSAGES,
        "max_completion_tokens": MOST,
        "seed": 9,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = server.client().chat.completions.create(model=NAME, **options)
    stream = server.client().chat.completions.create(
        model=NAME, stream=True, stream_options={"include_usage": True}, **options
    )
    *pieces, last = list(stream)
    assert last.choices == [] and last.usage == whole.usage
    for choice in whole.choices:
        mine = [piece.choices[0] for piece in pieces if piece.choices[0].index == choice.index]
        assert mine[0].delta.role == "assistant"
        assert "".join(piece.delta.content or "" for piece in mine) == choice.message.content
        assert mine[-1].finish_reason == choice.finish_reason
        assert choice.logprobs is not None and choice.logprobs.content is not None
        content = [one for piece in mine if piece.logprobs for one in piece.logprobs.content or []]
        assert content == choice.logprobs.content
        assert len(content) <= MOST and all(len(one.top_logprobs) == 2 for one in content)
        assert all(one.bytes == list(one.token.encode()) for one in content)


def test_texts_and_messages_become_the_tokens_that_are_decoded(server: Running) -> None:
    tokenizer = server.model.loaded.tokenizer
    found = server.post("/tokenize", {"prompt": TEXT, "model": NAME, "return_token_strs": True}).json()
    assert found["tokens"] == tokenizer.encode(TEXT) and found["count"] == len(found["tokens"])
    assert found["token_strs"] == [tokenizer.name_of(token) for token in found["tokens"]]
    assert found["max_model_len"] == server.model.loaded.config.max_position_embeddings
    bare = server.post("/tokenize", {"content": TEXT, "with_pieces": True}).json()["tokens"]
    assert [one["id"] for one in bare] == tokenizer.encode(TEXT, add_special_tokens=False)
    chat = server.post("/tokenize", {"messages": MESSAGES}).json()
    assert chat["tokens"] == server.model.encode(MESSAGES)
    usage = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens"] == chat["count"]
    unfinished = server.post("/tokenize", {"messages": MESSAGES, "add_generation_prompt": False}).json()
    assert unfinished["count"] <= chat["count"]


def test_back_to_the_same_text(server: Running) -> None:
    tokens = server.post("/tokenize", {"prompt": TEXT, "add_special_tokens": False}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": TEXT, "content": TEXT}
    assert server.post("/detokenize", {"tokens": []}).json()["prompt"] == ""
