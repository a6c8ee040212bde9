"""/v1/completions through OpenAI's own client: what `mxconv generate` writes, in every shape a client may ask for."""

import numpy as np
import pytest
from http_servers import NAME, Running

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


def test_echo_begins_with_the_prompt(server: Running) -> None:
    client = server.client()
    plain = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=8, temperature=0)
    echoed = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=8, temperature=0, echo=True)
    stream = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=8, temperature=0, echo=True, stream=True)
    assert echoed.choices[0].text == PROMPT + plain.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in stream) == echoed.choices[0].text


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
