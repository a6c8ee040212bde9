"""What an attestation states: the SHA-256 of every file of a package, and mxconv's claims about it.

It is model-signing's own in-toto statement, so that its command verifies it without knowing mxconv; the claims are one
more member of the predicate. Normative text: formats/attestation.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from model_signing import manifest as signed_files
from model_signing._hashing.hashing import Digest  # of inner modules: only they let a predicate have further members
from model_signing._signing import signing
from pydantic import Field

from mxconv import __version__
from mxconv.checkpoint.hashing import sha256_file
from mxconv.conversion.recipe_files import make_recipe
from mxconv.errors import MxconvError, PackageError
from mxconv.package.manifest import FILE_NAME as MANIFEST
from mxconv.package.manifest import Manifest, read_manifest
from mxconv.package.recipe import Recipe, manifest_recipe
from mxconv.package.tensor_record import Record
from mxconv.progress import Progress, silent

MEMBER = "mxconv"
# no part of a package, and beside it in a repository: model-signing's command refuses any other file
IGNORED = (".cache", ".git", ".gitattributes", ".github", ".gitignore", "README.md", "attestation.json")


class Claims(Record):
    """The member `mxconv` of the predicate."""

    version: Literal[1] = 1
    created_by: str = f"mxconv {__version__}"
    created_at: str = Field(description="when the statement was made, by the signer's clock, ISO 8601 in UTC")
    recipe: Recipe = Field(description="of the package; its manifest holds the certificate")


@dataclass(frozen=True)
class Statement:
    """A parsed statement; who made it is for `check_signature` to say."""

    name: str
    sha256: str  # the subject's: over the digests of all files
    digests: Mapping[str, str]  # SHA-256 by file
    claims: Claims


def make_payload(package: Path, progress: Progress = silent) -> signing.Payload:
    """What is signed for a package; raises PackageError where it is damaged, or no certificate is stored in it."""
    manifest = read_manifest(package)
    if manifest.certificate is None:
        raise PackageError(
            f"{package}: no certificate is stored in {MANIFEST}; a verified package is required. "
            f"Run: mxconv verify {package} --write"
        )
    with TemporaryDirectory(prefix="mxconv-attest-") as scratch:
        recipe = make_recipe(package, Path(scratch), progress)
    digests = _digests(package, manifest)
    ignored = [name for name in IGNORED if name not in digests]
    arguments = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": ignored}
    kind = signed_files.SerializationType.from_args(arguments)
    items = [kind.new_item(name, Digest("sha256", bytes.fromhex(digest))) for name, digest in digests.items()]
    payload = signing.Payload(signed_files.Manifest(package.resolve().name, items, kind))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    claims = Claims(created_at=now, recipe=recipe).model_dump() | {"recipe": recipe.members()}
    payload.statement.pb.predicate.update({MEMBER: claims})
    return payload


def parse_statement(raw: bytes) -> Statement:
    """Read a statement; raises whatever the libraries do where it is none with mxconv's claims."""
    payload = json.loads(raw, parse_float=_number)
    files = signing.dsse_payload_to_manifest(payload)
    claims = Claims.model_validate_json(json.dumps(payload["predicate"].get(MEMBER)))
    digests = {each.identifier: each.digest.digest_hex for each in files.resource_descriptors()}
    return Statement(files.model_name, payload["subject"][0]["digest"]["sha256"], digests, claims)


def check_statement(statement: Statement, label: str, package: Path) -> None:
    """Raise MxconvError unless a statement, which errors call `label`, is about a package in this very state.

    The package's files are taken to be what its manifest says.
    """
    manifest = read_manifest(package)
    found, stated = _digests(package, manifest), statement.digests
    differing = sorted(name for name in {*found, *stated} - {MANIFEST} if found.get(name) != stated.get(name))
    others = f"{len(differing)} further files differ, first {differing[0]!r}" if differing else "all other files agree"
    if found[MANIFEST] != stated.get(MANIFEST):
        raise MxconvError(
            f"{label}: is about {statement.name!r}, whose {MANIFEST} has SHA-256 {stated.get(MANIFEST)}, and not about "
            f"{package}, whose has {found[MANIFEST]}; {others}. Get the attestation of this package, or this package "
            "as it was signed."
        )
    if statement.claims.recipe.package != manifest_recipe(manifest):
        raise MxconvError(f"{label}: its recipe is another package's; that of {package} is required. Attest it again.")
    if differing:
        raise MxconvError(
            f"{label}: {differing[0]!r} has SHA-256 {stated.get(differing[0])} there and {found.get(differing[0])} in "
            f"{package}; the digests of its files are required. Attest it again."
        )


def _number(text: str) -> float:
    """model-signing writes every number with a decimal point."""
    return int(value) if (value := float(text)).is_integer() else value


def _digests(package: Path, manifest: Manifest) -> dict[str, str]:
    """The recorded SHA-256 of a package's files, and that of its manifest."""
    return {record.path: record.sha256 for record in manifest.files} | {MANIFEST: sha256_file(package / MANIFEST)}
