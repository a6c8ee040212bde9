"""`mxconv recipe` and `build`: a package without its weights, and the package again."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.common_options import MEMORY, WORKERS, Force, Json, Package, executors
from mxconv.cli.converted import find_or_build
from mxconv.cli.output import Output, progress_bars
from mxconv.report.tables import format_bytes

if TYPE_CHECKING:
    from mxconv.package.manifest import Manifest


def recipe(
    package: Package,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.json", help="The recipe to write.")],
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Write what rebuilds a package: hashes, no weights."""
    from mxconv.rebuild import write_recipe

    with progress_bars() as progress:
        folder = find_or_build(package, None, progress)
        made = write_recipe(folder, output, force=force, progress=progress)
    out = Output(json_output)
    members: dict[str, Any] = {
        "recipe": str(output),
        "num_bytes": output.stat().st_size,
        "recipe_sha256": made.recipe_sha256,
        "manifest_sha256": made.package.manifest_sha256,
        "source": made.package.source.id,
        "commit": made.package.source.commit,
        "further": [record.path for record in made.further],
        "num_bytes_further": sum(record.num_bytes for record in made.further),
    }
    out.line(f"{output}: {format_bytes(members['num_bytes'])}, of a package of {format_bytes(_size(made.package))}")
    if made.further:
        size = format_bytes(members["num_bytes_further"])
        out.line(f"{output.with_suffix('.files')}: {len(made.further)} files that belong to it, {size}")
    out.json(members)


def build(
    recipe: Annotated[Path, typer.Argument(help="A file of `mxconv recipe`.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="PATH", help="The package: a new folder; or s3://BUCKET/FOLDER.")
    ],
    source: Annotated[
        str | None, typer.Option(help="The checkpoint: a folder, a file, a Hub id or a URL; the recipe's by default.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Tensors at a time; all processors by default.")] = None,
    workers: WORKERS = "threads",
    memory: MEMORY = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
    json_output: Json = False,
) -> None:
    """Convert a recipe's source, and compare every hash."""
    from mxconv.package.target import parse_target
    from mxconv.rebuild import build as build_package
    from mxconv.system.processor import usable_processors

    target, num_threads = parse_target(output), threads or usable_processors()
    begin = time.perf_counter()
    with executors(workers, num_threads, memory) as executor, progress_bars() as progress:
        manifest = build_package(
            recipe,
            target,
            source,
            progress,
            executor,
            num_threads=num_threads,
            memory_bytes=memory,
            force=force,
        )
    out, seconds = Output(json_output), time.perf_counter() - begin
    out.line(
        f"{output}: {len(manifest.files) + 1} files, {format_bytes(_size(manifest))} in {seconds:.1f} s; every hash is "
        "the recipe's"
    )
    out.json(
        {"package": output, "recipe": str(recipe), "manifest_sha256": manifest.manifest_sha256, "seconds": seconds}
    )


def _size(manifest: "Manifest") -> int:
    return sum(record.num_bytes for record in manifest.files)
