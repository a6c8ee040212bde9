"""A GGUF file as the source of a conversion, and its configuration: the gguf library writes, mxconv reads."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import HIDDEN, NAMES, tensors, write_gguf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from ml_dtypes import bfloat16
from packages import quantize

from mxconv.arch.families.registry import describe_values
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.errors import CheckpointError, MxconvError
from mxconv.gguf.ggml_type import pack_blocks, unpack_blocks
from mxconv.open_source import open_source
from mxconv.package.package import Package
from mxconv.verify import verify

BIASES = {f"blk.0.attn_{part}.bias": np.ones(size, np.float32) for part, size in (("q", 64), ("k", 32), ("v", 32))}
NAMES_WITH_BIASES = NAMES | {name: f"model.layers.0.self_attn.{name[11]}_proj.bias" for name in BIASES}
HEAD_DIM = 16
FLOATS: dict[str, Any] = {"BF16": bfloat16, "F16": np.float16, "F32": np.float32}


def unpaired(rows: np.ndarray) -> np.ndarray:
    """llama.cpp's permutation of query and key rows, undone."""
    heads = rows.reshape(len(rows) // HEAD_DIM, HEAD_DIM // 2, 2, -1)
    return heads.swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("matrix_type", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_tensors_have_hugging_faces_names_rows_and_bits(matrix_type: str, architecture: str, tmp_path: Path) -> None:
    made = tensors() | ({} if architecture == "llama" else BIASES)
    path = write_gguf(tmp_path / "a.gguf", made, matrix_type=matrix_type, architecture=architecture)
    with open_source(path) as checkpoint:
        assert checkpoint.container == "GGUF" and checkpoint.weight_files == (path,)
        assert set(checkpoint.tensors) == {NAMES_WITH_BIASES[theirs] for theirs in made}
        for theirs, values in made.items():
            found = checkpoint.tensors[NAMES_WITH_BIASES[theirs]]
            if architecture == "llama" and theirs.endswith(("attn_q.weight", "attn_k.weight")):
                values = unpaired(values)
            expected = values.astype(FLOATS["F32" if values.ndim == 1 else matrix_type])
            assert found.array().tobytes() == expected.tobytes()
            assert found.dtype == ("F32" if values.ndim == 1 else matrix_type)
            assert found.num_bytes == expected.nbytes
            for start, stop in ((0, 1), (3, 29), (len(values) - 5, len(values))):
                assert found.rows(start, stop).tobytes() == expected[start:stop].tobytes()
                found.release(start, stop)
            with pytest.raises(ValueError, match="has no rows"):
                found.rows(0, len(values) + 1)
    with pytest.raises(ValueError, match="was closed"):
        found.array()


@given(
    arrays.arrays(np.uint8, (3, 64), elements=st.integers(0, 15)),
    arrays.arrays(np.uint8, (3, 2), elements=st.integers(0, 252)),
)
def test_encoding_mxfp4_values_again_gives_the_same_values(codes: np.ndarray, scales: np.ndarray) -> None:
    """Any block, not only those that an encoder writes: what BF16 holds of it is what `ocp` gives back."""
    values = dequantize_mxfp4(*unpack_blocks(pack_blocks(codes, scales)))
    as_read = BF16.decode(BF16.encode(values))
    np.testing.assert_array_equal(as_read, values)
    np.testing.assert_array_equal(dequantize_mxfp4(*quantize_mxfp4(as_read, "ocp")), values)


NEEDS_DTYPE = [("F32", "is F32; 16-bit weights are required"), ("Q5_1", "is Q5_1, which a quantizer.*Give --dtype")]


@pytest.mark.parametrize(("matrix_type", "words"), NEEDS_DTYPE)
def test_what_is_not_16_bits_needs_a_dtype(matrix_type: str, words: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.GGUF", matrix_type=matrix_type)  # a suffix may be in capitals
    with pytest.raises(CheckpointError, match=words):
        quantize(path, tmp_path / "package")
    assert quantize(path, tmp_path / "package", dtype="fp16").source.cast


@pytest.mark.parametrize(("matrix_type", "codec"), [("F16", "bsfp"), ("BF16", "mxfp4"), ("MXFP4", "bsfp")])
def test_a_conversion_is_lossless_and_verifies_against_the_file(matrix_type: str, codec: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", matrix_type=matrix_type)
    manifest = quantize(path, tmp_path / "package", codec=codec)
    assert manifest.lossless and manifest.source.files[0].path == "a.gguf"
    with open_source(path) as source:
        verification = verify(tmp_path / "package", source)
    assert verification.ok and verification.num_bit_exact == len(tensors())
    assert not (tmp_path / "package" / "a.gguf").exists()  # the target is stored as safetensors


def test_codes_of_an_mxfp4_file_are_carried_over(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", matrix_type="MXFP4")
    quantize(path, tmp_path / "package", lm_head="quantize")
    raw = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    with Package(tmp_path / "package") as package:
        for theirs in ("output.weight", "blk.0.ffn_down.weight"):
            (record,) = (r for r in package.manifest.tensors if r.name == NAMES[theirs])
            stored = package.mxfp4(record)
            from mxconv.codecs.vnni8 import unpack_nibbles, unpack_scales

            rows, columns = stored.shape
            codes, scales = unpack_nibbles(stored.codes)[:rows], unpack_scales(stored.scales)[:rows]
            np.testing.assert_array_equal(pack_blocks(codes[:, :columns], scales), raw[theirs])


def test_parts_of_a_model_and_files_without_tensors_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama", split_max_tensors=4)
    for name, array in tensors().items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 3 and parts[0].name == "a-00001-of-00003.gguf"
    for path in parts:
        with pytest.raises(CheckpointError) as caught:
            open_source(path)
        assert str(caught.value) == (
            f"{path}: one of 3 parts of a split model; one file with all tensors is required. Merge them first: "
            "llama-gguf-split --merge FIRST_PART MERGED.gguf"
        )
    with pytest.raises(CheckpointError, match="holds no tensors; a whole model is required"):
        open_source(write_gguf(tmp_path / "empty.gguf", {}))


def test_a_gguf_target_cannot_be_referenced_nor_be_a_draft(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    with open_source(path) as source:
        with pytest.raises(CheckpointError, match="a GGUF checkpoint; only 16-bit safetensors can be referenced"):
            convert(source, tmp_path / "package", QuantizeOptions(target="reference"))
        with pytest.raises(MxconvError, match="F32 in GGUF files; BF16 or F16 safetensors are required"):
            convert(source, tmp_path / "package", QuantizeOptions(drafts=(f"checkpoint:{path}",)))


def test_a_value_that_mxfp4_has_and_bf16_has_not_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", matrix_type="MXFP4")
    (tensor,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.0.ffn_up.weight")
    raw = bytearray(path.read_bytes())
    raw[tensor.data_offset : tensor.data_offset + 17] = bytes([254, *[0x77] * 16])  # 6 * 2^127
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"up_proj.weight holds inf at index \[0, 0\]; finite weights"):
        quantize(path, tmp_path / "package")


def config_of(path: Path) -> dict[str, Any]:
    with open_source(path) as checkpoint:
        assert checkpoint.config is not None
        describe_values(checkpoint.config)  # what mxconv runs
        return checkpoint.config


def test_keys_and_tensors_become_a_configuration(tmp_path: Path) -> None:
    assert config_of(write_gguf(tmp_path / "a.gguf")) == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 40,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,  # float32 in the file
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "pad_token_id": None,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": None,
    }


def test_linear_scaling_special_ids_and_a_tied_head_are_taken(tmp_path: Path) -> None:
    values = tensors()
    del values["output.weight"]
    keys = {
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 4.0,
        "rope.freq_base": 5e5,
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.eos_token_id": 5,
        "tokenizer.ggml.eot_token_id": 7,
    }
    config = config_of(write_gguf(tmp_path / "a.gguf", values, change=lambda found: found.update(keys)))
    assert config["tie_word_embeddings"]
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert (config["rope_theta"], config["bos_token_id"], config["eos_token_id"]) == (500000.0, 3, [5, 7])


EPSILON, LENGTH = "attention.layer_norm_rms_epsilon", "the length of a head, 16, is required"
REFUSALS: list[tuple[dict[str, Any], str]] = [  # changes of keys, None takes one away, and of tensors
    ({"block_count": None}, "llama.block_count is missing; an integer from 1 to 2147483647"),
    ({"embedding_length": "64"}, "llama.embedding_length is 64; an integer from 1 to"),
    ({"attention.head_count": 0}, "llama.attention.head_count is 0; an integer"),
    ({EPSILON: float("nan")}, f"llama.{EPSILON} is nan; a finite number above 0 is required"),
    ({"expert_count": 4, "expert_used_count": 2}, "llama.expert_count is 4; as many experts as the tensors have"),
    ({"rope.dimension_count": 8}, f"llama.rope.dimension_count is 8; {LENGTH}"),
    ({"attention.key_length": 15}, "llama.attention.key_length is 15; RoPE rotates pairs, so an even length is requi"),
    ({"rope.scaling.type": "dynamic"}, "llama.rope.scaling.type is dynamic; none, linear, yarn, longrope, or the fac"),
    ({"attention.key_length": 1 << 28}, "its keys ask for model.layers.0.self_attn.q_proj.weight of [1073741824, 64]"),
    ({"block_count": 1000}, "elements, and all its tensors have "),  # each of them small
    *(
        ({"general.type": kind}, f"general.type is '{kind}'; 'model' is required. Merge an adapter first")
        for kind in ("adapter", "mmproj", "imatrix")
    ),
    ({"blk.0.ffn_gate_inp.weight": (4, HIDDEN)}, "tensor 'blk.0.ffn_gate_inp.weight' has no place in a llama model"),
    ({"blk.0.attn_q.weight": (40, HIDDEN)}, "'blk.0.attn_q.weight' of shape [40, 64]; [64, 64] is required"),
    ({"token_embd.weight": None}, "has no matrix token_embd.weight; a whole model is required"),
    ({"rope_freqs.weight": (8,)}, "rope_freqs.weight of [8] up to 1 are not the factors of Llama"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSALS)
def test_what_makes_no_model_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    def changed(found: dict[str, Any]) -> None:
        found |= {name: value for name, value in changes.items() if not name.endswith(".weight")}
        for name in [name for name, value in found.items() if value is None]:
            del found[name]

    values = tensors()
    for name, shape in changes.items():
        if name.endswith(".weight"):
            values |= {name: np.zeros(shape, np.float32)} if shape else {}
            values = values if shape else {own: array for own, array in values.items() if own != name}
    path = write_gguf(tmp_path / "a.gguf", values, change=changed)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))}: .*{re.escape(words)}"):
        open_source(path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", architecture="gemma9")
    with pytest.raises(CheckpointError, match=r"architecture is 'gemma9'; one of arcee, cohere2, .* is required"):
        open_source(path)
