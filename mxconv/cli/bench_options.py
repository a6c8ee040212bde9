"""What the benchmark commands have in common."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mxconv.bench.machine import Machine

JSON = Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")]
THREADS = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads; all processors by default.")]


def widths_of(text: str) -> list[int]:
    """Numbers of tokens, joined by commas: ascending, each once."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= 64 for part in parts):
        raise typer.BadParameter(f"--num-tokens: {text!r}; numbers from 1 to 64, joined by commas, are required.")
    return sorted({int(part) for part in parts})


def print_machine(out: "Console", machine: "Machine") -> None:
    commit = f", mxconv at {machine.commit[:12]}{machine.commit[40:]}" if machine.commit else ""
    threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
    out.print(f"{machine.cpu}, {threads}, {machine.compiler}{commit}", highlight=False)
