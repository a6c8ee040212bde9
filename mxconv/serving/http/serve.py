"""From a package to a server: text model -> engine in a thread -> desk -> application -> socket."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from mxconv.errors import ModelError
from mxconv.serving.engine import Engine
from mxconv.serving.http.app import application
from mxconv.serving.http.desk import Desk
from mxconv.serving.http.engine_thread import EngineThread
from mxconv.serving.http.guard import is_loopback
from mxconv.serving.http.limits import Limits
from mxconv.serving.http.page import Page
from mxconv.serving.http.prompt_scores import Scorer
from mxconv.serving.http.served import ServedModel
from mxconv.serving.http.server import HttpServer, listen, url_of
from mxconv.speculation.text_model import Options, TextModel

LEAST_KEY = 8  # characters; a shorter key can be guessed


@dataclass(frozen=True)
class ServeOptions:
    """Where and how a server serves.

    Args:
        host: the address to listen on.
        port: 0 for any free one.
        api_key: that clients must have; None lets everyone in.
        max_sequences: that decode at a time.
        kv_bytes: for keys and values; None leaves it to the engine.
        limits: on requests.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    max_sequences: int = 16
    kv_bytes: int | None = None
    limits: Limits = field(default_factory=Limits)


class Serving:
    """A server that listens already; `server.run(sockets=[listener])` answers.

    Args:
        model: what it serves; the caller closes it afterwards.
        decoding: which levels take part, and how.
        name: what clients call the model.
        options: where and how.
        announce: called with the URL once requests are answered.

    Raises:
        ModelError: the address is taken, or a key is too short.
    """

    def __init__(
        self, model: TextModel, decoding: Options, name: str, options: ServeOptions, announce: Callable[[str], None]
    ) -> None:
        if options.api_key is not None and len(options.api_key) < LEAST_KEY:
            raise ModelError(
                f"API key: {len(options.api_key)} characters; at least {LEAST_KEY} are required. Choose a longer one."
            )
        engine = Engine(model.hierarchy(decoding), options.max_sequences, options.kv_bytes)
        served = ServedModel(model, name, options.limits)
        target = model.loaded.levels[0].decoder
        assert target is not None
        thread = EngineThread(engine, Scorer(target))
        self.desk = desk = Desk(thread, model.loaded.tokenizer, options.max_sequences, options.limits.max_queue)
        self.listener: socket.socket = listen(options.host, options.port)
        self.url = url_of(self.listener)
        loopback = is_loopback(self.listener.getsockname()[0])
        app = application(served, desk, options.limits, Page(served), options.api_key, loopback)
        self.server = HttpServer(app, desk, options.limits, lambda: announce(self.url))

    def run(self) -> bool:
        """Answer until a signal, or `server.stop()` from another thread.

        Returns:
            Whether the engine has ended. Where it has not, a long step is still reading the model: do not close it.
        """
        self.server.run(sockets=[self.listener])
        return not self.desk.thread.is_alive
