"""/openapi.json: what FastAPI derives, with the errors that this server sends instead of FastAPI's own."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel


class ErrorMembers(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorMembers


SAID: dict[int | str, str] = {
    400: "A field that cannot be served",
    401: "No API key, or a wrong one",
    404: "No such model",
    408: "The body came too slowly",
    413: "The body is too large",
    429: "The queue is full; Retry-After says when to ask again",
    500: "The engine failed",
    503: "The server is shutting down",
    504: "It took too long",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in SAID.items()
}


def describe(app: FastAPI) -> None:
    """Leave out FastAPI's 422: what a body lacks is a 400 here."""
    derive = app.openapi

    def openapi() -> dict[str, Any]:
        schema = derive()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
