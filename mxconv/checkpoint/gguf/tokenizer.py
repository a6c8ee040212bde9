"""The tokenizer files that a GGUF vocabulary stands for.

What is made of its keys is up to its kind, `tokenizer.ggml.model`: mxconv/checkpoint/gguf/vocabulary_kinds.py.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxconv.checkpoint.gguf.token_types import TokenType
from mxconv.checkpoint.gguf.vocabulary_kinds import KINDS, REMEDY
from mxconv.errors import CheckpointError

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
BOS_BY_DEFAULT = ("llama-bpe", "lfm2", "tekken")  # of gpt2 vocabularies, where the file does not say


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
    if not isinstance(model, str) or model not in KINDS:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.model is {str(model)[:80]!r}; one of {', '.join(KINDS)} is required. {REMEDY}"
        )
    members = KINDS[model](values, tokens, types, path)
    tokenizer: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None} | members
    tokenizer["added_tokens"] = _added_tokens(tokens, types)
    tokenizer["post_processor"] = _template(values, tokens, path)
    _check(tokenizer, path)
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=1).encode(),
        "tokenizer_config.json": json.dumps(_settings(values, tokens), ensure_ascii=False, indent=1).encode(),
        "generation_config.json": json.dumps(special_token_ids(values)).encode(),
    }


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
        raise CheckpointError(f"{path}: token {twice[:80]!r} stands twice; texts must be unique. {REMEDY}")
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
    if templates := _chat_templates(values):
        default = templates.get("default")
        named = [{"name": name, "template": text} for name, text in templates.items()]
        settings["chat_template"] = named if len(templates) > 1 or default is None else default
    return settings


def _chat_templates(values: Mapping[str, Any]) -> dict[str, str]:
    """By name, "default" among them; the file lists the names of the others."""
    names = values.get("tokenizer.chat_templates")
    keys = {"default": "tokenizer.chat_template"}
    keys |= {name: f"tokenizer.chat_template.{name}" for name in (names if isinstance(names, list) else ())}
    return {name: text for name, key in keys.items() if isinstance(text := values.get(key), str)}


def _check(tokenizer: dict[str, Any], path: Path) -> None:
    """Let the library that will read it read it."""
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(json.dumps(tokenizer))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{path}: its vocabulary makes no tokenizer ({error}); one is required. {REMEDY}"
        ) from error
