"""Tokenizers of every kind: llama.cpp makes the same tokens of the exported vocabulary."""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_files import write_gguf
from gguf_models import MODELS, TEXTS, write_model
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp_oracle import LlamaCppVocabulary
from packages import quantize
from sentence_pieces import write_gemma, write_llama
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from mxconv.checkpoint.tokenizer_files import read_tokenizer_json
from mxconv.checkpoint.tokenizer_json import (
    CASE_OF_ASCII,
    IGNORE_MERGES,
    PRE_TOKENIZERS,
    pre_tokenizer_json,
    pre_tokenizer_name,
)
from mxconv.errors import CheckpointError, ModelError
from mxconv.gguf.gguf_tokenizer import COMPOSED, derive_tokenizer
from mxconv.gguf.gguf_vocabulary import GgufVocabulary, read_vocabulary
from mxconv.interop.gguf_export import export_gguf
from mxconv.open_source import open_source
from mxconv.text.chat_templates import read_templates
from mxconv.text.tokenizer import Tokenizer

NUM_ROWS = 900
CORPUS = [
    "Once upon a time there was Lily's cat. I'LL We'Ve HelloWorld camelCase XMLHttp 12345 1,234.5 foo/bar//\n\nbaz\r\n"
    "\r\n  indented\tcode();  // 日本語テキスト 漢字かな naïve cafe\u0301 ÉCOLE über ΑΒΓ αβγ привет МИР नमस्ते 🙂🙂 "
    "\u200d «q» ½ Ⅷ ٣٤ !!!\n"
] * 3
MARKS = ["e\u0301", "\u0301", "नम", "ते", "a\u0301b"]
PIECES = [
    "'s", "'LL", "I'M", "é", "ÉCOLE", "ab", "AB", "Ab", "aB", "日本", "語テ", "カ", "ー", "안녕", "مرحبا", "שלום",
    "привет", "МИР", "λΛ", "123", "4567", "½", "٣٤", "Ⅷ", "!", "/", "_x", "$a", "«", "🙂", "ǅ", "ʰ", "ª", "ß", "ﬁ",
    "and", "<s>", "</s>", "aaaaa", "nana", "<", ">", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028",
    "//\n", " .\n", " the", " in", "    ", "\n\n\n", "\u200b",
]  # fmt: skip
DRAWN = st.lists(st.sampled_from(PIECES) | st.sampled_from(MARKS), max_size=8).map("".join)


