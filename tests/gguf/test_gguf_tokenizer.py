"""tokenizer.json from a GGUF vocabulary: the tokens of the tokenizer that the file was made from."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf
from gguf_models import MODELS, TEXTS, WORDS, write_model, write_sentence_piece_model
from packages import quantize
from tokenizers import Tokenizer as Backend

from mxconv.checkpoint.pre_tokenizers import IGNORE_MERGES, PRE_TOKENIZERS, pre_tokenizer_json, pre_tokenizer_name
from mxconv.errors import CheckpointError, ModelError
from mxconv.gguf.gguf_tokenizer import derive_tokenizer
from mxconv.interop.gguf_export import export_gguf
from mxconv.open_source import open_source
from mxconv.text.chat_templates import read_templates
from mxconv.text.tokenizer import Tokenizer

EXAMPLES = Path(__file__).parents[2] / "examples"
GPT2 = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
}
LLAMA = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "▁", "a", "b", "ab", "▁ab", "ba"],
    "tokenizer.ggml.scores": [0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -1.5],
    "tokenizer.ggml.token_type": [2, 3, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.unknown_token_id": 0,
}


def check_same_tokens(source: Path, tmp_path: Path, texts: list[str]) -> None:
    """Out into GGUF and back: the same ids, the same text, the same stops."""
    quantize(source, tmp_path / "package")
    export_gguf(tmp_path / "package", tmp_path / "model.gguf")
    quantize(tmp_path / "model.gguf", tmp_path / "again", dtype="bf16")  # a head in Q8_0
    ours, again = Tokenizer.from_folder(source), Tokenizer.from_folder(tmp_path / "again")
    for text in texts:
        ids = ours.encode(text)
        assert again.encode(text) == ids
        assert again.encode(text, add_special_tokens=False) == ours.encode(text, add_special_tokens=False)
        assert again.decode(ids) == ours.decode(ids)
    assert again.vocab_size == ours.vocab_size
    assert (again.bos_token_id, again.eos_token_ids) == (ours.bos_token_id, ours.eos_token_ids)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_byte_level_vocabularies_return(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", **MODELS[name])
    check_same_tokens(source, tmp_path, TEXTS)
    settings = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages[0]['content'] }}"
    assert settings["eos_token"] == "<|end|>"


def test_the_embedded_models_vocabulary_returns(tmp_path: Path) -> None:
    texts = [json.loads(line)["prompt"] for line in (EXAMPLES / "prompts.jsonl").read_text().splitlines()]
    check_same_tokens(EXAMPLES / "models" / "pylib-0.2m", tmp_path, [*TEXTS, *texts])


def test_sentence_piece_vocabularies_return(tmp_path: Path) -> None:
    check_same_tokens(write_sentence_piece_model(tmp_path / "model"), tmp_path, [*TEXTS, *WORDS])


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
        (
            GPT2 | {"tokenizer.ggml.pre": "falcon"},
            "tokenizer.ggml.pre of the GGUF file is 'falcon'; mxconv knows gpt",
        ),
        (
            {key: value for key, value in GPT2.items() if not key.endswith("pre")},
            "tokenizer.ggml.pre of the GGUF file is absent; mxconv knows gpt-2, smollm",
        ),
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
