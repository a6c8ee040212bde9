"""The models of a server, by the names by which requests choose, and the endpoints.

GET  /                      the page
GET  /health                200 while it decodes, 503 before it ends
GET  /metrics               for Prometheus
GET  /v1/models             the models
GET  /v1/models/NAME        one of them
POST /v1/completions        text in, text out
POST /v1/chat/completions   messages in, a message out
POST /v1/responses          the same in OpenAI's newer form
POST /v1/messages           the same in Anthropic's form, and how many tokens it reads: /v1/messages/count_tokens
POST /tokenize              a text or messages in, tokens out
POST /detokenize            and back
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

import mxconv
from mxconv.decode import Options, TextModel
from mxconv.serving.http.anthropic_messages import CountBody, MessagesBody, MessagesShape
from mxconv.serving.http.api_error import ANTHROPIC_RESPONSES, OTHERS, RESPONSES, SERVER, ApiError, not_validated
from mxconv.serving.http.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from mxconv.serving.http.call import Admission
from mxconv.serving.http.guard import PATHS, Guard
from mxconv.serving.http.metrics import Metrics
from mxconv.serving.http.openai_responses import ResponsesBody, ResponsesShape
from mxconv.serving.http.replying import Reply
from mxconv.serving.http.serve_options import ServeOptions
from mxconv.serving.http.served import ServedModel
from mxconv.serving.http.shapes import ChatShape, CompletionShape
from mxconv.serving.joint_passes import divided
from mxconv.serving.llm_engine import Engine

SCRIPTS = ("events.js", "statistics.js", "plain.js", "sampling.js", "reply.js", "talk.js", "page.js")


class ServedModels:
    """Models with an engine each.

    Args:
        models: by their names; the first answers requests that name none.
        decoding: which levels of each take part, and how.
        options: limits; `kv_bytes` is divided.

    Raises:
        ModelError: a level that a model does not have, or a share of `kv_bytes` that holds no sequence.
    """

    def __init__(self, models: Mapping[str, TextModel], decoding: Options, options: ServeOptions) -> None:
        hierarchies = {name: model.hierarchy(decoding) for name, model in models.items()}
        shares = {} if options.kv_bytes is None else divided(options.kv_bytes, hierarchies)
        self._by_name: dict[str, ServedModel] = {}
        for name, model in models.items():
            engine = Engine(hierarchies[name], options.max_sequences, shares.get(name))
            self._by_name[name] = ServedModel(model, name, engine, options)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def of(self, name: str | None) -> ServedModel:
        """The model that a request names, or the first; raises ApiError where there is none of that name."""
        found = next(iter(self)) if name is None else self._by_name.get(name)
        if found is None:
            here = f"{', '.join(map(repr, self._by_name))} {'is' if len(self._by_name) == 1 else 'are'}"
            raise ApiError(404, f"model: {name!r} is not here; {here}.", param="model", code="model_not_found")
        return found


def application(served: ServedModels, admission: Admission, options: ServeOptions, is_loopback: bool) -> ASGIApp:
    """The application that a server runs; `is_loopback` says that only this machine can reach it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        admission.thread.start()
        yield
        await asyncio.to_thread(admission.thread.stop, 2.0)

    app = FastAPI(
        title="mxconv serve",
        version=mxconv.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=OTHERS,
    )
    metrics, page = Metrics(admission), _page(served)
    reply = partial(Reply, admission, metrics, options.request_seconds)
    _handle_errors(app)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page

    @app.get("/health", responses={503: RESPONSES[503]})
    async def health() -> Response:
        if admission.thread.failure is not None:
            return JSONResponse({"status": "failed", "reason": admission.thread.failure}, 503)
        if admission.closes:
            return JSONResponse({"status": "shutting down"}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", responses={401: RESPONSES[401]})
    async def prometheus() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models", responses={401: RESPONSES[401]})
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model.entry for model in served]}

    @app.get("/v1/models/{name:path}", responses={401: RESPONSES[401], 404: RESPONSES[404]})
    async def model(name: str) -> dict[str, Any]:
        return served.of(name).entry

    @app.post("/v1/completions", responses=RESPONSES)
    async def completions(body: CompletionBody) -> Response:
        # long prompts take a while to encode
        return reply(CompletionShape, await asyncio.to_thread(served.of(body.model).completion_job, body))

    @app.post("/v1/chat/completions", responses=RESPONSES)
    async def chat(body: ChatBody) -> Response:
        return reply(ChatShape, await asyncio.to_thread(served.of(body.model).chat_job, body))

    @app.post("/v1/responses", responses=RESPONSES)
    async def responses(body: ResponsesBody) -> Response:
        return reply(partial(ResponsesShape, body), await asyncio.to_thread(body.job, served.of(body.model)))

    @app.post("/v1/messages", responses=ANTHROPIC_RESPONSES)
    async def messages(body: MessagesBody) -> Response:
        return reply(partial(MessagesShape, body), await asyncio.to_thread(body.job, served.of(body.model)))

    @app.post("/v1/messages/count_tokens", responses=ANTHROPIC_RESPONSES)
    async def count_tokens(body: CountBody) -> dict[str, int]:
        job = await asyncio.to_thread(body.job, served.of(body.model))
        return {"input_tokens": len(job.prompts[0].token_ids)}

    @app.post("/tokenize", responses=RESPONSES)
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        return await asyncio.to_thread(served.of(body.model).tokenize, body)

    @app.post("/detokenize", responses=RESPONSES)
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        return await asyncio.to_thread(served.of(body.model).detokenize, body)

    guard = Guard(app, options, is_loopback, metrics)
    if not options.allowed_origins:
        return guard
    methods = ("GET", "HEAD", "POST")
    return CORSMiddleware(guard, options.allowed_origins, methods, allow_headers=["*"])


def _page(served: ServedModels) -> Response:
    """The page at /: one file without anything from elsewhere, under a policy that forbids what it does not need."""
    folder = files("mxconv.serving.http").joinpath("page")
    html, style, *scripts = (folder.joinpath(name).read_text("utf-8") for name in ("page.html", "page.css", *SCRIPTS))
    script = "".join(scripts)
    models = json.dumps([{"model": model.name, **model.about} for model in served])
    models = models.replace("<", "\\u003c")  # cannot end the script element
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    html = html.replace("/*style*/", style).replace("/*script*/", script).replace("/*models*/", models)
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _handle_errors(app: FastAPI) -> None:
    """Respond to every error in the shape of the path's dialect."""

    @app.exception_handler(ApiError)
    async def answered(request: Request, error: ApiError) -> Response:
        return error.response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return not_validated(error.errors()).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        others = [each for each in PATHS if each != "/" and (each.endswith(path) or path.endswith(each))]
        meant = f" {others[0]} is there: correct the client's base URL." if error.status_code == 404 and others else ""
        message = f"{request.method} {path}: {error.detail}.{meant}"
        return ApiError(error.status_code, message, headers=error.headers).response(request.url.path)

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        failed = ApiError(500, f"A defect of the server: {type(error).__name__}.", SERVER)
        return failed.response(request.url.path)
