"""The way of one request from its job to the last byte: decoded, shaped, sent, and dropped when its client leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from mxconv.serving.http.api_error import SERVER, ApiError
from mxconv.serving.http.call import Admission, Call, ReplyChoice
from mxconv.serving.http.engine_thread import ReplyToken
from mxconv.serving.http.item_shape import ItemShape
from mxconv.serving.http.metrics import Metrics
from mxconv.serving.http.served import Job, ServedModel
from mxconv.serving.http.shapes import Shape

SILENT_SECONDS = 10.0  # of a stream, after which a comment line keeps proxies from closing it
LINE_ENDS = {ord(each): f"\\u{ord(each):04x}" for each in "\u2028\u2029\x85"}  # where some clients end lines
LAST_SECONDS = 2.0  # for the last words of a stream that took too long
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect a stream before it passes it on
]
AnswerShape = Shape | ItemShape  # an answer in one piece, or as events
Part = tuple[ReplyChoice, list[ReplyToken]]
ShapeOf = Callable[[ServedModel, Call], AnswerShape]


class Reply(Response):
    """Admits a job when it is sent, so that nothing is held for a client that left before."""

    def __init__(self, admission: Admission, metrics: Metrics, seconds: float, shape_of: ShapeOf, job: Job) -> None:
        super().__init__()
        self._admission, self._metrics, self._seconds = admission, metrics, seconds
        self._shape_of, self._job = shape_of, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; raises ApiError where nothing has been sent yet."""
        with self._admission.admit(self._job) as call:
            work = asyncio.create_task(self._send(call, scope, receive, send))
            leave = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait({work, leave}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
            finally:
                for task in (work, leave):
                    task.cancel()
                await asyncio.gather(work, leave, return_exceptions=True)
                self._metrics.count(call)

    async def _send(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        shape = self._shape_of(self._job.served, call)
        stream = _EventStream(shape, send)
        try:
            async with asyncio.timeout(self._seconds):
                if self._job.body.stream:
                    await self._send_events(call, shape, stream)
                    return
                async for _ in call.parts():
                    pass
                await JSONResponse(shape.whole())(scope, receive, send)
        except TimeoutError:
            message = f"Not done after {self._seconds:g} seconds. Ask for less."
            with suppress(TimeoutError):  # a client that does not read what was sent before will not read this
                async with asyncio.timeout(LAST_SECONDS):
                    await stream.fail(ApiError(504, message, SERVER, code="timeout"))
        except ApiError as error:
            await stream.fail(error)

    async def _send_events(self, call: Call, shape: AnswerShape, stream: "_EventStream") -> None:
        """Send the head and the first event at once, unless it echoes what is yet to be scored, and then the parts."""
        await stream.begin()
        if not self._job.scores_prompts:
            await stream.send(shape.opening())
        parts, is_first = call.parts(), True
        while (part := await self._next(parts, stream)) is not None:
            if self._job.scores_prompts and is_first:
                await stream.send(shape.opening())
            is_first = False
            await stream.send(shape.step(*part))
        await stream.send(shape.closing())
        await stream.end()

    async def _next(self, parts: AsyncIterator[Part], stream: "_EventStream") -> Part | None:
        """The next part, with a comment line whenever it takes long; None after the last one."""
        waiting = asyncio.ensure_future(anext(parts, None))
        try:
            while not (await asyncio.wait({waiting}, timeout=SILENT_SECONDS))[0]:
                await stream.comment()
            return waiting.result()
        finally:
            waiting.cancel()


class _EventStream:
    """Server-sent events over ASGI; the response begins with the first."""

    def __init__(self, shape: AnswerShape, send: Send) -> None:
        self._shape = shape
        self._asgi_send = send
        self.has_begun = False

    async def send(self, events: Iterable[dict[str, Any] | str]) -> None:
        for event in events:
            name = f"event: {event['type']}\n" if self._shape.names_events and not isinstance(event, str) else ""
            text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            await self._send(f"{name}data: {text.translate(LINE_ENDS)}\n\n")

    async def begin(self) -> None:
        """Send the head, after which errors are events."""
        self.has_begun = True
        await self._asgi_send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})

    async def comment(self) -> None:
        """Send a line that clients skip."""
        await self._send(": \n\n")

    async def _send(self, text: str) -> None:
        await self._asgi_send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def end(self) -> None:
        await self._asgi_send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """Send an error as the last event, or raise it for the application where nothing was sent."""
        if not self.has_begun:
            raise error
        await self.send([self._shape.failure(error)])
        await self.end()


async def _left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
