"""Which of llama.cpp's kinds of BPE makes the tokens of a tokenizer.json.

`gpt2` works on bytes and takes the merges as they are, with the name of the rule that cuts text beforehand. `llama`,
SentencePiece's, works on characters with bytes as fallback, and joins the two neighbours whose union has the highest
score: the same as merges where each way to make a token is one, side by side. `gemma4` works on characters too, takes
merges as they are, and cuts text at newlines.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mxconv.checkpoint.gguf.pre_tokenizers import CASE_OF_ASCII, flattened, pre_tokenizer_name
from mxconv.checkpoint.tokenizer_json import NO_MERGE_SCORE, SPACE
from mxconv.errors import ModelError

Model = Literal["gpt2", "llama", "gemma4"]
Merges = list[tuple[str, str]]


@dataclass(frozen=True)
class VocabularyKind:
    """A kind, and what it takes from the tokenizer."""

    model: Model
    pre_tokenizer: str
    merges: Merges
    adds_space_prefix: bool = False
    notes: tuple[str, ...] = ()


def vocabulary_kind(members: dict[str, Any], path: Path) -> VocabularyKind:
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


def token_scores(tokens: list[str], merges: Merges) -> list[float]:
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
                "llama.cpp puts a space before every text and behind special tokens, also before one that begins "
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
