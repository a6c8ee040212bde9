"""A model's tokenizer as GGUF has it: tokens by id, their kinds, and either merges or scores.

Which kind of BPE it is decides mxconv/interop/gguf/vocabulary_kind.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import parse_json_object, read_json_object
from mxconv.checkpoint.sentencepiece.derived_tokenizer import read_tokenizer_json
from mxconv.checkpoint.tokenizer_json import TokenType
from mxconv.errors import ModelError
from mxconv.interop.gguf.vocabulary_kind import Model, token_scores, vocabulary_kind
from mxconv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """What the keys `tokenizer.ggml.*` say."""

    model: Model
    pre_tokenizer: str
    tokens: list[str]
    types: list[int]
    merges: list[str] | None  # of gpt2 and gemma4
    scores: list[float] | None  # of llama
    unknown_id: int | None
    bos_id: int | None
    eos_id: int | None
    further_eos_ids: tuple[int, ...]
    adds_bos: bool
    adds_eos: bool
    adds_space_prefix: bool
    has_bytes: bool  # whether every text has tokens
    notes: tuple[str, ...]  # where llama.cpp's tokens differ


def read_vocabulary(folder: Path, num_rows: int) -> Vocabulary:
    """Read tokenizer.json and the ids of special tokens.

    Args:
        folder: of a package.
        num_rows: of the embedding; ids without a token are filled up.

    Raises:
        MxconvError: the tokenizer is missing, malformed, or of a kind that llama.cpp does not have.
    """
    tokenizer = Tokenizer.from_folder(folder)
    path = folder / "tokenizer.json"
    members = parse_json_object(read_tokenizer_json(folder) or b"", str(path), unique_keys=False)
    model = members["model"]
    if model.get("type") != "BPE":
        raise ModelError(
            f"{path}: a {model.get('type')} tokenizer; GGUF files of these architectures hold BPE. "
            "Export with --to safetensors, and convert it where that tokenizer is known."
        )
    kind = vocabulary_kind(members, path)
    tokens, types = _tokens(members, num_rows, path)
    adds_bos, adds_eos, bos_id, eos_id = _added_by_template(tokenizer)
    eos_ids = _eos_ids(folder, tokenizer, eos_id)
    unknown = model.get("unk_token")
    return Vocabulary(
        model=kind.model,
        pre_tokenizer=kind.pre_tokenizer,
        tokens=tokens,
        types=types,
        merges=None if kind.model == "llama" else [" ".join(merge) for merge in kind.merges],
        scores=token_scores(tokens, kind.merges) if kind.model == "llama" else None,
        unknown_id=tokens.index(unknown) if unknown in tokens else None,
        bos_id=bos_id if bos_id is not None else tokenizer.bos_token_id,
        eos_id=eos_ids[0] if eos_ids else None,
        further_eos_ids=eos_ids[1:],
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        adds_space_prefix=kind.adds_space_prefix,
        has_bytes=kind.model == "gpt2" or TokenType.BYTE in types,
        notes=kind.notes,
    )


def _tokens(members: dict[str, Any], num_rows: int, path: Path) -> tuple[list[str], list[int]]:
    """Texts and types by id."""
    model = members["model"]
    found = {token_id: (text, TokenType.NORMAL) for text, token_id in model["vocab"].items()}
    if model.get("byte_fallback"):
        for byte in range(256):
            text = f"<0x{byte:02X}>"
            if text in model["vocab"]:
                found[model["vocab"][text]] = text, TokenType.BYTE
    for added in members.get("added_tokens", []):
        found[added["id"]] = added["content"], TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    if (unknown := model.get("unk_token")) in model["vocab"]:
        found[model["vocab"][unknown]] = unknown, TokenType.UNKNOWN
    if max(found) >= num_rows:
        raise ModelError(
            f"{path}: token {found[max(found)][0]!r} has id {max(found)}; the embedding has {num_rows} rows, and "
            "llama.cpp requires as many tokens. Take the tokenizer that belongs to the weights."
        )
    filled = [found.get(token_id, (f"[PAD{token_id}]", TokenType.UNUSED)) for token_id in range(num_rows)]
    return [text for text, _ in filled], [int(kind) for _, kind in filled]


def _added_by_template(tokenizer: Tokenizer) -> tuple[bool, bool, int | None, int | None]:
    """What the post-processor puts before and behind a text: whether, and which tokens."""
    plain, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    for before, behind in ((0, 0), (1, 0), (0, 1), (1, 1)):
        if whole[before : len(whole) - behind] == plain and len(whole) == len(plain) + before + behind:
            return bool(before), bool(behind), whole[0] if before else None, whole[-1] if behind else None
    raise ModelError(
        f"{tokenizer.name}: it puts {len(whole) - len(plain)} special tokens around a text; GGUF has at most one "
        "before and one behind it. Export with --to safetensors."
    )


def _eos_ids(folder: Path, tokenizer: Tokenizer, appended: int | None) -> tuple[int, ...]:
    """Tokens that end a text, the one that tokenizer_config.json names first."""
    stops = sorted(tokenizer.eos_token_ids)
    path = folder / "tokenizer_config.json"
    named = read_json_object(path, unique_keys=False).get("eos_token") if path.is_file() else None
    text = named.get("content") if isinstance(named, dict) else named
    if isinstance(text, str):
        ids = tokenizer.encode(text, add_special_tokens=False)
        stops.sort(key=lambda token_id: [token_id] != ids)
    if appended is not None:
        stops = [appended, *(token_id for token_id in stops if token_id != appended)]
    return tuple(stops)
