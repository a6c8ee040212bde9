"""`mxconv serve`: packages through OpenAI's and Anthropic's HTTP interfaces."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Json, MaxSequences, grouped, size_option
from mxconv.cli.decode_options import Drafting, Runtime, TemplateVar, variables_of
from mxconv.cli.output import Output

MOST_KEY_BYTES = 4096


@grouped
def serve(
    packages: Annotated[list[str], typer.Argument(help="Folders, Hub ids or URLs; the first model is the default.")],
    *,
    host: Annotated[str, typer.Option(help="The address to listen on; this machine alone by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")] = 8000,
    model_name: Annotated[
        list[str] | None, typer.Option(help="Names that clients use, one for each package, in order.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file with the key that clients must send; or MXCONV_API_KEY.")
    ] = None,
    max_sequences: MaxSequences = 16,
    max_queue: Annotated[int, typer.Option(min=0, help="Sequences that may wait; more are refused.")] = 64,
    kv_bytes: Annotated[int | None, size_option("Most bytes for the keys and values of all models.")] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of a prompt.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    max_body_bytes: Annotated[int, size_option("Most bytes of a request.")] = 4_000_000,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may send requests; * for all. Repeatable.")
    ] = None,
    special_tokens_in_content: Annotated[
        bool,
        typer.Option(
            "--special-tokens-in-content", help="Read names of special tokens in messages as these tokens, not as text."
        ),
    ] = False,
    template_var: TemplateVar = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a request may take.")] = 600.0,
    drafting: Drafting,
    runtime: Runtime,
    json_output: Json = False,
) -> None:
    """Serve OpenAI's and Anthropic's interfaces and a chat page.

    Several models share the processor in turns; requests choose by `model`. Options of drafts hold for each.
    Ctrl-C or SIGTERM ends it; running requests have some seconds to finish.
    """
    names = model_name or [Path(package).resolve().name for package in packages]
    _check_names(names, len(packages))
    from mxconv.errors import ModelError, install_line

    try:
        from mxconv.serving.http.serve_options import ServeOptions
        from mxconv.serving.http.server import Serving
    except ModuleNotFoundError as error:
        missing = (error.name or "mxconv").partition(".")[0]
        if missing == "mxconv":
            raise
        raise ModelError(
            f"mxconv serve: {missing} is not installed; it belongs to the extra `serve`. " + install_line("serve")
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
        allowed_origins=tuple(origin.rstrip("/") for origin in allow_origin or ()),
        special_tokens_in_content=special_tokens_in_content,
    )

    def announce(url: str) -> None:
        several = {"models": names} if len(names) > 1 else {}
        Output(json_output).json({"url": url, "model": names[0], **several})
        if not json_output:
            print(f"{', '.join(names)} {'are' if several else 'is'} served at {url}", flush=True)

    with ExitStack() as stack:
        shares = [(number + 1) / len(packages) for number in range(len(packages))]
        loading = (runtime.load(package, drafting, share) for package, share in zip(packages, shares, strict=True))
        models = [stack.enter_context(model) for model in loading]
        for model in models:
            model.template_variables = variables_of(template_var)
        named = dict(zip(names, models, strict=True))
        if not Serving(named, drafting.options, options, announce).run():
            os._exit(0)  # nobody waits for the step that runs; unmapping the weights under it would end in a crash


def _check_names(names: list[str], num_packages: int) -> None:
    """Refuse names that requests could not choose by."""
    if len(names) != num_packages:
        raise typer.BadParameter(
            f"--model-name: {len(names)} for {num_packages} packages; one each is required. Give all of them, or none."
        )
    if not all(names):
        raise typer.BadParameter("--model-name: an empty name; a text is required. Give one for each package.")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise typer.BadParameter(
            f"--model-name: {repeated[0]!r} twice; names that differ are required. Give one for each package."
        )


def _api_key(path: Path | None) -> str | None:
    """The key in a file, or else in the environment; None where neither has one."""
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
