"""Errors of the Hub in words: what was asked for, how it answered, and what to do; while reading and while writing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
