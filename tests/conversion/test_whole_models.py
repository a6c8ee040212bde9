"""Half models, other names of the same tensors, heads that config.json is wrong about, mixed dtypes, NaN."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes  # noqa: F401  safetensors reads BF16 by it
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_safetensors
from llama_cpp_oracle import LlamaCpp
from packages import compare, forge, quantize

from mxconv.decode import load
from mxconv.errors import ModelError, MxconvError
from mxconv.interop.compressed_tensors import export_compressed_tensors
from mxconv.interop.gguf_export import export_gguf
from mxconv.interop.plain_safetensors import export_safetensors
from mxconv.package.manifest import read_manifest
from mxconv.text.tokenizer import Tokenizer
from mxconv.verify import verify

PYLIB = Path(__file__).parents[2] / "examples" / "models" / "pylib-0.2m"
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
UP = "model.layers.1.mlp.up_proj.weight"
Tensors = dict[str, np.ndarray]
TEXT = "def read(path):"
PROMPT = Tokenizer.from_folder(PYLIB).encode(TEXT)


def write(folder: Path, tensors: Mapping[str, np.ndarray], source: Path, **config: Any) -> Path:
    """A folder with these tensors and the rest of a source; a key of None leaves out config.json's."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    path = folder / "config.json"
    members = json.loads(path.read_text()) | config
    path.write_text(json.dumps({key: value for key, value in members.items() if value is not None}))
    return folder


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return safetensors.numpy.load_file(PYLIB / "model.safetensors")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "package"
    quantize(PYLIB, folder)
    return folder


def tokens_of(package: Path) -> list[int]:
    """Greedy tokens with all drafts, which are the target's own."""
    with load(package) as model:
        return list(model.generate(TEXT, max_new_tokens=16, temperature=0.0).token_ids)


def chosen_by_llama_cpp(package: Path, folder: Path) -> int:
    export_gguf(package, folder / "m.gguf", level="target")
    model = LlamaCpp(folder / "m.gguf")
    chosen = int(model.logits(PROMPT)[-1].argmax())
    model.close()
    return chosen


def chosen_by_transformers(folder: Path) -> int:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return int(model(torch.tensor([PROMPT])).logits[0, -1].argmax())


NAMES: dict[str, Callable[[str], str]] = {
    "of a model without its head's class": lambda name: name.removeprefix("model."),
    "of a class around the model": lambda name: f"model.{name}",
    "compiled": lambda name: f"_orig_mod.{name}",
    "compiled layer by layer": lambda name: name.replace(".self_attn.", "._orig_mod.self_attn."),
    "copied": lambda name: f"module.{name}",
    "copied and compiled": lambda name: f"module._orig_mod.{name}",
    "sharded": lambda name: f"_fsdp_wrapped_module.{name}".replace(".mlp.", "._fsdp_wrapped_module.mlp."),
}


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
@pytest.mark.parametrize("kind", NAMES)
def test_other_names_of_the_same_tensors_are_the_same_model(
    kind: str, codec: str, tensors: Tensors, plain: Path, tmp_path: Path
) -> None:
    source = write(tmp_path / "source", {NAMES[kind](name): array for name, array in tensors.items()}, PYLIB)
    quantize(source, tmp_path / "p", codec=codec)
    assert compare(tmp_path / "p", source).ok
    assert tokens_of(tmp_path / "p") == tokens_of(plain)
    export_gguf(plain, tmp_path / "plain.gguf", level="target")
    export_gguf(tmp_path / "p", tmp_path / "m.gguf", level="target")
    ours, expected = (
        {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(tmp_path / name).tensors}
        for name in ("m.gguf", "plain.gguf")
    )
    assert ours == expected
    export_safetensors(tmp_path / "p", tmp_path / "exported")
    exported = safetensors.numpy.load_file(tmp_path / "exported" / "model.safetensors")
    assert not any(word in name for name in exported for word in ("_orig_mod", "module."))


def flipped(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array[::-1])


# what config.json says, the tensors, and whether transformers reads such a folder as a whole model
HEADS: dict[str, tuple[bool | None, Callable[[Tensors], Tensors], bool]] = {
    "tied, and the same head": (True, lambda t: t | {HEAD: t[EMBEDDING]}, True),
    "tied, and another head": (True, lambda t: t | {HEAD: flipped(t[EMBEDDING])}, True),
    "untied, and the same head": (False, lambda t: t | {HEAD: t[EMBEDDING]}, True),
    "untied, and another head": (False, lambda t: t | {HEAD: flipped(t[EMBEDDING])}, True),
    "nothing said, and another head": (None, lambda t: t | {HEAD: flipped(t[EMBEDDING])}, True),
    "tied, and a head alone": (True, lambda t: without(t, EMBEDDING) | {HEAD: t[EMBEDDING]}, True),
    "untied, and no head": (False, lambda t: t, False),  # transformers draws one at random
    "untied, and a head alone": (False, lambda t: without(t, EMBEDDING) | {HEAD: t[EMBEDDING]}, False),
    "nothing said, and no head": (None, lambda t: t, False),
}


def without(tensors: Tensors, name: str) -> Tensors:
    return {each: array for each, array in tensors.items() if each != name}


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
@pytest.mark.parametrize("kind", HEADS)
def test_the_output_head_is_decided_from_the_tensors(
    kind: str, codec: str, tensors: Tensors, plain: Path, tmp_path: Path
) -> None:
    says, change, is_right = HEADS[kind]
    source = write(tmp_path / "source", change(dict(tensors)), PYLIB, tie_word_embeddings=says)
    quantize(source, tmp_path / "p", codec=codec)
    assert compare(tmp_path / "p", source).ok
    expected = chosen_by_transformers(source) if is_right else tokens_of(plain)[0]
    assert tokens_of(tmp_path / "p")[0] == expected
    assert chosen_by_llama_cpp(tmp_path / "p", tmp_path) == expected


