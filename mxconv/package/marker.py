"""The marker of a conversion into a store: an object that is there from its first moment to its last.

A worker may outlive the conversion that sent it: it was late, and another one did its piece. By the marker it knows.
What a conversion wrote for itself is deleted at its end, so nothing may come there later; nobody else would delete it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mxconv.checkpoint.store.store import Store
from mxconv.errors import PackageError

MARKER = "begun"


def check_lasts(work: Store, where: str) -> None:
    """Look whether the conversion lasts.

    Args:
        work: the folder of the conversion's own objects.
        where: the URL of what is being written.

    Raises:
        PackageError: it has ended.
    """
    if work.look(MARKER) is None:
        raise _ended(where)


@contextmanager
def writing_own(work: Store, name: str) -> Iterator[Callable[[Any], object]]:
    """`Store.writing` of an object of the conversion's own; nothing stays of it where the conversion ends before.

    The end may come while the last request is on its way, so the marker is looked for behind that, too. Whoever still
    finds it there wrote before the marker was deleted, and `store_target.delete_partial` looks around once more then.

    Raises:
        PackageError: the conversion has ended, or the object cannot be written.
    """
    with work.writing(name) as append:
        yield append
        check_lasts(work, work.path(name))
    if work.look(MARKER) is None:
        work.delete([name])
        raise _ended(work.path(name))


def _ended(where: str) -> PackageError:
    return PackageError(
        f"{where}: its conversion has ended; a worker writes for the one that sent it. Run the same command again."
    )
