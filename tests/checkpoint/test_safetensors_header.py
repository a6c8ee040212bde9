"""The oracle for reading and writing headers is the safetensors library."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from checkpoints import write_raw_safetensors, write_safetensors
from hypothesis import given
from hypothesis import strategies as st

from mxconv.checkpoint.safetensors_header import DTYPES, format_header, parse_header, read_header
from mxconv.errors import CheckpointError

AGAIN = "Download or export the file again."
UINT8 = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("header")


def error_of(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.removeprefix(f"{path}: ")


# reading what the library wrote


def test_a_file_of_the_library_is_read_entry_for_entry(tmp_path: Path) -> None:
    arrays = {
        "bf16": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
        "f16": np.arange(4, dtype=np.float16),
        "f32": np.ones((1, 2, 3), np.float32),
        "scalar": np.array(7, np.int64),
        "nothing": np.zeros((0, 5), np.float32),
        "flags": np.array([True, False]),
        "naïve/☃": np.arange(3, dtype=np.uint8),
    }
    path = write_safetensors(tmp_path / "a.safetensors", arrays, {"format": "pt", "é": "ü"})
    header = read_header(path)
    assert header.metadata == {"format": "pt", "é": "ü"}
    assert header.num_bytes == path.stat().st_size
    raw = path.read_bytes()
    expected = dict(safetensors.deserialize(raw))
    assert {entry.name for entry in header.entries} == set(expected)
    for entry in header.entries:
        assert entry.dtype == expected[entry.name]["dtype"]
        assert list(entry.shape) == expected[entry.name]["shape"]
        assert raw[entry.begin : entry.end] == bytes(expected[entry.name]["data"])
        assert entry.num_bytes == entry.end - entry.begin
    assert [entry.begin for entry in header.entries] == sorted(entry.begin for entry in header.entries)


def test_a_header_without_tensors_or_metadata_is_read(tmp_path: Path) -> None:
    header = read_header(write_raw_safetensors(tmp_path / "empty.safetensors", {}))
    assert header.entries == () and header.metadata == {} and header.num_bytes == 10
    assert read_header(write_raw_safetensors(tmp_path / "null.safetensors", {"__metadata__": None})).metadata == {}


def test_every_dtype_of_the_library_is_known_with_its_width(tmp_path: Path) -> None:
    with pytest.raises(safetensors.SafetensorError) as caught:
        library_accepts({"a": {**UINT8, "dtype": "none"}}, b"ab")
    names = set(re.findall(r"`([A-Z]+[A-Z0-9_]*)`", str(caught.value)))
    assert {"BF16", "F8_E4M3"} <= names <= set(DTYPES)
    for dtype in (DTYPES[name] for name in names):
        header = {"a": {"dtype": dtype.name, "shape": [8, 3], "data_offsets": [0, 3 * dtype.num_bits]}}
        library_accepts(header, bytes(3 * dtype.num_bits))
        path = write_raw_safetensors(tmp_path / "a.safetensors", header, bytes(3 * dtype.num_bits))
        assert read_header(path).entries[0].num_bytes == 3 * dtype.num_bits


def library_accepts(header: object, payload: bytes) -> None:
    text = json.dumps(header).encode()
    safetensors.deserialize(struct.pack("<Q", len(text)) + text + payload)


# writing what the library reads


def test_the_library_reads_a_file_with_our_header(tmp_path: Path) -> None:
    arrays = {
        "z": np.arange(12, dtype=np.float32).reshape(3, 4),
        "a": np.arange(5, dtype=np.uint8),
        "scalar": np.array(3, np.int64),
        "nothing": np.zeros((0, 2), np.float16),
        "naïve/☃": np.arange(3, dtype=np.int16),
    }
    names = {"float32": "F32", "uint8": "U8", "int64": "I64", "float16": "F16", "int16": "I16"}
    entries = [(name, names[array.dtype.name], array.shape) for name, array in arrays.items()]
    raw, begins = format_header(entries, {"made by": "a test", "é": '"'})
    path = tmp_path / "ours.safetensors"
    path.write_bytes(raw + b"".join(array.tobytes() for array in arrays.values()))
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"made by": "a test", "é": '"'}
        assert set(file.keys()) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)
    header = read_header(path)
    assert [(e.name, e.dtype, e.shape) for e in header.entries] == entries
    assert [e.begin for e in header.entries] == begins


def test_headers_are_padded_to_64_bytes_and_the_same_for_the_same_content() -> None:
    for length in range(60, 70):
        raw, begins = format_header([("n" * length, "BF16", (3,)), ("b", "U8", (1,))], {})
        assert len(raw) % 64 == 0 and begins == [len(raw), len(raw) + 6]
        assert len(raw) == 8 + int.from_bytes(raw[:8], "little")
        assert b"__metadata__" not in raw
    first = format_header([("a", "F4", (4,))], {"x": "1", "y": "2"})
    assert first == format_header([("a", "F4", (4,))], {"y": "2", "x": "1"})


# lies and damage


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert error_of(tmp_path / "no") == (
        "no such file; a readable file is required. Check the path, or download it again."
    )
    assert error_of(tmp_path) == "is a folder; a regular file is required. Check the path."


def raw(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + payload


U8 = b'"dtype":"U8","shape":[2],"data_offsets":'
FILES: list[tuple[bytes, str]] = [
    (b"1234567", f"7 bytes long; a safetensors file has at least 8. {AGAIN}"),
    (struct.pack("<Q", 2**63) + b"{}", "the header claims 9,223,372,036,854,775,808 bytes; at most 100,000,000 are al"),
    (struct.pack("<Q", 3) + b"{}", "the header claims 3 bytes and the file has 10; the header must fit into the fi"),
    (raw(b" {}"), "the header begins with b' {}'; a safetensors header begins with an opening brace. "),
    (raw(b'{"a": '), "header: no valid JSON in UTF-8 (Expecting value: line 1 column 7 (char 6)); "),
    (raw(b'{"\xff": 1}'), "header: no valid JSON in UTF-8 ('utf-8' codec can't decode byte 0xff in position 2"),
    (raw(b'{"a":' * 20_000), "header: no valid JSON in UTF-8 (maximum recursion depth exceeded"),
    (raw(b'{"a": ' + b"9" * 5000 + b"}"), "header: no valid JSON in UTF-8 (Exceeds the limit"),
    (raw(b'{"a":1,"b":2,"a":1}'), "header: the JSON key 'a' occurs twice in one object; keys must be unique. "),
    (raw(b'{"a":{"dtype":"U8","dtype":"I8"}}'), "header: the JSON key 'dtype' occurs twice in one object; "),
    (raw(b'{"__metadata__": 5}'), "__metadata__ is 5; an object of strings is required. "),
    (raw(b'{"__metadata__": {"a": 5}}'), "__metadata__ is {'a': 5}; an object of strings is required. "),
    (raw(b'{"\\ud800": {}}'), r"tensor '\ud800': the name holds half a surrogate pair; names must be Unicode text. "),
    (raw(b'{"a":[1]}'), f"tensor 'a': described by [1]; dtype, shape and data_offsets are required. {AGAIN}"),
    (raw(b'{"a":{"shape":[' + b"0," * 99 + b"0]}}"), "tensor 'a': described by {'shape': [0, 0, 0, 0, 0, 0, 0, 0, 0,"),
    (raw(b'{"a":{%s[0,2]},"b":{%s[1,3]}}' % (U8, U8), b"abc"), "tensor 'b': begins at byte 114, inside tensor 'a', "),
    (raw(b'{"a":{%s[0,2]},"b":{%s[3,5]}}' % (U8, U8), b"abcde"), "tensor 'b': begins at byte 116, and tensor 'a' ends"),
    (raw(b'{"a":{%s[0,2]}}' % U8, b"abc"), f"1 bytes follow tensor 'a'; every byte must belong to a tensor. {AGAIN}"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer, which names the file"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_a_file_that_lies_is_refused_here_and_on_a_store(tmp_path: Path, content: bytes, message: str) -> None:
    (path := tmp_path / "a.safetensors").write_bytes(content)
    found = error_of(path)
    assert found.startswith(message) and "again" in found
    with pytest.raises(CheckpointError) as caught:
        parse_header("s3://b/m", len(content), lambda begin, length: content[begin : begin + length])
    assert str(caught.value) == f"s3://b/m: {found}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": None}, "dtype None is unknown; one of BF16, F16, F32, "),
        ({"dtype": "F8_NEW"}, "dtype 'F8_NEW' is unknown; one of BF16, F16, F32, "),
        ({"dtype": ["F16"]}, "dtype ['F16'] is unknown; one of BF16, F16, F32, "),
        ({"shape": [2.0]}, "shape is [2.0]; a list of integers from 0 to 2^63 - 1 is required. "),
        ({"shape": [True]}, "shape is [True]; a list of integers from 0 to 2^63 - 1 is required. "),
        ({"shape": [-2]}, "shape is [-2]; a list of integers from 0 to 2^63 - 1 is required. "),
        ({"shape": [2**63]}, "shape is [9223372036854775808]; a list of integers from 0 to 2^63 - 1 is required. "),
        ({"shape": "2"}, "shape is '2'; a list of integers from 0 to 2^63 - 1 is required. "),
        ({"shape": [1] * 33}, "has 33 dimensions; at most 32 are allowed. "),
        ({"shape": [2**40, 2**40, 0]}, "shape [1099511627776, 1099511627776, 0] overflows; a tensor must have fewer"),
        ({"shape": [3]}, "data_offsets [0, 2] span 2 bytes; dtype U8 and shape [3] require 3. "),
        ({"dtype": "F4", "shape": [3]}, "data_offsets [0, 2] span 2 bytes; dtype F4 and shape [3] require 1.5. "),
        ({"data_offsets": [0, 1, 2]}, "data_offsets are [0, 1, 2]; a begin and an end not before it are required. "),
        ({"data_offsets": [2, 0]}, "data_offsets are [2, 0]; a begin and an end not before it are required. "),
        ({"data_offsets": [0, None]}, "data_offsets is [0, None]; a list of integers from 0 to 2^63 - 1 is required"),
        ({"data_offsets": [1, 3]}, "begins at byte 81, and the header ends at 80; no bytes may lie between them. "),
        ({"data_offsets": [0, 3], "shape": [3]}, "ends at byte 83 of a file of 82 bytes; it must lie inside the file."),
    ],
)
def test_an_entry_that_lies_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    text = json.dumps({"a": UINT8 | change}).encode().ljust(72)  # data begins at byte 80
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"ab")
    found = error_of(path)
    assert found.startswith(f"tensor 'a': {message}")


def test_a_tensor_of_no_bytes_must_lie_between_others(tmp_path: Path) -> None:
    nothing = {"dtype": "F32", "shape": [0, 3], "data_offsets": [2, 2]}
    path = write_raw_safetensors(tmp_path / "a.safetensors", {"n": nothing, "a": UINT8}, b"ab")
    assert [entry.name for entry in read_header(path).entries] == ["a", "n"]
    path = write_raw_safetensors(
        tmp_path / "b.safetensors", {"n": {**nothing, "data_offsets": [1, 1]}, "a": UINT8}, b"ab"
    )
    assert "tensor 'n': begins at byte" in error_of(path)


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from([*DTYPES, "X"]),
                "shape": st.lists(st.integers(-1, 3), max_size=3),
                "data_offsets": st.lists(st.integers(0, 16), min_size=2, max_size=2),
            }
        ),
        max_size=3,
    ),
    st.integers(0, 16),
)
def test_random_headers_are_accepted_exactly_when_the_library_accepts_them(
    scratch: Path, header: dict[str, Any], num_bytes: int
) -> None:
    path = write_raw_safetensors(scratch / "random.safetensors", header, bytes(num_bytes))
    try:
        safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError:
        with pytest.raises(CheckpointError):
            read_header(path)
    else:
        read_header(path)
