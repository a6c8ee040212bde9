"""The `mxconv` command: one typer app, one file a command, and the one place where errors become exit codes."""

import io
import os
import platform
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from mxconv import __version__
from mxconv.cli.bench_commands import convert, decode, machine
from mxconv.cli.bench_kernels_command import kernels
from mxconv.cli.chat_command import chat
from mxconv.cli.cost_command import cost
from mxconv.cli.evaluate_command import evaluate
from mxconv.cli.generate_command import generate
from mxconv.cli.inspect_command import inspect
from mxconv.cli.output import CommandPage
from mxconv.cli.quantize_command import QuantizeCommand, quantize
from mxconv.cli.serve_command import serve
from mxconv.cli.sharing_commands import attest, build, export, pull, push, recipe
from mxconv.cli.train_drafts_commands import draft, eagle3, self_draft, speculator, spire
from mxconv.cli.train_text_commands import generate as write_texts
from mxconv.cli.train_text_commands import ngram
from mxconv.cli.verify_command import verify
from mxconv.errors import MxconvError


def print_version(wanted: bool) -> None:
    """Print version, kernels, threads and processor, and end.

    Raises:
        ModelError: MXCONV_KERNEL names no kernels of this machine; the version is printed before.
    """
    if not wanted:
        return
    print(f"mxconv {__version__}")
    from mxconv.kernels.engine import choose_kernel, kernel_names, usable_processors
    from mxconv.system.processor import cpu_name

    chosen = choose_kernel()
    others = ", ".join(name for name in kernel_names() if name != chosen)
    num_threads = usable_processors()
    print(f"kernel     {chosen}" + (f" ({others} run here, too)" if others else ""))
    print(f"processor  {cpu_name()}, {num_threads} thread{'' if num_threads == 1 else 's'}")
    print(f"system     {platform.system()} {platform.machine()}, Python {platform.python_version()}")
    raise typer.Exit()


class Interrupted(BaseException):
    """Ctrl-C. Typer would turn a KeyboardInterrupt into an exit without a word; it does not know this one."""


class Commands(TyperGroup):
    """Hands Ctrl-C on to `main`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # drawing the help with rich takes longer than everything else before it
)


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Version, kernel and processor.")
    ] = False,
) -> None:
    """Turn any 16-bit LLM checkpoint into its own draft, and prove that nothing was lost."""


for command in (
    quantize,
    inspect,
    verify,
    evaluate,
    generate,
    chat,
    serve,
    export,
    cost,
    recipe,
    build,
    attest,
    push,
    pull,
):
    app.command(cls=QuantizeCommand if command is quantize else CommandPage)(command)
bench = typer.Typer(help="Measure kernels, decoding and conversion.", no_args_is_help=True, rich_markup_mode=None)
for command in (kernels, decode, convert, machine):
    bench.command(cls=CommandPage)(command)
train = typer.Typer(help="Make drafts from text.", no_args_is_help=True, rich_markup_mode=None)
for command in (ngram, write_texts, speculator, spire, eagle3, draft, self_draft):
    train.command(cls=CommandPage)(command)
app.add_typer(bench, name="bench")
app.add_typer(train, name="train")


def main() -> None:
    """Run the command line: exit 0 on success, 1 on a MxconvError, 2 on bad usage, 130 on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # text of a model in a terminal that lacks its characters
    try:
        app(prog_name="mxconv")
    except MxconvError as error:
        _fail(str(error))
    except OSError as error:  # of a file that changed under way, or standard output on a full disk
        _fail(f"{error.filename or 'output'}: {error.strerror or error}; reading and writing must work. Try again.")
    except (KeyboardInterrupt, Interrupted):
        print("mxconv: interrupted", file=sys.stderr)
        sys.exit(130)


def _fail(message: str) -> NoReturn:
    if os.environ.get("MXCONV_DEBUG") == "1":
        traceback.print_exc()
    print(f"mxconv: {message}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
