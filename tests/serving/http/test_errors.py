"""What cannot be served is told in OpenAI's error object, and is never a failure of the server."""

from typing import Any

import httpx
import openai
import pytest
import schemathesis
from http_servers import NAME, Running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "x"}]


def told(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        (COMPLETIONS, {}, "prompt", None),
        (COMPLETIONS, {"prompt": 5}, "prompt", None),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt", None),
        (COMPLETIONS, {"prompt": [10**9]}, "prompt", None),
        (COMPLETIONS, {"prompt": []}, "prompt", None),
        (COMPLETIONS, {"prompt": [[1], []]}, "prompt", None),
        (COMPLETIONS, {"prompt": "x " * 600}, "prompt", "context_length_exceeded"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": -2}, "max_tokens", None),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 4.5}, "max_tokens", None),
        (COMPLETIONS, {"prompt": "x", "top_k": -2}, "top_k", None),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": [-1]}, "stop_token_ids", None),
        (COMPLETIONS, {"prompt": "x", "ignore_eos": "yes"}, "ignore_eos", None),
        (COMPLETIONS, {"prompt": "x", "length_penalty": 2}, "length_penalty", "unsupported_parameter"),
        (COMPLETIONS, {"prompt": "x", "use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
        (COMPLETIONS, {"prompt": "x", "stop": {}}, "stop", None),
        (COMPLETIONS, {"prompt": "x", "temperature": -1}, "temperature", None),
        (COMPLETIONS, {"prompt": "x", "temperature": "1"}, "temperature", None),
        (COMPLETIONS, {"prompt": "x", "seed": 2**64}, "seed", None),
        (COMPLETIONS, {"prompt": "x", "n": 0}, "n", None),
        (COMPLETIONS, {"prompt": ["x"] * 3, "n": 100}, "n", None),
        (COMPLETIONS, {"prompt": "x", "stop": ["a"] * 17}, "stop", None),
        (COMPLETIONS, {"prompt": "x", "best_of": 2}, "best_of", "unsupported_parameter"),
        (COMPLETIONS, {"prompt": "x", "suffix": "y"}, "suffix", "unsupported_parameter"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias", None),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"one": 1}}, "logit_bias", None),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"123456789": 1}}, "logit_bias", None),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {str(one): 1 for one in range(1025)}}, "logit_bias", None),
        (COMPLETIONS, {"prompt": "x", "frequency_penalty": 2.5}, "frequency_penalty", None),
        (COMPLETIONS, {"prompt": "x", "presence_penalty": -2.5}, "presence_penalty", None),
        (COMPLETIONS, {"prompt": "x", "repetition_penalty": 0}, "repetition_penalty", None),
        (COMPLETIONS, {"prompt": "x", "min_p": 1.5}, "min_p", None),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, "max_tokens", None),
        (COMPLETIONS, {"prompt": "x", "temprature": 1}, "temprature", "unknown_parameter"),
        (COMPLETIONS, {"prompt": "x", "response_format": {"type": "json"}}, "response_format", None),
        (COMPLETIONS, {"prompt": "x", "response_format": {"type": "json_schema"}}, "response_format", None),
        (COMPLETIONS, {"prompt": "x", "guided_regex": "(a"}, "guided_regex", None),
        (COMPLETIONS, {"prompt": "x", "guided_regex": "a", "grammar": "start: NOTHING"}, "guided_regex", None),
        (COMPLETIONS, {"prompt": "x", "grammar": "root ::= ("}, "grammar", None),
        (COMPLETIONS, {"prompt": "x", "json_schema": {"not": {}}}, "json_schema", None),
        (COMPLETIONS, {"prompt": "x", "guided_json": "[]"}, "guided_json", None),
        (COMPLETIONS, {"prompt": "x", "guided_choice": []}, "guided_choice", None),
        (COMPLETIONS, {"prompt": "x", "structured_outputs": {"regex": "["}}, "structured_outputs.regex", None),
        (CHAT, {"messages": []}, "messages", None),
        (CHAT, {"messages": [{"role": "user"}]}, "messages", None),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", None),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, "max_tokens", None),
        (CHAT, {"messages": HELLO, "web_search_options": {}}, "web_search_options", "unknown_parameter"),
        (CHAT, {"messages": HELLO, "modalities": ["audio"]}, "modalities", "unsupported_parameter"),
        (CHAT, {"messages": HELLO, "continue_final_message": True}, "continue_final_message", None),
        (CHAT, {"messages": HELLO, "reasoning_format": "xml"}, "reasoning_format", None),
        (CHAT, {"messages": HELLO, "top_logprobs": 2}, "top_logprobs", None),
        (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, "tools", None),
        (CHAT, {"messages": HELLO, "functions": [{"name": "x"}]}, "functions", "unsupported_parameter"),
        (CHAT, {"messages": [{"role": "user", "content": "x " * 600}]}, "messages", "context_length_exceeded"),
    ],
)
def test_a_field_that_cannot_be_served_is_named(
    server: Running, path: str, body: dict[str, Any], param: str, code: str | None
) -> None:
    response = server.post(path, body)
    assert response.status_code == 400
    error = told(response)
    assert error["param"] == param and error["code"] == code and error["type"] == "invalid_request_error"
    assert error["message"].startswith(param)


def test_fields_that_ask_for_nothing_are_taken(server: Running) -> None:
    neutral = {
        "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "best_of": 1, "suffix": None, "user": "me",
        "n": None, "stream": None, "stop": None, "max_tokens": 2, "seed": 3,
    }  # fmt: skip
    assert server.post(COMPLETIONS, {"prompt": "x", **neutral}).status_code == 200


def test_another_model_is_not_found(server: Running) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-9' is not here") as caught:
        server.client().completions.create(model="gpt-9", prompt="x")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"[1]", "application/json"),
        (b'{"prompt": "\xff"}', "application/json"),
        (b'{"prompt": "\\ud800"}', "application/json"),
        (b'{"prompt": "x", "temperature": NaN}', "application/json"),
        (b'{"prompt": "x", "top_p": 1e999}', "application/json"),
        (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"prompt": "x"}', "text/plain"),
        (b"prompt=x", "application/x-www-form-urlencoded"),
    ],
)
def test_bodies_that_are_no_requests_are_refused(server: Running, content: bytes, kind: str) -> None:
    response = httpx.post(server.url + COMPLETIONS, content=content, headers={"Content-Type": kind})
    assert response.status_code == 400, response.text
    told(response)


