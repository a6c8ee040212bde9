"""Every type that the gguf library decodes, as a source: its values, their rounding, damage; and blocks packed."""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf_files import own_name, tensors, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from packages import quantize

from mxconv.checkpoint.source import Checkpoint
from mxconv.codecs.float16 import FORMATS
from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.mxint8 import dequantize_mxint8
from mxconv.codecs.vnni8 import pack_quads, pack_scales
from mxconv.errors import CheckpointError, CodecError
from mxconv.gguf.ggml_type import fits_q8_0, ggml_type, pack_blocks, pack_q8_0, readable_types, unpack_blocks
from mxconv.open_source import open_source
from mxconv.package.package import Package
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights
from mxconv.verification.tensor_proof import RebuiltTensor
from mxconv.verify import verify

HIDDEN = 256  # a block of the longest
HEAD_DIM = HIDDEN // 4
QUANTIZED = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "IQ1_M",
    "TQ1_0", "TQ2_0", "NVFP4",
)  # fmt: skip
KNOWN = [name for name in QUANTIZED if name in gguf.GGMLQuantizationType.__members__]  # NVFP4 came in 0.19
FLOATS: dict[str, Any] = {"bf16": bfloat16, "fp16": np.float16}
NAMES = {"bf16": "BF16", "fp16": "F16"}


def write(path: Path, types: Mapping[str, str], matrix_type: str = "F32", layers: int = 1) -> Path:
    sizes = {"embedding_length": HIDDEN, "feed_forward_length": HIDDEN, "block_count": layers}
    values = tensors(layers=layers, hidden=HIDDEN, inner=HIDDEN)
    return write_gguf(path, values, matrix_type, change=lambda keys: keys.update(sizes), types=types)


@cache
def expected_values(path: Path) -> dict[str, np.ndarray]:
    """By Hugging Face's names, in its row order, as the library reads and decodes them."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            heads = values.reshape(len(values) // HEAD_DIM, HEAD_DIM // 2, 2, -1)
            values = heads.swapaxes(1, 2).reshape(values.shape)
        found[own_name(tensor.name)] = values
    return found


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of four layers, in which every type has a matrix, the three floats and MXFP4 too."""
    names = [name for name, values in tensors(layers=4, hidden=HIDDEN, inner=HIDDEN).items() if values.ndim == 2]
    types = dict(zip(names, cycle([*KNOWN, "F16", "BF16", "MXFP4", "F32"]), strict=False))
    return write(tmp_path_factory.mktemp("mixed") / "mixed.gguf", types, layers=4)


@pytest.fixture(scope="module")
def opened(mixed: Path) -> Iterator[Checkpoint]:
    with open_source(mixed) as checkpoint:
        yield checkpoint


