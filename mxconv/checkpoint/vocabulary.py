"""Whether two models speak the same tokens. Matrices may be padded to more rows than there are tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import parse_json_object, read_json_object
from mxconv.checkpoint.tokenizer_files import TOKENIZER_FILE, read_tokenizer_json
from mxconv.checkpoint.tokenizer_settings import TokenizerSettings
from mxconv.errors import CheckpointError

# what decides which text a token id is; padding and truncation are settings of a program
PARTS = ("model", "added_tokens", "normalizer", "pre_tokenizer")


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokens."""

    tokenizer: list[Any] | None  # what a tokenizer.json is made of; None where there is none
    num_tokens: int  # one more than the largest id; 0 where there is no tokenizer
    vocab_size: int | None  # rows of the model's matrices, padding included; None where config.json names none

    @classmethod
    def of_folder(cls, root: Path, derived: Mapping[str, bytes] | None = None) -> "Vocabulary":
        """Read tokenizer.json, or what tokenizer.model stands for, and config.json.

        Args:
            root: the model's folder.
            derived: these files of a model that is a GGUF file, which has none in its folder.

        Raises:
            CheckpointError: one of them is no JSON object, a token id is none, or the tokenizer.model cannot be read.
        """
        tokenizer, num_tokens = None, 0
        path = root / TOKENIZER_FILE
        if (members := _members(path, derived)) is not None:
            tokenizer = [members.get(key) for key in PARTS]
            tokens = _tokens(path, members)
            num_tokens = 1 + max((number for _, number in tokens), default=-1)
        size = (_members(root / "config.json", derived) or {}).get("vocab_size")
        if tokenizer is not None and not derived and type(size) is int:
            known = {text for text, _ in tokens if isinstance(text, str)}
            lacking = [text for text in TokenizerSettings.read(root).every if text not in known]
            lacking = lacking[: max(size - num_tokens, 0)]
            tokenizer, num_tokens = [*tokenizer, lacking], num_tokens + len(lacking)
        return cls(tokenizer, num_tokens, size if type(size) is int else None)

    def equals(self, other: "Vocabulary") -> bool:
        """Whether every token id stands for the same text in both; padding does not count."""
        return self.tokenizer == other.tokenizer


def _members(path: Path, derived: Mapping[str, bytes] | None) -> dict[str, Any] | None:
    """A file's JSON object; None where there is no such file."""
    if derived:
        raw = derived.get(path.name)
    elif path.name == TOKENIZER_FILE:
        raw = read_tokenizer_json(path.parent)
    else:
        return read_json_object(path, unique_keys=False) if path.is_file() else None
    return None if raw is None else parse_json_object(raw, str(path), unique_keys=False)


def _tokens(path: Path, members: dict[str, Any]) -> list[tuple[Any, int]]:
    """Texts and ids, those of added tokens last."""
    model, added = members.get("model"), members.get("added_tokens") or []
    entries = model.get("vocab") if isinstance(model, dict) else None
    tokens: list[tuple[Any, Any]] = []
    if isinstance(entries, dict):
        tokens += entries.items()
    elif isinstance(entries, list):  # of Unigram, with scores: numbered by place
        tokens += [(entry[0] if isinstance(entry, list) and entry else None, i) for i, entry in enumerate(entries)]
    if isinstance(added, list):
        tokens += [(token.get("content"), token.get("id")) for token in added if isinstance(token, dict)]
    if bad := [number for _, number in tokens if type(number) is not int or number < 0]:
        raise CheckpointError(f"{path}: token id {bad[0]!r}; a whole number is required. Copy the file anew.")
    return tokens
