"""Safetensors files made compact, and restored byte for byte.

Threads code chunks independently; the caller hashes them in order, a few at a time, so memory stays flat. The target
is written beside its place and gets its name when everything was checked; whoever needs it to survive a power
failure flushes it.

    compress_file(Path("model.safetensors"), Path("model.compact"))
    decompress_file(Path("model.compact"), Path("restored.safetensors"))
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from io import FileIO
from itertools import chain
from pathlib import Path

from mxconv.arrays import U8
from mxconv.checkpoint.compact.compact_layout import Chunk, Preamble, cut, tensor_chunks
from mxconv.checkpoint.compact.frame_reader import FrameReader
from mxconv.checkpoint.compact.plane_coding import encode_planes
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.mapped_file import MappedFile
from mxconv.checkpoint.regular_file import open_file
from mxconv.checkpoint.safetensors_header import parse_header
from mxconv.errors import CheckpointError
from mxconv.progress import Progress, silent
from mxconv.system.disk import reserve, write_at
from mxconv.workers import ByteCounter, Piece, Result


def compress_file(
    source: Path, target: Path, base: Path | None = None, progress: Progress = silent, num_threads: int = 2
) -> None:
    """Write a safetensors file as a compact one, replacing what is at `target`.

    Args:
        base: a safetensors file; tensors are coded as differences from those of equal name, dtype and shape there.
        num_threads: how many code chunks, beside the caller's, which hashes and writes.

    Raises:
        CheckpointError: a file cannot be read, is no safetensors file, changes meanwhile, or the target cannot be
            written.
    """
    with closing(MappedFile(source)) as weights, _opened(base) as original, _written(target) as file:
        entries = tuple(weights.entries.values())
        header_bytes = entries[0].begin if entries else weights.num_bytes
        preamble = Preamble(
            num_bytes=weights.num_bytes,
            header_bytes=header_bytes,
            sha256="0" * 64,  # until it is known
            base_sha256=sha256_file(base) if base else None,
        )
        offset = len(preamble.formatted())

        def encode(chunk: Chunk) -> tuple[U8, list[bytes]]:
            stored = weights.window(chunk.begin, chunk.begin + chunk.num_bytes)
            return stored, encode_planes(stored, chunk.num_planes, _beside(original, chunk))

        digest, advance = hashlib.sha256(), ByteCounter("compressing", weights.num_bytes, progress)
        chunks = chain(
            cut(Chunk("header", 0, header_bytes)), tensor_chunks(entries, original.entries if original else {})
        )
        for stored, frames in _in_order(encode, chunks, num_threads):
            digest.update(stored.data)
            write_at(file, b"".join(frames), offset)
            offset += sum(map(len, frames))
            weights.release(stored)
            advance(len(stored))
        for read in filter(None, (weights, original)):
            read.check_unchanged()
        write_at(file, preamble.model_copy(update={"sha256": digest.hexdigest()}).formatted(), 0)


def decompress_file(
    compact: Path, target: Path, base: Path | None = None, progress: Progress = silent, num_threads: int = 2
) -> None:
    """Restore the safetensors file of a compact one, replacing what is at `target`.

    Args:
        base: the file beside which it was coded, if there was one.
        num_threads: how many decode chunks and write them, beside the caller's, which hashes.

    Raises:
        CheckpointError: a file cannot be read, the compact one is damaged or of another version, the base is another
            one, or the target cannot be written.
    """
    with open_file(compact) as frames, _opened(base) as original, _written(target) as file:
        reader = FrameReader(compact, frames)
        preamble = reader.preamble
        _check_base(compact, preamble.base_sha256, base)
        head = b"".join(
            reader.decode(chunk, reader.take(chunk)).data for chunk in cut(Chunk("header", 0, preamble.header_bytes))
        )
        header = parse_header(f"{compact}: content", preamble.num_bytes, lambda begin, n: head[begin : begin + n])

        def decode(taken: tuple[Chunk, list[memoryview]]) -> U8:
            stored = reader.decode(*taken, _beside(original, taken[0]))
            write_at(file, stored.data, taken[0].begin)
            return stored

        digest, advance = hashlib.sha256(head), ByteCounter("restoring", preamble.num_bytes, progress)
        reserve(file, preamble.num_bytes)
        write_at(file, head, 0)
        advance(len(head))
        chunks = tensor_chunks(header.entries, original.entries if original else {})
        for stored in _in_order(decode, ((chunk, reader.take(chunk)) for chunk in chunks), num_threads):
            digest.update(stored.data)
            advance(len(stored))
        reader.check_end()
        if (header.data_begin, digest.hexdigest()) != (preamble.header_bytes, preamble.sha256):
            raise CheckpointError(
                f"{compact}: content: {header.data_begin:,} bytes before tensors, SHA-256 {digest.hexdigest()}; "
                f"{preamble.header_bytes:,} and {preamble.sha256} are required. Download the file again."
            )


def _opened(base: Path | None) -> AbstractContextManager[MappedFile | None]:
    return closing(MappedFile(base)) if base else nullcontext()


def _beside(original: MappedFile | None, chunk: Chunk) -> U8 | None:
    """A copy of the bytes of the base from which a chunk differs, so that its pages can go."""
    if original is None or chunk.base_begin is None:
        return None
    stored = original.window(chunk.base_begin, chunk.base_begin + chunk.num_bytes)
    beside = stored.copy()
    original.release(stored)
    return beside


def _check_base(compact: Path, required: str | None, base: Path | None) -> None:
    """Raise CheckpointError unless the base is the one of the preamble."""
    found = sha256_file(base) if base else None
    if found != required:
        raise CheckpointError(
            f"{compact}: base: {f'{base} with SHA-256 {found}' if base else 'none'}; "
            f"{f'the file with SHA-256 {required}' if required else 'none'} is required. "
            "Name the file beside which it was coded, if there was one."
        )


def _in_order(task: Callable[[Piece], Result], pieces: Iterable[Piece], num_threads: int) -> Iterator[Result]:
    """The results of all pieces in their order, computed a few ahead."""
    with ThreadPoolExecutor(num_threads) as pool:
        ahead: deque[Future[Result]] = deque()
        for piece in pieces:
            ahead.append(pool.submit(task, piece))
            if len(ahead) > 2 * num_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


@contextmanager
def _written(target: Path) -> Iterator[FileIO]:
    """Open a file beside `target` for writing, which takes its place at the end. Raises CheckpointError where the
    system refuses."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb", buffering=0) as file:
            yield file
        partial.replace(target)
    except OSError as error:
        raise CheckpointError(
            f"{target}: cannot be written ({error.strerror or error}); it must be. Check space and permissions."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
