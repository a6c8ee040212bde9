import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from mxconv.errors import CheckpointError, ModelError
from mxconv.text.tokenizer import Tokenizer

TEXTS = (
    "",
    "Once upon a time, there was a little girl named Lily.",
    "  two spaces, a\nnew line\tand a tab ",
    "naïve café, 日本, 🙂",
    "<s> marks the start </s>",
)


@pytest.fixture
def byte_folder(tmp_path: Path) -> Path:
    """A byte-level tokenizer without merges, whose post-processor adds nothing."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "bos_token_id": 256, "eos_token_id": 257}')
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "add_bos_token": True,
            }
        )
    )
    return tmp_path


def test_trained_models_are_tokenized_as_by_transformers(shared_folder: Path) -> None:
    ours, theirs = Tokenizer.from_folder(shared_folder), AutoTokenizer.from_pretrained(shared_folder)
    assert ours.vocab_size == len(theirs)
    assert ours.bos_token_id == theirs.bos_token_id
    for text in TEXTS:
        for add_special_tokens in (True, False):
            ids = ours.encode(text, add_special_tokens)
            assert ids == theirs.encode(text, add_special_tokens=add_special_tokens)
            assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_trained_models_begin_a_text_with_their_first_token(shared_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(shared_folder)
    assert tokenizer.encode("Once")[0] == tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {1, 2}


def test_add_bos_token_has_no_say_beside_a_tokenizer_file_as_in_transformers(byte_folder: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(byte_folder)
    for text in TEXTS:
        ids = Tokenizer.from_folder(byte_folder).encode(text)
        assert ids == theirs.encode(text)
        assert 256 not in ids or text.startswith("<s>")


def test_bytes_come_back_as_the_same_text(byte_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_folder)
    for text in TEXTS[:-1]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(TEXTS[-1])) == " marks the start "


def test_half_a_character_decodes_to_the_replacement_character(byte_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_folder)
    assert tokenizer.decode(tokenizer.encode("日")[:2]) == "\ufffd"


def test_truncation_and_padding_in_the_file_are_not_for_us(byte_folder: Path) -> None:
    backend = Backend.from_file(str(byte_folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(byte_folder / "tokenizer.json"))
    assert len(Tokenizer.from_folder(byte_folder).encode("seven by")) == 8


def test_a_post_processor_in_the_file_adds_the_first_token(byte_folder: Path) -> None:
    backend = Backend.from_file(str(byte_folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    backend.save(str(byte_folder / "tokenizer.json"))
    assert Tokenizer.from_folder(byte_folder).encode("a")[0] == 256
    assert 256 not in Tokenizer.from_folder(byte_folder).encode("a", add_special_tokens=False)


@pytest.mark.parametrize(
    ("config", "generation_config", "eos_token_ids"),
    [
        ({"eos_token_id": 2}, None, {2}),
        ({"eos_token_id": 2}, {"eos_token_id": [3, 4]}, {3, 4}),
        ({"eos_token_id": [2, 5]}, {"bos_token_id": 1}, {2, 5}),
        ({"eos_token_id": 2}, {"eos_token_id": None}, {2}),
        ({}, {}, set()),
    ],
)
def test_end_tokens_come_from_the_generation_config_or_else_the_config(
    byte_folder: Path, config: Any, generation_config: Any, eos_token_ids: set[int]
) -> None:
    (byte_folder / "config.json").write_text(json.dumps(config))
    if generation_config is not None:
        (byte_folder / "generation_config.json").write_text(json.dumps(generation_config))
    assert Tokenizer.from_folder(byte_folder).eos_token_ids == eos_token_ids


def test_a_folder_without_token_ids_still_tokenizes(byte_folder: Path) -> None:
    (byte_folder / "config.json").unlink()
    tokenizer = Tokenizer.from_folder(byte_folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, frozenset())


def test_a_folder_without_a_tokenizer_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    message = r"tokenizer\.json: there is no such file; a fast tokenizer is required\. Copy it from the model's source"
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"model": {"type": "BPE"}}', b"\xff\xfe"])
def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(
        ModelError, match=r"tokenizer\.json: not a tokenizer \(.+\); a fast tokenizer is required\. Copy"
    ):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("value", ['"2"', "-1", "[1, true]", "2.5"])
def test_a_token_id_that_is_none_is_an_error(byte_folder: Path, value: str) -> None:
    (byte_folder / "generation_config.json").write_text(f'{{"eos_token_id": {value}}}')
    message = r"generation_config\.json: eos_token_id is .*; a token id, a list of them or null is required\. Take"
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(byte_folder)


def test_a_generation_config_that_is_no_json_is_an_error(byte_folder: Path) -> None:
    (byte_folder / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: no valid JSON"):
        Tokenizer.from_folder(byte_folder)


def test_text_that_is_not_unicode_is_an_error(byte_folder: Path) -> None:
    message = r"tokenizer\.json: text with '\\udcff' at character 2; Unicode that UTF-8 can carry is required\. Remove"
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(byte_folder).encode("ab\udcff")
