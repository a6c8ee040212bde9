"""`mxconv export`: a package in the formats of other programs."""

from dataclasses import asdict
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mxconv.cli.output import console, format_bytes, print_json, progress_bars


class Format(StrEnum):
    gguf = "gguf"
    compressed_tensors = "compressed-tensors"
    safetensors = "safetensors"


class ExportLevel(StrEnum):
    target = "target"
    draft = "draft"


EXPORTERS = {
    Format.gguf: ("mxconv.interop.gguf_export", "export_gguf"),
    Format.compressed_tensors: ("mxconv.interop.compressed_tensors", "export_compressed_tensors"),
    Format.safetensors: ("mxconv.interop.plain_safetensors", "export_safetensors"),
}


def export(
    package: Annotated[str, typer.Argument(help="The package: a folder, or the Hub id or URL of one.")],
    to: Annotated[Format, typer.Option(help="llama.cpp; vLLM and transformers; a plain 16-bit checkpoint.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder. GGUF: a folder for all levels, or a .gguf file for one.")
    ],
    level: Annotated[
        ExportLevel | None,
        typer.Option(help="GGUF and safetensors: the 16-bit target, or the 4-bit draft."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing export.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Write what llama.cpp, vLLM or transformers load."""
    if level is not None and to is Format.compressed_tensors:
        raise typer.BadParameter("--level: compressed-tensors holds the 4-bit draft alone. Leave it out.")
    from rich.markup import escape

    from mxconv.package.package_folder import find_package

    module, function = EXPORTERS[to]
    options: dict[str, Any] = {} if level is None else {"level": level.value}
    with progress_bars() as progress:
        run = getattr(import_module(module), function)
        result = run(find_package(package, progress=progress), output, force=force, progress=progress, **options)
    out = console(json_output)
    out.print(
        f"[bold]{escape(str(output))}[/bold]: {result.format}, {result.num_tensors} tensors, "
        f"{format_bytes(result.num_bytes)} in {result.seconds:.1f} s",
        highlight=False,
    )
    for name in result.files:
        out.print(f"  {name}", markup=False, highlight=False)
    warnings = console(True)
    for note in result.notes:
        warnings.print(f"note: {note}", markup=False, highlight=False)
    if json_output:
        print_json({"output": str(output), **asdict(result)})
