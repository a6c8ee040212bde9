"""What is noted of a large object of a package once it is there, so that a later run need not send it again."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from mxconv.checkpoint.store.store import ObjectLook, Store
from mxconv.errors import PackageError
from mxconv.package.marker import writing_own
from mxconv.workers import Advance

FOLDER = "notes"


class ObjectNote(BaseModel):
    """A shard, or a file of the source."""

    model_config = ConfigDict(frozen=True, strict=True)

    version: Literal[1] = 1
    num_bytes: int
    tag: str  # of the object
    sha256: str
    tensors: dict[str, str] = {}  # of a shard: those that it has bytes of, and the SHA-256 of each

    def is_of(self, look: ObjectLook | None) -> bool:
        """Whether the object is still the one of which this was noted."""
        return look is not None and bool(self.tag) and (look.num_bytes, look.tag) == (self.num_bytes, self.tag)


class ReadNote:
    """A task: what was noted of an object; None where that cannot be read."""

    def __init__(self, work: Store) -> None:
        self._work = work

    def __call__(self, name: str, _: Advance) -> ObjectNote | None:
        try:
            return ObjectNote.model_validate_json(self._work.read_all(f"{FOLDER}/{name}"))
        except ValidationError:
            return None


def note_object(
    target: Store, work: Store, name: str, num_bytes: int, sha256: str, tensors: Mapping[str, str] | None = None
) -> None:
    """Look at an object that was just written, and note what it is.

    Raises:
        PackageError: another one stands there, or the conversion has ended.
    """
    look = target.look(name)
    if look is None or look.num_bytes != num_bytes:
        found = "nothing" if look is None else f"{look.num_bytes:,} bytes"
        raise PackageError(
            f"{target.path(name)}: {found} of {num_bytes:,} bytes that were written; somebody else writes there. "
            "Let one conversion at a time write into a folder, and run the same command again."
        )
    note = ObjectNote(num_bytes=num_bytes, tag=look.tag, sha256=sha256, tensors=dict(tensors or {}))
    with writing_own(work, f"{FOLDER}/{name}") as append:
        append(note.model_dump_json().encode())
