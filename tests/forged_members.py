"""Changes of a manifest, and what verify says then."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mxconv.errors import MxconvError, PackageError
from mxconv.verify import verify


def is_accepted(package: Path) -> bool:
    """Whether verify says ok; a MxconvError is a no, and any other exception fails the test."""
    try:
        return verify(package).ok
    except MxconvError as error:
        assert str(error)
        return False


def error_of(package: Path) -> str:
    with pytest.raises(PackageError) as caught:
        verify(package)
    return str(caught.value)


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
