"""A folder on an object store (`s3://`, `gs://`, `az://`, `hf://`, ...): listed, read by ranges, written whole or not.

fsspec and its clients speak the protocols; addresses and keys are theirs. One policy holds for all of them: a request
whose failure may pass is sent again, seven times in half a minute. docs/scale.md says how stores are used.
"""

import importlib
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mxconv.checkpoint.regular_file import stays_inside
from mxconv.errors import CheckpointError, MxconvError

URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+.\-]+)://(?P<path>.*)", re.ASCII | re.DOTALL)
REQUIRED = {  # what has to be installed, by protocol
    "s3": "pip install '.[s3]' in mxconv's folder",
    "gs": "pip install gcsfs",
    "gcs": "pip install gcsfs",
    "az": "pip install adlfs",
    "abfs": "pip install adlfs",
    "abfss": "pip install adlfs",
    "hf": "",  # the Hub's client brings it
    "memory": "",  # fsspec's own, of one process
}


def is_store_url(text: str) -> bool:
    """Whether the text has the form `protocol://path`."""
    return URL.fullmatch(text) is not None


def parse_store_url(text: str) -> tuple[str, str]:
    """Protocol, and URL without slashes at its end. Raises MxconvError where the protocol is not read, or no
    folder comes after it."""
    found = URL.fullmatch(text)
    protocol = found["protocol"] if found else ""
    if protocol == "file":
        raise MxconvError(f"{text}: a local folder; its path is required. Leave file:// out.")
    if protocol not in REQUIRED:
        raise MxconvError(
            f"{text}: protocol {protocol!r}; one of {', '.join(REQUIRED)}, a path or a Hub id is required. Check the "
            "address, or download what is there first."
        )
    assert found is not None
    path = found["path"].strip("/")
    if not path or ".." in path.split("/") or any(character in path for character in "\\\n\r\0"):
        raise MxconvError(f"{text}: names no folder; {protocol}://BUCKET/FOLDER is required. Check the address.")
    return protocol, f"{protocol}://{path}"


CONNECT_SECONDS, READ_SECONDS = 10, 60  # a connection that says nothing for so long is given up
WAITS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)  # before each further try
LASTING = (PermissionError, IsADirectoryError, NotADirectoryError, TypeError, ValueError)  # trying does not help
_Answer = TypeVar("_Answer")


@cache
def open_filesystem(protocol: str) -> Any:
    """The fsspec file system of a protocol. Addresses and keys are the client's own affair: its environment variables
    and configuration files say them. Raises MxconvError where the package that speaks the protocol is not installed."""
    try:
        fsspec = importlib.import_module("fsspec")
        # a listing that is remembered would hide what others wrote meanwhile
        return fsspec.filesystem(protocol, use_listings_cache=False, **_options(protocol))
    except ImportError as error:
        raise MxconvError(
            f"{protocol}://: {error}; a package that speaks it is required. Run `{REQUIRED[protocol]}`."
        ) from error


