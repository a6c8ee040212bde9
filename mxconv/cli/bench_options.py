"""What the benchmark commands have in common."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mxconv.bench.gpu_clock import GpuMachine
    from mxconv.bench.machine import Machine

JSON = Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")]
DEVICE = Annotated[str, typer.Option(help="cpu; or cuda, cuda:1: an NVIDIA GPU, see docs/gpu.md.")]
THREADS = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads; all processors by default.")]


def widths_of(text: str) -> list[int]:
    """Numbers of tokens, joined by commas: ascending, each once."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= 64 for part in parts):
        raise typer.BadParameter(f"--num-tokens: {text!r}; numbers from 1 to 64, joined by commas, are required.")
    return sorted({int(part) for part in parts})


def is_gpu(context: typer.Context, device: str, of_cpu: Sequence[str], of_gpu: Sequence[str] = ()) -> bool:
    """Whether --device names a GPU; options that the other device alone has are refused where they were given.

    Args:
        context: of the command.
        device: what --device says.
        of_cpu: names of parameters.
        of_gpu: likewise.

    Raises:
        BadParameter: another device, or an option that it does not take.
    """
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
        raise typer.BadParameter(f"--device: {device!r}; cpu, cuda or cuda:N is required.")
    others = of_gpu if device == "cpu" else of_cpu
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            where = "a GPU: give --device cuda too" if device == "cpu" else "the CPU: leave it out"
            raise typer.BadParameter(f"--{name.replace('_', '-')} with --device {device}; it is for {where}.")
    return device != "cpu"


def print_machine(out: "Console", machine: "Machine") -> None:
    threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
    out.print(f"{machine.cpu}, {threads}, {machine.compiler}{_at(machine.commit)}", highlight=False)


def print_gpu(out: "Console", machine: "GpuMachine") -> None:
    versions = f"torch {machine.torch}, Triton {machine.triton}"
    out.print(f"{machine.gpu}, {versions}, {machine.cpu}{_at(machine.commit)}", markup=False, highlight=False)
    if machine.compute_capability is None:
        out.print("times and rates are those of an interpreter: they say nothing of a GPU", highlight=False)


def _at(commit: str | None) -> str:
    return f", mxconv at {commit[:12]}{commit[40:]}" if commit else ""