def test_the_table_of_types_is_the_librarys() -> None:
    assert set(readable_types()) == {*KNOWN, "F32", "F16", "BF16", "MXFP4"}
    for kind, (block, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        found = ggml_type(kind.value)
        if found is not None:
            assert (found.name, found.block, found.block_bytes) == (kind.name, block, block_bytes)


def test_rows_are_what_the_library_decodes(opened: Checkpoint, mixed: Path) -> None:
    expected = expected_values(mixed)
    types = {own_name(tensor.name): tensor.tensor_type.name for tensor in gguf.GGUFReader(mixed).tensors}
    assert set(opened.tensors) == set(expected) and {*KNOWN} <= {*types.values()}
    for tensor in opened.tensors.values():
        name, values = types[tensor.name], expected[tensor.name]
        assert (tensor.source_type, tensor.shape) == ("BF16" if name == "MXFP4" else name, values.shape)
        if name not in (*KNOWN, "F32"):
            assert tensor.dtype == ("F16" if name == "F16" else "BF16")
            np.testing.assert_array_equal(FORMATS[tensor.dtype].decode(tensor.array()), values)  # type: ignore[arg-type]
            continue
        assert tensor.dtype == "F32" and tensor.array().tobytes() == values.tobytes()
        sent = pickle.loads(pickle.dumps(tensor))  # as workers get it
        for start, stop in ((0, 1), (5, 5), (3, 37), (len(values) - 3, len(values))):
            assert sent.rows(start, stop).tobytes() == values[start:stop].tobytes()
            sent.release(start, stop)
    stored = sum(len(tensor.data.tobytes()) for tensor in gguf.GGUFReader(mixed).tensors)
    assert sum(tensor.num_bytes_stored for tensor in opened.tensors.values()) == stored


@settings(max_examples=50)
@given(st.integers(0, 31), st.integers(0, HIDDEN), st.integers(0, 40))
def test_any_rows_of_any_type_are_those_of_the_whole(opened: Checkpoint, number: int, start: int, count: int) -> None:
    tensor = [tensor for tensor in opened.tensors.values() if tensor.quantized_type][number % len(KNOWN)]
    stop = min(start + count, tensor.shape[0])
    start = min(start, stop)
    assert tensor.rows(start, stop).tobytes() == expected_values(tensor.path)[tensor.name][start:stop].tobytes()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_package_has_every_value_rounded_once(mixed: Path, dtype: str, tmp_path: Path) -> None:
    """The library decodes, ml_dtypes rounds; 16-bit tensors of the other float are rounded too."""
    manifest = quantize(mixed, tmp_path / "package", dtype=dtype)
    types = {own_name(t.name): t.tensor_type.name for t in gguf.GGUFReader(mixed).tensors}
    with Package(tmp_path / "package") as package:
        for name, values in expected_values(mixed).items():
            (record,) = (record for record in package.manifest.tensors if record.name == name)
            found = np.concatenate([rows.reshape(len(rows), -1) for rows in RebuiltTensor(package, record).slices()])
            assert record.dtype == NAMES[dtype]
            assert found.tobytes() == values.astype(FLOATS[dtype]).tobytes()
            as_read = "BF16" if types[name] == "MXFP4" else types[name]
            assert record.rounded_from == (None if as_read == NAMES[dtype] else as_read)
    assert manifest.source.cast and manifest.lossless
    assert manifest.rounded_from == Counter(r.rounded_from for r in manifest.tensors if r.rounded_from)
    with open_source(mixed) as source:
        verification = verify(tmp_path / "package", source)
    assert verification.ok and verification.num_bit_exact == len(types)


def test_verify_names_another_type(tmp_path: Path) -> None:
    quantize(write(tmp_path / "a.gguf", {}, "Q4_1"), tmp_path / "package", dtype="bf16")
    with open_source(write(tmp_path / "b.gguf", {}, "Q8_0")) as source:
        found = verify(tmp_path / "package", source).tensors
    details = [tensor.detail for tensor in found if tensor.name == "lm_head.weight"]
    assert details == ["source has Q8_0 [40, 256], package BF16 [40, 256], rounded from Q4_1"]


NAN, INFINITY, LARGEST = b"\x00\x7e", b"\x00\x7c", b"\xff\x7b"  # scales in FP16


@pytest.mark.parametrize(
    ("codec", "theirs", "scale", "dtype", "message"),
    [
        ("mxfp4", "token_embd.weight", NAN, "bf16", r"embed_tokens.weight holds nan at index \[3, 64\] after rounding"),
        ("bsfp", "blk.0.ffn_up.weight", INFINITY, "bf16", r"holds -?(inf|nan) at index \[3, \d+\] after rounding Q8_0"),
        ("bsfp", "blk.0.ffn_up.weight", LARGEST, "fp16", r"-?inf at index \[3, \d+\] after rounding Q8_0 to F16"),
        ("mxfp4", "blk.0.attn_q.weight", NAN, "bf16", r"q_proj.weight holds nan at index \[33, 64\]"),  # row 3 in pairs
    ],
)
def test_a_damaged_block_is_found_in_its_place(
    codec: str, theirs: str, scale: bytes, dtype: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.gguf", {}, "Q8_0")
    (tensor,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == theirs)
    raw = bytearray(path.read_bytes())
    place = tensor.data_offset + 3 * (HIDDEN // 32 * 34) + 2 * 34  # row 3, block 2
    raw[place : place + 2] = scale
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=message + r".*--on-nonfinite keep"):
        quantize(path, tmp_path / "package", codec=codec, dtype=dtype)
    assert not (tmp_path / "package").exists()
    manifest = quantize(path, tmp_path / "package", codec=codec, dtype=dtype, on_nonfinite="keep")
    (record,) = (record for record in manifest.tensors if record.name == own_name(theirs))
    assert record.codec == "keep" and record.rounded_from == "Q8_0"
    with open_source(path) as source:
        assert verify(tmp_path / "package", source).ok


def test_inspect_says_what_quantize_needs_and_counts_with_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {}, "Q4_K")
    with open_weights(str(path)) as weights:
        inspection = inspect_weights(weights)
    assert inspection.total.num_weights == sum(values.size for values in expected_values(path).values())
    assert inspection.notes == (
        "12 of 12 tensors are Q4_K, F32 and not counted; quantize needs --dtype bf16 or fp16 for them, and so does "
        "inspect.",
    )
    assert {t.note for t in weights.tensors if len(t.shape) == 2} == {"Q4_K: quantize needs --dtype bf16 or fp16"}
    with open_weights(str(path), dtype="bf16") as weights:
        inspection = inspect_weights(weights)
        assert {tensor.note for tensor in weights.tensors} == {"rounded from Q4_K", "rounded from F32"}
    values = np.concatenate([values.ravel() for values in expected_values(path).values()])
    assert inspection.notes == () and inspection.total.to_json()["max_abs"] == np.abs(values.astype(bfloat16)).max()


def test_the_library_reads_every_code_at_every_place_under_every_scale() -> None:
    codes = (np.arange(253 * 32) * 7 % 16).astype(np.uint8).reshape(253, 32)
    codes[:16] = np.arange(16, dtype=np.uint8)[:, None]
    scales = np.arange(253, dtype=np.uint8)[:, None]  # 253 takes a 6 beyond float32
    blocks = pack_blocks(codes, scales)
    assert blocks.shape == (253, 17)
    found = quants.dequantize(blocks, GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(found, dequantize_mxfp4(codes, scales))
    for ours, theirs in zip(unpack_blocks(blocks), (codes, scales), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_q8_0_has_every_mxint8_element_under_every_scale_that_fits() -> None:
    scales = np.concatenate([[0], np.arange(109, 149)]).astype(np.uint8)[:, None].repeat(8, axis=1)
    elements = np.zeros((len(scales), 256), np.int8)
    elements[1:, :255] = np.arange(-127, 128, dtype=np.int8)
    blocks = pack_q8_0(elements, scales)
    assert blocks.shape == (41, 8 * 34)
    found = quants.dequantize(blocks, GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(found, dequantize_mxint8(elements, scales))
    with pytest.raises(CodecError, match=r"^elements \(41, 256\) with scales \(41, 7\); one scale per 32 columns"):
        pack_q8_0(elements, scales[:, 1:])


@pytest.mark.parametrize(
    ("scale", "element", "fits"),
    [(109, 1, True), (148, 1, True), (108, 1, False), (149, 1, False), (0, 0, True), (0, 1, False), (254, 0, False)],
)
def test_a_scale_that_binary16_has_not_does_not_fit(scale: int, element: int, fits: bool) -> None:
    elements, scales = np.zeros((16, 64), np.int8), np.full((16, 2), 127, np.uint8)
    elements[5, 40], scales[5, 1] = element, scale
    assert fits_q8_0(pack_quads(elements), pack_scales(scales)) is fits


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(CodecError, match=r"codes \(1, 33\) with scales \(1, 1\); one scale per 32 columns is required"):
        pack_blocks(np.zeros((1, 33), np.uint8), np.zeros((1, 1), np.uint8))
    with pytest.raises(CodecError, match="rows of 18 bytes; a multiple of 17 is required"):
        unpack_blocks(np.zeros((1, 18), np.uint8))
