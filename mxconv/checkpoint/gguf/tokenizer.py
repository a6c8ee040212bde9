"""The tokenizer files that a GGUF vocabulary stands for.

A `gpt2` vocabulary has the merges and the name of a rule that cuts text. A `llama` vocabulary has scores: every way to
split a token into two others becomes a merge, best score first, which is how llama.cpp joins neighbours.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxconv.checkpoint.gguf.config import special_token_ids
from mxconv.checkpoint.gguf.pre_tokenizers import PRE_TOKENIZERS, pre_tokenizer_json
from mxconv.checkpoint.gguf.token_types import SPACE, TokenType
from mxconv.checkpoint.sentencepiece.merges import merges_by_score
from mxconv.errors import CheckpointError

MAX_TOKEN_LENGTH = 1024  # characters of a token that is split into merges
BOS_BY_DEFAULT = ("llama-bpe", "tekken")  # of gpt2 vocabularies, where the file does not say
IGNORE_MERGES = ("llama-bpe", "tekken")
_REMEDY = "Take tokenizer.json from the original checkpoint, and convert that."


def derive_tokenizer(values: Mapping[str, Any], path: Path) -> dict[str, bytes]:
    """File names and contents: tokenizer.json, tokenizer_config.json, generation_config.json.

    Args:
        values: the file's keys.
        path: for messages.

    Returns:
        Nothing where the file has no vocabulary.

    Raises:
        CheckpointError: the vocabulary contradicts itself, or is of a kind that mxconv does not know.
    """
    model = values.get("tokenizer.ggml.model")
    if model in (None, "none", "no_vocab"):
        return {}
    tokens, types = _tokens(values, path)
    members = _byte_level(values, tokens, types, path) if model == "gpt2" else None
    if model == "llama":
        members = _sentence_piece(values, tokens, types, path)
    if members is None:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.model is {str(model)[:80]!r}; gpt2 or llama is required. {_REMEDY}"
        )
    tokenizer = {"version": "1.0", "truncation": None, "padding": None} | members
    tokenizer["added_tokens"] = _added_tokens(tokens, types)
    tokenizer["post_processor"] = _template(values, tokens, path)
    _check(tokenizer, path)
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=1).encode(),
        "tokenizer_config.json": json.dumps(_settings(values, tokens), ensure_ascii=False, indent=1).encode(),
        "generation_config.json": json.dumps(special_token_ids(values)).encode(),
    }


def _tokens(values: Mapping[str, Any], path: Path) -> tuple[list[str], list[int]]:
    tokens = values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(f"{path}: tokenizer.ggml.tokens is no list of strings; one is required. {_REMEDY}")
    types = values.get("tokenizer.ggml.token_type", [TokenType.NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens) or not all(type(kind) is int for kind in types):
        raise CheckpointError(
            f"{path}: tokenizer.ggml.token_type is no list of {len(tokens)} integers; one a token is required. "
            f"{_REMEDY}"
        )
    if len(set(tokens)) < len(tokens):
        first: dict[str, int] = {}
        twice = next(text for token_id, text in enumerate(tokens) if first.setdefault(text, token_id) != token_id)
        raise CheckpointError(f"{path}: token {twice[:80]!r} stands twice; texts must be unique. {_REMEDY}")
    return tokens, types


def _byte_level(values: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> dict[str, Any]:
    name = values.get("tokenizer.ggml.pre")
    pre_tokenizer = pre_tokenizer_json(name) if isinstance(name, str) else None
    if pre_tokenizer is None:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.pre is {str(name)[:80]!r}; one of {', '.join(PRE_TOKENIZERS)} is "
            f"required. {_REMEDY}"
        )
    merges = values.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(merge, str) and " " in merge[1:] for merge in merges):
        raise CheckpointError(f"{path}: tokenizer.ggml.merges is no list of pairs; one is required. {_REMEDY}")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "normalizer": {"type": "NFC"} if name in ("qwen2", "deepseek-r1-qwen") else None,
        "pre_tokenizer": pre_tokenizer,
        "decoder": byte_level,
        "model": _model(
            _vocabulary(tokens, types),
            [list(_halves(merge)) for merge in merges],
            ignore_merges=name in IGNORE_MERGES,
        ),
    }


def _halves(merge: str) -> tuple[str, str]:
    space = merge.index(" ", 1)  # a token may be a space, but not an empty text
    return merge[:space], merge[space + 1 :]


def _sentence_piece(values: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> dict[str, Any]:
    scores = values.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(isinstance(s, float) for s in scores):
        raise CheckpointError(
            f"{path}: tokenizer.ggml.scores is no list of {len(tokens)} numbers; one a token is required. {_REMEDY}"
        )
    prefix = values.get("tokenizer.ggml.add_space_prefix", True)
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
            _merges(tokens, types, scores, path),
            unk_token=tokens[unknown] if type(unknown) is int and 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=TokenType.BYTE in types,
        ),
    }


def _merges(tokens: list[str], types: list[int], scores: list[float], path: Path) -> list[list[str]]:
    """Of the normal tokens, by score."""
    ids = {text: token_id for token_id, text in enumerate(tokens) if types[token_id] == TokenType.NORMAL}
    for text, token_id in ids.items():
        if len(text) > MAX_TOKEN_LENGTH:
            raise CheckpointError(
                f"{path}: token {token_id} has {len(text):,} characters; at most {MAX_TOKEN_LENGTH} are "
                f"allowed. {_REMEDY}"
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


def _added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": token_id, "content": text, **common, "special": types[token_id] in special}
        for token_id, text in enumerate(tokens)
        if types[token_id] in (*special, TokenType.USER_DEFINED)
    ]


def _template(values: Mapping[str, Any], tokens: list[str], path: Path) -> dict[str, Any] | None:
    """The post-processor that puts the first and last token of a text."""
    is_llama = values.get("tokenizer.ggml.model") == "llama"
    adds_bos = values.get(
        "tokenizer.ggml.add_bos_token", is_llama or values.get("tokenizer.ggml.pre") in BOS_BY_DEFAULT
    )
    around = []
    for adds, key in ((adds_bos, "bos"), (values.get("tokenizer.ggml.add_eos_token", False), "eos")):
        token_id = values.get(f"tokenizer.ggml.{key}_token_id")
        if adds and (type(token_id) is not int or not 0 <= token_id < len(tokens)):
            raise CheckpointError(
                f"{path}: tokenizer.ggml.{key}_token_id is {str(token_id)[:80]}, of {len(tokens)} tokens; the id of "
                f"the token that every text gets is required. {_REMEDY}"
            )
        around.append(tokens[token_id] if adds and type(token_id) is int else None)
    if around == [None, None]:
        return None
    before, behind = ([{"SpecialToken": {"id": text, "type_id": 0}}] if text is not None else [] for text in around)
    single = [*before, {"Sequence": {"id": "A", "type_id": 0}}, *behind]
    second = [*before, {"Sequence": {"id": "B", "type_id": 0}}, *behind]
    used = {text: {"id": text, "ids": [tokens.index(text)], "tokens": [text]} for text in around if text is not None}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *second], "special_tokens": used}


def _settings(values: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        token_id = values.get(f"tokenizer.ggml.{key}_token_id")
        if type(token_id) is int and 0 <= token_id < len(tokens):
            settings[name] = tokens[token_id]
    if isinstance(template := values.get("tokenizer.chat_template"), str):
        settings["chat_template"] = template
    return settings


def _check(tokenizer: dict[str, Any], path: Path) -> None:
    """Let the library that will read it read it."""
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(json.dumps(tokenizer))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{path}: its vocabulary makes no tokenizer ({error}); one is required. {_REMEDY}"
        ) from error
