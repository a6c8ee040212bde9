"""What the vocabularies of GGUF files are in a tokenizer.json, by their kind.

A `gpt2` vocabulary has the merges and the name of a rule that cuts text. A `llama` vocabulary has scores: every way to
split a token into two others becomes a merge, best score first, which is how llama.cpp joins neighbours. A `gemma4`
vocabulary has merges too, and spaces written as `SPACE`.
"""

from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from mxconv.checkpoint.gguf.pre_tokenizers import IGNORE_MERGES, PRE_TOKENIZERS, pre_tokenizer_json
from mxconv.checkpoint.gguf.token_types import NO_MERGE_SCORE, SPACE, TokenType
from mxconv.checkpoint.sentencepiece.merges import merges_by_score
from mxconv.errors import CheckpointError

COMPOSED = ("qwen2", "deepseek-r1-qwen", "qwen35")  # published tokenizers with these names compose characters first
MAX_TOKEN_LENGTH = 1024  # characters of a token that is split into merges
REMEDY = "Take tokenizer.json from the original checkpoint, and convert that."
Kind = Callable[[Mapping[str, Any], list[str], list[int], Path], dict[str, Any]]


def _byte_level(values: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> dict[str, Any]:
    name = values.get("tokenizer.ggml.pre")
    pre_tokenizer = pre_tokenizer_json(name) if isinstance(name, str) else None
    if pre_tokenizer is None:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.pre is {str(name)[:80]!r}; one of {', '.join(PRE_TOKENIZERS)} is "
            f"required. {REMEDY}"
        )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "normalizer": {"type": "NFC"} if name in COMPOSED else None,
        "pre_tokenizer": pre_tokenizer,
        "decoder": byte_level,
        "model": _model(
            _vocabulary(tokens, types),
            _listed_merges(values, path),
            ignore_merges=name in IGNORE_MERGES,
        ),
    }


def _listed_merges(values: Mapping[str, Any], path: Path) -> list[list[str]]:
    merges = values.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(merge, str) and " " in merge[1:] for merge in merges):
        raise CheckpointError(f"{path}: tokenizer.ggml.merges is no list of pairs; one is required. {REMEDY}")
    return [list(_halves(merge)) for merge in merges]


def _halves(merge: str) -> tuple[str, str]:
    space = merge.index(" ", 1)  # a token may be a space, but not an empty text
    return merge[:space], merge[space + 1 :]


def _sentence_piece(values: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> dict[str, Any]:
    scores = values.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(isinstance(s, float) for s in scores):
        raise CheckpointError(
            f"{path}: tokenizer.ggml.scores is no list of {len(tokens)} numbers; one a token is required. {REMEDY}"
        )
    merges = _merges(tokens, types, scores, path)
    return _spaced(values, tokens, types, merges, values.get("tokenizer.ggml.add_space_prefix", True))


def _gemma4(values: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> dict[str, Any]:
    return _spaced(values, tokens, types, _listed_merges(values, path), prefix=False)


def _spaced(
    values: Mapping[str, Any], tokens: list[str], types: list[int], merges: list[list[str]], prefix: object
) -> dict[str, Any]:
    """BPE over characters, in which a space is written as `SPACE`."""
    unknown = values.get("tokenizer.ggml.unknown_token_id")
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*([{"type": "Prepend", "prepend": SPACE}] if prefix else []), replace],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": _model(
            _vocabulary(tokens, types),
            merges,
            unk_token=tokens[unknown] if type(unknown) is int and 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=TokenType.BYTE in types,
        ),
    }


def _merges(tokens: list[str], types: list[int], scores: list[float], path: Path) -> list[list[str]]:
    """Of the normal tokens, by score, and of those that a user defined and merges make, as runs of Gemma's spaces."""
    made: dict[int, float] = {TokenType.NORMAL: -inf, TokenType.USER_DEFINED: NO_MERGE_SCORE}
    ids = {text: token_id for token_id, text in enumerate(tokens) if scores[token_id] > made.get(types[token_id], inf)}
    for text, token_id in ids.items():
        if len(text) > MAX_TOKEN_LENGTH:
            raise CheckpointError(
                f"{path}: token {token_id} has {len(text):,} characters; at most {MAX_TOKEN_LENGTH} are "
                f"allowed. {REMEDY}"
            )
    return merges_by_score(ids, scores)


def _vocabulary(tokens: list[str], types: list[int]) -> dict[str, int]:
    return {text: token_id for token_id, text in enumerate(tokens) if types[token_id] != TokenType.UNUSED}


def _model(vocabulary: dict[str, int], merges: list[list[str]], **changes: Any) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return model | changes | {"vocab": vocabulary, "merges": merges}


# `tokenizer.ggml.model`, and the members of a tokenizer.json that follow from it
KINDS: dict[str, Kind] = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _gemma4}
