"""Reading a tokenizer.model: pieces, their kinds and scores, and how text is prepared.

Source:
    `sentencepiece_model.proto` of SentencePiece: numbers of fields and defaults of those that a file leaves out.
"""

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.checkpoint.tokenizer_json import TokenType
from mxconv.errors import CheckpointError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10


def fields(message: memoryview, name: str) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of every field of a message, in the order of the file; lengths are checked beforehand.

    The value of a varint is an integer; of the others it is bytes: 8, 4, or as many as the field says.

    Raises:
        CheckpointError: the bytes are no message.
    """
    place = 0
    while place < len(message):
        key, begin = _varint(message, place, name)
        kind = key & 7
        if kind == VARINT:
            value, place = _varint(message, begin, name)
            yield key >> 3, value
            continue
        if kind == LENGTH:
            num_bytes, begin = _varint(message, begin, name)
        elif kind in (FIXED32, FIXED64):
            num_bytes = 4 if kind == FIXED32 else 8
        else:
            raise _damaged(name, place, f"a field of wire type {kind}")
        if num_bytes > len(message) - begin:
            raise _damaged(name, place, f"a field of {num_bytes:,} bytes, of which {len(message) - begin:,} are there")
        place = begin + num_bytes
        yield key >> 3, message[begin:place]


def _varint(message: memoryview, place: int, name: str) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where the next field goes on."""
    value = 0
    for count in range(MAX_VARINT_BYTES):
        if place + count >= len(message):
            raise _damaged(name, place, "a number that is cut off")
        byte = message[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise _damaged(name, place, f"a number of more than {MAX_VARINT_BYTES} bytes")


def _damaged(name: str, place: int, found: str) -> CheckpointError:
    return CheckpointError(
        f"{name}: {found} at byte {place:,} of a message; a whole Protocol Buffers message is required. "
        "Copy the file anew."
    )


MODEL_FILE = "tokenizer.model"
MAX_FILE_BYTES = 1 << 26  # Gemma's, of 262,144 pieces, has 4.7 million
MAX_PIECES = 1 << 21
MAX_PIECE_CHARACTERS = 1024  # a piece is split in every place
REMEDY = (
    "Take tokenizer.json from the model's source, or write one with transformers: "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
)
UNIGRAM, BPE = 1, 2
ALGORITHMS = {UNIGRAM: "unigram", BPE: "BPE", 3: "word", 4: "char"}
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


@dataclass(frozen=True)
class Piece:
    """One token; its id is its place."""

    text: str
    score: float
    type: TokenType


@dataclass(frozen=True)
class SentencePieceModel:
    """The fields that decide which tokens a text becomes, under their names in the file."""

    pieces: tuple[Piece, ...] = field(repr=False)
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    treat_whitespace_as_suffix: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True
    precompiled_charsmap: bytes = field(default=b"", repr=False)

    def text_of(self, token_id: int) -> str | None:
        """The text of a token; None for an id below zero, which means none."""
        return self.pieces[token_id].text if 0 <= token_id < len(self.pieces) else None


# numbers of fields in the messages TrainerSpec and NormalizerSpec
_TRAINER = {
    3: "model_type",
    24: "treat_whitespace_as_suffix",
    35: "byte_fallback",
    40: "unk_id",
    41: "bos_id",
    42: "eos_id",
}
_NORMALIZER = {2: "precompiled_charsmap", 3: "add_dummy_prefix", 4: "remove_extra_whitespaces", 5: "escape_whitespaces"}
_NUMBERS = ("model_type", "unk_id", "bos_id", "eos_id")


def read_model(path: Path) -> SentencePieceModel:
    """Read a tokenizer.model. Raises CheckpointError where it is too long, cut off, no message of SentencePiece, or
    contradicts itself."""
    if (num_bytes := check_regular_file(path)) > MAX_FILE_BYTES:
        raise CheckpointError(f"{path}: {num_bytes:,} bytes long; at most {MAX_FILE_BYTES:,} are read. {REMEDY}")
    with open_file(path) as file:
        raw = file.read(MAX_FILE_BYTES)
    if _TIKTOKEN.match(raw):
        raise CheckpointError(
            f"{path}: a list of tiktoken, which lacks the rule that cuts text and the special tokens; a message of "
            f"SentencePiece is required. {REMEDY}"
        )
    pieces: list[Piece] = []
    settings: dict[str, int | bytes] = {}
    name = str(path)
    for number, value in fields(memoryview(raw), name):
        if number == 1 and isinstance(value, memoryview):
            if len(pieces) == MAX_PIECES:
                raise CheckpointError(f"{path}: more than {MAX_PIECES:,} pieces; fewer are required. {REMEDY}")
            pieces.append(_piece(value, len(pieces), path))
        elif number in (2, 3) and isinstance(value, memoryview):
            known = _TRAINER if number == 2 else _NORMALIZER
            settings |= {
                known[key]: bytes(each) if isinstance(each, memoryview) else _int32(each)
                for key, each in fields(value, name)
                if key in known
            }
        elif number == 5 and isinstance(value, memoryview) and any(key == 2 for key, _ in fields(value, name)):
            raise CheckpointError(f"{path}: text is changed back when it is decoded; none of it may be. {REMEDY}")
    if not pieces:
        raise CheckpointError(f"{path}: no pieces; a message of SentencePiece is required. {REMEDY}")
    model = SentencePieceModel(tuple(pieces), **_typed(settings, path))
    _check_special(model, path)
    return model


def _piece(message: memoryview, number: int, path: Path) -> Piece:
    raw, score, kind = b"", 0.0, 1
    for key, value in fields(message, str(path)):
        if key == 1 and isinstance(value, memoryview):
            raw = bytes(value)
        elif key == 2 and isinstance(value, memoryview) and len(value) == 4:
            (score,) = struct.unpack("<f", value)
        elif key == 3 and isinstance(value, int):
            kind = value
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > MAX_PIECE_CHARACTERS or not math.isfinite(score):
        raise CheckpointError(
            f"{path}: piece {number} is {raw[:40]!r} with score {score}; 1 to {MAX_PIECE_CHARACTERS} characters of "
            f"UTF-8 and a finite score are required. {REMEDY}"
        )
    if kind not in tuple(TokenType):
        raise CheckpointError(
            f"{path}: piece {number}, {text[:40]!r}, is of type {kind}; one of 1 to {max(TokenType)} is required. "
            f"{REMEDY}"
        )
    return Piece(text, score, TokenType(kind))


def _int32(value: int) -> int:
    """Negative numbers are written with 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _typed(settings: dict[str, int | bytes], path: Path) -> dict[str, Any]:
    typed: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, bytes) != (name == "precompiled_charsmap"):
            raise CheckpointError(f"{path}: {name} is of another wire type than it has; copy the file anew. {REMEDY}")
        typed[name] = value if isinstance(value, bytes) or name in _NUMBERS else bool(value)
    return typed


def _check_special(model: SentencePieceModel, path: Path) -> None:
    texts = [piece.text for piece in model.pieces]
    if len(set(texts)) < len(texts):
        first: dict[str, int] = {}
        twice = next(text for number, text in enumerate(texts) if first.setdefault(text, number) != number)
        raise CheckpointError(f"{path}: piece {twice[:80]!r} occurs twice; texts must be unique. {REMEDY}")
    for name in ("unk_id", "bos_id", "eos_id"):
        if (token := getattr(model, name)) >= len(texts):
            raise CheckpointError(
                f"{path}: {name} is {token}, of {len(texts)} pieces; the id of one, or -1, is required. {REMEDY}"
            )