def is_refused(error: Exception) -> bool:
    """Whether an answer says that this user may not do this."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, PermissionError) or "Credentials" in type(error).__name__ or status in (401, 403)


def _options(protocol: str) -> dict[str, Any]:
    if protocol != "s3":
        return {}

    def may_pass(error: Exception) -> bool:  # of one request, a part of an upload too, which s3fs sends five times
        answer = getattr(error, "response", None) or {}
        return bool(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500)

    importlib.import_module("s3fs.core").set_custom_error_handler(may_pass)
    patience = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": 0}}
    return {"config_kwargs": patience}


PART_BYTES = 8 << 20
MAX_PARTS = 10_000  # of an upload to S3
PARTS_AT_A_TIME = 4
_TAGS = ("ETag", "etag", "blob_id", "md5Hash", "last_modified", "created")  # the clients' names


class ObjectLook(NamedTuple):
    """Length and tag of an object, by which a change is noticed."""

    num_bytes: int
    tag: str  # changes with every write


class Store:
    """A folder on an object store. Sent to another process as its URL; every request may be made in any thread.

    Args:
        url: `s3://BUCKET/FOLDER`, or of another protocol; nothing is asked yet.
        error: what every method raises where its request is refused or nobody answers.

    Raises:
        MxconvError: no such protocol, or the package that speaks it is not installed.
    """

    def __init__(self, url: str, error: type[MxconvError] = CheckpointError) -> None:
        self._protocol, self.url = parse_store_url(url)
        self._error = error
        self._files = open_filesystem(self._protocol)
        self._asking = {"refresh": True} if self._protocol == "hf" else {}  # its client remembers listings else

    def __reduce__(self) -> tuple[object, ...]:
        return Store, (self.url, self._error)

    def __str__(self) -> str:
        return self.url

    def path(self, name: str) -> str:
        """The URL of an object."""
        return f"{self.url}/{name}" if name else self.url

    def looks(self) -> dict[str, ObjectLook]:
        """All objects in the folder, by names relative to it, none of which may lead out of it; none where there is no
        such folder."""
        try:
            found = self._ask("", lambda: self._files.find(self.url, detail=True, **self._asking), may_be_absent=True)
        except FileNotFoundError:
            return {}
        root = self._files._strip_protocol(self.url).rstrip("/") + "/"
        looks = {path.removeprefix(root): _look(info) for path, info in found.items() if not path.endswith("/")}
        for name in looks:
            if not stays_inside(name):
                raise self._error(
                    f"{self.url}: lists an object named {name!r}; a path inside the folder is required. Rename it."
                )
        return looks

    def look(self, name: str) -> ObjectLook | None:
        """Length and tag of an object; None where there is none."""
        try:
            info = self._ask(name, lambda: self._files.info(self.path(name), **self._asking), may_be_absent=True)
        except FileNotFoundError:
            return None
        return _look(info) if info.get("type", "file") == "file" else None

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of an object, all of which must be there."""

        def request() -> bytes:
            found: bytes = self._files.cat_file(self.path(name), start=begin, end=end)
            if len(found) != end - begin:
                raise ConnectionError(f"{len(found):,} of {end - begin:,} bytes came")
            return found

        return b"" if begin == end else self._ask(name, request)

    def read_all(self, name: str) -> bytes:
        """A small object."""
        content: bytes = self._ask(name, lambda: self._files.cat_file(self.path(name)))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Put a small object there, in one request."""
        self._ask(name, lambda: self._files.pipe_file(self.path(name), content))

    def put(self, path: Path, name: str) -> None:
        """Upload a file; nothing is seen of the object before all of it is there."""
        options: dict[str, int] = {}
        num_bytes = path.stat().st_size
        if self._protocol == "s3":
            options = {"chunksize": max(PART_BYTES, -(-num_bytes // MAX_PARTS)), "max_concurrency": PARTS_AT_A_TIME}
        try:
            request = partial(self._files.put_file, str(path), self.path(name), **options)
            self._ask(name, request, may_be_absent=True)
        except FileNotFoundError as error:  # no bucket; or the answer to an upload's end was lost
            look = self.look(name)
            if look is None or look.num_bytes != num_bytes:
                raise self._missing(name) from error

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are gone do not matter."""
        if paths := [self.path(name) for name in names]:
            with suppress(FileNotFoundError):
                self._ask("", lambda: self._files.rm(paths), may_be_absent=True)

    def _ask(self, name: str, request: Callable[[], _Answer], may_be_absent: bool = False) -> _Answer:
        """Send a request, again while its failure may pass, and turn what a client raises into our errors;
        FileNotFoundError passes where it may be."""
        waits = iter(WAITS_SECONDS)
        while True:
            try:
                return request()
            except MxconvError:
                raise
            except FileNotFoundError as error:
                if may_be_absent:
                    raise
                raise self._missing(name) from error
            except Exception as error:  # each client has exceptions of its own
                seconds = next(waits, None)
                if seconds is None or isinstance(error, LASTING) or is_refused(error):
                    raise self._failed(name, error) from error
                time.sleep(seconds)

    def _failed(self, name: str, error: Exception) -> MxconvError:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
        if is_refused(error):
            return self._error(
                f"{self.path(name)}: access is refused ({reason}); keys that may read (and for a package, write) it "
                "are required. Set them as the store's own client reads them."
            )
        return self._error(
            f"{self.path(name)}: the store gives no good answer ({reason}), tried seven times; a connection to "
            "it is required. Run the same command again."
        )

    def _missing(self, name: str) -> MxconvError:
        return self._error(
            f"{self.path(name)}: no such object or bucket; an existing one is required. Check the address."
        )


def _look(info: dict[str, Any]) -> ObjectLook:
    tag = next((info[key] for key in _TAGS if info.get(key)), "")
    if isinstance(tag, datetime):  # which a listing of the same client may give as a number
        tag = tag.timestamp()
    return ObjectLook(int(info["size"]), str(tag))
