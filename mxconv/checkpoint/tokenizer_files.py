"""Files that a model's tokenizer is read from: tokenizer.json, else tokenizer.model, else vocab.json with merges.txt.

transformers converts a tokenizer.model, the file of SentencePiece (extra `sentencepiece`). What its converter does not
carry over exactly is refused here, by what SentencePiece's own messages say. vocab.json and merges.txt stand for
byte-level BPE, cut by the rule of their class. Two models speak the same tokens where these files say so.

Source:
    GPT2Tokenizer and Qwen2Tokenizer of transformers 5.24.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mxconv.checkpoint.folder import MODEL_FILE, TOKENIZER_FILE
from mxconv.checkpoint.regular_file import check_regular_file, open_file, parse_json_object, read_json_object
from mxconv.checkpoint.tokenizer_json import SPACE, TokenType, pre_tokenizer_json, template
from mxconv.checkpoint.tokenizer_settings import CONFIG_FILE, TokenizerSettings
from mxconv.errors import CheckpointError, install_line

MAX_FILE_BYTES = 1 << 26  # Gemma's, of 262,144 pieces, has 4.7 million
MAX_PIECE_CHARACTERS = 1024  # a piece is split in every place
WRITE_IT = "Write it with transformers, AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
REMEDY = "Take tokenizer.json from the model's source."
BPE = 2  # of `model_type`

# what transformers does not carry over, and what a message requires instead
_UNREAD: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (lambda m: not m.pieces, "no pieces", "a vocabulary of SentencePiece"),
    (lambda m: m.trainer_spec.model_type != BPE, "its kind is not BPE", "a vocabulary of merges"),
    (lambda m: bool(m.normalizer_spec.precompiled_charsmap), "a table of characters", "text as it is"),
    (lambda m: m.normalizer_spec.remove_extra_whitespaces, "remove_extra_whitespaces", "whitespace as it is"),
    (lambda m: not m.normalizer_spec.escape_whitespaces, "no escape_whitespaces", f"spaces written as {SPACE}"),
    (lambda m: m.trainer_spec.treat_whitespace_as_suffix, "treat_whitespace_as_suffix", "whitespace before words"),
    (lambda m: _of_type(m, TokenType.UNUSED) != [], "pieces that are unused", "a use of each piece"),
    (
        lambda m: m.trainer_spec.byte_fallback and len(_of_type(m, TokenType.BYTE)) != 256,
        "byte_fallback without a piece of each byte",
        "256 of them",
    ),
    (
        lambda m: any(not 0 < len(piece.piece) <= MAX_PIECE_CHARACTERS for piece in m.pieces),
        "a piece without text, or of a long one",
        f"1 to {MAX_PIECE_CHARACTERS} characters",
    ),
    (lambda m: len({piece.piece for piece in m.pieces}) < len(m.pieces), "a piece that occurs twice", "one of a text"),
    (lambda m: not _falling(_of_type(m, TokenType.NORMAL)), "scores that rise", "those of merges in their order"),
)


def read_tokenizer_json(folder: Path) -> bytes | None:
    """The content of a tokenizer.json, derived where there is only a tokenizer.model or a vocab.json with merges.txt;
    None where there is none. Raises CheckpointError where a file is damaged, or of a kind that mxconv does not read."""
    if (path := folder / TOKENIZER_FILE).is_file():
        check_regular_file(path)
        with open_file(path) as file:
            return file.read()
    return derive_from_pieces(folder) if (folder / MODEL_FILE).is_file() else derive_from_merges(folder)


def derive_from_pieces(folder: Path) -> bytes:
    """The content of a tokenizer.json, of a folder with tokenizer.model.

    Raises:
        CheckpointError: the extra is missing, the file is damaged, or it is of a kind that is not carried over exactly.
    """
    path = folder / MODEL_FILE
    if (num_bytes := check_regular_file(path)) > MAX_FILE_BYTES:
        raise CheckpointError(f"{path}: {num_bytes:,} bytes; at most {MAX_FILE_BYTES:,} are read. {REMEDY}")
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece.sentencepiece_model_pb2 import ModelProto
        from transformers import AutoTokenizer
    except ImportError as error:
        raise CheckpointError(
            f"{path}: a file of SentencePiece, and {error.name} is not installed; tokenizer.json or the extra "
            f"`sentencepiece` is required. {install_line('sentencepiece')} Or: {WRITE_IT}"
        ) from error
    with open_file(path) as file:
        raw = file.read(MAX_FILE_BYTES)
    try:
        model = ModelProto.FromString(raw)
    except DecodeError as error:
        raise CheckpointError(
            f"{path}: no message of SentencePiece ({error}); a whole one is required. Copy the file anew. Or: {REMEDY}"
        ) from error
    for is_so, found, required in _UNREAD:
        if is_so(model):
            raise CheckpointError(f"{path}: {found}; {required} is required. {REMEDY}")
    try:
        theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        backend = theirs.backend_tokenizer
        lost = [piece.piece for number, piece in enumerate(model.pieces) if backend.token_to_id(piece.piece) != number]
        derived = str(backend.to_str())
    except Exception as error:  # whatever a stranger's files make of the library
        raise CheckpointError(
            f"{path}: transformers makes no tokenizer of it ({type(error).__name__}: {' '.join(str(error).split())}); "
            f"one is required. {REMEDY}"
        ) from error
    named = {str(token) for token in theirs.added_tokens_decoder.values()}
    if len(lost) > len(named):  # tokenizer_config.json may give pieces other names
        raise CheckpointError(
            f"{path}: {len(lost)} pieces have other ids in transformers' tokenizer, first {lost[0][:80]!r}; each piece "
            f"is required. {REMEDY}"
        )
    return derived.encode()


def _of_type(model: Any, kind: TokenType) -> list[Any]:
    return [piece for piece in model.pieces if piece.type == kind]


def _falling(pieces: list[Any]) -> bool:
    return all(before.score >= after.score for before, after in pairwise(pieces))


VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
CUTS = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}  # the rule's name in llama.cpp
END = "<|endoftext|>"  # special in both classes


def derive_from_merges(folder: Path) -> bytes | None:
    """The content of a tokenizer.json; None where a file is missing or the class is another. Raises CheckpointError
    where the files are damaged."""
    files = [folder / VOCABULARY_FILE, folder / MERGES_FILE]
    config = read_json_object(path, unique_keys=False) if (path := folder / CONFIG_FILE).is_file() else {}
    cut = CUTS.get(str(config.get("tokenizer_class")).removesuffix("Fast"))
    if cut is None or not all(file.is_file() for file in files):
        return None
    from tokenizers import Tokenizer, decoders, models, normalizers

    for file in files:
        check_regular_file(file)
    try:
        backend = Tokenizer(models.BPE.from_file(*map(str, files)))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{files[0]}: makes no tokenizer with {MERGES_FILE} ({error}); tokens by text, and pairs of them, are "
            "required. Take the files that belong to the weights."
        ) from error
    backend.decoder = decoders.ByteLevel()
    if cut == "qwen2":
        backend.normalizer = normalizers.NFC()
    settings = TokenizerSettings.read(folder)
    settings.complete(backend)
    backend.add_special_tokens([END] if backend.token_to_id(END) is not None else [])
    around = [
        settings.texts.get(f"{k}_token") if config.get(f"add_{k}_token") is True else None for k in ("bos", "eos")
    ]
    ids = {text: backend.token_to_id(text) or 0 for text in around if text is not None}
    members = {"pre_tokenizer": pre_tokenizer_json(cut), "post_processor": template(around, ids)}
    return json.dumps(json.loads(backend.to_str()) | members, ensure_ascii=False).encode()


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
        if tokenizer is not None:
            lacking: list[str] = []  # a GGUF file's vocabulary lacks none
            if not derived and type(size) is int:
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
