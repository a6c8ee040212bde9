"""Texts to count, piece by piece: a file of any length in bounded memory."""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mxconv.checkpoint.regular_file import check_regular_file, open_file, parse_json_object
from mxconv.errors import ModelError
from mxconv.progress import Progress

PIECE_BYTES = 1 << 18
MAX_LINE_BYTES = 100_000_000  # of .jsonl; the limit of other JSON that mxconv reads


@dataclass(frozen=True)
class DocumentPiece:
    """A piece of a document."""

    text: str
    begins_document: bool


def read_documents(paths: Sequence[Path], stage: str, progress: Progress) -> Iterator[DocumentPiece]:
    """The text of files, one after another, as `read_pieces` gives it; `progress` is told the bytes read."""
    total, done = sum(check_regular_file(path) for path in paths), 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(stage, done, total)

    for path in paths:
        yield from read_pieces(path, count)


def read_pieces(path: Path, progress: Callable[[int], None]) -> Iterator[DocumentPiece]:
    """The text of a regular file, in order.

    A line of a .jsonl file is a document: its `text`, or else its `prompt`. Any other file is one document of UTF-8,
    cut into pieces after the ends of lines, or anywhere where lines are longer than 256 KiB. `progress` is called with
    the number of bytes read, and done with, since the last call.

    Raises:
        MxconvError: it cannot be read, is not UTF-8, or a line of a .jsonl file has no text.
    """
    return _read_lines(path, progress) if path.suffix == ".jsonl" else _read_text(path, progress)


def _read_lines(path: Path, progress: Callable[[int], None]) -> Iterator[DocumentPiece]:
    with open_file(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise ModelError(
                    f"{path}: line {number}: more than {MAX_LINE_BYTES:,} bytes; at most so many are read. "
                    "Split the line."
                )
            if line.strip():
                members = parse_json_object(line, f"{path}: line {number}", unique_keys=False)
                text = members.get("text", members.get("prompt"))
                if not isinstance(text, str):
                    raise ModelError(
                        f"{path}: line {number}: no `text` and no `prompt` in it; one that is text is required. "
                        "Add it, or give a file of plain text."
                    )
                yield DocumentPiece(text, begins_document=True)
            progress(len(line))


def _read_text(path: Path, progress: Callable[[int], None]) -> Iterator[DocumentPiece]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_file(path) as file:
        rest, num_decoded, is_first = "", 0, True
        while True:
            block = file.read(PIECE_BYTES)
            try:
                rest += decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                # the decoder may have kept the first bytes of a character from the block before
                place = num_decoded + len(block) - len(error.object) + error.start
                raise ModelError(
                    f"{path}: byte {place:,} is no UTF-8 ({error.reason}); text in UTF-8 is required. Convert the file."
                ) from error
            num_decoded += len(block)
            end = len(rest) if not block else rest.rfind("\n") + 1
            if end == 0 and len(rest) >= PIECE_BYTES:
                end = len(rest)
            if end:
                yield DocumentPiece(rest[:end], begins_document=is_first)
                rest, is_first = rest[end:], False
            progress(len(block))
            if not block:
                return
