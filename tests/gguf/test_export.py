"""Exported files, read by the gguf library: what stands in them, where they go, and what is refused."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from exported_gguf import read, values_of
from gguf_models import MODELS, write_model
from packages import flip, quantize
from safetensors import safe_open
from tokenizers import Tokenizer, models
from trained_levels import TRAINED

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_file
from mxconv.codecs.float16 import BF16, FP16
from mxconv.errors import ModelError, MxconvError, PackageError
from mxconv.gguf.gguf_tokenizer import derive_tokenizer
from mxconv.gguf.gguf_vocabulary import read_vocabulary
from mxconv.interop.gguf_export import export_gguf
from mxconv.kernels.encoders import decode_mxfp4
from mxconv.package.level_record import DEFAULT_CONFIDENCE
from mxconv.package.package import Package

NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)  # all kinds of tensors that these models have


def gguf_name(name: str) -> str:
    found = NAMES.get_name(name, (".weight", ".bias"))
    assert found is not None
    return found


def source_values(folder: Path) -> dict[str, np.ndarray]:
    """Float32 values of a source's tensors, by the safetensors library."""
    values = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118  it is no mapping
            values[name] = file.get_tensor(name).float().numpy()
    return values


def permuted(values: np.ndarray, num_heads: int) -> np.ndarray:
    """As llama.cpp's converter does it."""
    pairs = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def in_file_order(name: str, values: np.ndarray, config: ModelConfig) -> np.ndarray:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    kind = name.split(".")[-2]
    if config.model_type in ("llama", "mistral") and kind in heads:
        return permuted(values, heads[kind])
    return values


def check_target(source: Path, path: Path, dtype: str) -> None:
    config, found = describe_file(source / "config.json"), read(path)
    for name, values in source_values(source).items():
        tensor = found.pop(gguf_name(name))
        assert tensor.tensor_type.name == ("F32" if values.ndim == 1 else dtype)
        np.testing.assert_array_equal(values_of(tensor), in_file_order(name, values, config))
        assert tuple(reversed(tensor.shape.tolist())) == values.shape
    assert set(found) <= {"rope_freqs.weight"}


def test_a_gguf_target_shares_its_tokens_with_a_package_of_the_same_vocabulary(tmp_path: Path) -> None:
    quantize(TRAINED, tmp_path / "package")
    path = tmp_path / "target.gguf"
    export_gguf(tmp_path / "package", path, level="target")
    quantize(path, tmp_path / "small")
    manifest = quantize(path, tmp_path / "both", drafts=(f"package:{tmp_path / 'small'}",))
    assert manifest.levels[2].shares == ["tokenizer"] and manifest.levels[2].confidence == DEFAULT_CONFIDENCE


