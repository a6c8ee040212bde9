"""Tokens that the files beside a tokenizer.json declare, against AutoTokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from mxconv.checkpoint.tokenizer_settings import TokenizerSettings
from mxconv.checkpoint.vocabulary import Vocabulary
from mxconv.errors import CheckpointError
from mxconv.text.tokenizer import Tokenizer

TEXT = "<s>a <x> <y>b<z></s>"
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


def token(content: str, special: bool = True, **flags: bool) -> dict[str, Any]:
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False} | {
        "special": special,
        **flags,
    }


def typed(content: str) -> dict[str, Any]:
    return {"__type": "AddedToken", **token(content)}


def decoder(*tokens: dict[str, Any], first: int = 258) -> dict[str, Any]:
    return {CONFIG: {"added_tokens_decoder": {str(first + number): each for number, each in enumerate(tokens)}}}


def write(folder: Path, files: dict[str, Any], own: list[Any] | None = None, vocab_size: int = 300) -> Path:
    """A tokenizer of bytes with <s>, </s> and its own further tokens from 258 on, and the files beside it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens(own or [])
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": vocab_size}))
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return folder


# files beside tokenizer.json, and tokens that it has of its own
CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "declared": (decoder(token("<x>"), token("<y>", special=False)), []),
    "out of order": ({CONFIG: {"added_tokens_decoder": {"259": token("<y>"), "258": token("<x>")}}}, []),
    "gap": (decoder(token("<y>"), first=270), []),
    "id of another token": (decoder(token("<y>"), first=257), []),
    "id of a letter": (decoder(token("<y>"), first=5), []),
    "same text, other id": (decoder(token("<x>"), first=259), ["<x>"]),
    "special in one file": (decoder(token("<x>")), [AddedToken("<x>", special=False)]),
    "special in the other": (decoder(token("<x>", special=False)), [AddedToken("<x>", special=True)]),
    "normalized": (decoder({"content": "<x>", "normalized": True}), []),
    "strips": ({CONFIG: {"eos_token": "<x>", **decoder(token("<x>", lstrip=True))[CONFIG]}}, []),
    "end by name": ({CONFIG: {"eos_token": "<x>"}}, []),
    "end by object": ({CONFIG: {"eos_token": typed("<x>")}}, []),
    "end of the vocabulary": ({CONFIG: {"eos_token": "<x>"}}, [AddedToken("<x>", special=False, lstrip=True)]),
    "map over configuration": ({CONFIG: {"eos_token": "<x>"}, MAP: {"bos_token": "<y>", "eos_token": "</s>"}}, []),
    "map beside declared": ({CONFIG: {"added_tokens_decoder": {}}, MAP: {"eos_token": "<y>"}}, []),
    "null in the map": ({CONFIG: {"pad_token": "<x>"}, MAP: {"pad_token": None}}, []),
    "object in the map": ({MAP: {"eos_token": token("<y>", lstrip=True)}}, []),
    "order of names": ({CONFIG: {"pad_token": "<x>", "eos_token": "<y>", "bos_token": "<z>"}}, []),
    "other names": ({CONFIG: {"image_token": "<x>", "eos_token": "<y>", "extra_special_tokens": {"i": "<z>"}}}, []),
    "empty name": ({CONFIG: {"bos_token": "", "eos_token": "</s>"}}, []),
    "extra": ({CONFIG: {"extra_special_tokens": ["<x>"], "additional_special_tokens": ["<y>"]}}, []),
    "extra by name": (
        {CONFIG: {"extra_special_tokens": {"image_token": "<x>"}, "additional_special_tokens": ["<y>"]}},
        [],
    ),
    "additional": ({CONFIG: {"additional_special_tokens": ["<y>", typed("<x>")]}}, []),
    "additional in both": (
        {CONFIG: {"additional_special_tokens": ["<z>"]}, MAP: {"additional_special_tokens": ["<x>"]}},
        [],
    ),
    "additional in the map": ({MAP: {"additional_special_tokens": ["<x>", "<y>"]}}, []),
    "extra in both": ({CONFIG: {"extra_special_tokens": ["<z>"]}, MAP: {"extra_special_tokens": ["<x>", "<z>"]}}, []),
    "extra by name in the map": ({MAP: {"extra_special_tokens": {"image_token": "<x>"}}}, []),
    "added_tokens.json": ({ADDED: {"<y>": 259, "<x>": 258}}, []),
    "added_tokens.json, special": ({CONFIG: {"eos_token": "<x>"}, ADDED: {"<y>": 258, "<x>": 259}}, []),
    "added_tokens.json, clashing": ({ADDED: {"<y>": 257, "<x>": 280}}, []),
    "added_tokens.json beside declared": ({**decoder(token("<x>")), ADDED: {"<y>": 258}}, []),
    "add_bos_token": ({CONFIG: {"bos_token": "<s>", "add_bos_token": True, "add_eos_token": True}}, []),
    "no file": ({}, ["<x>"]),
}


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    files, own = CASES[name]
    if CONFIG in files:
        files = {**files, CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast", **files[CONFIG]}}
    folder = write(tmp_path / "model", files, own)
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(TEXT)
    assert ids == theirs(TEXT).input_ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert (ours.vocab_size, ours.bos_token_id) == (len(theirs), theirs.bos_token_id)
    assert ours.special_token_ids == {number for number, each in theirs.added_tokens_decoder.items() if each.special}
    texts = {key: text for key, text in theirs.special_tokens_map.items() if text}
    assert TokenizerSettings.read(folder).texts == texts
    if theirs.eos_token_id is not None:
        assert theirs.eos_token_id in ours.eos_token_ids


@pytest.mark.parametrize(
    ("config", "added", "text"),
    [
        ({"added_tokens_decoder": None, "eos_token": None, "extra_special_tokens": None}, None, "a"),
        ({"additional_special_tokens": [None, {"content": "<x>", "special": None}]}, None, "<x>"),
        ({"eos_token": {"content": "<x>"}, "image_token": None, "model_token": 3}, None, "<x>"),
        ({"eos_token": ["<x>", "</s>"]}, None, "<x>"),
        ({"added_tokens_decoder": {"258": "<x>", "259": None}}, None, "<x>"),
        ({}, {"<x>": 258, "<y>": None}, "<x>"),
    ],
)
def test_null_asks_for_nothing_and_other_spellings_are_read(config: Any, added: Any, text: str, tmp_path: Path) -> None:
    """transformers refuses these."""
    folder = write(tmp_path / "model", {CONFIG: config} | ({} if added is None else {ADDED: added}))
    assert len(Tokenizer.from_folder(folder).encode(text)) == 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            CONFIG,
            {"eos_token": 2},
            "eos_token is '2'; a text, an object with content and flags that are true or false,",
        ),
        (CONFIG, {"eos_token": {"content": None}}, "eos_token is .*; a text, an object with content"),
        (
            CONFIG,
            {"added_tokens_decoder": ["<x>"]},
            "added_tokens_decoder is .*; an object of tokens by id is required",
        ),
        (CONFIG, {"added_tokens_decoder": {"x": token("<x>")}}, "added_tokens_decoder is 'x'; a token id, which is a"),
        (CONFIG, {"added_tokens_decoder": {"9" * 5000: token("<x>")}}, "added_tokens_decoder is '9{80}'; a token id"),
        (CONFIG, {"added_tokens_decoder": {"258": {"id": 3}}}, "added_tokens_decoder is .*; a text, an object with"),
        (
            CONFIG,
            {"added_tokens_decoder": {"258": {"content": "x", "special": 1}}},
            "added_tokens_decoder is .* flags",
        ),
        (CONFIG, {"extra_special_tokens": [["<x>"]]}, "extra_special_tokens is .*; a text, an object with content"),
        (
            ADDED,
            {"<x>": -1},
            "the id of '<x>' is '-1'; a token id, which is a whole number, is required. Take the file",
        ),
        (MAP, [], "a JSON list is at the top; a JSON object is required"),
    ],
)
def test_damaged_files_are_refused_by_name(file: str, content: Any, message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", {file: content})
    with pytest.raises(CheckpointError, match=f"{file}: {message}"):
        Tokenizer.from_folder(folder)


def test_tokens_that_tokenizer_json_lacks_belong_to_the_vocabulary_where_the_model_has_rows(tmp_path: Path) -> None:
    plain = Vocabulary.of_folder(write(tmp_path / "plain", {}))
    more = Vocabulary.of_folder(write(tmp_path / "more", {CONFIG: {"eos_token": "<x>"}}))
    beyond = Vocabulary.of_folder(write(tmp_path / "beyond", {CONFIG: {"pad_token": "<x>"}}, vocab_size=258))
    full = Vocabulary.of_folder(write(tmp_path / "full", {}, vocab_size=258))
    assert (plain.num_tokens, more.num_tokens, beyond.num_tokens) == (258, 259, 258)
    assert not plain.equals(more) and beyond.equals(full)
