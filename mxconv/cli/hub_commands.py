"""`mxconv push` and `pull`: a package and its model card go to the Hub, and a package comes from it."""

from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Json
from mxconv.cli.output import Output, progress_bars
from mxconv.report.tables import format_bytes


def push(
    package: Annotated[Path, typer.Argument(help="The package, a folder.")],
    repo_id: Annotated[str, typer.Argument(help="Repository OWNER/NAME, created where it is missing.")],
    private: Annotated[bool, typer.Option("--private", help="Create the repository private.")] = False,
    revision: Annotated[str | None, typer.Option(help="A branch, created where it is missing.")] = None,
    message: Annotated[str | None, typer.Option(help="Message of the commit.")] = None,
    drafts_only: Annotated[
        bool, typer.Option("--drafts-only", help="Leave the target out; it stays on the Hub under its own id.")
    ] = False,
    recipe: Annotated[
        bool, typer.Option("--recipe", help="Upload hashes alone, from which the package is built again.")
    ] = False,
    measurements: Annotated[
        Path | None, typer.Option(help="A file with what `mxconv bench decode --json` printed, for the card's table.")
    ] = None,
    attestation: Annotated[Path | None, typer.Option(help="A file of `mxconv attest`, uploaded too.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of a repository that is no package, and an edited card.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Upload a package with a model card. After an interruption, finished files are not sent again."""
    from tempfile import TemporaryDirectory

    from mxconv.interop.hub.card import read_measurements
    from mxconv.interop.hub.push import attested, prepare_publication, prepare_recipe
    from mxconv.interop.hub.push import push as push_package

    if recipe and drafts_only:
        raise typer.BadParameter("--drafts-only with a recipe, which is of a whole package. Leave one out.")
    if attestation and drafts_only:
        raise typer.BadParameter("--attestation with --drafts-only; it is about a whole package. Leave one out.")
    measured = read_measurements(measurements) if measurements is not None else None
    with TemporaryDirectory(prefix="mxconv-push-") as scratch:
        with progress_bars() as progress:
            if recipe:
                publication = prepare_recipe(package, Path(scratch), progress)
            else:
                publication = prepare_publication(package, drafts_only=drafts_only, progress=progress)
        pushed = push_package(
            attested(publication, attestation) if attestation else publication,
            repo_id,
            private=private,
            revision=revision,
            message=message,
            measurements=measured,
            force=force,
        )
    out = Output(json_output)
    out.line(f"{len(pushed.files)} files, {format_bytes(pushed.num_bytes_uploaded)} of them new: {pushed.url}")
    if not pushed.has_our_card:
        out.line("README.md there was not written by mxconv, or was edited; it is kept. --force replaces it.")
    members = {"repo_id": pushed.repo_id, "commit": pushed.commit, "url": pushed.url, "files": list(pushed.files)}
    out.json(members | {"num_bytes_uploaded": pushed.num_bytes_uploaded, "wrote_card": pushed.has_our_card})


def pull(
    repo_id: Annotated[str, typer.Argument(help="Hub id OWNER/NAME of a package or its recipe, or a recipe's file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder that does not exist yet; NAME by default.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
    json_output: Json = False,
) -> None:
    """Download a package and check every hash. After an interruption, finished files are not downloaded again."""
    from mxconv.interop.hub.pull import pull as pull_package

    target = output if output is not None else Path(repo_id.removesuffix(".json").rpartition("/")[2])
    with progress_bars() as progress:
        pulled = pull_package(repo_id, target, revision=revision, force=force, progress=progress)
    files = pulled.manifest.files
    num_bytes = sum(record.num_bytes for record in files)
    out = Output(json_output)
    at = f", commit {pulled.commit}" if pulled.commit else ""
    out.line(f"{target}: {len(files) + 1} files, {format_bytes(num_bytes)}{at}; every hash is the recorded one")
    members = {"package": str(target), "repo_id": repo_id, "commit": pulled.commit}
    out.json(members | {"files": [record.path for record in files], "num_bytes": num_bytes})
