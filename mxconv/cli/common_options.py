"""Options that several commands have, lists of numbers in one option, groups of options, and names that a shell offers.

A command takes a group, a dataclass, as one parameter and is made a command by `grouped`:

    @grouped
    def generate(package: Package, *, drafting: Drafting, sampling: SamplingOptions, runtime: Runtime) -> None:
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

if TYPE_CHECKING:
    from mxconv.workers import Executor


Offer = Callable[[str], list[str]]


def one_of(*names: str) -> Offer:
    """Names that are known beforehand."""
    return lambda incomplete: _beginning(names, incomplete)  # typer requires this name of the argument


def choice(purpose: str, *names: str) -> Any:
    """An option that takes one of some names, in capitals too; the library checks it."""
    return typer.Option(
        help=f"{purpose}.",
        metavar="|".join(names),
        autocompletion=one_of(*names),
        callback=lambda value: value and value.lower(),
    )


def offered_kernels(incomplete: str) -> list[str]:
    """Values of `--kernel` on this processor."""
    from mxconv.kernels.engine import kernel_names

    return _beginning(kernel_names(), incomplete)


def offered_native_kernels(incomplete: str) -> list[str]:
    """Values of `bench kernels --kernel` on this processor."""
    from mxconv.kernels.engine import native_names

    return _beginning((*native_names(), "all"), incomplete)


def offered_drafts(incomplete: str) -> list[str]:
    """Kinds of drafts, up to the colon where a path or another subject follows."""
    from mxconv.drafts.kinds import all_kinds, plug_in_names

    own = (kind.name + ":" * bool(kind.subject) for kind in all_kinds())
    return _beginning((*own, *plug_in_names()), incomplete)


def offered_hardware(incomplete: str) -> list[str]:
    """Descriptions that `cost --hardware` finds by name."""
    from mxconv.cost.hardware import hardware_names

    return _beginning((*hardware_names(), "list"), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


Number = TypeVar("Number", int, float)

Json = Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
Package = Annotated[str, typer.Argument(help="The package: a folder, a Hub id or a URL.")]
Texts = Annotated[list[Path], typer.Argument(help="Files of plain text, or .jsonl with `text` or `prompt`.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub source.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Most tokens to generate for each prompt.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Threads of the native kernels; all processors by default.")
]
Kernel = Annotated[
    str | None,
    typer.Option(
        help="Kernels to use: numpy or a native implementation. MXCONV_KERNEL sets a default.",
        autocompletion=offered_kernels,
    ),
]
MaxSequences = Annotated[int, typer.Option(min=1, max=1024, help="Sequences that decode at a time.")]
Widths = Annotated[str, typer.Option(help="Tokens of a product or forward pass, joined by commas, each 1 to 64.")]
Rows = Annotated[int, typer.Option(min=1, max=1 << 20, help="Rows of the matrix.")]
RowLength = Annotated[int, typer.Option(min=1, max=1 << 20, help="Columns of the matrix.")]
Samples = Annotated[int, typer.Option(min=20, help="Samples of each figure.")]
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_bytes(text: str | int) -> int:
    """Return a number of bytes given as 5000000000, 5GB, 2.5G or 512MiB. Raises BadParameter where it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", str(text).strip().upper())
    num_bytes = int(float(found[1]) * UNITS[found[2] or ""]) if found else 0
    if num_bytes < 1:
        raise typer.BadParameter(f"{text!r}; a number of bytes such as 5GB or 512MiB is required.")
    return num_bytes


def size_option(help: str) -> Any:
    """An option that takes a number of bytes."""
    return typer.Option(help=f"{help[:-1]} (such as 5GB or 512MiB).", parser=parse_bytes, metavar="SIZE")


WORKERS = Annotated[
    str,
    typer.Option(
        help="Workers: threads; ray, a new cluster here; ray:auto or ray:HOST:PORT, a running one (extra `ray`).",
        autocompletion=one_of("threads", "ray", "ray:auto"),
    ),
]

MEMORY = Annotated[
    int | None,
    size_option("Most bytes of memory that each worker may need."),
]
KvBytes = Annotated[int | None, size_option("Most bytes for the keys and values of all sequences together.")]


@contextmanager
def executors(workers: str, num_threads: int, memory_bytes: int | None = None) -> Iterator[Callable[[], "Executor"]]:
    """A function that makes the executor that `--workers` names, until the end of the block.

    Raises:
        MxconvError: Ray is not installed, or no cluster answers.
        typer.BadParameter: the option is none that exists.
    """
    if workers == "threads":
        from mxconv.workers import Workers

        yield lambda: Workers(num_threads)
        return
    from mxconv.cluster import cluster, parse_workers
    from mxconv.errors import MxconvError

    try:
        address = parse_workers(workers)
    except MxconvError as error:
        raise typer.BadParameter(str(error)) from error
    with cluster(address, num_threads, memory_bytes) as make:
        yield make


def numbers_of(
    flag: str, text: str, kind: type[Number], low: float | None = None, high: float | None = None
) -> list[Number]:
    """The numbers of an option, joined by commas, in a range where there is one.

    Raises:
        BadParameter: something else, or a number out of range.
    """
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not (low is None or high is None or all(low <= number <= high for number in numbers)):
        kinds = "whole numbers" if kind is int else "numbers"
        within = "" if low is None else f" from {low:g} to {high:g}"
        raise typer.BadParameter(f"{flag}: {text!r}; {kinds}{within}, joined by commas, are required.")
    return numbers


def widths_of(text: str) -> list[int]:
    """Numbers of tokens: ascending, each once."""
    return sorted(set(numbers_of("--num-tokens", text, int, 1, 64)))


def chosen_of(flag: str, names: Sequence[str] | None, known: Sequence[str], where: str = "") -> list[str]:
    """Names that are given, each once; all that are known where none are. Raises BadParameter for another name."""
    chosen = list(dict.fromkeys(names or known))
    if unknown := [name for name in chosen if name not in known]:
        raise typer.BadParameter(f"{flag}: {unknown[0]!r}; one of {', '.join(known)} is required{where}.")
    return chosen


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its option groups as parameters of their own, which typer reads.

    Every parameter becomes a keyword; a group is made of its fields when the command is called.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []

    def add(name: str, default: Any, annotation: Any) -> None:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

    for parameter in inspect.signature(command).parameters.values():
        if (group := groups.get(parameter.name)) is None:
            add(parameter.name, parameter.default, hints[parameter.name])
            continue
        for field, hint in get_type_hints(group, include_extras=True).items():
            add(field, getattr(group, field), hint)

    @wraps(command)
    def flat(**given: Any) -> None:
        made = {
            name: group(**{f.name: given.pop(f.name, f.default) for f in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat
