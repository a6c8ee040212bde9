"""`mxconv export`: a package in the formats of other programs."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mxconv.cli.common_options import Force, Json, Package
from mxconv.cli.converted import find_or_build
from mxconv.cli.output import Output, progress_bars
from mxconv.report.tables import format_bytes


def export(
    package: Package,
    to: Annotated[
        Literal["gguf", "compressed-tensors", "safetensors"],
        typer.Option(help="Format: for llama.cpp, for vLLM and transformers, or a plain 16-bit checkpoint."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder; GGUF: a folder for all levels, or a .gguf file for one.")
    ],
    level: Annotated[
        Literal["target", "draft"] | None,
        typer.Option(help="Level to export to GGUF or safetensors: the 16-bit target, or the 4-bit draft."),
    ] = None,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Write what llama.cpp, vLLM or transformers load."""
    if level is not None and to == "compressed-tensors":
        raise typer.BadParameter("--level: compressed-tensors holds the 4-bit draft alone. Leave it out.")
    run: Callable[..., Any]
    if to == "gguf":
        from mxconv.interop.gguf_export import export_gguf as run
    elif to == "compressed-tensors":
        from mxconv.interop.compressed_tensors import export_compressed_tensors as run
    else:
        from mxconv.interop.plain_safetensors import export_safetensors as run
    options: dict[str, Any] = {} if level is None else {"level": level}
    with progress_bars() as progress:
        result = run(find_or_build(package, None, progress), output, force=force, progress=progress, **options)
    out = Output(json_output)
    out.line(
        f"{output}: {result.format}, {result.num_tensors} tensors, {format_bytes(result.num_bytes)} in "
        f"{result.seconds:.1f} s"
    )
    for name in result.files:
        out.line(f"  {name}")
    for note in result.notes:
        Output(json_output=True).line(f"note: {note}")
    out.json({"output": str(output), **asdict(result)})
