"""The `mxconv` command: one typer app, one file a command, and the one place where errors become exit codes."""

import os
import sys
import traceback

import typer

from mxconv.cli.generate import generate
from mxconv.cli.inspect import inspect
from mxconv.cli.quantize import quantize
from mxconv.cli.verify import verify
from mxconv.errors import MxconvError

app = typer.Typer(
    help="Turn any 16-bit LLM checkpoint into its own draft, and prove that nothing was lost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (quantize, inspect, verify, generate):
    app.command()(command)


def main() -> None:
    """Run the command line: exit 0 on success, 1 on a MxconvError, 2 on bad usage."""
    try:
        app()
    except MxconvError as error:
        if os.environ.get("MXCONV_DEBUG") == "1":
            traceback.print_exc()
        print(f"mxconv: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("mxconv: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
