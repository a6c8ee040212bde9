"""The repository that a push writes to: made where it is missing, and what it holds already."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from mxconv.checkpoint.hub import check_hub_id, fetch_files, retried
from mxconv.errors import CheckpointError, PackageError
from mxconv.interop.hub.card import ATTESTATION
from mxconv.package.manifest import FILE_NAME, read_manifest
from mxconv.package.recipe import FILE_NAME as RECIPE
from mxconv.package.recipe import FURTHER


@dataclass(frozen=True)
class Held:
    """One file of a repository."""

    num_bytes: int
    sha256: str | None  # of a large file
    git_sha1: str  # of a small one, as git computes it: over a header and the content


@dataclass(frozen=True)
class Destination:
    """A repository at one revision."""

    repo_id: str
    revision: str | None
    files: dict[str, Held]

    @property
    def is_package(self) -> bool:
        return FILE_NAME in self.files or RECIPE in self.files

    def holds(self, name: str, content: Path | bytes, sha256: str) -> bool:
        """Whether it has this very file; small ones are read to find out."""
        held = self.files.get(name)
        if held is None:
            return False
        if held.sha256 is not None:
            return held.sha256 == sha256
        raw = content if isinstance(content, bytes) else _read_up_to(content, held.num_bytes + 1)
        return hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest() == held.git_sha1

    def package_files(self) -> list[str]:
        """The files of the package or recipe that it holds; of a package whose manifest cannot be read that alone."""
        found = [name for name in self.files if name == RECIPE or name.startswith(f"{FURTHER}/")]
        found += [ATTESTATION] if self.is_package else []
        if FILE_NAME not in self.files:
            return found
        try:
            manifest = read_manifest(fetch_files(self.repo_id, [FILE_NAME], self.revision))
        except (CheckpointError, PackageError):
            return [*found, FILE_NAME]
        return [*found, FILE_NAME, *(record.path for record in manifest.files)]

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        return (fetch_files(self.repo_id, [name], self.revision) / name).read_bytes()


def open_destination(repo_id: str, revision: str | None, *, private: bool) -> Destination:
    """Create the repository and the branch unless they exist, and list what is there.

    Args:
        repo_id: `owner/name`.
        revision: a branch; the default one when None.
        private: create it private; refuse a public one.

    Raises:
        CheckpointError: the id is none.
        PackageError: `private` was asked for and the repository is public.
        Exception: whatever huggingface_hub raises.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionNotFoundError
    from huggingface_hub.hf_api import RepoFile

    check_hub_id(repo_id, needs_owner=True)
    api = HfApi()
    retried(lambda: api.create_repo(repo_id, private=private or None, exist_ok=True))
    found = retried(lambda: api.model_info(repo_id))
    if private and found.private is False:
        raise PackageError(
            f"{repo_id}: is public; --private creates a private repository, it does not hide one. "
            "Make it private in its settings, choose another name, or leave --private out."
        )

    def listed() -> dict[str, Held]:
        entries = api.list_repo_tree(repo_id, recursive=True, revision=revision)
        return {
            entry.path: Held(entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
            for entry in entries
            if isinstance(entry, RepoFile)
        }

    try:
        files = retried(listed)
    except RevisionNotFoundError:
        assert revision is not None
        retried(lambda: api.create_branch(repo_id, branch=revision, exist_ok=True))
        files = retried(listed)
    return Destination(repo_id, revision, files)


def _read_up_to(path: Path, num_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(num_bytes)
