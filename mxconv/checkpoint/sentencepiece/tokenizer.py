"""The tokenizer.json that a tokenizer.model stands for.

Text is read as transformers 5 reads it: its LlamaTokenizer where the file puts a space before a text
(`add_dummy_prefix`), its GemmaTokenizer where it does not. Of tokenizer_config.json count `add_prefix_space`, `legacy`
(a space behind special tokens too), `add_bos_token`, `add_eos_token`, `bos_token`, `eos_token` and
`added_tokens_decoder`; of added_tokens.json everything.

Not read, since nothing in the `tokenizers` library does exactly the same: unigram models, normalization tables,
whitespace that is dropped or stands behind words, unused pieces.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mxconv.checkpoint.gguf.token_types import SPACE, TokenType
from mxconv.checkpoint.json_file import read_json_object
from mxconv.checkpoint.sentencepiece.added_tokens import added_tokens
from mxconv.checkpoint.sentencepiece.merges import merges_by_score
from mxconv.checkpoint.sentencepiece.model_file import (
    ALGORITHMS,
    BPE,
    MODEL_FILE,
    REMEDY,
    SentencePieceModel,
    read_model,
)
from mxconv.errors import CheckpointError

CONFIG_FILE = "tokenizer_config.json"
MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED)

# what mxconv does not read, and how a message calls it
_UNREAD: tuple[tuple[Callable[[SentencePieceModel], bool], str, str], ...] = (
    (lambda m: bool(m.precompiled_charsmap), "its normalizer has a table of characters", "text as it is"),
    (lambda m: m.remove_extra_whitespaces, "remove_extra_whitespaces is true", "whitespace as it is"),
    (lambda m: not m.escape_whitespaces, "escape_whitespaces is false", f"spaces written as {SPACE}"),
    (lambda m: m.treat_whitespace_as_suffix, "treat_whitespace_as_suffix is true", "whitespace before words"),
    (
        lambda m: any(piece.type == TokenType.UNUSED for piece in m.pieces),
        "some of its pieces are unused",
        "a use of each piece",
    ),
    (
        lambda m: m.byte_fallback and sum(piece.type == TokenType.BYTE for piece in m.pieces) != 256,
        "byte_fallback is true and bytes lack pieces",
        "a piece of each of the 256 bytes",
    ),
)


def derive_tokenizer(folder: Path) -> bytes:
    """The content of a tokenizer.json.

    Args:
        folder: with tokenizer.model, and tokenizer_config.json and added_tokens.json where there are any.

    Raises:
        CheckpointError: the file is damaged, or no library that mxconv uses cuts text exactly as it says.
    """
    path = folder / MODEL_FILE
    model = read_model(path)
    if model.model_type != BPE:
        raise CheckpointError(
            f"{path}: a SentencePiece model of the kind {ALGORITHMS.get(model.model_type, model.model_type)}; BPE is "
            f"required. {REMEDY}"
        )
    for is_so, found, required in _UNREAD:
        if is_so(model):
            raise CheckpointError(f"{path}: {found}; {required} is required. {REMEDY}")
    config_path = folder / CONFIG_FILE
    config = read_json_object(config_path, unique_keys=False) if config_path.is_file() else {}
    if (defined := _spaces_that_stand_whole(model)) is not None and config.get("tokenizer_class") is None:
        raise CheckpointError(
            f"{config_path}: no tokenizer_class, and {MODEL_FILE} has {defined[:80]!r}, which a user defined; a class "
            f"is required, since SentencePiece cuts such pieces out whole and GemmaTokenizer merges them. {REMEDY}"
        )
    ids = {piece.text: number for number, piece in enumerate(model.pieces)}
    added = added_tokens(model, config, folder)
    for token in added:  # of a piece that tokenizer_config.json gives another name
        if token["id"] < len(model.pieces) and ids.get(token["content"]) != token["id"]:
            if token["content"] in ids:
                raise CheckpointError(
                    f"{folder}: the added token {token['content'][:80]!r} has id {token['id']}; in {MODEL_FILE} it has "
                    f"{ids[token['content']]}, and one id is required. {REMEDY}"
                )
            del ids[model.pieces[token["id"]].text]
            ids[token["content"]] = token["id"]
    every = ids | {token["content"]: token["id"] for token in added}
    members = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **_text_parts(_prefix_scheme(model, config, path)),
        "post_processor": _post_processor(model, config, every, path),
        "model": _bpe(model, ids),
    }
    _check(members, path)
    return json.dumps(members, ensure_ascii=False, indent=1).encode()


def _spaces_that_stand_whole(model: SentencePieceModel) -> str | None:
    """A piece of spaces that a user defined: SentencePiece cuts it out before it merges, GemmaTokenizer does not."""
    defined = (piece.text for piece in model.pieces if piece.type == TokenType.USER_DEFINED)
    return next((text for text in defined if SPACE in text), None)


def _prefix_scheme(model: SentencePieceModel, config: dict[str, Any], path: Path) -> str:
    """Whether a space comes before a text: `never`, `first`, or `always`, behind special tokens too."""
    prefix = config.get("add_prefix_space")
    if not (model.add_dummy_prefix if prefix is None else _flag(prefix, "add_prefix_space", path)):
        return "never"
    return "always" if _flag(config.get("legacy") or False, "legacy", path) else "first"


def _flag(value: object, key: str, path: Path) -> bool:
    if not isinstance(value, bool):
        raise CheckpointError(
            f"{path.parent / CONFIG_FILE}: {key} is {str(value)[:80]!r}; true or false is required. {REMEDY}"
        )
    return value


def _text_parts(scheme: str) -> dict[str, Any]:
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if scheme == "never":
        normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        return {"normalizer": normalizer, "pre_tokenizer": None, "decoder": {"type": "Sequence", "decoders": decoders}}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False},
        "decoder": {"type": "Sequence", "decoders": [*decoders, strip]},
    }


def _bpe(model: SentencePieceModel, ids: dict[str, int]) -> dict[str, Any]:
    merged = {text: token_id for text, token_id in ids.items() if model.pieces[token_id].type in MERGED}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": model.text_of(model.unk_id),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": ids,
        "merges": merges_by_score(merged, [piece.score for piece in model.pieces]),
    }


def _post_processor(
    model: SentencePieceModel, config: dict[str, Any], ids: dict[str, int], path: Path
) -> dict[str, Any] | None:
    """What puts the first and the last token of a text, where tokenizer_config.json asks for them."""
    around: list[str | None] = []
    for kind, token_id in (("bos", model.bos_id), ("eos", model.eos_id)):
        named = config.get(f"{kind}_token") or model.text_of(token_id)
        text = named.get("content") if isinstance(named, dict) else named
        if not _flag(config.get(f"add_{kind}_token") or False, f"add_{kind}_token", path):
            around.append(None)
            continue
        if not isinstance(text, str) or text not in ids:
            raise CheckpointError(
                f"{path.parent / CONFIG_FILE}: {kind}_token is {str(text)[:80]!r}; with add_{kind}_token a token of "
                f"{MODEL_FILE} is required. {REMEDY}"
            )
        around.append(text)
    if around == [None, None]:
        return None
    before, behind = ([{"SpecialToken": {"id": text, "type_id": 0}}] if text is not None else [] for text in around)
    single = [*before, {"Sequence": {"id": "A", "type_id": 0}}, *behind]
    second = [*before, {"Sequence": {"id": "B", "type_id": 0}}, *behind]
    used = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in around if text is not None}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *second], "special_tokens": used}


def _check(members: dict[str, Any], path: Path) -> None:
    """Let the library read it, and keep the ids."""
    from tokenizers import Tokenizer

    try:
        backend = Tokenizer.from_str(json.dumps(members))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: its pieces make no tokenizer ({error}); one is required. {REMEDY}") from error
    for token in members["added_tokens"]:
        if (found := backend.token_to_id(token["content"])) != token["id"]:
            raise CheckpointError(
                f"{path.parent}: the added token {token['content'][:80]!r} has id {token['id']}, and "
                f"{found} when read; ids without gaps behind those of {MODEL_FILE} are required. {REMEDY}"
            )
