"""The tokenizer files that a GGUF vocabulary stands for, by its kind, `tokenizer.ggml.model`.

A `gpt2` vocabulary has the merges and the name of a rule that cuts text. A `llama` vocabulary has scores: every way to
split a token into two others becomes a merge, best score first, which is how llama.cpp joins neighbours. A `gemma4`
vocabulary has merges too, and spaces written as `SPACE`.
"""

import json
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from mxconv.checkpoint.tokenizer_json import (
    IGNORE_MERGES,
    NO_MERGE_SCORE,
    PRE_TOKENIZERS,
    SPACE,
    TokenType,
    bpe_model,
    check_tokenizer,
    merges_by_score,
    pre_tokenizer_json,
    spaced_decoder,
    template,
)
from mxconv.checkpoint.tokenizer_settings import LEFT_OUT
from mxconv.errors import CheckpointError

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
BOS_BY_DEFAULT = ("llama-bpe", "lfm2", "tekken")  # of gpt2 vocabularies, where the file does not say
COMPOSED = ("qwen2", "deepseek-r1-qwen", "qwen35")  # published tokenizers with these names compose characters first
MAX_TOKEN_LENGTH = 1024  # characters of a token that is split into merges
REMEDY = "Take tokenizer.json from the original checkpoint, and convert that."
Kind = Callable[[Mapping[str, Any], list[str], list[int], Path], dict[str, Any]]


def derive_tokenizer(values: Mapping[str, Any], path: Path) -> dict[str, bytes]:
    """The contents of tokenizer.json, tokenizer_config.json and generation_config.json.

    Weights need no tokenizer: of a kind that mxconv does not know, the first is left out and the second says why.

    Raises:
        CheckpointError: the vocabulary contradicts itself.
    """
    if (reason := left_out(values)) is not None:
        tokens = values.get("tokenizer.ggml.tokens")
        settings = _settings(values, tokens if isinstance(tokens, list) else []) | {LEFT_OUT: reason}
        return {"tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=1).encode()}
    tokens, types = _tokens(values, path)
    members = KINDS[values["tokenizer.ggml.model"]](values, tokens, types, path)
    tokenizer: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None} | members
    tokenizer["added_tokens"] = _added_tokens(tokens, types)
    tokenizer["post_processor"] = _template(values, tokens, path)
    check_tokenizer(tokenizer, path, REMEDY)
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=1).encode(),
        "tokenizer_config.json": json.dumps(_settings(values, tokens), ensure_ascii=False, indent=1).encode(),
        "generation_config.json": json.dumps(special_token_ids(values)).encode(),
    }


def left_out(values: Mapping[str, Any]) -> str | None:
    """Why a vocabulary is not read; None for a kind that mxconv knows."""
    model, name = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.pre")
    if model in (None, "none", "no_vocab"):
        return f"tokenizer.ggml.model of the GGUF file is {'absent' if model is None else repr(model)}"
    if not isinstance(model, str) or model not in KINDS:
        return f"tokenizer.ggml.model of the GGUF file is {str(model)[:80]!r}; mxconv knows {', '.join(KINDS)}"
    if model == "gpt2" and (not isinstance(name, str) or name not in PRE_TOKENIZERS):
        found = "absent" if name is None else repr(str(name)[:80])
        return f"tokenizer.ggml.pre of the GGUF file is {found}; mxconv knows {', '.join(PRE_TOKENIZERS)}"
    return None


def special_token_ids(values: Mapping[str, Any]) -> dict[str, Any]:
    """bos_token_id and eos_token_id, as far as the file names them; several ends make a list."""
    ids: dict[str, Any] = {}
    first = values.get("tokenizer.ggml.bos_token_id")
    if type(first) is int:
        ids["bos_token_id"] = first
    ends = [values.get(f"tokenizer.ggml.{key}") for key in END_KEYS]
    found = list(dict.fromkeys(token_id for token_id in ends if type(token_id) is int))
    if found:
        ids["eos_token_id"] = found[0] if len(found) == 1 else found
    return ids


