"""The tokenizer.json that a tokenizer.model stands for.

Text is read as transformers 5 reads it: its LlamaTokenizer where the file puts a space before a text
(`add_dummy_prefix`), its GemmaTokenizer where it does not. Of tokenizer_config.json count `add_prefix_space`, `legacy`
(a space after special tokens too), `add_bos_token`, `add_eos_token`, `bos_token`, `eos_token` and
`added_tokens_decoder`; of added_tokens.json everything.

Not read, since nothing in the `tokenizers` library does exactly the same: unigram models, normalization tables,
whitespace that is dropped or put after words, unused pieces.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import check_regular_file, open_file, read_json_object
from mxconv.checkpoint.sentencepiece.model_file import (
    ALGORITHMS,
    BPE,
    MODEL_FILE,
    REMEDY,
    SentencePieceModel,
    read_model,
)
from mxconv.checkpoint.tokenizer_json import (
    SPACE,
    TokenType,
    bpe_model,
    check_tokenizer,
    merges_by_score,
    spaced_decoder,
    template,
)
from mxconv.checkpoint.vocab_merges import derive_from_merges
from mxconv.errors import CheckpointError

CONFIG_FILE = "tokenizer_config.json"
MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED)
ADDED_FILE = "added_tokens.json"
SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
TOKENIZER_FILE = "tokenizer.json"
# of tokenizers that mxconv does not read, in the order in which a message names them
OTHER_FILES = ("tekken.json", "tiktoken.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")

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
    """The content of a tokenizer.json, of a folder with tokenizer.model.

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
    # SentencePiece cuts a piece of spaces that a user defined out before it merges, GemmaTokenizer does not
    defined = [piece.text for piece in model.pieces if piece.type == TokenType.USER_DEFINED and SPACE in piece.text]
    if defined and config.get("tokenizer_class") is None:
        raise CheckpointError(
            f"{config_path}: no tokenizer_class, and {MODEL_FILE} has {defined[0][:80]!r}, which a user defined; a "
            "class is required, since SentencePiece cuts such pieces out whole and GemmaTokenizer merges them. "
            f"{REMEDY}"
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
        **_text_parts(model, config, path),
        "post_processor": _post_processor(model, config, every, path),
        "model": _bpe(model, ids),
    }
    backend = check_tokenizer(members, path, REMEDY)
    for token in added:
        if (when_read := backend.token_to_id(token["content"])) != token["id"]:
            raise CheckpointError(
                f"{path.parent}: the added token {token['content'][:80]!r} has id {token['id']}, and "
                f"{when_read} when read; ids without gaps after those of {MODEL_FILE} are required. {REMEDY}"
            )
    return json.dumps(members, ensure_ascii=False, indent=1).encode()


def _flag(value: object, key: str, path: Path) -> bool:
    if not isinstance(value, bool):
        raise CheckpointError(
            f"{path.parent / CONFIG_FILE}: {key} is {str(value)[:80]!r}; true or false is required. {REMEDY}"
        )
    return value


def _text_parts(model: SentencePieceModel, config: dict[str, Any], path: Path) -> dict[str, Any]:
    """How text is cut, by whether a space comes before it: never, or before the first token, or always, after special
    tokens too."""
    prefix = config.get("add_prefix_space")
    if not (model.add_dummy_prefix if prefix is None else _flag(prefix, "add_prefix_space", path)):
        normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        return {"normalizer": normalizer, "pre_tokenizer": None, "decoder": spaced_decoder(False)}
    scheme = "always" if _flag(config.get("legacy") or False, "legacy", path) else "first"
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    return {"normalizer": None, "pre_tokenizer": spaces, "decoder": spaced_decoder(True)}


def _bpe(model: SentencePieceModel, ids: dict[str, int]) -> dict[str, Any]:
    merged = {text: token_id for text, token_id in ids.items() if model.pieces[token_id].type in MERGED}
    return bpe_model(
        ids,
        merges_by_score(merged, [piece.score for piece in model.pieces]),
        unk_token=model.text_of(model.unk_id),
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _post_processor(
    model: SentencePieceModel, config: dict[str, Any], ids: dict[str, int], path: Path
) -> dict[str, Any] | None:
    """The template that puts the first and the last token of a text, where tokenizer_config.json asks for them."""
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
    return template(around, ids)


def added_tokens(model: SentencePieceModel, config: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The member `added_tokens` of a tokenizer.json, by id: the control pieces, the unknown one and those that a user
    defined, the added_tokens.json of older checkpoints, and last `added_tokens_decoder` of tokenizer_config.json.

    Raises:
        CheckpointError: an id or a text is none.
    """
    tokens = {
        number: _token(piece.text, number, {"special": piece.type in SPECIAL})
        for number, piece in enumerate(model.pieces)
        if piece.type in (*SPECIAL, TokenType.USER_DEFINED)
    }
    path = folder / ADDED_FILE
    for text, token_id in (read_json_object(path, unique_keys=False) if path.is_file() else {}).items():
        number = _id(token_id, str(path), text)
        tokens[number] = _token(text, number, {"special": number in tokens and tokens[number]["special"]})
    decoder = config.get("added_tokens_decoder") or {}
    name = f"{folder / 'tokenizer_config.json'}: added_tokens_decoder"
    if not isinstance(decoder, dict):
        raise CheckpointError(f"{name} is no object; tokens by id are required. {REMEDY}")
    for key, entry in decoder.items():
        number = _id(int(key) if key.isascii() and key.isdigit() else key, name, key)
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content:
            raise CheckpointError(f"{name} has {str(entry)[:80]} under {key}; content is required. {REMEDY}")
        tokens[number] = _token(content, number, {flag: entry.get(flag) is True for flag in FLAGS})
    return [tokens[number] for number in sorted(tokens)]


def _token(text: str, number: int, flags: dict[str, bool]) -> dict[str, Any]:
    return {"id": number, "content": text, **dict.fromkeys(FLAGS, False), **flags}


def _id(value: object, name: str, text: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise CheckpointError(f"{name}: {text[:80]!r} has id {str(value)[:80]!r}; a whole number is required. {REMEDY}")
    return value


def read_tokenizer_json(folder: Path) -> bytes | None:
    """The content of a tokenizer.json, derived where there is only a tokenizer.model or a vocab.json with merges.txt;
    None where there is none. Raises CheckpointError where a file is damaged, or of a kind that mxconv does not read."""
    if (path := folder / TOKENIZER_FILE).is_file():
        check_regular_file(path)
        with open_file(path) as file:
            return file.read()
    return derive_tokenizer(folder) if (folder / MODEL_FILE).is_file() else derive_from_merges(folder)
