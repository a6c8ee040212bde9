"""Fetching a checkpoint from the Hub: only the files needed, at one commit, into the Hub client's own cache.

Tokens, mirrors, the cache's place, offline mode and progress bars are huggingface_hub's, set by its
environment variables. When the Hub cannot be reached, a complete copy in the cache serves.
"""

from dataclasses import dataclass
from pathlib import Path

from mxconv.checkpoint.folder import Weights, choose_weights, companions, index_names
from mxconv.checkpoint.hub_errors import HubUnreachableError
from mxconv.checkpoint.hub_repository import cached_snapshot, fetch_files, is_hub_id, list_repository
from mxconv.errors import CheckpointError


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint in the Hub cache: its folder, the commit that it mirrors, and its weight files."""

    root: Path
    commit: str
    weights: Weights


def fetch_snapshot(repo_id: str, revision: str | None) -> Snapshot:
    """Download what a conversion needs of a Hub repository, unless it is in the cache already.

    Configuration, tokenizer, licence and indexes come first; they tell which weight files to get: safetensors,
    and .bin only where there are none.

    Args:
        repo_id: `owner/name`.
        revision: branch, tag or commit; the default branch when None.

    Raises:
        CheckpointError: no such repository, revision or weights, no access, or no connection and no copy.
    """
    if not is_hub_id(repo_id):
        raise CheckpointError(
            f"{repo_id}: no such file or folder, and no Hub id either; an existing path or an id of the form "
            "owner/name is required. Check the spelling."
        )
    try:
        return _download(repo_id, revision)
    except HubUnreachableError:
        if (cached := _find_cached(repo_id, revision)) is not None:
            return cached
        raise


def _download(repo_id: str, revision: str | None) -> Snapshot:
    listing = list_repository(repo_id, revision)
    top = [name for name in listing.names if "/" not in name]
    # by branch or tag, so that the cache remembers what it pointed to for the day the Hub is out of reach
    root = fetch_files(repo_id, [*companions(top), *index_names(top)], revision)
    commit = root.name
    if commit != listing.commit:  # somebody pushed since the listing
        return _download(repo_id, commit)
    weights = choose_weights(root, top, repo_id)
    if missing := sorted({*weights.shards} - {*listing.names}):
        raise CheckpointError(
            f"{repo_id}: {weights.index} names shard {missing[0]!r}, which the repository does not have; every shard "
            "is required. Try another --revision, or tell the model's owner."
        )
    fetch_files(repo_id, weights.shards, commit)
    return Snapshot(root, commit, weights)


def _find_cached(repo_id: str, revision: str | None) -> Snapshot | None:
    """The copy that an earlier run left in the cache, if it is complete."""
    root = cached_snapshot(repo_id, revision)
    if root is None:
        return None
    try:
        weights = choose_weights(root, [path.name for path in root.iterdir()], repo_id)
    except CheckpointError:
        return None
    if not all((root / shard).is_file() for shard in weights.shards):
        return None
    return Snapshot(root, root.name, weights)
