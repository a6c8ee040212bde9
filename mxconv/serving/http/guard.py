"""Checks before the application: who may send requests, how large they may be, and how slowly they may come.

No response allows another site's scripts to read it, but those of origins that the server was told of, and bodies must
be application/json, which browsers do not send across sites unasked. On a loopback address without a key, the Host
header must name a loopback address: otherwise a site could have its name resolve to 127.0.0.1 and be this server's own
site to a browser.
"""

import asyncio
import hmac
import ipaddress
import json
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mxconv.serving.http.api_error import ApiError
from mxconv.serving.http.metrics import Metrics
from mxconv.serving.http.serve_options import ServeOptions

OPEN_PATHS = ("/", "/health", "/openapi.json")
PATHS = (
    *(*OPEN_PATHS, "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"),
)
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


class Guard:
    """Checks requests before the application sees them, and counts responses."""

    def __init__(self, app: ASGIApp, options: ServeOptions, is_loopback: bool, metrics: Metrics) -> None:
        self._app = app
        self._key = None if options.api_key is None else options.api_key.encode()
        self._checks_host = is_loopback and self._key is None
        self._options = options
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # a base URL may end with a slash; a HEAD is a GET, whose body the server underneath leaves out
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        scope = {**scope, "path": scope["path"].rstrip("/") or "/", "method": method}
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.respond(path, message["status"])
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check(scope["path"], headers)
            receive = await self._with_body(headers, scope, receive)
        except ApiError as error:
            await error.response(scope["path"])(scope, receive, send_on)
            return
        except ClientDisconnect:
            return
        await self._app(scope, receive, send_on)

    def _check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise ApiError where the host or the key is a wrong one."""
        if self._checks_host and not _is_loopback_name(headers.get("host", "localhost")):
            raise ApiError(
                421,
                f"Host: {headers['host'][:100]!r}; localhost or a loopback address is required where there is no API "
                "key. Use the address that the server printed, or start it with a key.",
                code="wrong_host",
            )
        if self._key is not None and path not in OPEN_PATHS:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            keys = [given.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
            are_right = [hmac.compare_digest(key.encode("utf-8", "replace"), self._key) for key in keys]
            if not any(are_right):
                raise ApiError(
                    401,
                    "Authorization: this server's API key is required, as `Bearer KEY`, or alone in x-api-key.",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )

    async def _with_body(self, headers: Mapping[str, str], scope: Scope, receive: Receive) -> Receive:
        """Read the whole body, within the limits; what comes back gives it again."""
        most, seconds = self._options.max_body_bytes, self._options.slow_seconds
        if (coding := headers.get("content-encoding", "identity")) != "identity":
            message = f"Content-Encoding: {coding[:40]}; a body that is not compressed is required."
            raise ApiError(415, message, code="unsupported_encoding")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > most:
            raise _too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for piece in Request(scope, receive).stream():
                    body += piece
                    if len(body) > most:
                        raise _too_large(most)
        except TimeoutError:
            message = f"The body was not complete after {seconds:g} seconds."
            raise ApiError(408, message, code="slow_body", headers={"Connection": "close"}) from None
        if scope["method"] == "POST":
            _check_json(body)
        whole = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_again() -> Message:
            return whole.pop() if whole else await receive()

        return receive_again


def _check_json(body: bytearray) -> None:
    """Raise ApiError for what is no JSON, or says what no answer could repeat."""
    try:
        value = json.loads(body)
    except UnicodeDecodeError as error:
        message = f"body: no UTF-8 at byte {error.start}; JSON in UTF-8 is required. Encode it so."
        raise ApiError(400, message, code="invalid_json") from None
    except json.JSONDecodeError as error:
        found = f"{error.msg}, line {error.lineno} column {error.colno}"
        raise ApiError(400, f"body: not JSON ({found}); a JSON object is required.", code="invalid_json") from None
    except (ValueError, RecursionError):
        message = "body: not JSON (a number of too many digits, or too deep); a JSON object is required."
        raise ApiError(400, message, code="invalid_json") from None
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        message = "body: NaN, an infinity, half a character, or too deep; JSON in UTF-8 is required. Repair it."
        raise ApiError(400, message, code="invalid_json") from None


def _too_large(most: int) -> ApiError:
    message = f"The body is larger than {most} bytes. Send less."
    return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})


def _is_loopback_name(host: str) -> bool:
    """Whether a Host header names this machine: localhost, 127.0.0.1:8000, [::1]:8000."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return name.lower() == "localhost" or is_loopback(name)


def is_loopback(address: str) -> bool:
    """Whether an address is one of the machine's own; names are none."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
