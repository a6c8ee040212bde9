"""What goes wrong while the Hub client writes, as errors that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mxconv.checkpoint.hub import reason, translated_errors
from mxconv.errors import MxconvError, PackageError


@contextmanager
def translated_upload_errors(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turn what huggingface_hub and the HTTP library below it raise into errors that say what to do.

    Raises:
        PackageError: the Hub refuses or fails while something is written to it.
        CheckpointError: the id is none.
    """
    try:
        yield
    except MxconvError:
        raise
    except Exception as error:
        with translated_errors(repo_id, revision):
            raise _translate(error, repo_id) from error


def _translate(error: Exception, repo_id: str) -> Exception:
    """An error of ours, or the same error where reading the Hub would have failed in the same way."""
    from huggingface_hub import errors

    if isinstance(error, errors.HFValidationError):
        return error
    if isinstance(error, errors.OfflineModeIsEnabled):
        return PackageError(f"{repo_id}: offline mode is on; a connection is required. Unset HF_HUB_OFFLINE to push.")
    cause: BaseException = error
    while cause.__cause__ is not None and getattr(cause, "response", None) is None:  # of a file's upload, for one
        cause = cause.__cause__
    response: Any = getattr(cause, "response", None)
    status = None if response is None else response.status_code
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
