"""What a package becomes for others, and what of theirs becomes a package.

`mxconv export`            a package in the formats of other programs
`mxconv push` and `pull`   a package and its model card go to the Hub, and a package comes from it
`mxconv attest`            a signed statement about a package; and what `verify` asks of one
`mxconv recipe` and `build`  a package without its weights, and the package again
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mxconv.cli.common_options import MEMORY, WORKERS, Force, Json, Package, executors
from mxconv.cli.converted import find_or_build
from mxconv.cli.output import Output, check_outputs, progress_bars
from mxconv.report.tables import format_bytes

if TYPE_CHECKING:
    from mxconv.interop.attestation import Attestation
    from mxconv.interop.hub.push import UploadedFile
    from mxconv.package.manifest import Manifest, SourceRecord


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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the model card and the files with their sizes; contact no one.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of a repository that is no package, and an edited card.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Upload a package with a model card. After an interruption, finished files are not sent again."""
    from tempfile import TemporaryDirectory

    from mxconv.interop.hub.card import read_measurements
    from mxconv.interop.hub.push import attested, prepare_publication, prepare_recipe, preview
    from mxconv.interop.hub.push import push as push_package

    if recipe and drafts_only:
        raise typer.BadParameter("--drafts-only with a recipe, which is of a whole package. Leave one out.")
    if attestation and drafts_only:
        raise typer.BadParameter("--attestation with --drafts-only; it is about a whole package. Leave one out.")
    measured = read_measurements(measurements) if measurements is not None else None
    out = Output(json_output)
    with TemporaryDirectory(prefix="mxconv-push-") as scratch:
        with progress_bars() as progress:
            if recipe:
                publication = prepare_recipe(package, Path(scratch), progress)
            else:
                publication = prepare_publication(package, drafts_only=drafts_only, progress=progress)
        if attestation:
            publication = attested(publication, attestation)
        if dry_run:
            _print_preview(preview(publication, repo_id, measured), publication.manifest.source, repo_id, out)
            return
        pushed = push_package(
            publication,
            repo_id,
            private=private,
            revision=revision,
            message=message,
            measurements=measured,
            force=force,
        )
    out.line(f"{len(pushed.files)} files, {format_bytes(pushed.num_bytes_uploaded)} of them new: {pushed.url}")
    if not pushed.has_our_card:
        out.line("README.md there was not written by mxconv, or was edited; it is kept. --force replaces it.")
    members = {"repo_id": pushed.repo_id, "commit": pushed.commit, "url": pushed.url, "files": list(pushed.files)}
    out.json(members | {"num_bytes_uploaded": pushed.num_bytes_uploaded, "wrote_card": pushed.has_our_card})


def _print_preview(files: "dict[str, UploadedFile]", source: "SourceRecord", repo_id: str, out: Output) -> None:
    """Print the card, then each file with its size, then what only a push finds out."""
    from mxconv.interop.hub.card import FILE_NAME as CARD

    card = files[CARD].content
    assert isinstance(card, bytes)
    out.line(card.decode())
    rows = [(name, file.num_bytes) for name, file in sorted(files.items())]
    out.table({"file": (0,), "size": (1, "bytes")}, map(dict, map(enumerate, rows)))
    total = format_bytes(sum(num_bytes for _, num_bytes in rows))
    out.line(f"{repo_id}: {len(rows)} files, {total}; fewer where the Hub has some already. Nothing was sent.")
    if source.commit:
        out.line(f"A push adds the license and the languages that {source.id} names on the Hub to the card.")
    out.json({"repo_id": repo_id, "files": dict(rows), "card": card.decode()})


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


PASSWORD = "MXCONV_KEY_PASSWORD"


def attest(
    package: Annotated[Path, typer.Argument(help="The package: a folder whose certificate `verify --write` stored.")],
    private_key: Annotated[
        Path, typer.Option(help=f"Key in PEM, on P-256, P-384 or P-521; its password is asked for, or in {PASSWORD}.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write, by default beside the package.")
    ] = None,
    signing_certificate: Annotated[Path | None, typer.Option(help="Certificate of that key, in PEM.")] = None,
    certificate_chain: Annotated[
        list[Path] | None, typer.Option(help="Certificates in PEM, from its issuer on. Repeatable.")
    ] = None,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Sign a verified package.

    What is signed is the SHA-256 of each of its files, the certificate among them. The file is a signature of OpenSSF
    model-signing, whose own command verifies it, too.
    """
    if certificate_chain and signing_certificate is None:
        raise typer.BadParameter("--certificate-chain needs --signing-certificate.")
    place = output or package.resolve().parent / f"{package.resolve().name}.attestation.json"
    check_outputs(force, [], [place])
    from mxconv.interop.attestation import SigningKey, sign
    from mxconv.package.manifest import read_manifest

    out = Output(json_output)
    key = SigningKey(private_key, _password(private_key), signing_certificate, tuple(certificate_chain or ()))
    made = sign(package, key, place)
    out.line(f"wrote {place}: {len(made.digests)} files, signed by {', '.join(made.signers)}")
    if (certificate := read_manifest(package).certificate) is not None:
        out.line(f"stated: {certificate.proof}")
    out.json({"output": str(place), "attestation": made.to_json()})


@dataclass(frozen=True)
class AttestationOptions:
    """The signer whose statement about the package is wanted."""

    attestation: Annotated[Path | None, typer.Option(help="A file of `mxconv attest` to check too.")] = None
    identity: Annotated[
        str | None,
        typer.Option(help="Signer that is required: the e-mail address, URI or DNS name in the certificate."),
    ] = None
    public_key: Annotated[Path | None, typer.Option(help="Public key in PEM that must have signed.")] = None
    certificate_chain: Annotated[
        list[Path] | None, typer.Option(help="Certificates in PEM to trust, down to the root. Repeatable.")
    ] = None

    def check(self, package: Path) -> "Attestation | None":
        """The attestation, if one was given; raises MxconvError unless it is by whom they name, about the package."""
        roots = tuple(self.certificate_chain or ())
        if self.attestation is None:
            if self.identity or self.public_key or roots:
                raise typer.BadParameter("--identity, --public-key and --certificate-chain need --attestation.")
            return None
        if (self.public_key is None) != bool(roots and self.identity) or (self.public_key and roots):
            raise typer.BadParameter("--attestation: --public-key, or --certificate-chain and --identity, is required.")
        from mxconv.interop.attestation import check_signature, read_attestation

        found = read_attestation(self.attestation)
        check_signature(found, package, self.public_key, roots, self.identity)
        return found


def _password(private_key: Path) -> bytes | None:
    """The password of an encrypted key, from the environment or the terminal."""
    with private_key.open("rb") as file:
        if b"ENCRYPTED" not in file.read(1 << 16):
            return None
    given = os.environ.get(PASSWORD)
    if given is None and sys.stdin.isatty():
        given = getpass(f"Password of {private_key}: ")
    return None if given is None else given.encode()


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
    from mxconv.package.staging import parse_target
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
