"""Parts of a tokenizer.json that GGUF and SentencePiece vocabularies share: kinds of tokens, BPE, merges, templates."""

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxconv.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "▁"
NO_MERGE_SCORE = -1e6  # below every rank: of tokens that no merge makes


class TokenType(IntEnum):
    """As llama.cpp numbers them (`llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def merges_by_score(ids: Mapping[str, int], scores: Sequence[float]) -> list[list[str]]:
    """Every split of a token into two, best score first; of equal scores the lower id, of one token the shorter left.

    Args:
        ids: of the tokens that merging may make, and that it starts from.
        scores: by id.

    Source:
        `generate_merges` of transformers 5.23, which takes ids for ranks; there too the shorter left part comes first.
    """
    found = []
    for text, token_id in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                found.append((-scores[token_id], token_id, cut, [left, right]))
    return [pair for *_, pair in sorted(found)]


def bpe_model(vocab: Mapping[str, int], merges: list[list[str]], **changes: Any) -> dict[str, Any]:
    """The member `model`: BPE, with `changes` to the members that it has by default."""
    defaults = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return defaults | changes | {"vocab": vocab, "merges": merges}


def spaced_decoder(strips_prefix: bool) -> dict[str, Any]:
    """The member `decoder` of a vocabulary that writes a space as `SPACE`, and bytes without tokens one by one."""
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strips_prefix else []
    return {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}


def template(around: list[str | None], ids: Mapping[str, int]) -> dict[str, Any] | None:
    """The member `post_processor` that puts tokens around each text; None where it puts none.

    Args:
        around: the token before a text, and the one after it; None is none.
        ids: of these tokens.
    """
    texts = [text for text in around if text is not None]
    if not texts:
        return None
    before, after = ([{"SpecialToken": {"id": text, "type_id": 0}}] if text is not None else [] for text in around)
    single = [*before, {"Sequence": {"id": "A", "type_id": 0}}, *after]
    second = [*before, {"Sequence": {"id": "B", "type_id": 0}}, *after]
    used = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in texts}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *second], "special_tokens": used}


def check_tokenizer(members: dict[str, Any], path: Path, remedy: str) -> "Tokenizer":
    """Have the library that will read a tokenizer.json read it. Raises CheckpointError where it refuses."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(members))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{path}: its vocabulary makes no tokenizer ({error}); one is required. {remedy}"
        ) from error
