"""Errors in OpenAI's shape, {"error": {"message", "type", "param", "code"}}: as responses, and in /openapi.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel

INVALID = "invalid_request_error"
OVERLOADED = "rate_limit_error"
SERVER = "server_error"


class ErrorMembers(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorMembers


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

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    """An error about a field that cannot be served."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def not_validated(errors: Sequence[Any]) -> ApiError:
    """The first of pydantic's findings about a body."""
    found = errors[0]
    if found["type"] == "json_invalid":
        return ApiError(400, f"body: not JSON ({found.get('ctx', {}).get('error', 'malformed')}).", code="invalid_json")
    path = [part for part in found["loc"] if part != "body"]
    if not path:
        return ApiError(400, "body: a JSON object of type application/json is required.", code="invalid_json")
    param = str(path[0])
    place = param + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[1:])
    if found["type"] == "extra_forbidden":
        return ApiError(400, f"{place}: unknown here. Leave it out.", param=param, code="unknown_parameter")
    code = found["type"] if found["type"] == "unsupported_parameter" else None
    return ApiError(400, f"{place}: {found['msg']}.", param=param, code=code)
