"""The Hub: a repository at one commit, and its files in the Hub client's own cache.

Tokens, mirrors, the cache's place, offline mode and progress bars are huggingface_hub's, set by its environment
variables. Of a checkpoint only the files that are needed are downloaded. When the Hub cannot be reached, a complete
copy in the cache serves.
"""

import glob
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from mxconv.checkpoint.folder import Weights, choose_weights, small_files
from mxconv.checkpoint.hub_errors import HubUnreachableError, translated_errors
from mxconv.checkpoint.regular_file import read_json_object, stays_inside
from mxconv.errors import CheckpointError

_ID = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*", re.ASCII)
_FILE = re.compile(r"[^/]*\.(safetensors|gguf|bin|pt|pth|json|jsonl|txt)", re.IGNORECASE)  # a path, and no id
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^?#]*).*", re.IGNORECASE)
_PAGES = ("tree", "blob", "resolve", "raw", "commit")  # of a repository, a revision comes after them
_TIMEOUT_SECONDS = 30.0
_WAITS_SECONDS = (0.25, 1.0)  # before each further try of a request that the client itself sends only once
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Repository:
    """The listing of a model repository."""

    id: str
    commit: str
    names: tuple[str, ...]


def is_hub_id(text: str) -> bool:
    """Whether the text has the form `owner/name`, or `name` as the Hub's oldest models have it."""
    return _ID.fullmatch(text) is not None and _FILE.fullmatch(text) is None


def check_hub_id(text: str, *, needs_owner: bool = False) -> None:
    """Raises CheckpointError where the text has not the form of an id, or has no owner and needs one."""
    if not is_hub_id(text) or (needs_owner and "/" not in text):
        raise CheckpointError(f"{text}: no Hub id; owner/name is required. Check the spelling.")


def parse_address(source: str, revision: str | None) -> tuple[str, str | None]:
    """The Hub id and revision that the address of a model's web page stands for; anything else as it is given. Raises
    CheckpointError where the page is of no model, or of something in it that is not read."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    is_own = endpoint and source.startswith(f"{endpoint}/")
    found = _ADDRESS.fullmatch("hf.co" + source.removeprefix(endpoint) if is_own else source)
    if found is None:
        return source, revision
    parts = [unquote(part) for part in found[1].split("/") if part]
    owned = 1 if parts[1:2] and parts[1] in _PAGES else 2
    repo_id, page = "/".join(parts[:owned]), parts[owned:]
    if not is_hub_id(repo_id) or parts[0] in ("datasets", "spaces", "collections", "papers", "models"):
        raise CheckpointError(f"{source}: no address of a model; its Hub id owner/name is required. Give that.")
    if len(page) > 3 or (len(page) > 2 and (page[0] == "tree" or page[2].lower().endswith(".gguf"))):
        raise CheckpointError(
            f"{source}: the address of {'/'.join(page[2:])} in the model {repo_id}; a model's own files, at the top of "
            f"its repository, are read. Download it first: hf download {repo_id}"
        )
    return repo_id, revision or (page[1] if len(page) > 1 and page[0] in _PAGES else None)


def list_repository(repo_id: str, revision: str | None) -> Repository:
    """Ask the Hub for the commit and file names of a repository `owner/name`, at a branch, tag or commit, or where None
    is given at its default branch.

    Raises:
        CheckpointError: no such repository or revision, no access, no connection, or a file name that leads astray.
    """
    from huggingface_hub import HfApi

    check_hub_id(repo_id)
    with translated_errors(repo_id, revision):
        found = retried(lambda: HfApi().model_info(repo_id, revision=revision, timeout=_TIMEOUT_SECONDS))
    names = tuple(sibling.rfilename for sibling in found.siblings or [])
    check_names(repo_id, names)
    assert found.sha is not None
    return Repository(repo_id, found.sha, names)


def check_names(repo_id: str, names: Iterable[str]) -> None:
    """Raises CheckpointError where a name of a listing would lead out of a folder."""
    for name in names:
        if not stays_inside(name):
            raise CheckpointError(
                f"{repo_id}: lists a file named {name!r}; a path inside the repository is required. "
                "Do not use this repository unless you know who made it."
            )


def fetch_files(repo_id: str, names: Iterable[str], revision: str | None) -> Path:
    """Bring files into the cache, unless they are there; the snapshot's folder, named by the commit. Raises
    CheckpointError where the download failed."""
    from huggingface_hub import snapshot_download

    patterns = [glob.escape(name) for name in names]
    with translated_errors(repo_id, revision):
        return Path(retried(lambda: snapshot_download(repo_id, revision=revision, allow_patterns=patterns)))


def cached_snapshot(repo_id: str, revision: str | None) -> Path | None:
    """The snapshot that an earlier download left in the cache, complete or not."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # no pattern matches a file: it asks for the folder alone, whose completeness is for the caller to judge
        return Path(snapshot_download(repo_id, revision=revision, local_files_only=True, allow_patterns=[]))
    except LocalEntryNotFoundError:
        return None


def retried(request: Callable[[], _Answer]) -> _Answer:
    """Send a request again, after a moment, while the Hub answers with a failure of its own (HTTP 5xx)."""
    for seconds in _WAITS_SECONDS:
        try:
            return request()
        except Exception as error:  # each version of the client brings another HTTP library with its own exceptions
            # the client hides some answers of the Hub in "not found in the cache"
            answers: list[Any] = [getattr(e, "response", None) for e in (error, error.__cause__)]
            if not any(answer is not None and answer.status_code >= 500 for answer in answers):
                raise
            time.sleep(seconds)
    return request()


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint in the Hub cache: its folder, the commit that it mirrors, and its weight files."""

    root: Path
    commit: str
    weights: Weights


def fetch_snapshot(repo_id: str, revision: str | None) -> Snapshot:
    """Download what a conversion needs of a Hub repository, unless it is in the cache already.

    Configuration, tokenizer, licence and indexes come first; they tell which weight files to get: safetensors,
    and .bin only where there are none. Without a revision it is the default branch.

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
    root = fetch_files(repo_id, small_files(listing.names), revision)
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
    names = [path.name for path in root.iterdir()]
    try:
        weights = choose_weights(root, names, repo_id)
    except CheckpointError:
        return None
    if not all((root / shard).is_file() for shard in weights.shards):
        return None
    if lacking := _lacking(root, names):
        raise CheckpointError(
            f"{repo_id}: the Hub is out of reach, and the copy in the cache has weights and no {lacking}; all files of "
            f"the model are required. Connect once to download the rest, or give {root} for what is there."
        )
    return Snapshot(root, root.name, weights)


def _lacking(root: Path, names: list[str]) -> str | None:
    """What a model's copy has not that another program left in the cache, if that can be told."""
    if "config.json" not in names:
        return "config.json"
    architectures = read_json_object(root / "config.json", unique_keys=False).get("architectures")
    is_model = str(architectures).endswith(("ForCausalLM']", "ForConditionalGeneration']"))
    has_tokenizer = any(n.startswith(("tokenizer", "tekken", "vocab", "spiece")) or n.endswith(".model") for n in names)
    return "tokenizer" if is_model and not has_tokenizer else None