def test_a_tied_model_whose_config_json_says_nothing_has_an_output_head_in_8_bits(
    tensors: Tensors, tmp_path: Path
) -> None:
    """In Gemma, whose models are tied unless their config.json says otherwise."""
    codecs = {}
    for says in (True, None):
        gemma = {"model_type": "gemma", "hidden_act": None, "tie_word_embeddings": says}
        source = write(tmp_path / f"source-{says}", tensors, PYLIB, **gemma)
        manifest = quantize(source, tmp_path / f"p-{says}")
        codecs[says] = {record.name: record.codec for record in manifest.tensors}
    assert codecs[None] == codecs[True]
    assert codecs[True][EMBEDDING] == "mxint8"


def test_every_tensor_of_a_model_is_missed(tensors: Tensors, tmp_path: Path) -> None:
    for name in tensors:
        source = write(tmp_path / "source", without(tensors, name), PYLIB)
        expected = rf"source: tensor {name} is missing; its shape {list(tensors[name].shape)}"
        with pytest.raises(ModelError, match=expected.replace("[", r"\[").replace("]", r"\]")):
            quantize(source, tmp_path / "p")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
        shutil.rmtree(source)


def test_every_exporter_and_verify_miss_every_tensor(tensors: Tensors, plain: Path, tmp_path: Path) -> None:
    """Of a package that an earlier version made of a model with a hole."""
    exporters = export_gguf, export_safetensors, export_compressed_tensors
    for name in tensors:
        package = tmp_path / "p"
        shutil.copytree(plain, package)

        def leave_out(members: dict[str, Any], name: str = name) -> None:
            members["tensors"] = [record for record in members["tensors"] if record["name"] != name]

        forge(package, leave_out)
        for export in exporters:
            with pytest.raises(
                ModelError, match=rf"p: tensor {name} is missing; its shape .* is required of the llama"
            ):
                export(package, tmp_path / ("out.gguf" if export is export_gguf else "out"))
        found = [tensor for tensor in verify(package).tensors if tensor.status == "missing"]
        assert [tensor.name for tensor in found] == [name] and not verify(package).ok
        assert f"tensor {name} is missing" in found[0].detail
        assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]
        shutil.rmtree(package)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 4}, r"tensor model.layers.3.self_attn.q_proj.weight is missing"),
        ({"hidden_size": 128}, r"tensor model.embed_tokens.weight has shape \[1024, 64\]; \[1024, 128\] is required"),
        ({"intermediate_size": 96}, r"gate_proj.weight has shape \[192, 64\]; \[96, 64\] is required"),
        ({"attention_bias": True}, r"tensor model.layers.0.self_attn.q_proj.bias is missing; its shape \[64\]"),
        ({"model_type": "qwen3"}, r"tensor model.layers.0.self_attn.q_norm.weight is missing"),
    ],
)
def test_a_config_json_of_another_model_is_refused(
    change: dict[str, Any], words: str, tensors: Tensors, tmp_path: Path
) -> None:
    source = write(tmp_path / "source", tensors, PYLIB, **change)
    with pytest.raises(ModelError, match=words + r".*Download the whole model, or take the config.json that belongs"):
        quantize(source, tmp_path / "p")


def in_f32(tensors: Tensors, *ends: str) -> Tensors:
    return {n: a.astype(np.float32) if n.endswith(ends) else a for n, a in tensors.items()}


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
@pytest.mark.parametrize(
    ("ends", "named"),
    [(("embed_tokens.weight",), EMBEDDING), (("1.mlp.up_proj.weight",), UP), (("weight",), None)],
)
def test_matrices_in_f32_are_refused_by_name_and_rounded_where_that_is_asked_for(
    ends: tuple[str, ...], named: str | None, codec: str, tensors: Tensors, plain: Path, tmp_path: Path
) -> None:
    head = {HEAD: tensors[EMBEDDING]} if named == EMBEDDING else {}  # an embedding that stays as it is
    source = write(tmp_path / "source", in_f32(tensors, *ends) | head, PYLIB, tie_word_embeddings=not head)
    with pytest.raises(MxconvError, match=rf"tensor {named or ''}.*F32; .* required.*Give --dtype bf16 or"):
        quantize(source, tmp_path / "p", codec=codec)
    quantize(source, tmp_path / "p", codec=codec, dtype="bf16")
    assert compare(tmp_path / "p", source).ok
    assert tokens_of(tmp_path / "p") == tokens_of(plain)


def test_f16_bf16_and_f32_in_one_file_convert_with_dtype(tensors: Tensors, tmp_path: Path) -> None:
    mixed = in_f32(tensors, "q_proj.weight", "norm.weight")
    mixed = {name: array.astype(np.float16) if "mlp" in name else array for name, array in mixed.items()}
    source = write(tmp_path / "source", mixed, PYLIB)
    quantize(source, tmp_path / "p", dtype="bf16")
    assert compare(tmp_path / "p", source).ok
    dtypes = {record.name: record.dtype for record in read_manifest(tmp_path / "p").tensors}
    assert dtypes[UP] == "F16" and dtypes["model.layers.0.self_attn.q_proj.weight"] == "BF16"
    assert tokens_of(tmp_path / "p")[0] == chosen_by_transformers(source)