def _tokens(values: Mapping[str, Any], path: Path) -> tuple[list[str], list[int]]:
    tokens = values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(f"{path}: tokenizer.ggml.tokens is no list of strings; one is required. {REMEDY}")
    types = values.get("tokenizer.ggml.token_type", [TokenType.NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens) or not all(type(kind) is int for kind in types):
        raise CheckpointError(
            f"{path}: tokenizer.ggml.token_type is no list of {len(tokens)} integers; one a token is required. {REMEDY}"
        )
    if len(set(tokens)) < len(tokens):
        first: dict[str, int] = {}
        twice = next(text for token_id, text in enumerate(tokens) if first.setdefault(text, token_id) != token_id)
        raise CheckpointError(f"{path}: token {twice[:80]!r} occurs twice; texts must be unique. {REMEDY}")
    return tokens, types


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
                f"the token that every text gets is required. {REMEDY}"
            )
        around.append(tokens[token_id] if adds and type(token_id) is int else None)
    return template(around, {text: tokens.index(text) for text in around if text is not None})


def _settings(values: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        token_id = values.get(f"tokenizer.ggml.{key}_token_id")
        if type(token_id) is int and 0 <= token_id < len(tokens):
            settings[name] = tokens[token_id]
    if templates := _chat_templates(values):
        default = templates.get("default")
        named = [{"name": name, "template": text} for name, text in templates.items()]
        settings["chat_template"] = named if len(templates) > 1 or default is None else default
    return settings


def _chat_templates(values: Mapping[str, Any]) -> dict[str, str]:
    """By name, "default" among them: tokenizer.chat_template, and tokenizer.chat_template.NAME of the others."""
    key = "tokenizer.chat_template"
    names = {"default": key} | {name.removeprefix(f"{key}."): name for name in values if name.startswith(f"{key}.")}
    return {name: text for name, found in names.items() if isinstance(text := values.get(found), str)}


def _byte_level(values: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> dict[str, Any]:
    name = values["tokenizer.ggml.pre"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "normalizer": {"type": "NFC"} if name in COMPOSED else None,
        "pre_tokenizer": pre_tokenizer_json(name),
        "decoder": byte_level,
        "model": bpe_model(
            _vocabulary(tokens, types), _listed_merges(values, path), ignore_merges=name in IGNORE_MERGES
        ),
    }


def _listed_merges(values: Mapping[str, Any], path: Path) -> list[list[str]]:
    merges = values.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(merge, str) and " " in merge[1:] for merge in merges):
        raise CheckpointError(f"{path}: tokenizer.ggml.merges is no list of pairs; one is required. {REMEDY}")
    spaces = [merge.index(" ", 1) for merge in merges]  # a token may be a space, but not an empty text
    return [[merge[:space], merge[space + 1 :]] for merge, space in zip(merges, spaces, strict=True)]


def _sentence_piece(values: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> dict[str, Any]:
    scores = values.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(isinstance(s, float) for s in scores):
        raise CheckpointError(
            f"{path}: tokenizer.ggml.scores is no list of {len(tokens)} numbers; one a token is required. {REMEDY}"
        )
    # merges make normal tokens, by score, and runs of Gemma's spaces among those that a user defined
    made: dict[int, float] = {TokenType.NORMAL: -inf, TokenType.USER_DEFINED: NO_MERGE_SCORE}
    ids = {text: token_id for token_id, text in enumerate(tokens) if scores[token_id] > made.get(types[token_id], inf)}
    for text, token_id in ids.items():
        if len(text) > MAX_TOKEN_LENGTH:
            raise CheckpointError(
                f"{path}: token {token_id} has {len(text):,} characters; at most {MAX_TOKEN_LENGTH} are "
                f"allowed. {REMEDY}"
            )
    prefix = values.get("tokenizer.ggml.add_space_prefix", True)
    return _spaced(values, tokens, types, merges_by_score(ids, scores), prefix)


def _gemma4(values: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> dict[str, Any]:
    return _spaced(values, tokens, types, _listed_merges(values, path), prefix=False)


def _spaced(
    values: Mapping[str, Any], tokens: list[str], types: list[int], merges: list[list[str]], prefix: object
) -> dict[str, Any]:
    """BPE over characters, in which a space is written as `SPACE`."""
    unknown = values.get("tokenizer.ggml.unknown_token_id")
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*([{"type": "Prepend", "prepend": SPACE}] if prefix else []), replace],
        },
        "pre_tokenizer": None,
        "decoder": spaced_decoder(bool(prefix)),
        "model": bpe_model(
            _vocabulary(tokens, types),
            merges,
            unk_token=tokens[unknown] if type(unknown) is int and 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=TokenType.BYTE in types,
        ),
    }


def _vocabulary(tokens: list[str], types: list[int]) -> dict[str, int]:
    return {text: token_id for token_id, text in enumerate(tokens) if types[token_id] != TokenType.UNUSED}


# `tokenizer.ggml.model`, and the members of a tokenizer.json that follow from it
KINDS: dict[str, Kind] = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _gemma4}
