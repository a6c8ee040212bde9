"""The way of one request from its job to the last byte: decoded, shaped, sent, and dropped when its client leaves."""

import asyncio
import json
from contextlib import suppress
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from mxconv.serving.http.call import Call
from mxconv.serving.http.desk import Desk
from mxconv.serving.http.errors import SERVER, ApiError
from mxconv.serving.http.job import Job
from mxconv.serving.http.metrics import Metrics
from mxconv.serving.http.served import ServedModel
from mxconv.serving.http.shapes import Shape

LAST_SECONDS = 2.0  # for the last words of a stream that took too long
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect a stream before it passes it on
]


class Reply(Response):
    """Admits a job when it is sent, so that nothing is held for a client that was gone before.

    Args:
        desk: admits it.
        served: the model.
        job: what to decode.
        shape: of completions or chats.
        echo: begin texts with their prompts.
        streams: as server-sent events, or in one piece.
        includes_usage: at the end of a stream.
        seconds: for all of it.
        metrics: count it.
    """

    def __init__(
        self,
        desk: Desk,
        served: ServedModel,
        job: Job,
        shape: type[Shape],
        echo: bool,
        streams: bool,
        includes_usage: bool,
        seconds: float,
        metrics: Metrics,
    ) -> None:
        super().__init__()
        self._desk = desk
        self._served = served
        self._job = job
        self._shape = shape
        self._echo = echo
        self._streams = streams
        self._includes_usage = includes_usage
        self._seconds = seconds
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError where nothing has been sent yet."""
        shown = [prompt.text if self._echo else "" for prompt in self._job.prompts]
        with self._desk.admit(self._job, shown) as call:
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
        shape = self._shape(self._served, call)
        stream = _EventStream(send)
        try:
            async with asyncio.timeout(self._seconds):
                if self._streams:
                    await self._send_chunks(call, shape, stream)
                else:
                    async for _ in call.parts():
                        pass
                    await JSONResponse(shape.whole())(scope, receive, send)
        except TimeoutError:
            message = f"Not done after {self._seconds:g} seconds. Ask for less."
            with suppress(TimeoutError):  # whoever does not read what was sent before will not read this
                async with asyncio.timeout(LAST_SECONDS):
                    await stream.fail(ApiError(504, message, SERVER, code="timeout"))
        except ApiError as error:
            await stream.fail(error)

    async def _send_chunks(self, call: Call, shape: Shape, stream: "_EventStream") -> None:
        async for part in call.parts():
            if not stream.has_begun:  # now it is sure that there is something to tell
                for opening in shape.opening():
                    await stream.send(self._with_usage(opening))
            await stream.send(self._with_usage(shape.chunk(part.choice, part.delta)))
        if self._includes_usage:
            await stream.send(shape.last())
        await stream.finish()

    def _with_usage(self, chunk: dict[str, Any]) -> dict[str, Any]:
        return chunk | {"usage": None} if self._includes_usage else chunk


class _EventStream:
    """Server-sent events over ASGI; the response begins with the first."""

    def __init__(self, send: Send) -> None:
        self._asgi_send = send
        self.has_begun = False

    async def send(self, members: dict[str, Any]) -> None:
        await self._write(b"data: " + json.dumps(members, ensure_ascii=False).encode() + b"\n\n")

    async def finish(self) -> None:
        await self._write(b"data: [DONE]\n\n", is_last=True)

    async def fail(self, error: ApiError) -> None:
        """As a response where nothing was sent, as an event where something was.

        Raises:
            ApiError: the same, for the application to respond.
        """
        if not self.has_begun:
            raise error
        await self._write(b"data: " + json.dumps(error.body).encode() + b"\n\n", is_last=True)

    async def _write(self, raw: bytes, is_last: bool = False) -> None:
        if not self.has_begun:
            self.has_begun = True
            await self._asgi_send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        body: Message = {"type": "http.response.body", "body": raw, "more_body": not is_last}
        await self._asgi_send(body)


async def _left(receive: Receive) -> None:
    """Until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