@pytest.mark.parametrize("name", MODELS)
def test_the_target_has_every_bit_of_the_source(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", **MODELS[name])
    quantize(source, tmp_path / "package")
    result = export_gguf(tmp_path / "package", tmp_path / "target.gguf", level="target")
    check_target(source, tmp_path / "target.gguf", "BF16")
    assert result.files == [str(tmp_path / "target.gguf")]
    assert result.num_bytes == (tmp_path / "target.gguf").stat().st_size
    assert result.num_tensors == len(read(tmp_path / "target.gguf"))
    composed = "llama.cpp does not compose characters (NFC): text with combining marks may get other tokens."
    assert result.notes == ((composed,) if "qwen" in name else ())


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_targets_of_bsfp_are_exact(dtype: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", dtype=dtype)
    quantize(source, tmp_path / "package", codec="bsfp")
    result = export_gguf(tmp_path / "package", tmp_path / "out")
    assert result.files == [f"out-{dtype}.gguf"]
    check_target(source, tmp_path / "out" / result.files[0], dtype)
    assert result.notes == (
        "GGUF has no type for the BSFP draft: only the target was written. For a draft, quantize with --codec mxfp4.",
    )
    with pytest.raises(PackageError, match=r"a BSFP package; GGUF has no type for the BSFP draft. Export --level targ"):
        export_gguf(tmp_path / "package", tmp_path / "draft", level="draft")


def test_a_referenced_target_and_kept_tensors_are_exported(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    quantize(source, tmp_path / "package", target="reference", lm_head="keep", skip=("*.v_proj.weight",))
    export_gguf(tmp_path / "package", tmp_path / "out")
    check_target(source, tmp_path / "out" / "out-BF16.gguf", "BF16")
    draft = read(tmp_path / "out" / "out-MXFP4.gguf")
    types = {
        name: draft[name].tensor_type.name for name in ("output.weight", "blk.0.attn_v.weight", "blk.0.attn_q.weight")
    }
    assert list(types.values()) == ["BF16", "BF16", "MXFP4"]


def test_keys_say_what_the_file_and_its_tokens_are(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", **MODELS["llama, llama3 scaling"])
    quantize(source, tmp_path / "package", scale_rule="even")
    export_gguf(tmp_path / "package", tmp_path / "tiny.gguf")
    keys = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "tiny.gguf").fields.items()}
    expected = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": gguf.LlamaFileType.MOSTLY_MXFP4_MOE,
        "mxconv.scale_rule": "even",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.bos_token_id": 300,
        "tokenizer.ggml.eos_token_id": 301,
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    assert {name: keys.get(name) for name in expected} == expected
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == 320
    assert tokens[300:304] == ["<|begin|>", "<|end|>", "<think>", "[PAD303]"]
    assert types[299:304] == [1, 3, 3, 4, 5]


def test_templates_by_name_and_the_file_of_a_template(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    (source / "chat_template.jinja").write_text("new")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    quantize(source, tmp_path / "package")
    export_gguf(tmp_path / "package", tmp_path / "a.gguf")
    keys = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "a.gguf").fields.items()}
    assert keys["tokenizer.chat_template"] == "new"
    assert keys["tokenizer.chat_template.tool_use"] == "tools"
    again = json.loads(derive_tokenizer(keys, tmp_path / "a.gguf")["tokenizer_config.json"])
    assert {each["name"]: each["template"] for each in again["chat_template"]} == {
        "default": "new",
        "tool_use": "tools",
    }


def test_values_without_a_block_stay_exact_in_bf16_of_an_f16_model(tmp_path: Path) -> None:
    """F16 could not hold them all: a 4-bit value may be smaller than its smallest."""
    quantize(write_model(tmp_path / "source", dtype="F16"), tmp_path / "package")
    export_gguf(tmp_path / "package", tmp_path / "target.gguf", level="target")
    check_target(tmp_path / "source", tmp_path / "target.gguf", "F16")
    assert export_gguf(tmp_path / "package", tmp_path / "a.gguf").notes == (
        "2 matrices, such as model.layers.0.mlp.down_proj.weight, have in_features that are no multiple of 32, which "
        "GGUF's MXFP4 requires: their 4-bit values are stored as BF16, exactly.",
    )
    found = read(tmp_path / "a.gguf")
    kinds = {"token_embd": "F16", "output": "Q8_0", "blk.0.ffn_up": "MXFP4", "blk.1.ffn_down": "BF16"}
    assert {name: found[f"{name}.weight"].tensor_type.name for name in kinds} == kinds
    tensor = found["blk.1.ffn_down.weight"]
    with Package(tmp_path / "package") as package:
        (record,) = (r for r in package.manifest.tensors if r.name == "model.layers.1.mlp.down_proj.weight")
        assert record.dtype == FP16.name
        stored = package.mxfp4(record)
        expected = decode_mxfp4(stored.codes, stored.scales, stored.shape)
    patterns = np.asarray(tensor.data).view(np.uint16).reshape(expected.shape)
    np.testing.assert_array_equal(BF16.decode(patterns), expected)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    quantize(write_model(folder / "source"), folder / "package")
    return folder / "package"


def test_a_place_that_cannot_be_written_is_refused(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "out-MXFP4.gguf").touch()
    for place, words in (
        ("file", r"file: cannot be made a folder \(File exists\); one is required"),
        ("none/a.gguf", "its folder .* does not exist"),
        ("out", r"out-MXFP4\.gguf: exists; nothing is overwritten\. Choose another"),
    ):
        with pytest.raises(MxconvError, match=words):
            export_gguf(package, tmp_path / place)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["out-MXFP4.gguf"]


def test_damage_is_noticed_and_leaves_no_file(package: Path, tmp_path: Path) -> None:
    shutil.copytree(package, tmp_path / "package")
    flip(tmp_path / "package" / "model.safetensors", (package / "model.safetensors").stat().st_size - 9)
    for place in ("out.gguf", "out"):
        with pytest.raises(PackageError, match=r"tensor \S+: SHA-256 \w{16}...; the recorded \w{16}... is required"):
            export_gguf(tmp_path / "package", tmp_path / place, level="target")
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


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


def _too_many(members: dict[str, Any]) -> None:
    members["added_tokens"].append(members["added_tokens"][0] | {"id": 320, "content": "<more>"})
    members["model"]["vocab"] |= {f"pad{token_id}": token_id for token_id in range(303, 320)}


UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}
TWICE = {"SpecialToken": {"id": "<|begin|>", "type_id": 0}}
TOKENIZERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unigram": (lambda m: m.update(model=UNIGRAM), "a Unigram tokenizer; GGUF files of these architectures hold BPE."),
    "neither": (
        lambda m: m.update(pre_tokenizer=None, normalizer=None),
        "a BPE tokenizer that neither works on bytes (ByteLevel) nor writes spaces as ▁",
    ),
    "pattern": (
        lambda m: m["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": "x+"}),
        "one whose name in llama.cpp mxconv knows is required.",
    ),
    "normalizer": (
        lambda m: m.update(normalizer={"type": "Lowercase"}),
        "its normalizer has {'type': 'Lowercase'}; llama.cpp changes no text before it cuts it.",
    ),
    "no merges": (
        lambda m: m["model"].update(merges=[]),
        "a BPE tokenizer without merges; llama.cpp loads no vocabulary without one.",
    ),
    "too many": (_too_many, "token '<more>' has id 320; the embedding has 320 rows, and llama.cpp requires as many"),
    "two": (
        lambda m: m["post_processor"]["single"].insert(0, TWICE),
        "it puts 2 special tokens around a text; GGUF has at most one before and one after it.",
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_gguf_cannot_hold_is_refused(name: str, tmp_path: Path) -> None:
    change, message = TOKENIZERS[name]
    source = write_model(tmp_path / "source")
    path = source / "tokenizer.json"
    members = json.loads(path.read_text())
    change(members)
    path.write_text(json.dumps(members))
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        read_vocabulary(source, 320)
    assert str(caught.value).startswith(str(path))


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
