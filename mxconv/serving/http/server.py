"""From packages to a server: text models -> engines in a thread -> admission -> application -> socket, and to its end.

Nobody is left without an answer at the end: running requests have some seconds to finish, and the rest get an error.
"""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mxconv.decode import Options, TextModel
from mxconv.errors import ModelError
from mxconv.serving.http.app import ServedModels, application
from mxconv.serving.http.call import Admission
from mxconv.serving.http.engine_thread import EngineThread
from mxconv.serving.http.guard import is_loopback
from mxconv.serving.http.serve_options import ServeOptions

KEEP_ALIVE_SECONDS = 30
LAST_SECONDS = 2  # for answers that were broken off to leave
MOST_CONNECTIONS = 1000


class Serving:
    """A server that listens already; `run` answers.

    Args:
        models: what it serves, by the names that clients use; the caller closes them afterwards.
        decoding: which levels of each take part, and how.
        options: where and how.
        announce: called with the URL once requests are answered.

    Raises:
        ModelError: the address is taken, or as `ServedModels` says.
    """

    def __init__(
        self,
        models: Mapping[str, TextModel],
        decoding: Options,
        options: ServeOptions,
        announce: Callable[[str], None],
    ) -> None:
        served = ServedModels(models, decoding, options)
        thread = EngineThread(model.engine for model in served)
        self.admission = admission = Admission(thread, options.max_sequences, options.max_queue)
        self.listener: socket.socket = listen(options.host, options.port)
        self.url = url_of(self.listener)
        app = application(served, admission, options, is_loopback(self.listener.getsockname()[0]))
        self.server = HttpServer(app, admission, options, lambda: announce(self.url))

    def run(self) -> bool:
        """Answer until a signal, or `server.stop()` from another thread.

        Returns:
            Whether the engine has ended. Where it has not, a long step is still reading its model: close none.
        """
        self.server.run(sockets=[self.listener])
        return not self.admission.thread.is_alive


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any free one.

    Raises:
        ModelError: the address is taken, or none of this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((str(address[0]), port), family=family)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(
            f"--host {host} --port {port}: cannot listen there ({reason}); a free port of this machine is required. "
            "Choose another, 0 for any."
        ) from error


def url_of(listener: socket.socket) -> str:
    """The URL for clients of the same machine."""
    address, port = listener.getsockname()[:2]
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


class HttpServer(uvicorn.Server):
    """Serves until a signal or `stop`; calls `announce` once it accepts requests; admits none at the end."""

    def __init__(self, app: ASGIApp, admission: Admission, options: ServeOptions, announce: Callable[[], None]) -> None:
        protocol = type("Protocol", (_PatientProtocol,), {"slow_seconds": options.slow_seconds})
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=round(options.drain_seconds + LAST_SECONDS),
            limit_concurrency=MOST_CONNECTIONS,
        )
        for name in ("uvicorn.error", "asyncio"):  # no news: malformed requests, clients that left
            logging.getLogger(name).setLevel(logging.ERROR)
        super().__init__(config)
        self._admission = admission
        self._drain_seconds = options.drain_seconds
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._admission.close()
        timer = asyncio.get_running_loop().call_later(self._drain_seconds, self._admission.break_off)
        await super().shutdown(sockets)
        timer.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's own, does not raise the signal again at the end: to stop when told to is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Stop as a signal would; from any thread."""
        self.should_exit = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and number == signal.SIGINT  # a second Ctrl-C is in a hurry
        self.should_exit = True


class _PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request has no complete head in time; uvicorn's own waits for ever."""

    slow_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.slow_seconds, self.transport.close)
