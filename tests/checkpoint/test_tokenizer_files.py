"""Tokenizers from tokenizer.model, what the files beside tokenizer.json declare, and whose tokens are the same."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import quantize
from sentence_pieces import NORMAL, UNUSED, llama_pieces, write_gemma, write_llama
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from mxconv.checkpoint.tokenizer_files import MAX_FILE_BYTES, Vocabulary, read_tokenizer_json
from mxconv.checkpoint.tokenizer_settings import TokenizerSettings
from mxconv.errors import CheckpointError, ModelError
from mxconv.text.tokenizer import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")
TEXTS = ("the end", " in  the on  and", "日本語 é\n\n\n\tan ananas", "<s> and </s>", "", "1234 ...")


@pytest.mark.parametrize("write", [write_llama, write_gemma])
@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True, "bos_token": "<s>"}, {"add_eos_token": True}])
def test_texts_become_the_tokens_of_transformers(tmp_path: Path, write: Any, settings: dict[str, Any]) -> None:
    path = write(tmp_path) / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    ours, theirs = Tokenizer.from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert (ids := ours.encode(text)) == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("write", [write_llama, write_gemma])
def test_texts_become_the_tokens_of_sentencepiece(tmp_path: Path, write: Any) -> None:
    ours = Tokenizer.from_folder(write(tmp_path))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in TEXTS:  # SentencePiece takes control pieces for text, and puts one more space before a space
        if "<s>" not in text and not text.startswith(" "):
            assert ours.encode(text, add_special_tokens=False) == theirs.encode(text), text


def test_a_package_gets_a_tokenizer_file(tmp_path: Path) -> None:
    folder = write_llama(write_tiny_llama(tmp_path / "model", vocab_size=400))
    (folder / "tokenizer.json").unlink(missing_ok=True)
    assert quantize(folder, tmp_path / "package").tokenizer is not None
    assert {"tokenizer.json", "tokenizer.model"} <= {path.name for path in (tmp_path / "package").iterdir()}
    again = Tokenizer.from_folder(tmp_path / "package")
    assert again.encode("the end") == Tokenizer.from_folder(folder).encode("the end")


def test_without_the_extra_a_model_is_quantized_and_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_llama(write_tiny_llama(tmp_path / "model", vocab_size=400))
    (folder / "tokenizer.json").unlink(missing_ok=True)
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    assert quantize(folder, tmp_path / "package").tokenizer is None
    message = r"tokenizer\.model: a file of SentencePiece, and sentencepiece\S* is not installed; tokenizer\.json or "
    message += r"the extra `sentencepiece` is required\. Run: pip install '\.\[sentencepiece\]' .* Or: Write it with tr"
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_folder(tmp_path / "package")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": {3: 1}}, "its kind is not BPE; a vocabulary of merges is required"),
        ({"normalizer": {2: b"table"}}, "a table of characters; text as it is is required"),
        ({"normalizer": {4: 1}}, "remove_extra_whitespaces; whitespace as it is is required"),
        ({"normalizer": {5: 0}}, "no escape_whitespaces; spaces written as ▁ is required"),
        ({"trainer": {24: 1}}, "treat_whitespace_as_suffix; whitespace before words is required"),
        ({"pieces": [*llama_pieces(), ("zz", 0.0, UNUSED)]}, "pieces that are unused; a use of each piece"),
        ({"pieces": llama_pieces()[:200]}, "byte_fallback without a piece of each byte; 256 of them"),
        ({"pieces": [*llama_pieces(), ("aa", -1e9, NORMAL)]}, "a piece that occurs twice; one of a text is required"),
        ({"pieces": [*llama_pieces(), ("", -1e9, NORMAL)]}, "a piece without text, or of a long one; 1 to 1024"),
        ({"pieces": [*llama_pieces(), ("z" * 1025, -1e9, NORMAL)]}, "a piece without text, or of a long one"),
        ({"pieces": [*llama_pieces(), ("zz", float("nan"), NORMAL)]}, "scores that rise; those of merges in their"),
        ({"pieces": [*llama_pieces(), ("zz", 1.0, NORMAL)]}, "scores that rise; those of merges in their order is"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_exact_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_llama(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=re.escape(f"{folder / 'tokenizer.model'}: {message}")) as error:
        read_tokenizer_json(folder)
    assert "Take tokenizer.json from the model's source" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n\x09cut off", r"no message of SentencePiece \(.*\); a whole one is required\. Copy the file anew"),
        (b"IQ== 0\nIg== 1\n", r"no pieces; a vocabulary of SentencePiece is required"),  # tiktoken's list
        (b"", r"no pieces; a vocabulary of SentencePiece is required"),
        (bytes(MAX_FILE_BYTES + 1), r"67,108,865 bytes; at most 67,108,864 are read"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"tokenizer\.model: {message}"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(("name", "content"), [("tekken.json", b"{}"), ("vocab.json", b"{}")])
def test_other_tokenizers_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"no such file, only {name}; a fast tokenizer .* Or: Write it with transf"):
        Tokenizer.from_folder(tmp_path)


ENTRIES = {"<unk>": 0, "a": 1, "b": 2}


def folder(path: Path, vocab_size: Any = 3, entries: Any = None, **changes: Any) -> Path:
    """A model folder as far as its tokens go."""
    path.mkdir()
    Backend(models.WordLevel(ENTRIES, unk_token="<unk>")).save(str(path / "tokenizer.json"))
    members = json.loads((path / "tokenizer.json").read_text())
    if entries is not None:
        members["model"]["vocab"] = entries
    (path / "tokenizer.json").write_text(json.dumps(members | changes))
    (path / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    return path


SETTINGS = {"padding": {"strategy": "BatchLongest"}, "truncation": {"max_length": 5}, "post_processor": None}


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"vocab_size": 152_064}, True),  # Qwen2.5: 151,936 rows in small models, more in large ones, the same tokens
        ({"entries": dict(reversed(ENTRIES.items())), **SETTINGS}, True),
        ({"entries": ENTRIES | {"c": 3}}, False),
        ({"entries": {"<unk>": 0, "b": 1, "a": 2}}, False),
        ({"added_tokens": [{"id": 3, "content": "<s>"}]}, False),
        ({"normalizer": {"type": "Lowercase"}}, False),
        ({"pre_tokenizer": {"type": "Whitespace"}}, False),
    ],
    ids=str,
)
def test_a_vocabulary_is_which_text_each_id_stands_for(tmp_path: Path, changes: dict[str, Any], is_same: bool) -> None:
    ours, theirs = folder(tmp_path / "ours", 151_936), folder(tmp_path / "theirs", **changes)
    assert Vocabulary.of_folder(ours).equals(Vocabulary.of_folder(theirs)) == is_same
    assert Vocabulary.of_folder(ours).vocab_size == 151_936


@pytest.mark.parametrize(
    ("changes", "num_tokens"),
    [
        ({"entries": {"a": 0, "b": 9}}, 10),  # one more than the largest id
        ({"added_tokens": [{"id": 40, "content": "<s>"}]}, 41),
        ({"entries": {}}, 0),
        ({"model": 5}, 0),  # what is wrong with parts of other types the tokenizer's own loader says
        ({"model": {"vocab": 5}}, 0),
        ({"added_tokens": 7}, 3),
        ({"added_tokens": [3, "x"]}, 3),
    ],
    ids=str,
)
def test_tokens_are_counted_by_their_ids(tmp_path: Path, changes: dict[str, Any], num_tokens: int) -> None:
    assert Vocabulary.of_folder(folder(tmp_path / "m", **changes)).num_tokens == num_tokens


@pytest.mark.parametrize("value", ["3", None, 3.0, True])
def test_what_is_no_whole_number_is_no_size_and_refused_as_an_id(tmp_path: Path, value: Any) -> None:
    assert Vocabulary.of_folder(tmp_path) == Vocabulary(None, 0, None)
    assert Vocabulary.of_folder(folder(tmp_path / "size", value)).vocab_size is None
    for changes in ({"entries": {"a": 0, "b": value}}, {"added_tokens": [{"id": value}]}):
        root = folder(tmp_path / next(iter(changes)), **changes)
        message = f"{root}/tokenizer.json: token id {value!r}; a whole number is required. Copy the file anew."
        with pytest.raises(CheckpointError, match=re.escape(message)):
            Vocabulary.of_folder(root)


def test_a_unigram_tokenizer_numbers_its_entries_by_place(tmp_path: Path) -> None:
    root = folder(tmp_path / "unigram")
    backend = Backend(models.Unigram())
    backend.train_from_iterator(["abc abd"], trainers.UnigramTrainer(vocab_size=9, special_tokens=["<unk>"]))
    backend.save(str(root / "tokenizer.json"))
    assert Vocabulary.of_folder(root).num_tokens == backend.get_vocab_size()


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
        (CONFIG, {"eos_token": 2}, "eos_token is '2'; a text, an object with content and flags that are true or fal"),
        (CONFIG, {"eos_token": {"content": None}}, "eos_token is .*; a text, an object with content"),
        (CONFIG, {"added_tokens_decoder": ["<x>"]}, "added_tokens_decoder is .*; an object of tokens by id is req"),
        (CONFIG, {"added_tokens_decoder": {"x": token("<x>")}}, "added_tokens_decoder is 'x'; a token id, which is a"),
        (CONFIG, {"added_tokens_decoder": {"9" * 5000: token("<x>")}}, "added_tokens_decoder is '9{80}'; a token id"),
        (CONFIG, {"added_tokens_decoder": {"258": {"id": 3}}}, "added_tokens_decoder is .*; a text, an object with"),
        (CONFIG, {"added_tokens_decoder": {"258": {"content": "x", "special": 1}}}, "added_tokens_decoder is .* fl"),
        (CONFIG, {"extra_special_tokens": [["<x>"]]}, "extra_special_tokens is .*; a text, an object with content"),
        (ADDED, {"<x>": -1}, "the id of '<x>' is '-1'; a token id, which is a whole number, is required. Take the"),
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
