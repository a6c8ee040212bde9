"""The `mxconv` command: one typer app, one file a command, and the one place where errors become exit codes."""

import io
import os
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from mxconv.cli.bench import bench
from mxconv.cli.chat import chat
from mxconv.cli.cost import cost
from mxconv.cli.export import export
from mxconv.cli.generate import generate
from mxconv.cli.inspect import inspect
from mxconv.cli.pull import pull
from mxconv.cli.push import push
from mxconv.cli.quantize import quantize
from mxconv.cli.serve import serve
from mxconv.cli.train import train
from mxconv.cli.verify import verify
from mxconv.cli.version import print_version
from mxconv.errors import MxconvError


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


for command in (quantize, inspect, verify, generate, chat, serve, export, cost, push, pull):
    app.command()(command)
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
