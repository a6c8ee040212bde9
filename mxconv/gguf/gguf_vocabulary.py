"""A model's tokenizer as GGUF has it: tokens by id, their kinds, and either merges or scores.

llama.cpp has three kinds of BPE. `gpt2` works on bytes and takes the merges as they are, with the name of the rule that
cuts text beforehand. `llama`, SentencePiece's, works on characters with bytes as fallback, and joins the two neighbours
whose union has the highest score: the same as merges where each way to make a token is one, side by side. `gemma4`
works on characters too, takes merges as they are, and cuts text at newlines.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mxconv.checkpoint.tokenizer_json import (
    CASE_OF_ASCII,
    NO_MERGE_SCORE,
    SPACE,
    TokenType,
    flattened,
    pre_tokenizer_name,
)
from mxconv.checkpoint.tokenizer_settings import TokenizerSettings
from mxconv.errors import ModelError
from mxconv.text.tokenizer import TURN_ENDS, Tokenizer

if TYPE_CHECKING:
    from gguf import GGUFWriter

TokenizerModel = Literal["gpt2", "llama", "gemma4"]
Merges = list[tuple[str, str]]
NUM_END_KEYS = 3  # one each for the end of a text, of a turn and of a message; llama.cpp stops at all of them


@dataclass(frozen=True)
class GgufVocabulary:
    """The values of the keys `tokenizer.ggml.*`."""

    model: TokenizerModel
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

    def add_to(self, writer: "GGUFWriter") -> None:
        """Hand every key to a writer."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre_tokenizer)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        ends = (self.eos_id, *self.further_eos_ids)[:NUM_END_KEYS]
        keys = [
            (writer.add_unk_token_id, self.unknown_id),
            (writer.add_bos_token_id, self.bos_id),
            *zip((writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id), ends, strict=False),
        ]
        for add, token_id in keys:
            if token_id is not None:
                add(token_id)
        writer.add_add_bos_token(self.adds_bos)
        writer.add_add_eos_token(self.adds_eos)
        writer.add_add_space_prefix(self.adds_space_prefix)


def read_vocabulary(folder: Path, num_rows: int) -> GgufVocabulary:
    """Read the tokenizer and the ids of special tokens.

    Args:
        folder: of a package.
        num_rows: of the embedding; ids without a token are filled up.

    Raises:
        MxconvError: the tokenizer is missing, malformed, or of a kind that llama.cpp does not have.
    """
    tokenizer = Tokenizer.from_folder(folder)
    path = folder / "tokenizer.json"
    members = json.loads(tokenizer.to_json())
    model = members["model"]
    if model.get("type") != "BPE":
        raise ModelError(
            f"{path}: a {model.get('type')} tokenizer; GGUF files of these architectures hold BPE. "
            "Export with --to safetensors, and convert it where that tokenizer is known."
        )
    kind = _kind(members, path)
    settings = TokenizerSettings.read(folder)
    # what tokenizer_config.json names without a row in the embedding, a <pad> most often
    declared, added = set(settings.every), members.get("added_tokens", [])
    beyond = [token["content"] for token in added if token["id"] >= num_rows and token["content"] in declared]
    members["added_tokens"] = [token for token in added if token["content"] not in beyond]
    notes = [f"the embedding has no row for {', '.join(beyond)}: left out."] if beyond else []
    tokens, types = _tokens(members, num_rows, path)
    adds_bos, adds_eos, bos_id, eos_id = _added_by_template(tokenizer)
    eos_ids = _eos_ids(tokenizer, settings.texts.get("eos_token", ""), eos_id, num_rows)
    if lost := [tokens[token_id] for token_id in eos_ids[NUM_END_KEYS:] if tokens[token_id] not in TURN_ENDS]:
        notes.append(f"GGUF has room for {NUM_END_KEYS} ends of a text: llama.cpp goes on after {', '.join(lost)}.")
    bos_id = tokenizer.bos_token_id if bos_id is None else bos_id
    unknown = model.get("unk_token")
    return GgufVocabulary(
        model=kind.model,
        pre_tokenizer=kind.pre_tokenizer,
        tokens=tokens,
        types=types,
        merges=None if kind.model == "llama" else [" ".join(merge) for merge in kind.merges],
        scores=_token_scores(tokens, kind.merges) if kind.model == "llama" else None,
        unknown_id=tokens.index(unknown) if unknown in tokens else None,
        bos_id=bos_id if bos_id is not None and bos_id < num_rows else None,
        eos_id=eos_ids[0] if eos_ids else None,
        further_eos_ids=eos_ids[1:],
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        adds_space_prefix=kind.adds_space_prefix,
        has_bytes=kind.model == "gpt2" or TokenType.BYTE in types,
        notes=(*notes, *kind.notes),
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
    """Whether the post-processor puts a token before and after a text, and which ones."""
    plain, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    for before, after in ((0, 0), (1, 0), (0, 1), (1, 1)):
        if whole[before : len(whole) - after] == plain and len(whole) == len(plain) + before + after:
            return bool(before), bool(after), whole[0] if before else None, whole[-1] if after else None
    raise ModelError(
        f"{tokenizer.name}: it puts {len(whole) - len(plain)} special tokens around a text; GGUF has at most one "
        "before and one after it. Export with --to safetensors."
    )


def _eos_ids(tokenizer: Tokenizer, name: str, appended: int | None, num_rows: int) -> tuple[int, ...]:
    """Tokens that end a text: the one that is put after a text, the tokenizer's, which has a name, then those that
    llama.cpp would not know by theirs."""
    named = tokenizer.special_token_id(name)
    known = {token_id for token_id in tokenizer.eos_token_ids if tokenizer.name_of(token_id) in TURN_ENDS}
    ends = {token_id for token_id in tokenizer.eos_token_ids if token_id < num_rows}
    if appended is not None:
        ends.add(appended)
    return tuple(sorted(ends, key=lambda end: (end != appended, end != named, end in known, end)))


@dataclass(frozen=True)
class VocabularyKind:
    """A kind, and what it takes from the tokenizer."""

    model: TokenizerModel
    pre_tokenizer: str
    merges: Merges
    adds_space_prefix: bool = False
    notes: tuple[str, ...] = ()


def _kind(members: dict[str, Any], path: Path) -> VocabularyKind:
    """The kind whose tokens are those of a tokenizer.json.

    Args:
        members: of the file; its model is BPE.
        path: for messages.

    Raises:
        ModelError: llama.cpp has no such kind.
    """
    merges = [_merge(merge) for merge in members["model"]["merges"]]
    steps = flattened(members.get("pre_tokenizer"), "pretokenizers")
    normalizers = flattened(members.get("normalizer"), "normalizers")
    if any(step.get("type") == "ByteLevel" for step in steps):
        return _byte_level(members, merges, normalizers, path)
    replaces = any(part.get("type") == "Replace" and part.get("content") == SPACE for part in normalizers)
    if replaces or any(step.get("type") == "Metaspace" for step in steps):
        return _spaced(members, merges, steps, normalizers, path)
    raise ModelError(
        f"{path}: a BPE tokenizer that neither works on bytes (ByteLevel) nor writes spaces as {SPACE}; GGUF has these "
        "two kinds. Export with --to safetensors."
    )


def _token_scores(tokens: list[str], merges: Merges) -> list[float]:
    """By id: the rank of the first merge that makes a token, negated."""
    ranks: dict[str, float] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, -float(rank))
    return [ranks.get(text, NO_MERGE_SCORE) for text in tokens]