def test_paths_and_methods_that_are_not_there_are_told_likewise(server: Running) -> None:
    assert told(server.get("/v1/embeddings"))["message"] == "GET /v1/embeddings: Not Found."
    assert server.get("/v1/embeddings").status_code == 404
    assert server.get(COMPLETIONS).status_code == 405


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("prompt", "messages", "model", "n", "seed", "temperature", "top_p", "top_k", "stop", "stream", "logprobs",
          "echo", "stream_options", "mxconv", "top_logprobs", "tools", "user", "metadata", "logit_bias")  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from([COMPLETIONS, CHAT]),
    fields=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4),
    good=st.booleans(),
)
def test_whatever_a_field_holds_the_server_does_not_fail(
    server: Running, path: str, fields: dict[str, Any], good: bool
) -> None:
    least = {"prompt": "x", "messages": HELLO}[("messages" if path == CHAT else "prompt")] if good else None
    body = {("messages" if path == CHAT else "prompt"): least, "max_tokens": 2, "model": NAME} | fields
    response = server.post(path, body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        told(response)


MOST = {"/v1/responses": {"max_output_tokens": 2}, "/v1/messages/count_tokens": {}}


@pytest.fixture(scope="module")
def schema(server: Running) -> Any:
    return schemathesis.openapi.from_url(server.url + "/openapi.json")


def test_no_request_that_the_description_allows_makes_it_fail(schema: Any) -> None:
    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def try_it(data: st.DataObject) -> None:
        operations = [operation.ok() for operation in schema.get_all_operations()]
        operation = data.draw(st.sampled_from(operations))
        case = data.draw(operation.as_strategy())
        if isinstance(case.body, dict):
            case.body = case.body | MOST.get(operation.path, {"max_tokens": 2})
        response = case.call()
        assert response.status_code < 500 and response.status_code != 422

    try_it()