def write_byte_level(folder: Path, name: str) -> Path:
    """A tokenizer that cuts text as llama.cpp's `name` says."""
    folder.mkdir()
    backend = Backend(models.BPE(ignore_merges=name in IGNORE_MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    backend.decoder = decoders.ByteLevel()
    members = json.loads(backend.to_str()) | {"pre_tokenizer": pre_tokenizer_json(name)}
    backend = Backend.from_str(json.dumps(members))
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_ROWS,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.save(str(folder / "tokenizer.json"))
    return folder


def write_changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A tokenizer as Gemma's, changed."""
    members = json.loads(read_tokenizer_json(write_gemma(folder)) or b"")
    change(members)
    (folder / "tokenizer.json").write_text(json.dumps(members))
    return folder


def one_way_each(members: dict[str, Any]) -> None:
    """The first of the ways to make a token: as BPE learns them, and as Gemma 4 has them. None across a newline."""
    first: dict[str, list[str]] = {}
    for merge in members["model"]["merges"]:
        first.setdefault("".join(merge), merge)
    whole = {text: merge for text, merge in first.items() if "\n" not in text or not text.strip("\n")}
    members["model"]["merges"] = list(whole.values())
    for text in first.keys() - whole.keys():
        members["model"]["vocab"][f"unused{len(text)}"] = members["model"]["vocab"].pop(text)


def in_llama_cpp(vocabulary: GgufVocabulary, path: Path) -> LlamaCppVocabulary:
    """As llama.cpp reads it from a file of nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    vocabulary.add_to(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return LlamaCppVocabulary(path)


KINDS: dict[str, Callable[[Path], Path]] = {
    "Llama": write_llama,
    "Gemma": write_gemma,
    "Gemma 4": lambda folder: write_changed(folder, one_way_each),
}


@pytest.fixture(scope="module", params=[*PRE_TOKENIZERS, *KINDS])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tokenizer, LlamaCppVocabulary, GgufVocabulary]]:
    folder = tmp_path_factory.mktemp("vocabulary") / "model"
    folder = KINDS[request.param](folder) if request.param in KINDS else write_byte_level(folder, request.param)
    vocabulary = read_vocabulary(folder, NUM_ROWS)
    theirs = in_llama_cpp(vocabulary, folder / "vocabulary.gguf")
    yield Tokenizer.from_folder(folder), theirs, vocabulary
    theirs.close()


def has_case_or_is_mark(character: str) -> bool:
    """Beyond ASCII: of all other characters llama.cpp's rules for capitals say the same."""
    kind = unicodedata.category(character)
    return not character.isascii() and (kind in ("Lu", "Ll", "Lt") or kind.startswith("M"))


@settings(max_examples=25, deadline=None)
@given(text=DRAWN)
def test_llama_cpp_makes_the_same_tokens(pair: tuple[Tokenizer, LlamaCppVocabulary, GgufVocabulary], text: str) -> None:
    ours, theirs, vocabulary = pair
    if vocabulary.pre_tokenizer in CASE_OF_ASCII and any(map(has_case_or_is_mark, text)):
        return  # a note says so
    if vocabulary.adds_space_prefix and (text.startswith(" ") or "<s>" in text or "</s>" in text):
        return  # another note
    assert theirs.tokenize(text) == ours.encode(text, add_special_tokens=False)


def test_what_differs_is_said(pair: tuple[Tokenizer, LlamaCppVocabulary, GgufVocabulary]) -> None:
    vocabulary = pair[2]
    has_note = vocabulary.pre_tokenizer in CASE_OF_ASCII or vocabulary.adds_space_prefix
    assert bool(vocabulary.notes) == has_note
    assert vocabulary.model == ("gpt2" if vocabulary.pre_tokenizer in PRE_TOKENIZERS else vocabulary.model)


def test_each_kind_is_chosen_for_what_it_can_say(tmp_path: Path) -> None:
    found = {name: read_vocabulary(write(tmp_path / name), NUM_ROWS).model for name, write in KINDS.items()}
    assert found == {"Llama": "llama", "Gemma": "llama", "Gemma 4": "gemma4"}


def test_every_vocabulary_is_read_back(
    pair: tuple[Tokenizer, LlamaCppVocabulary, GgufVocabulary], tmp_path: Path
) -> None:
    ours, _, vocabulary = pair
    in_llama_cpp(vocabulary, tmp_path / "a.gguf").close()
    values = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "a.gguf").fields.items()}
    (tmp_path / "again").mkdir()
    for name, content in derive_tokenizer(values, tmp_path / "a.gguf").items():
        (tmp_path / "again" / name).write_bytes(content)
    again = Tokenizer.from_folder(tmp_path / "again")
    assert again.eos_token_ids == ours.eos_token_ids and again.bos_token_id == ours.bos_token_id
    further = ("aaaaa  nana\n\n\nthe and", "<s> x</s>y", " \n led by one", "")
    for text in (*CORPUS[0].splitlines(), *PIECES, *MARKS, *further):
        if vocabulary.pre_tokenizer in COMPOSED and unicodedata.normalize("NFC", text) != text:
            continue  # tokenizers with these names compose characters; this one does not
        if vocabulary.adds_space_prefix and (text.startswith(" ") or "<s>" in text):
            continue  # a note says so
        ids = ours.encode(text)
        assert again.encode(text) == ids, text
        assert again.encode(text, False) == ours.encode(text, False), text
        assert again.decode(ids) == ours.decode(ids), text


def _prefixed(members: dict[str, Any]) -> None:
    one_way_each(members)
    members["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}


def _across_newlines(members: dict[str, Any]) -> None:
    first = {"".join(merge): merge for merge in reversed(members["model"]["merges"])}
    members["model"]["merges"] = list(first.values())


@pytest.mark.parametrize(
    ("change", "found"),
    [(_prefixed, "a space before a text"), (_across_newlines, r"the token .{3,6}, with a newline among others")],
)
def test_merges_that_no_kind_can_say_are_refused(
    change: Callable[[dict[str, Any]], None], found: str, tmp_path: Path
) -> None:
    folder = write_changed(tmp_path / "model", change)
    with pytest.raises(ModelError, match=rf"merges leave out ways to make a token, .* it has {found}, which its gem"):
        read_vocabulary(folder, NUM_ROWS)


GPT2 = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
}
WITHOUT_PRE = {key: value for key, value in GPT2.items() if not key.endswith("pre")}
LLAMA = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "▁", "a", "b", "ab", "▁ab", "ba"],
    "tokenizer.ggml.scores": [0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -1.5],
    "tokenizer.ggml.token_type": [2, 3, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.unknown_token_id": 0,
}


