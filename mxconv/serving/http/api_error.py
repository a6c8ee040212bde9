"""Errors as responses and in /openapi.json: in OpenAI's shape, under /v1/messages in Anthropic's.

OpenAI:     {"error": {"message", "type", "param", "code"}}
Anthropic:  {"type": "error", "error": {"type", "message"}}
"""

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
ANTHROPIC_RESPONSES = {status: told | {"model": AnthropicErrorBody} for status, told in (RESPONSES | OTHERS).items()}


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
        told = self.body["error"]
        param = names.get(told["param"] or "")
        if param is None:
            return self
        message = param + str(self).removeprefix(told["param"] or "")
        return ApiError(self.status, message, told["type"] or INVALID, param, told["code"], self.headers)


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    """An error about a field that cannot be served."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def not_validated(errors: Sequence[Any]) -> ApiError:
    """Pydantic's first finding about a body; of those about a union's members, which tell less, the most specific."""
    first = [part for part in errors[0]["loc"] if part != "body"][:1]
    about_one = [error for error in errors if [part for part in error["loc"] if part != "body"][:1] == first]
    found = max(about_one, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))
    if found["type"] == "json_invalid":
        return ApiError(400, f"body: not JSON ({found.get('ctx', {}).get('error', 'malformed')}).", code="invalid_json")
    path = [part for part in found["loc"] if part != "body" and "[" not in str(part)]  # list[TextPart] is no field
    if not path:
        return ApiError(400, "body: a JSON object of type application/json is required.", code="invalid_json")
    param = str(path[0])
    place = param + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[1:])
    if found["type"] == "extra_forbidden":
        return ApiError(400, f"{place}: unknown here. Leave it out.", param=param, code="unknown_parameter")
    code = found["type"] if found["type"] == "unsupported_parameter" else None
    return ApiError(400, f"{place}: {found['msg']}.", param=param, code=code)
