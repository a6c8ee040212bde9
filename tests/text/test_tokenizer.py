import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from mxconv.checkpoint.folder import companions
from mxconv.errors import CheckpointError, ModelError
from mxconv.text.tokenizer import Tokenizer

OTHERS = ["tekken.json", "tiktoken.model", "qwen.tiktoken", "vocab.txt", "spiece.model"]
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


CHAT = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|><|eot_id|>{% endfor %}"
# config.json, generation_config.json, tokenizer_config.json, special_tokens_map.json, and the tokens that end a text;
# <|im_end|> is 258, <|end|> 259, <|return|> 260
ENDS: dict[str, tuple[Any, Any, Any, Any, set[int]]] = {
    "configuration": ({"eos_token_id": 2}, None, {}, None, {2}),
    "generation first": ({"eos_token_id": 2}, {"eos_token_id": [3, 4]}, {}, None, {3, 4}),
    "generation without the key": ({"eos_token_id": [2, 5]}, {"bos_token_id": 1}, {}, None, {2, 5}),
    "generation null": ({"eos_token_id": 2}, {"eos_token_id": None}, {}, None, {2}),
    "no file says": ({}, {}, {}, None, set()),
    "all null": ({"eos_token_id": None, "text_config": None}, {"eos_token_id": None}, {"eos_token": None}, None, set()),
    "of the text part": ({"text_config": {"eos_token_id": 7}}, None, {}, None, {7}),
    "the tokenizer's alone": ({"eos_token_id": None}, None, {"eos_token": "<|im_end|>"}, None, {258}),
    "and the tokenizer's": ({"eos_token_id": 2}, {"eos_token_id": 3}, {"eos_token": "<|im_end|>"}, None, {3, 258}),
    "an object": ({}, None, {"eos_token": {"content": "<|im_end|>"}}, None, {258}),
    "of the map": ({}, None, {}, {"eos_token": "<|im_end|>"}, {258}),
    "of both": ({}, None, {"eos_token": "<|im_end|>"}, {"eos_token": "</s>"}, {257, 258}),
    "of a base model's chats": ({}, {"eos_token_id": 257}, {"chat_template": CHAT}, None, {257, 258}),
    "parts of gpt-oss": ({}, None, {"chat_template": "<|end|><|return|>"}, None, {260}),
    "parts of Phi": ({}, None, {"chat_template": "<|user|>{{ messages }}<|end|>"}, None, {259}),
    "beyond the vocabulary": ({"eos_token_id": [2, 50256, 2**40]}, None, {}, None, {2}),
    "in padded rows": ({"eos_token_id": [290, 300], "vocab_size": 300}, None, {}, None, {290}),
    "damaged template": ({"eos_token_id": 2}, None, {"chat_template": 3}, None, {2}),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_text_ends_at_every_token_that_a_file_names(name: str, byte_folder: Path) -> None:
    *contents, ends = ENDS[name]
    backend = Backend.from_file(str(byte_folder / "tokenizer.json"))
    backend.add_special_tokens(["<|im_end|>", "<|end|>"] + (["<|return|>"] if "gpt-oss" in name else []))
    backend.save(str(byte_folder / "tokenizer.json"))
    files = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
    for file, content in zip(files, contents, strict=True):
        if content is not None:
            (byte_folder / file).write_text(json.dumps(content))
    assert Tokenizer.from_folder(byte_folder).eos_token_ids == ends


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "first"),
    [
        ({"bos_token_id": 3}, {"bos_token": "<s>"}, 256),
        ({"bos_token_id": 3}, {"bos_token": None}, 3),
        ({"bos_token_id": 3}, {"bos_token": "<|begin|>"}, 258),
        ({"bos_token_id": 5000}, {}, None),
    ],
)
def test_the_first_token_is_the_tokenizers_or_else_the_configurations(
    config: Any, tokenizer_config: Any, first: int | None, byte_folder: Path
) -> None:
    (byte_folder / "config.json").write_text(json.dumps(config))
    (byte_folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    assert Tokenizer.from_folder(byte_folder).bos_token_id == first


def test_a_folder_without_token_ids_still_tokenizes(byte_folder: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (byte_folder / name).unlink()
    tokenizer = Tokenizer.from_folder(byte_folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, frozenset())


FAST = r"; a fast tokenizer is required\."
REFUSED: list[tuple[dict[str, bytes | None], str]] = [  # files, None for those that go, and what is said
    ({"tokenizer.json": None}, rf"tokenizer\.json: there is no such file{FAST} Copy it from the model's source"),
    *(
        (
            {"tokenizer.json": None, name: b"QQ== 0"},
            rf"no such file, only {name}{FAST} .* Or: Write it",
        )
        for name in OTHERS
    ),
    *(
        ({"tokenizer.json": content}, rf"tokenizer\.json: not a tokenizer \(.+\){FAST} Copy")
        for content in (b"", b"{}", b"[1]", b'{"model": {"type": "BPE"}}', b"\xff\xfe")
    ),
    *(
        (
            {"generation_config.json": b'{"eos_token_id": %s}' % value},
            r"generation_config\.json: eos_token_id is .*; a token id, a list of them or null is required\. Take",
        )
        for value in (b'"2"', b"-1", b"[1, true]", b"2.5")
    ),
    ({"generation_config.json": b"{"}, r"generation_config\.json: no valid JSON"),
]


@pytest.mark.parametrize(("files", "message"), REFUSED, ids=str)
def test_what_is_no_tokenizer_is_told(byte_folder: Path, files: dict[str, bytes | None], message: str) -> None:
    for name, content in files.items():
        if content is None:
            (byte_folder / name).unlink()
        else:
            (byte_folder / name).write_bytes(content)
    with pytest.raises((ModelError, CheckpointError), match=message):
        Tokenizer.from_folder(byte_folder)


def test_other_tokenizers_go_along_and_text_that_is_not_unicode_is_an_error(byte_folder: Path) -> None:
    assert sorted(companions(OTHERS)) == sorted(OTHERS)
    message = r"tokenizer\.json: text with '\\udcff' at character 2; Unicode that UTF-8 can carry is required\. Remove"
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(byte_folder).encode("ab\udcff")


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
        {"tokenizer_class": "GPT2TokenizerFast", "bos_token": "<s>", "add_bos_token": True},
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]},
        {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"400": {"content": "<x>", "special": True}}},
    ],
)
def test_vocabulary_and_merges_make_the_tokenizer_of_their_class(config: dict[str, Any], tmp_path: Path) -> None:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    backend.train_from_iterator([Path(__file__).read_text(), *TEXTS], trainer)
    backend.model.save(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 410}')
    ours, theirs = Tokenizer.from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, "I'LL e\u0301 12345 <|endoftext|>a<|im_end|><x><|im_start|>"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
    (tmp_path / "merges.txt").write_text("a")
    with pytest.raises(
        CheckpointError, match=r"vocab\.json: makes no tokenizer with merges\.txt \(.+\); tokens by text"
    ):
        Tokenizer.from_folder(tmp_path)
