"""`mxconv pull`: a package comes from the Hub."""

from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Json
from mxconv.cli.output import Output, format_bytes, progress_bars


def pull(
    repo_id: Annotated[str, typer.Argument(help="Hub id of a package: OWNER/NAME.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder that does not exist yet; NAME by default.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
    json_output: Json = False,
) -> None:
    """Download a package and check every hash. After an interruption, finished files are not downloaded again."""
    from mxconv.interop.hub.pull import pull as pull_package

    target = output if output is not None else Path(repo_id.rpartition("/")[2])
    with progress_bars() as progress:
        pulled = pull_package(repo_id, target, revision=revision, force=force, progress=progress)
    files = pulled.manifest.files
    num_bytes = sum(record.num_bytes for record in files)
    out = Output(json_output)
    out.line(
        f"{target}: {len(files) + 1} files, {format_bytes(num_bytes)}, commit {pulled.commit}; "
        "every hash is the recorded one"
    )
    members = {"package": str(target), "repo_id": repo_id, "commit": pulled.commit}
    out.json(members | {"files": [record.path for record in files], "num_bytes": num_bytes})
