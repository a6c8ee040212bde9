"""The folder on a store that a package will be: what may stand there, and what an interrupted conversion left.

    PACKAGE/                      the package; its manifest comes last, and until then it is none
    PACKAGE.partial/FINGERPRINT/  what the conversion writes for itself
        begun                     there from the first moment to the last: PACKAGE was empty when it began
        tensors/NNNNNN            a finished tensor, see spool.py
        notes/NAME                what an object of the package is, see object_note.py

The partial folder is no format: another version of mxconv begins anew.
"""

import re
from collections.abc import Iterable

from mxconv.checkpoint.store.store import ObjectLook, Store
from mxconv.errors import PackageError
from mxconv.package.manifest import FILE_NAME
from mxconv.package.marker import MARKER

OURS = re.compile(rf"[0-9a-f]{{64}}/({MARKER}|tensors/\d{{6,}}|notes/.+)", re.ASCII | re.DOTALL)


def partial_of(target: Store) -> Store:
    """The folder beside the package."""
    return Store(f"{target.url}.partial", PackageError)


def partial_looks(partial: Store) -> dict[str, ObjectLook]:
    """What a conversion left.

    Raises:
        PackageError: something else is there.
    """
    looks = partial.looks()
    foreign = next((name for name in looks if not OURS.fullmatch(name)), None)
    if foreign is not None:
        raise PackageError(
            f"{partial}: holds {foreign}, and is no interrupted conversion; this folder is needed while converting. "
            "Move it away, or choose another output."
        )
    return looks


def check_store(target: Store) -> None:
    """Refuse to write where anything is but what a conversion left.

    Raises:
        PackageError: a package is there, or something else, or the URL names a bucket alone.
    """
    if "/" not in target.url.partition("://")[2]:
        raise PackageError(f"{target}: names a bucket; a folder in it is required. Write {target}/FOLDER.")
    if target.look(FILE_NAME) is not None:
        raise PackageError(
            f"{target}: a package is there; on a store one cannot be replaced in one step, so --force does not help. "
            "Choose another output, or delete it."
        )
    if (looks := target.looks()) and not _begun(partial_looks(partial_of(target))):
        raise PackageError(
            f"{target}: holds {min(looks)}, and no interrupted conversion is beside it; an empty place is required. "
            "Choose another output."
        )


def recover_store(target: Store) -> None:
    """Delete what was left beside a finished package: a kill may come behind the manifest.

    Raises:
        PackageError: something else is there.
    """
    if target.look(FILE_NAME) is not None:
        delete_partial(partial_of(target))


def delete_partial(partial: Store) -> None:
    """Delete what conversions wrote for themselves; the markers go last.

    Late workers wrote until then, so what has come meanwhile is deleted, too: not what another command has begun.
    """
    names = partial_looks(partial)
    begun = _begun(names)
    partial.delete([name for name in names if name not in begun])
    partial.delete(begun)
    late = partial_looks(partial)
    begun_anew = tuple(marker.removesuffix(MARKER) for marker in _begun(late))
    partial.delete([name for name in late if not name.startswith(begun_anew)])


def _begun(names: Iterable[str]) -> set[str]:
    """The markers among names in a partial folder."""
    return {name for name in names if re.fullmatch(rf"[0-9a-f]{{64}}/{MARKER}", name, re.ASCII)}