def test_a_vocabulary_goes_out_into_gguf_and_comes_back(tmp_path: Path) -> None:
    """Packages on both sides: the same ids, the same text, the same stops."""
    source = write_model(tmp_path / "model", **MODELS["qwen2"])
    quantize(source, tmp_path / "package")
    export_gguf(tmp_path / "package", tmp_path / "model.gguf")
    quantize(tmp_path / "model.gguf", tmp_path / "again", dtype="bf16")  # a head in Q8_0
    ours, again = Tokenizer.from_folder(source), Tokenizer.from_folder(tmp_path / "again")
    for text in TEXTS:
        assert again.encode(text) == (ids := ours.encode(text))
        assert again.decode(ids) == ours.decode(ids)
    assert again.vocab_size == ours.vocab_size
    assert (again.bos_token_id, again.eos_token_ids) == (ours.bos_token_id, ours.eos_token_ids)
    settings = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert (settings["chat_template"], settings["eos_token"]) == ("{{ messages[0]['content'] }}", "<|end|>")


def test_neighbours_are_joined_by_the_best_score(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(derive_tokenizer(LLAMA, tmp_path / "a.gguf")["tokenizer.json"])
    backend = Backend.from_file(str(path))
    # of "▁aba": "ba" (-1.5) is joined before "ab" (-2.0), and "▁ab" never gets its "ab"
    assert backend.encode("aba").tokens == ["<s>", "▁", "a", "ba"]
    assert backend.encode("ab").tokens == ["<s>", "▁ab"]
    assert backend.decode(backend.encode("ab aba").ids) == "ab aba"


def test_names_of_pre_tokenizers_go_both_ways() -> None:
    for name in PRE_TOKENIZERS:
        again = pre_tokenizer_name(pre_tokenizer_json(name), name in IGNORE_MERGES)
        assert again is not None and PRE_TOKENIZERS[again] == PRE_TOKENIZERS[name]
        assert (again in IGNORE_MERGES) == (name in IGNORE_MERGES)
    assert pre_tokenizer_name(None, False) is None
    assert pre_tokenizer_name({"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}, False) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "tokenizer.ggml.model of the GGUF file is absent"),
        ({"tokenizer.ggml.model": "none"}, "tokenizer.ggml.model of the GGUF file is 'none'"),
        (GPT2 | {"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model of the GGUF file is 't5'; mxconv knows gpt2, ll"),
        (GPT2 | {"tokenizer.ggml.pre": "falcon"}, "tokenizer.ggml.pre of the GGUF file is 'falcon'; mxconv knows gpt"),
        (WITHOUT_PRE, "tokenizer.ggml.pre of the GGUF file is absent; mxconv knows gpt-2, smollm"),
    ],
)
def test_weights_are_converted_without_a_vocabulary_that_is_not_read(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    template = {"tokenizer.chat_template": "x", "tokenizer.chat_template.tool_use": "y"}
    path = write_gguf(tmp_path / "a.gguf", change=lambda keys: keys.update(changes | template))
    with open_source(path) as checkpoint:
        assert (checkpoint.note or "").startswith(f"no tokenizer.json is written: {reason}")
    assert quantize(path, tmp_path / "package").tokenizer is None
    assert not (tmp_path / "package" / "tokenizer.json").exists()
    assert read_templates(tmp_path / "package")[0] == {"default": "x", "tool_use": "y"}
    with pytest.raises(ModelError, match=rf"there is no such file \({re.escape(reason)}.*\); a fast tokenizer is requ"):
        Tokenizer.from_folder(tmp_path / "package")


Change = Callable[[dict[str, Any]], object]
REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "tokens": (GPT2, {"tokenizer.ggml.tokens": [1]}, "tokenizer.ggml.tokens is no list of strings; one is required"),
    "types": (GPT2, {"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type is no list of 4 integers"),
    "twice": (GPT2, {"tokenizer.ggml.tokens": ["a", "b", "a", "c"]}, "token 'a' occurs twice; texts must be unique"),
    "merges": (GPT2, {"tokenizer.ggml.merges": ["ab"]}, "tokenizer.ggml.merges is no list of pairs"),
    "unknown merge": (GPT2, {"tokenizer.ggml.merges": ["a c"]}, "its vocabulary makes no tokenizer ("),
    "scores": (LLAMA, {"tokenizer.ggml.scores": [0.0]}, "tokenizer.ggml.scores is no list of 8 numbers"),
    "bos": (LLAMA, {"tokenizer.ggml.bos_token_id": 9}, "tokenizer.ggml.bos_token_id is 9, of 8 tokens; the id of the"),
    "long": (
        LLAMA,
        {"tokenizer.ggml.tokens": ["<unk>", "<s>", *"abcde", "a" * 2000]},
        "token 7 has 2,000 characters; at most 1024 are allowed",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_vocabulary_that_contradicts_itself_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    keys, changes, message = REFUSALS[name]
    derive_tokenizer(keys, tmp_path)
    path = write_gguf(tmp_path / "a.gguf", change=lambda found: found.update(keys | changes))
    with open_source(path), pytest.raises(CheckpointError, match=re.escape(f"{path}: {message}")):
        quantize(path, tmp_path / "package")
    assert [found.name for found in tmp_path.iterdir()] == ["a.gguf"]
