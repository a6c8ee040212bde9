"""The head of a GGUF file: what the gguf library wrote is read, what lies is refused."""

import re
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import key, raw_gguf, tensor, text, write_gguf

from mxconv.errors import CheckpointError
from mxconv.gguf.gguf_header import read_gguf_header

U32, STRING, ARRAY = 4, 8, 9


@pytest.mark.parametrize("matrix_type", ["F32", "BF16", "MXFP4", "Q8_0"])
def test_a_file_of_the_library_is_read_as_the_library_reads_it(matrix_type: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", matrix_type=matrix_type)
    header, reader = read_gguf_header(path), gguf.GGUFReader(path)
    raw = path.read_bytes()
    assert len(header.entries) == len(reader.tensors) == 12
    for entry, expected in zip(header.entries, reader.tensors, strict=True):
        assert (entry.name, entry.type.name) == (expected.name, expected.tensor_type.name)
        assert entry.shape == tuple(reversed(expected.shape.tolist()))
        assert raw[entry.begin : entry.end] == np.asarray(expected.data).tobytes()
    assert header.values == {
        name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")
    }


def test_every_type_of_value_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "x")
    values: dict[str, Any] = {
        "UINT8": 255,
        "INT8": -128,
        "UINT16": 65535,
        "INT16": -5,
        "UINT32": 2**32 - 1,
        "INT32": -7,
    }
    values |= {"UINT64": 2**64 - 1, "INT64": -(2**63), "FLOAT32": 0.5, "FLOAT64": 1e300, "BOOL": True, "STRING": "ü ☃"}
    for name, value in values.items():
        writer.add_key_value(name, value, gguf.GGUFValueType[name])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("words", ["a", "", "ü"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    expected = values | {"general.architecture": "x", "numbers": [1, 2, 3], "words": ["a", "", "ü"]}
    assert read_gguf_header(path).values == expected


A_TENSOR = tensor("a", (2, 2))
REFUSALS = [
    (raw_gguf([], [], magic=b"GGML"), "does not begin with 'GGUF'; a GGUF file is required."),
    (b"", "4 bytes are announced and 0 are there (byte 0); all must be there; it is cut."),
    (raw_gguf([], [], version=1), "GGUF version 1; 2 or 3, little-endian, is required."),
    (raw_gguf([], [], version=4 << 24), "GGUF version 67108864; 2 or 3, little-endian, is required."),
    (raw_gguf([], [], version=3 << 24), "a big-endian GGUF file; little-endian is required. Convert it with llama.cpp"),
    (raw_gguf([], [], num_keys=2**63), "9,223,372,036,854,775,808 keys are announced and 8 bytes are left"),
    (raw_gguf([], [], num_tensors=2**60), "tensors are announced and 8 bytes are left"),
    (raw_gguf([struct.pack("<Q", 2**40)] * 2, []), "a name of 1,099,511,627,776 bytes"),
    (raw_gguf([key("a", STRING, struct.pack("<Q", 2**50))], []), "1,125,899,906,842,624 bytes are announced and"),
    (raw_gguf([key("a", STRING, text(b"\xff"))], []), "text that is no UTF-8 (invalid start byte)"),
    (raw_gguf([key("a", ARRAY, struct.pack("<IQ", U32, 2**61))], []), "2,305,843,009,213,693,952 elements are announc"),
    (raw_gguf([key("a", ARRAY, struct.pack("<IQ", STRING, 2**40))], []), "strings are announced and"),
    (raw_gguf([key("a", ARRAY, struct.pack("<IQ", ARRAY, 1))], []), "an array of type number 9 (byte 49); an array of"),
    (raw_gguf([key("a", 13, b"")], [], b"x" * 8), "a value of type number 13"),
    (raw_gguf([key("a", U32, b"abcd")] * 2, []), "key 'a' occurs twice"),
    (raw_gguf([key("general.alignment", U32, struct.pack("<I", 12))], []), "general.alignment is 12 (byte 57); a mult"),
    (raw_gguf([], [tensor("a", (1, 1, 1, 1, 1))]), "tensor 'a' has 5 dimensions (byte 37); at most 4 are allowed."),
    (raw_gguf([], [tensor("a", (2, 32), kind=4)]), "tensor 'a': has GGUF's type number 4, which the gguf library does"),
    (raw_gguf([], [tensor("a", (2, 32), kind=2**32 - 1)]), "type number 4294967295, which"),
    (raw_gguf([], [tensor("a", (2, 256), kind=15)]), "type number 15, which"),  # Q8_K
    (raw_gguf([], [tensor("a", (2, 32), kind=26)]), "type number 26, which"),
    (raw_gguf([], [tensor("a", (32,), kind=2)]), "tensor 'a': Q4_0 of shape [32]; a matrix, or a stack of some, with "),
    (raw_gguf([], [tensor("a", (2, 288), kind=12)]), "tensor 'a': Q4_K of shape [2, 288]; a matrix, or a stack of som"),
    (raw_gguf([], [tensor("a", (2, 256), kind=12)], bytes(287)), "tensor 'a': ends at byte 384 and the file has 383; "),
    (raw_gguf([], [tensor("a", (2, 33), kind=39)]), "tensor 'a': MXFP4 of shape [2, 33]; a matrix, or a stack of some"),
    (raw_gguf([], [tensor("a", (2**32, 2**32))]), "tensor 'a': shape [4294967296, 4294967296] overflows; at most 2^62"),
    (raw_gguf([], [tensor("a", (2, 2), offset=8)], bytes(64)), "tensor 'a': lies at offset 8; a multiple of the align"),
    (raw_gguf([], [A_TENSOR], bytes(15)), "tensor 'a': ends at byte 112 and the file has 111; tensors must lie inside"),
    (raw_gguf([], [A_TENSOR, A_TENSOR], bytes(16)), "tensor 'a' is listed twice"),
    (raw_gguf([], [tensor("a", (2, 8)), tensor("b", (1,), offset=32)], bytes(64)), "tensor 'b' begins at byte 160, in"),
]


@pytest.mark.parametrize(("raw", "message"), REFUSALS)
def test_a_head_that_lies_is_refused(raw: bytes, message: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.gguf").write_bytes(raw)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))}: .*{re.escape(message)}"):
        read_gguf_header(path)


def test_the_same_head_without_the_lie_is_read(tmp_path: Path) -> None:
    whole = raw_gguf([key("general.alignment", U32, struct.pack("<I", 64))], [A_TENSOR])
    (tmp_path / "a.gguf").write_bytes(whole + bytes(-len(whole) % 64 + 16))
    read_gguf_header(tmp_path / "a.gguf")
