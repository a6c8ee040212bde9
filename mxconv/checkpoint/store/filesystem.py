"""The client of an object store, with one policy: what may pass is tried again for half a minute, and then told."""

import importlib
import time
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from mxconv.checkpoint.store.address import REQUIRED
from mxconv.errors import MxconvError

CONNECT_SECONDS, READ_SECONDS = 10, 60  # a connection that says nothing for so long is given up
TRIES = 10  # of s3fs, with waits of 0.1 s, and 1.7 times longer each time: 28 s
WAITS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)  # before each further try
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, TypeError, ValueError)
_Answer = TypeVar("_Answer")


@cache
def open_filesystem(protocol: str) -> Any:
    """The fsspec file system of a protocol. Addresses and keys are the client's own affair: its environment variables
    and configuration files say them.

    Raises:
        MxconvError: the package that speaks the protocol is not installed.
    """
    try:
        fsspec = importlib.import_module("fsspec")
        # a listing that is remembered would hide what others wrote meanwhile
        return fsspec.filesystem(protocol, use_listings_cache=False, **_options(protocol))
    except ImportError as error:
        raise MxconvError(
            f"{protocol}://: {error}; a package that speaks it is required. Run `{REQUIRED[protocol]}`."
        ) from error


def tried(protocol: str, request: Callable[[], _Answer]) -> _Answer:
    """Send a request, and again while its failure may pass.

    Raises:
        Exception: that of the last try, or one that trying does not help: as the client raises it.
    """
    for seconds in () if protocol == "s3" else WAITS_SECONDS:  # s3fs tries itself, each part of an upload too
        try:
            return request()
        except LASTING:
            raise
        except Exception as error:  # each client has exceptions of its own
            if is_refused(error):
                raise
            time.sleep(seconds)
    return request()


def is_refused(error: Exception) -> bool:
    """Whether an answer says that this user may not do this."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, PermissionError) or "Credentials" in type(error).__name__ or status in (401, 403)


def _options(protocol: str) -> dict[str, Any]:
    if protocol != "s3":
        return {}
    core: Any = importlib.import_module("s3fs.core")
    aiohttp, botocore = importlib.import_module("aiohttp"), importlib.import_module("botocore.exceptions")
    lines: tuple[Any, ...] = (botocore.BotoCoreError, aiohttp.ClientError, TimeoutError)

    def may_pass(error: Any) -> bool:
        if isinstance(error, lines):
            # a read asks once more for what its request was refused: with both, ten tries would be a hundred
            was_tried = getattr(error, "was_tried", False)
            error.was_tried = True
            return not was_tried and not isinstance(error, botocore.NoCredentialsError)
        answer = getattr(error, "response", None) or {}
        return bool(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500)

    core.S3_RETRYABLE_ERRORS = ()  # none beside these
    core.set_custom_error_handler(may_pass)
    core.S3FileSystem.retries = TRIES
    patience = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": 0}}
    return {"config_kwargs": patience}