def _byte_level(
    members: dict[str, Any], merges: Merges, normalizers: list[dict[str, Any]], path: Path
) -> VocabularyKind:
    name = pre_tokenizer_name(members.get("pre_tokenizer"), members["model"].get("ignore_merges") is True)
    if name is None:
        raise ModelError(
            f"{path}: its pre_tokenizer is {str(members['pre_tokenizer'])[:200]}; one whose name in llama.cpp "
            "mxconv knows is required. Export with --to safetensors and use llama.cpp's own converter."
        )
    if other := [part for part in normalizers if part.get("type") != "NFC"]:
        raise ModelError(
            f"{path}: its normalizer has {str(other[0])[:80]}; llama.cpp changes no text before it cuts it. Export "
            "with --to safetensors."
        )
    if not merges:
        raise ModelError(
            f"{path}: a BPE tokenizer without merges; llama.cpp loads no vocabulary without one. Export with --to "
            "safetensors."
        )
    notes = []
    if normalizers:
        notes.append("llama.cpp does not compose characters (NFC): text with combining marks may get other tokens.")
    if name in CASE_OF_ASCII:
        notes.append(
            f"llama.cpp's {name} knows the case of ASCII letters alone, and takes no combining marks into words: text "
            "with other capitals, or with marks, may get other tokens."
        )
    return VocabularyKind("gpt2", name, merges, notes=tuple(notes))


def _spaced(
    members: dict[str, Any],
    merges: Merges,
    steps: list[dict[str, Any]],
    normalizers: list[dict[str, Any]],
    path: Path,
) -> VocabularyKind:
    prefix = any(part.get("type") == "Prepend" and part.get("prepend") == SPACE for part in normalizers)
    metaspace = next((step for step in steps if step.get("type") == "Metaspace"), {})
    if metaspace:
        prefix |= metaspace.get("prepend_scheme", "always") != "never"
    if _are_scores(members, merges):
        notes: tuple[str, ...] = ()
        if prefix and metaspace:
            notes = (
                "llama.cpp puts a space before every text and after special tokens, also before one that begins "
                "with a space: there its tokens differ.",
            )
        return VocabularyKind("llama", "default", merges, adds_space_prefix=prefix, notes=notes)
    across = next((text for text in members["model"]["vocab"] if "\n" in text and text.strip("\n")), None)
    if prefix or across is not None:
        found = "a space before a text" if prefix else f"the token {across!r}, with a newline among others"
        raise ModelError(
            f"{path}: its merges leave out ways to make a token, which llama.cpp's scores cannot say, and it has "
            f"{found}, which its gemma4 vocabulary cannot have; one of both is required. Export with --to safetensors."
        )
    return VocabularyKind("gemma4", "gemma4", merges)


def _are_scores(members: dict[str, Any], merges: Merges) -> bool:
    """Whether merges say no more than an order of tokens: each way to make one is listed, side by side."""
    vocabulary = members["model"]["vocab"]
    made = [left + right for left, right in merges]
    blocks = sum(text != before for text, before in zip(made, [None, *made], strict=False))
    if blocks != len(set(made)):
        return False
    listed = set(merges)
    added = {token["content"] for token in members.get("added_tokens", [])}
    return all(
        (text[:cut], text[cut:]) in listed
        for text in vocabulary.keys() - added
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    )


def _merge(merge: Any) -> tuple[str, str]:
    """A pair: the newer files list two strings, the older ones write them with a space between."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right
