"""Packages, models and tokenizers that GGUF or llama.cpp has no word for."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_models import MODELS, write_model
from packages import quantize
from tokenizers import Tokenizer, models

from mxconv.errors import ModelError, PackageError
from mxconv.interop.gguf_export import export_gguf


def test_a_bsfp_draft_is_refused(tmp_path: Path) -> None:
    quantize(write_model(tmp_path / "source"), tmp_path / "package", codec="bsfp")
    with pytest.raises(
        PackageError,
        match=r"a BSFP package; GGUF has no type for the BSFP draft. Export --level target, which is exact, or convert",
    ):
        export_gguf(tmp_path / "package", tmp_path / "out", level="draft")


def test_a_tensor_that_llama_cpp_does_not_know_is_refused_or_left_out(tmp_path: Path) -> None:
    def with_extra(folder: Path, name: str) -> Path:
        from safetensors.numpy import load_file, save_file

        source = write_model(folder / "source", **MODELS["qwen3"])
        tensors = load_file(source / "model.safetensors")
        tensors[name] = np.zeros(64, tensors["model.norm.weight"].dtype)
        save_file(tensors, source / "model.safetensors")
        quantize(source, folder / "package")
        return folder / "package"

    bias = "model.layers.0.self_attn.o_proj.bias"
    with pytest.raises(ModelError, match=f"tensor {bias}: llama.cpp's qwen3 has no place for it in a model as con"):
        export_gguf(with_extra(tmp_path / "a", bias), tmp_path / "out")
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    result = export_gguf(with_extra(tmp_path / "b", buffer), tmp_path / "out")
    assert f"left out 1 tensors that llama.cpp does not have, such as {buffer}." in result.notes


def _unigram(members: dict[str, Any]) -> None:
    members["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}


def _word_level(members: dict[str, Any]) -> None:
    members |= {"pre_tokenizer": None, "normalizer": None}


def _other_pattern(members: dict[str, Any]) -> None:
    members["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "x+"}


def _no_merges(members: dict[str, Any]) -> None:
    members["model"]["merges"] = []


def _too_many(members: dict[str, Any]) -> None:
    members["added_tokens"].append(members["added_tokens"][0] | {"id": 320, "content": "<more>"})
    members["model"]["vocab"] |= {f"pad{token_id}": token_id for token_id in range(303, 320)}


def _two_around(members: dict[str, Any]) -> None:
    twice = {"SpecialToken": {"id": "<|begin|>", "type_id": 0}}
    members["post_processor"]["single"].insert(0, twice)


TOKENIZERS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "unigram": (_unigram, "a Unigram tokenizer; GGUF files of these architectures hold BPE."),
    "neither": (_word_level, "a BPE tokenizer that neither works on bytes (ByteLevel) nor writes spaces as ▁"),
    "pattern": (_other_pattern, "one whose name in llama.cpp mxconv knows is required."),
    "no merges": (_no_merges, "a BPE tokenizer without merges; llama.cpp loads no vocabulary without one."),
    "too many": (_too_many, "token '<more>' has id 320; the embedding has 320 rows, and llama.cpp requires as many"),
    "two": (_two_around, "it puts 2 special tokens around a text; GGUF has at most one before and one after it."),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_gguf_cannot_hold_is_refused(name: str, tmp_path: Path) -> None:
    change, message = TOKENIZERS[name]
    source = write_model(tmp_path / "source")
    path = source / "tokenizer.json"
    members = json.loads(path.read_text())
    change(members)
    path.write_text(json.dumps(members))
    quantize(source, tmp_path / "package")
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        export_gguf(tmp_path / "package", tmp_path / "out")
    assert str(caught.value).startswith(str(tmp_path / "package" / "tokenizer.json"))


def test_a_vocabulary_of_letters_is_exported_with_a_note(tmp_path: Path) -> None:
    from tokenizers import normalizers

    source = write_model(tmp_path / "source", bos_token_id=None)
    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}, [("▁", "a")], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.save(str(source / "tokenizer.json"))
    for name in ("generation_config.json", "tokenizer_config.json"):
        (source / name).unlink()
    config = json.loads((source / "config.json").read_text()) | {"eos_token_id": None}
    (source / "config.json").write_text(json.dumps(config))
    quantize(source, tmp_path / "package")
    notes = export_gguf(tmp_path / "package", tmp_path / "a.gguf", level="target").notes
    assert notes == (
        "the vocabulary has no bytes: llama.cpp ends with an error at a character that it lacks.",
        "the configuration names no token that ends a text: llama.cpp takes its own default.",
    )
    keys = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "a.gguf").fields.items()}
    assert keys["tokenizer.ggml.model"] == "llama" and keys["tokenizer.ggml.add_space_prefix"] is True
    assert keys["tokenizer.ggml.scores"][:4] == [-1e6, -1e6, -1e6, 0.0]
    assert keys["tokenizer.ggml.token_type"][:4] == [2, 1, 1, 1]
