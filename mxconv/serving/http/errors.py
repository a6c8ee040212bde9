"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse

INVALID = "invalid_request_error"
OVERLOADED = "rate_limit_error"
SERVER = "server_error"


class ApiError(Exception):
    """What a client is told.

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
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    """A field that cannot be served."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def shutting_down() -> ApiError:
    return ApiError(503, "The server is shutting down. Ask again later.", SERVER, code="shutting_down")


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
