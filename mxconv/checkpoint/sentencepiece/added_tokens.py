"""Tokens that text may spell out: of a tokenizer.model, and of the JSON files beside it."""

from pathlib import Path
from typing import Any

from mxconv.checkpoint.gguf.token_types import TokenType
from mxconv.checkpoint.json_file import read_json_object
from mxconv.checkpoint.sentencepiece.model_file import REMEDY, SentencePieceModel
from mxconv.errors import CheckpointError

ADDED_FILE = "added_tokens.json"
SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def added_tokens(model: SentencePieceModel, config: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The member `added_tokens` of a tokenizer.json, by id.

    Args:
        model: its control pieces, its unknown one and those that a user defined are such tokens.
        config: tokenizer_config.json, whose `added_tokens_decoder` has the last word.
        folder: where an added_tokens.json may lie, of older checkpoints.

    Raises:
        CheckpointError: an id or a text is none.
    """
    tokens = {
        number: _token(piece.text, number, {"special": piece.type in SPECIAL})
        for number, piece in enumerate(model.pieces)
        if piece.type in (*SPECIAL, TokenType.USER_DEFINED)
    }
    path = folder / ADDED_FILE
    for text, token_id in (read_json_object(path, unique_keys=False) if path.is_file() else {}).items():
        number = _id(token_id, str(path), text)
        tokens[number] = _token(text, number, {"special": number in tokens and tokens[number]["special"]})
    decoder = config.get("added_tokens_decoder") or {}
    name = f"{folder / 'tokenizer_config.json'}: added_tokens_decoder"
    if not isinstance(decoder, dict):
        raise CheckpointError(f"{name} is no object; tokens by id are required. {REMEDY}")
    for key, entry in decoder.items():
        number = _id(int(key) if key.isascii() and key.isdigit() else key, name, key)
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content:
            raise CheckpointError(f"{name} has {str(entry)[:80]} under {key}; content is required. {REMEDY}")
        tokens[number] = _token(content, number, {flag: entry.get(flag) is True for flag in FLAGS})
    return [tokens[number] for number in sorted(tokens)]


def _token(text: str, number: int, flags: dict[str, bool]) -> dict[str, Any]:
    return {"id": number, "content": text, **dict.fromkeys(FLAGS, False), **flags}


def _id(value: object, name: str, text: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise CheckpointError(f"{name}: {text[:80]!r} has id {str(value)[:80]!r}; a whole number is required. {REMEDY}")
    return value
