"""tokenizer.model files, written field by field."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

Entry = tuple[str, float, int]  # text, score, type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTES: list[Entry] = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
_WORDS = (  # one space apart: some hold other whitespace
    "▁t he in er re on at nd or en ▁a ▁w ▁the ▁and ing ▁in ▁on ▁of er▁ ▁▁ ▁▁▁▁ ▁▁▁ aa aaa aaaa na an ana nana "
    "日本 日本語 é ▁é \n\n \n\t ▁<s <s s> ▁x 1 12 123 ..."
)
WORDS = _WORDS.split(" ")
LLAMA_HEAD: list[Entry] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
GEMMA_HEAD: list[Entry] = [
    ("<pad>", 0.0, CONTROL),
    ("<eos>", 0.0, CONTROL),
    ("<bos>", 0.0, CONTROL),
    ("<unk>", 0.0, UNKNOWN),
    ("<mask>", 0.0, CONTROL),
    ("<start_of_turn>", 0.0, USER_DEFINED),
    ("<unused0>", 0.0, USER_DEFINED),
    *((text * count, 0.0, USER_DEFINED) for text in "\n▁" for count in range(2, 6)),
]


def learned(words: Sequence[str] = WORDS) -> list[Entry]:
    """Words, every beginning of each, and their characters; the longest beginnings are learned last, as BPE does."""
    parts = {word[:end]: None for word in words for end in range(2, len(word) + 1)}
    merged = sorted(parts, key=len)
    characters = dict.fromkeys("▁etaoinshrdlu<>\n" + "".join(words))
    return [(text, -float(rank), NORMAL) for rank, text in enumerate([*merged, *characters])]


def llama_pieces() -> list[Entry]:
    return [*LLAMA_HEAD, *BYTES, *learned()]


def gemma_pieces() -> list[Entry]:
    known = {text for text, *_ in GEMMA_HEAD}
    return [*GEMMA_HEAD, *BYTES, *(entry for entry in learned() if entry[0] not in known)]


def model_bytes(pieces: Sequence[Entry], trainer: dict[int, int], normalizer: dict[int, Any]) -> bytes:
    """A message ModelProto; numbers of fields in `trainer` and `normalizer`."""
    entries = (
        _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _field(3, kind) for text, score, kind in pieces
    )
    return b"".join(
        [
            *(_field(1, entry) for entry in entries),
            _field(2, b"".join(_field(number, value) for number, value in trainer.items())),
            _field(3, b"".join(_field(number, value) for number, value in normalizer.items())),
        ]
    )


def write_llama(folder: Path, pieces: Sequence[Entry] | None = None, **changes: Any) -> Path:
    """As Llama 2 has it: a space before a text, bytes for what has no piece."""
    _write(folder, pieces or llama_pieces(), **{"ids": (0, 1, 2), "prefix": 1} | changes)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    return folder


def write_gemma(folder: Path, pieces: Sequence[Entry] | None = None, **changes: Any) -> Path:
    """As Gemma has it: no space before a text, runs of whitespace that are tokens."""
    _write(folder, pieces or gemma_pieces(), **{"ids": (3, 2, 1), "prefix": 0} | changes)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    return folder


def _write(
    folder: Path,
    pieces: Sequence[Entry],
    *,
    ids: tuple[int, int, int],
    prefix: int,
    trainer: dict[int, int] | None = None,
    normalizer: dict[int, Any] | None = None,
) -> Path:
    pytest.importorskip("sentencepiece")  # whoever writes one reads it, which takes the extra
    folder.mkdir(exist_ok=True)
    specials = dict(zip((40, 41, 42), ids, strict=True))
    content = model_bytes(
        pieces, {3: 2, 35: 1, **specials, **(trainer or {})}, {3: prefix, 4: 0, 5: 1, **(normalizer or {})}
    )
    (folder / "tokenizer.model").write_bytes(content)
    return folder


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(value % (1 << 64))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
