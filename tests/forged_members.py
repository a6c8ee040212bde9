"""Changes of a manifest, and what verify says then."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mxconv.errors import MxconvError, PackageError
from mxconv.verify import verify


def is_accepted(package: Path) -> bool:
    """Whether verify says ok; a MxconvError is a no, and any other exception fails the test."""
    try:
        with frugal():
            return verify(package).ok
    except MxconvError as error:
        assert str(error)
        return False


def error_of(package: Path) -> str:
    with pytest.raises(PackageError) as caught, frugal():
        verify(package)
    return str(caught.value)


@contextmanager
def frugal() -> Iterator[None]:
    """No number in a file may make one check allocate much; the packages of these tests have a tenth of a megabyte."""
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20_000_000


Members = dict[str, Any]


def quantized(members: Members) -> Members:
    return next(record for record in members["tensors"] if record["codec"] != "keep")


def put(path: str, value: object) -> Callable[[Members], None]:
    """A change of one member; `path` like levels.0.files.0, with `quantized` for the first quantized tensor."""

    def change(members: Members) -> None:
        *keys, last = path.split(".")
        place: Any = members
        for key in keys:
            place = quantized(members) if key == "quantized" else place[int(key) if key.isdigit() else key]
        place[int(last) if last.isdigit() else last] = value

    return change
