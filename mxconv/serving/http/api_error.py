"""Errors as responses and in /openapi.json: in OpenAI's shape, under /v1/messages in Anthropic's.

OpenAI:     {"error": {"message", "type", "param", "code"}}
Anthropic:  {"type": "error", "error": {"type", "message"}}
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel

INVALID = "invalid_request_error"
OVERLOADED = "rate_limit_error"
SERVER = "server_error"
ANTHROPIC_PATH = "/v1/messages"
ANTHROPIC_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}  # others are INVALID, from 500 on "api_error"


class ErrorMembers(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorMembers


class AnthropicErrorMembers(BaseModel):
    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """Anthropic's error object."""

    type: Literal["error"]
    error: AnthropicErrorMembers


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "A field that cannot be served",
        401: "No API key, or a wrong one",
        404: "No such model",
        408: "The body came too slowly",
        413: "The body is too large",
        429: "The queue is full; Retry-After says when to ask again",
        500: "The engine failed",
        503: "The server is shutting down",
        504: "It took too long",
    }.items()
}


# FastAPI then describes no 422 of its own: a malformed body is a 400 here
OTHERS: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorBody, "description": "Any other error"}}
ANTHROPIC_RESPONSES = {
    status: response | {"model": AnthropicErrorBody} for status, response in (RESPONSES | OTHERS).items()
}


class ApiError(Exception):
    """An error for a client.

    Args:
        status: of HTTP.
        message: for people.
        kind: the field `type`.
        param: the field of the request that is to blame.
        code: for programs.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self, path: str) -> JSONResponse:
        """The response in the shape that clients of a path expect."""
        body = self.anthropic_body if path.startswith(ANTHROPIC_PATH) else self.body
        return JSONResponse(body, self.status, self.headers)

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """The error in Anthropic's shape."""
        kind = ANTHROPIC_KINDS.get(self.status, INVALID if self.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(self)}}

    def renamed(self, names: Mapping[str, str]) -> "ApiError":
        """The same error about a field by the name that a dialect has for it."""
        error = self.body["error"]
        param = names.get(error["param"] or "")
        if param is None:
            return self
        message = param + str(self).removeprefix(error["param"] or "")
        return ApiError(self.status, message, error["type"] or INVALID, param, error["code"], self.headers)


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    """An error about a field that cannot be served."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


# What is required, by pydantic's type of error.
REQUIRED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
    "string_pattern_mismatch": "a text like {pattern}",
}
LONGEST_QUOTE = 60  # characters of what was found


def not_validated(errors: Sequence[Any]) -> ApiError:
    """Pydantic's first finding about a body; of those about a union's members, which tell less, the most specific."""
    first = _fields(errors[0])[:1]
    about_one = [error for error in errors if _fields(error)[:1] == first]
    found = max(about_one, key=lambda error: (len(_fields(error)), not error["type"].endswith("_type")))
    path = _fields(found)
    if not path:
        message = "body: a JSON object is required, with the header Content-Type: application/json."
        return ApiError(400, message, code="invalid_json")
    param = str(path[0])
    place = param + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[1:])
    code = None
    if found["type"] == "extra_forbidden":
        said, code = "unknown here. Leave it out", "unknown_parameter"
    elif found["type"] == "missing":
        said = "0 given; it is required. Add it"
    elif found["type"] in REQUIRED:
        is_of_type = found["type"].endswith(("_type", "literal_error"))
        expected = dict.fromkeys(
            _required(each) for each in (about_one if is_of_type else [found]) if _fields(each) == path
        )
        said = f"{_quoted(found)}; {' or '.join(expected)} is required. Change it"
    else:  # ours
        said, code = found["msg"], found["type"] if found["type"] == "unsupported_parameter" else None
    return ApiError(400, f"{place}: {said}.", param=param, code=code)


def _fields(error: Any) -> list[Any]:
    """The place of an error in a body; names of pydantic's types (list[Note], str, Message) are no fields."""
    types = ("body", "str", "int", "float", "bool", "dict", "list", "constrained-str", "constrained-int")
    path = [
        part
        for part in error["loc"]
        if isinstance(part, int) or not (part in types or "[" in part or part[:1].isupper())
    ]
    return [*path, *error.get("ctx", {}).get("members", ())]


def _required(error: Any) -> str:
    return REQUIRED.get(error["type"], "another value").format(**error.get("ctx", {}))


def _quoted(error: Any) -> str:
    """The value that was found, as JSON; of a list or a text that is too long or too short its length."""
    value = error.get("input")
    if error["type"] in ("too_short", "too_long", "string_too_short", "string_too_long") and hasattr(value, "__len__"):
        return str(len(value))
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."
