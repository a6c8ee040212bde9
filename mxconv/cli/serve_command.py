"""`mxconv serve`: a package through OpenAI's HTTP interface."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Json, KvBytes, MaxSequences, Package, grouped
from mxconv.cli.decode_options import Drafting, Runtime
from mxconv.cli.output import Output

MOST_KEY_BYTES = 4096


@grouped
def serve(
    package: Package,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on; by default this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")] = 8000,
    model_name: Annotated[str | None, typer.Option(help="What clients call the model; the package's name.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file with the key that clients must have; or MXCONV_API_KEY.")
    ] = None,
    max_sequences: MaxSequences = 16,
    max_queue: Annotated[int, typer.Option(min=0, help="Sequences that wait; more are refused for the moment.")] = 64,
    kv_bytes: KvBytes = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Of a prompt; all positions.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Of an answer; all positions.")] = None,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Of a request.")] = 4_000_000,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a request may take.")] = 600.0,
    drafting: Drafting,
    runtime: Runtime,
    json_output: Json = False,
) -> None:
    """Serve OpenAI's HTTP interface, and a page to chat on.

    Ctrl-C or SIGTERM ends it; running requests have some seconds to finish.
    """
    from mxconv.errors import ModelError

    try:
        from mxconv.serving.http.served import ServeOptions
        from mxconv.serving.http.server import Serving
    except ModuleNotFoundError as error:
        missing = (error.name or "mxconv").partition(".")[0]
        if missing == "mxconv":
            raise
        raise ModelError(
            f"mxconv serve: {missing} is not installed; it belongs to the extra `serve`. "
            "Run: pip install 'mxconv[serve]'"
        ) from None

    options = ServeOptions(
        host=host,
        port=port,
        api_key=_api_key(api_key_file),
        max_sequences=max_sequences,
        kv_bytes=kv_bytes,
        max_queue=max_queue,
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_new_tokens,
        max_body_bytes=max_body_bytes,
        request_seconds=timeout,
    )
    name = model_name or Path(package).resolve().name

    def announce(url: str) -> None:
        Output(json_output).json({"url": url, "model": name})
        if not json_output:
            print(f"{name} is served at {url}", flush=True)

    with runtime.load(package, drafting) as model:
        if not Serving(model, drafting.options, name, options, announce).run():
            os._exit(0)  # nobody waits for the step that runs; unmapping the weights under it would end in a crash


def _api_key(path: Path | None) -> str | None:
    """From a file, or else from the environment; None where neither has one."""
    from mxconv.errors import ModelError

    if path is None:
        return os.environ.get("MXCONV_API_KEY") or None
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_KEY_BYTES + 1)
        key = raw.decode("ascii").strip()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); a file with an API key is required.") from error
    except UnicodeDecodeError:
        key = ""
    if not key or not key.isprintable() or " " in key or len(raw) > MOST_KEY_BYTES:
        raise ModelError(
            f"{path}: no API key; one word of at most {MOST_KEY_BYTES} ASCII characters is required. Write one."
        )
    return key
