"""The Hub: a repository at one commit, and its files in the Hub client's own cache.

Tokens, mirrors, the cache's place, offline mode and progress bars are huggingface_hub's, set by its environment
variables. Of a checkpoint only the files that are needed are downloaded. When the Hub cannot be reached, a complete
copy in the cache serves.
"""

import glob
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from mxconv.checkpoint.folder import Weights, choose_weights, small_files
from mxconv.checkpoint.regular_file import read_json_object, stays_inside
from mxconv.errors import CheckpointError, MxconvError, PackageError


class HubUnreachableError(CheckpointError):
    """The Hub gave no answer: offline mode, no connection, or a failure of its own."""


@contextmanager
def translated_errors(repo_id: str, revision: str | None, folder: Path | None = None) -> Iterator[None]:
    """Turn what huggingface_hub and the HTTP library below it raise into CheckpointErrors that say what to do; our own
    errors pass as they are. `folder` is where files are downloaded to, None the Hub cache."""
    try:
        yield
    except MxconvError:
        raise
    except Exception as error:  # each version of the client brings another HTTP library with its own exceptions
        raise _of_reading(error, repo_id, revision, folder) from error


@contextmanager
def translated_upload_errors(repo_id: str, revision: str | None) -> Iterator[None]:
    """The same where something is written: PackageErrors, or a CheckpointError where the id is none."""
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except MxconvError:
        raise
    except HFValidationError as error:
        raise _of_reading(error, repo_id, revision, None) from error
    except Exception as error:
        raise _of_writing(error, repo_id) from error


def _of_reading(error: BaseException, repo_id: str, revision: str | None, folder: Path | None) -> CheckpointError:
    from huggingface_hub import errors

    # the client hides the answer of the Hub in "not found in the cache"
    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    response, status = _answer(error)
    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{repo_id}: access is gated (HTTP {status}); its terms must be accepted by the account whose token is "
            "used. Accept them on the model's page, then run `hf auth login` or set HF_TOKEN."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(
            f"{repo_id}: has no revision {revision!r} (HTTP {status}); a branch, tag or commit is required. "
            "Look at the model's page for the names."
        )
    if status == 401 and "Invalid credentials" in response.headers.get("X-Error-Message", ""):
        return CheckpointError(
            f"{repo_id}: the Hub does not know the token (HTTP 401); a valid one, or none, is required. "
            "Run `hf auth login` again, or correct HF_TOKEN."
        )
    # strangers get 401 for what does not exist and for what is private alike
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return CheckpointError(
            f"{repo_id}: no such local path, and no such model on the Hub or a private one (HTTP {status}); an "
            "existing path or a model that you may read is required. Check the spelling; for a private model run "
            "`hf auth login` or set HF_TOKEN."
        )
    if status == 403:
        return CheckpointError(
            f"{repo_id}: the Hub refuses access (HTTP 403); a token that may read this model is required. "
            "Run `hf auth login` or set HF_TOKEN to such a token."
        )
    if isinstance(error, errors.HFValidationError):
        return CheckpointError(f"{repo_id}: no valid Hub id ({error}); owner/name is required. Check the spelling.")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubUnreachableError(
            f"{repo_id}: no such local path, not in the cache, and offline mode is on; a local copy or a connection is "
            "required. Check the spelling, or unset HF_HUB_OFFLINE to download it."
        )
    if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError):
        return CheckpointError(
            f"{repo_id}: the download failed ({error.strerror}: {error.filename}); room and permission to write to "
            f"{folder or 'the Hub cache'} are required. Free some space, or "
            f"{'choose another folder' if folder else 'set HF_HOME to another disk'}, and run again."
        )
    found = f"the Hub failed (HTTP {status})" if status else f"the Hub cannot be reached ({reason(error)})"
    return HubUnreachableError(
        f"{repo_id}: {found} and there is no complete copy in the cache; a connection to the Hub is required. "
        "Check the spelling of a path, the network and HF_ENDPOINT, and run again: finished files are kept."
    )


def _of_writing(error: Exception, repo_id: str) -> PackageError:
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return PackageError(f"{repo_id}: offline mode is on; a connection is required. Unset HF_HUB_OFFLINE to push.")
    cause: BaseException = error
    while cause.__cause__ is not None and _answer(cause)[1] is None:  # of a file's upload, for one
        cause = cause.__cause__
    status = _answer(cause)[1]
    if status == 401:
        return PackageError(
            f"{repo_id}: the Hub asks who is pushing (HTTP 401); a valid token that may write is required. "
            "Run `hf auth login`, or set HF_TOKEN."
        )
    if status in (403, 404):
        owner = repo_id.partition("/")[0]
        return PackageError(
            f"{repo_id}: the token may not write there (HTTP {status}); write permission for {owner!r} is required. "
            "Check the spelling and the token's permissions, or push to a name of your own."
        )
    if status is not None and status < 500:
        said = getattr(cause, "server_message", None) or reason(cause)
        return PackageError(
            f"{repo_id}: the Hub refuses the upload (HTTP {status}: {said}); what it asks for is required. "
            "Correct it and run again: finished files are not sent again."
        )
    if status is None and isinstance(cause, OSError) and cause.filename:
        return PackageError(
            f"{cause.filename}: cannot be read ({cause.strerror}); a readable file is required. Check its permissions."
        )
    found = f"the Hub failed (HTTP {status})" if status else f"the connection failed ({reason(cause)})"
    return PackageError(
        f"{repo_id}: {found}; a Hub that takes the files is required. "
        "Check the network and run again: finished files are not sent again."
    )


def _answer(error: BaseException) -> tuple[Any, int | None]:
    """The Hub's answer and its HTTP status, where an error came with one."""
    response: Any = getattr(error, "response", None)
    return response, None if response is None else response.status_code


def reason(error: BaseException) -> str:
    """The kind of an error, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


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


def fetch_files(
    repo_id: str,
    names: Iterable[str],
    revision: str | None,
    folder: Path | None = None,
    report: Callable[[int], object] | None = None,
) -> Path:
    """Bring files into the cache, or into a folder, unless they are there; the folder that they are in, of the cache
    the snapshot's, named by the commit. `report` is called with the bytes so far, in place of the client's own bars.
    Raises CheckpointError where the download failed."""
    from huggingface_hub import snapshot_download

    options: dict[str, Any] = {"allow_patterns": [glob.escape(name) for name in names], "local_dir": folder}
    if report is not None:
        options["tqdm_class"] = _reporting(report)
    with translated_errors(repo_id, revision):
        return Path(retried(lambda: snapshot_download(repo_id, revision=revision, **options)))


def _reporting(report: Callable[[int], object]) -> type:
    """A class of bars that the client fills with bytes, and that shows nothing."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": True})  # type: ignore[no-untyped-call]
            self.num_bytes, self.is_of_bytes = options.get("initial", 0), options.get("unit") == "B"

        def update(self, n: float | None = 1) -> None:
            self.num_bytes += int(n or 0)
            if self.is_of_bytes:
                report(self.num_bytes)

    return Bar


def file_hashes(repo_id: str, names: Iterable[str], commit: str) -> dict[str, str]:
    """The SHA-256 of files, as the Hub lists them, by name; it lists none of files that git itself holds. Raises
    CheckpointError where it gives no answer."""
    from huggingface_hub import HfApi

    with translated_errors(repo_id, commit):
        found = retried(lambda: HfApi().get_paths_info(repo_id, list(names), revision=commit))
    return {each.path: lfs.sha256 for each in found if (lfs := getattr(each, "lfs", None)) is not None}


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
