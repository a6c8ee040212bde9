"""Options and lines that the benchmark commands have in common."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.common_options import numbers_of
from mxconv.cli.output import Output

if TYPE_CHECKING:
    from mxconv.bench.gpu_kernel_speed import GpuMachine
    from mxconv.bench.machine import Machine

Widths = Annotated[str, typer.Option(help="Tokens of a product or forward pass, joined by commas, each 1 to 64.")]
Rows = Annotated[int, typer.Option(min=1, max=1 << 20, help="Rows of the matrix.")]
RowLength = Annotated[int, typer.Option(min=1, max=1 << 20, help="Columns of the matrix.")]
Samples = Annotated[int, typer.Option(min=20, help="Samples of each figure.")]


def widths_of(text: str) -> list[int]:
    """Numbers of tokens: ascending, each once."""
    return sorted(set(numbers_of("--num-tokens", text, int, 1, 64)))


def chosen_of(flag: str, names: Sequence[str] | None, known: Sequence[str], where: str = "") -> list[str]:
    """Names that are given, each once; all that are known where none are. Raises BadParameter for another name."""
    chosen = list(dict.fromkeys(names or known))
    if unknown := [name for name in chosen if name not in known]:
        raise typer.BadParameter(f"{flag}: {unknown[0]!r}; one of {', '.join(known)} is required{where}.")
    return chosen


def print_machine(out: Output, machine: "Machine | GpuMachine", versions: str) -> None:
    """Print which machine measured, with the versions of what was measured."""
    commit = f", mxconv at {machine.commit[:12]}{machine.commit[40:]}" if machine.commit else ""
    out.line(f"{machine.described}, {versions}{commit}")
