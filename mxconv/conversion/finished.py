"""Where a tensor's arrays, from the encoder, and its hash, from the stream beside it, come together."""

import threading
from collections.abc import Iterable
from dataclasses import replace

from mxconv.conversion.encode import EncodedTensor
from mxconv.conversion.source_hash import SourceHashes
from mxconv.conversion.staging import Staging


class FinishedTensors:
    """Tensors that are written; in the journal as soon as they are hashed, too."""

    def __init__(self, staging: Staging, hashes: SourceHashes, earlier: Iterable[EncodedTensor]) -> None:
        """Begin with what an earlier run finished."""
        self._staging, self._hashes = staging, hashes
        self._lock = threading.Lock()
        self._waiting: dict[str, EncodedTensor] = {}
        self._done = {encoded.name: encoded for encoded in earlier}
        for encoded in self._done.values():
            staging.accept(encoded)
        hashes.listen(self._note_if_hashed)

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def add(self, encoded: EncodedTensor) -> None:
        """A tensor is written."""
        self._staging.accept(encoded)
        with self._lock:
            self._waiting[encoded.name] = encoded
        self._note_if_hashed(encoded.name)

    def all(self) -> dict[str, EncodedTensor]:
        """By name; the streams have finished."""
        assert not self._waiting
        return self._done

    def _note_if_hashed(self, name: str) -> None:
        with self._lock:
            encoded = self._waiting.get(name)
            sha256 = encoded.sha256 or self._hashes.tensor(name) if encoded else None
            if encoded is None or sha256 is None:
                return
            del self._waiting[name]
            self._done[name] = replace(encoded, sha256=sha256)
        self._staging.note(self._done[name])
