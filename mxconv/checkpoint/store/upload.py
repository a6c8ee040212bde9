"""A new object, appended to: ranges of one cannot be written, so it grows in parts that nobody sees before the end."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxconv.checkpoint.store.store import Store

PART_BYTES = 8 << 20  # 10,000 of them are allowed, 84 GB


class Upload:
    """Bytes on their way. Up to a part they stay here, and then go in one request."""

    def __init__(self, store: "Store", name: str) -> None:
        """Nothing is asked yet.

        Args:
            store: the folder.
            name: of the object; what stands there is replaced at the end.
        """
        self._store, self._name = store, name
        self._few = bytearray()  # while they are less than a part
        self._file: Any = None
        self.num_bytes = 0

    def append(self, piece: Any) -> None:
        """Bytes that come next.

        Raises:
            MxconvError: they cannot be written.
        """
        self.num_bytes += memoryview(piece).nbytes
        if self._file is not None:
            self._append(piece)
            return
        self._few += piece
        if len(self._few) >= PART_BYTES:
            with self._store.translated(self._name):
                self._file = self._store.open_upload(self._name, PART_BYTES)
            few, self._few = self._few, bytearray()
            self._append(few)

    def finish(self) -> None:
        """Have the object seen.

        Raises:
            MxconvError: it cannot be written.
        """
        if self._file is None:
            self._store.write(self._name, bytes(self._few))
            return
        with self._given_up_on_error():
            self._file.close()
            try:
                self._file.commit()
            except FileNotFoundError:
                # the answer to the first try was lost on its way, and of a finished upload nothing is known
                look = self._store.look(self._name)
                if look is None or look.num_bytes != self.num_bytes:
                    raise

    def abort(self) -> None:
        """Have the store forget it.

        Raises:
            MxconvError: nobody answers.
        """
        file, self._file = self._file, None
        if file is not None:
            _leave_unfinished(file)
            with self._store.translated(self._name), contextlib.suppress(FileNotFoundError):
                file.discard()

    def _append(self, piece: Any) -> None:
        with self._given_up_on_error():
            self._file.write(piece)

    @contextlib.contextmanager
    def _given_up_on_error(self) -> Iterator[None]:
        """A store that has not answered for so long is not asked to forget, either."""
        try:
            with self._store.translated(self._name):
                yield
        except BaseException:
            file, self._file = self._file, None
            _leave_unfinished(file)
            raise


def _leave_unfinished(file: Any) -> None:
    """Its destructor would finish it."""
    with contextlib.suppress(AttributeError):  # of files in memory, which have none
        file.closed = True
