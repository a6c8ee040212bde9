"""Structured text through OpenAI's own client: every answer fits what was asked for, with drafts and beside others."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from http_servers import Running

from mxconv.text.constraint import Constraint

SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 9}, "tags": {"enum": ["old", "new"]}},
    "required": ["id", "tags"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Which module?"}]
OF_OPENAI = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
ASKED: dict[str, tuple[dict[str, Any], Constraint]] = {
    "response_format": ({"response_format": OF_OPENAI}, Constraint("json_schema", json.dumps(SCHEMA))),
    "guided_json": ({"guided_json": SCHEMA}, Constraint("json_schema", json.dumps(SCHEMA))),
    "guided_json, a text": ({"guided_json": json.dumps(SCHEMA)}, Constraint("json_schema", json.dumps(SCHEMA))),
    "json_schema": ({"json_schema": SCHEMA}, Constraint("json_schema", json.dumps(SCHEMA))),
    "structured_outputs": ({"structured_outputs": {"json": SCHEMA}}, Constraint("json_schema", json.dumps(SCHEMA))),
    "structured_outputs, regex": ({"structured_outputs": {"regex": "[ab]{2}"}}, Constraint("regex", "[ab]{2}")),
    "guided_regex": ({"guided_regex": "[a-c]{3,5}!"}, Constraint("regex", "[a-c]{3,5}!")),
    "guided_grammar": ({"guided_grammar": 'start: "ab" | "cd"'}, Constraint("grammar", 'start: "ab" | "cd"')),
    "grammar": ({"grammar": 'root ::= "ab" | "cd"'}, Constraint("grammar", 'root ::= "ab" | "cd"')),
    "guided_choice": ({"guided_choice": ['"yes"', "né\n"]}, Constraint("choice", json.dumps(['"yes"', "né\n"]))),
}


@pytest.mark.parametrize("how", ASKED)
def test_an_answer_is_what_generate_writes_under_the_constraint(server: Running, how: str) -> None:
    fields, constraint = ASKED[how]
    for temperature in (0.0, 0.9):
        expected = server.model.generate(
            MESSAGES, max_new_tokens=60, constraint=constraint, temperature=temperature, seed=4, drafts=[]
        )
        body = {"messages": MESSAGES, "max_tokens": 60, "temperature": temperature, "seed": 4, **fields}
        found = server.post("/v1/chat/completions", body).json()["choices"][0]
        assert found["message"]["content"] == expected.text and found["finish_reason"] == "stop"
    fits = {
        "json_schema": lambda text: jsonschema.validate(json.loads(text), SCHEMA) is None,
        "regex": lambda text: bool(re.fullmatch(constraint.text, text)),
        "grammar": lambda text: text in ("ab", "cd"),
        "choice": lambda text: text in json.loads(constraint.text),
    }
    assert fits[constraint.kind](expected.text)


def test_many_at_a_time_with_those_that_leave(server: Running) -> None:
    """Each with a constraint of its own, some cut off, some with none."""

    def ask(number: int) -> tuple[str, str | None]:
        wanted = "ab"[number % 2] * (number % 7 + 1)
        body = {"prompt": "x", "max_tokens": 20, "seed": number, "guided_regex": f"<{wanted}>"}
        if number % 5 == 4:
            return "", None if server.post(
                "/v1/completions", {"prompt": "x", "max_tokens": 3}
            ).status_code == 200 else "x"
        return f"<{wanted}>", server.post("/v1/completions", body).json()["choices"][0]["text"]

    with ThreadPoolExecutor(12) as pool:
        for expected, found in pool.map(ask, range(40)):
            assert found == expected or (found is None and not expected)


def test_an_answer_that_cannot_go_on_is_the_requests_fault(server: Running) -> None:
    """A definition that is nothing but itself has no text, which shows when an answer comes to it."""
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
    schema["$defs"] = {"x": {"$ref": "#/$defs/x"}}
    response = server.post("/v1/completions", {"prompt": "x", "max_tokens": 20, "guided_json": schema})
    assert response.status_code == 400 and "json_schema: " in response.json()["error"]["message"]
