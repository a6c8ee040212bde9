"""`mxconv push`: a package and its model card go to the Hub."""

from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Json
from mxconv.cli.output import Output, format_bytes, progress_bars


def push(
    package: Annotated[Path, typer.Argument(help="The package.")],
    repo_id: Annotated[str, typer.Argument(help="Where to: OWNER/NAME, created where it is missing.")],
    private: Annotated[bool, typer.Option("--private", help="Create the repository private.")] = False,
    revision: Annotated[str | None, typer.Option(help="A branch, created where it is missing.")] = None,
    message: Annotated[str | None, typer.Option(help="Of the commit.")] = None,
    drafts_only: Annotated[
        bool, typer.Option("--drafts-only", help="Leave the target out; it stays on the Hub under its own id.")
    ] = False,
    measurements: Annotated[
        Path | None, typer.Option(help="What `mxconv bench decode --json` printed, for the card's table.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of a repository that is no package, and an edited card.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Upload a package with a model card. After an interruption, finished files are not sent again."""
    from mxconv.interop.hub.card import read_measurements
    from mxconv.interop.hub.push import prepare_publication
    from mxconv.interop.hub.push import push as push_package

    measured = read_measurements(measurements) if measurements is not None else None
    with progress_bars() as progress:
        publication = prepare_publication(package, drafts_only=drafts_only, progress=progress)
    pushed = push_package(
        publication, repo_id, private=private, revision=revision, message=message, measurements=measured, force=force
    )
    out = Output(json_output)
    out.line(f"{len(pushed.files)} files, {format_bytes(pushed.num_bytes_uploaded)} of them new: {pushed.url}")
    if not pushed.has_our_card:
        out.line("README.md there was not written by mxconv, or was edited; it is kept. --force replaces it.")
    members = {"repo_id": pushed.repo_id, "commit": pushed.commit, "url": pushed.url, "files": list(pushed.files)}
    out.json(members | {"num_bytes_uploaded": pushed.num_bytes_uploaded, "wrote_card": pushed.has_our_card})
