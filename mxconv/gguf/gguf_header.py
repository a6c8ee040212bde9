"""The head of a GGUF file, never trusted: keys and values, and the place of every tensor.

    "GGUF"  version u32  number of tensors u64  number of keys u64
    keys:     name, type u32, value                                    strings and arrays begin with a u64 length
    tensors:  name, number of dimensions u32, dimensions u64 (in_features first), type u32, offset u64
    padding to the alignment, then the tensors' bytes

Every length is checked against the bytes that are left before anything is allocated, so that whoever holds a
`GgufHeader` may slice the file blindly. The reader of the gguf library maps what a file asks for, so it is not used.

Source:
    the specification of GGUF in the repository of ggml.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mxconv.arch.families.keys import MOST_LAYERS
from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.errors import CheckpointError
from mxconv.gguf.ggml_type import GgmlType, ggml_type, readable_types

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 100_000_000
MAX_NAME_BYTES = 65535  # of a key, by the specification; of a tensor it is 64
MAX_DIMENSIONS = 4
MAX_ELEMENTS = 2**62
DEFAULT_ALIGNMENT = 32

# Type number to struct's letter. Bool is a byte, string and array are read apart.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_AGAIN = "Download or export the file again."


@dataclass(frozen=True)
class GgufEntry:
    """One tensor of a file; `begin` and `end` are byte offsets from the start of the file."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]  # as Hugging Face has it: (out_features, in_features)
    begin: int
    end: int


@dataclass(frozen=True)
class GgufHeader:
    """A checked head."""

    values: dict[str, Any]
    entries: tuple[GgufEntry, ...]
    num_bytes: int  # of the whole file


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check the head of a GGUF file. Raises CheckpointError where it is no GGUF file, truncated or damaged,
    its head lies, or a tensor is of a type that mxconv does not read."""
    num_bytes = check_regular_file(path)
    with open_file(path) as file:
        cursor = _Cursor(file.read(min(num_bytes, MAX_HEADER_BYTES)), num_bytes, path)
    if cursor.take(4) != MAGIC:
        raise CheckpointError(f"{path}: does not begin with 'GGUF'; a GGUF file is required. Check that it is one.")
    version = cursor.number("I")
    if version in [number << 24 for number in VERSIONS]:
        raise CheckpointError(
            f"{path}: a big-endian GGUF file; little-endian is required. Convert it with llama.cpp's "
            f"gguf-py/gguf/scripts/gguf_convert_endian.py {path.name} little, or take a little-endian file."
        )
    if version not in VERSIONS:
        raise CheckpointError(
            f"{path}: GGUF version {version}; 2 or 3, little-endian, is required. Convert it with a newer llama.cpp."
        )
    num_tensors, num_keys = cursor.number("Q"), cursor.number("Q")
    values: dict[str, Any] = {}
    cursor.check_count(num_keys, 13, "keys")  # the shortest: length of the name, type, one byte
    for _ in range(num_keys):
        key = cursor.text(MAX_NAME_BYTES)
        if key in values:
            cursor.reject(f"key {key!r} occurs twice", "keys must be unique")
        values[key] = cursor.value(cursor.number("I"))
    cursor.check_count(num_tensors, 32, "tensors")
    tensors = [_read_tensor(cursor) for _ in range(num_tensors)]
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment % 8 or alignment > 2**31:
        cursor.reject(f"general.alignment is {alignment!r}", "a multiple of 8 is required")
    data_begin = cursor.position + -cursor.position % alignment
    entries = tuple(_place(tensor, data_begin, alignment, num_bytes, path) for tensor in tensors)
    _check_apart(entries, path)
    return GgufHeader(values, entries, num_bytes)


def _read_tensor(cursor: "_Cursor") -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset as listed."""
    name = cursor.text(MAX_NAME_BYTES)
    num_dimensions = cursor.number("I")
    if num_dimensions > MAX_DIMENSIONS:
        cursor.reject(f"tensor {name!r} has {num_dimensions} dimensions", f"at most {MAX_DIMENSIONS} are allowed")
    dimensions = [cursor.number("Q") for _ in range(num_dimensions)]
    return name, tuple(reversed(dimensions)), cursor.number("I"), cursor.number("Q")


def _place(
    tensor: tuple[str, tuple[int, ...], int, int], data_begin: int, alignment: int, num_file_bytes: int, path: Path
) -> GgufEntry:
    name, shape, number, offset = tensor
    label, kind = f"{path}: tensor {name!r}", ggml_type(number)
    if kind is None:
        raise CheckpointError(
            f"{label}: has GGUF's type number {number}, which the gguf library does not decode; one of "
            f"{', '.join(readable_types())} is required. Take another GGUF of the model, or a newer gguf library."
        )
    if prod(filter(None, shape)) > MAX_ELEMENTS:
        raise CheckpointError(f"{label}: shape {list(shape)} overflows; at most 2^62 elements fit. {_AGAIN}")
    if kind.block > 1 and (len(shape) < 2 or shape[-1] % kind.block):
        raise CheckpointError(
            f"{label}: {kind.name} of shape {list(shape)}; a matrix, or a stack of some, with in_features a "
            f"multiple of {kind.block} is required. {_AGAIN}"
        )
    if offset % alignment:
        raise CheckpointError(
            f"{label}: lies at offset {offset}; a multiple of the alignment, {alignment}, is required. {_AGAIN}"
        )
    begin = data_begin + offset
    end = begin + prod(shape) // kind.block * kind.block_bytes
    if end > num_file_bytes:
        raise CheckpointError(
            f"{label}: ends at byte {end:,} and the file has {num_file_bytes:,}; tensors must lie inside the file. "
            "It is truncated: download or export it again."
        )
    return GgufEntry(name, kind, shape, begin, end)


def _check_apart(entries: tuple[GgufEntry, ...], path: Path) -> None:
    names = {entry.name for entry in entries}
    if len(names) < len(entries):
        listed = [entry.name for entry in entries]
        twice = next(name for name in listed if listed.count(name) > 1)
        raise CheckpointError(f"{path}: tensor {twice!r} is listed twice; names must be unique. {_AGAIN}")
    ordered = sorted(entries, key=lambda entry: (entry.begin, entry.end))
    for before, after in pairwise(ordered):
        if after.begin < before.end:
            raise CheckpointError(
                f"{path}: tensor {after.name!r} begins at byte {after.begin:,}, inside {before.name!r}; "
                f"tensors must not overlap. {_AGAIN}"
            )


class _Cursor:
    """Reads the head from front to back; never beyond what is there."""

    def __init__(self, raw: bytes, num_file_bytes: int, path: Path) -> None:
        self._raw, self._num_file_bytes, self._path = raw, num_file_bytes, path
        self.position = 0

    def reject(self, found: str, required: str) -> NoReturn:
        raise CheckpointError(f"{self._path}: {found} (byte {self.position:,}); {required}. {_AGAIN}")

    def take(self, num_bytes: int) -> bytes:
        end = self.position + num_bytes
        if end > len(self._raw):
            limit = f"the head may have {MAX_HEADER_BYTES:,}" if len(self._raw) < self._num_file_bytes else "it is cut"
            self.reject(
                f"{num_bytes:,} bytes are announced and {len(self._raw) - self.position:,} are there",
                f"all must be there; {limit}",
            )
        piece = self._raw[self.position : end]
        self.position = end
        return piece

    def number(self, letter: str) -> Any:
        size = struct.calcsize("<" + letter)
        return struct.unpack("<" + letter, self.take(size))[0]

    def check_count(self, count: int, least_bytes: int, what: str) -> None:
        """Refuse a count that the bytes left cannot hold."""
        if count * least_bytes > len(self._raw) - self.position:
            left = len(self._raw) - self.position
            self.reject(f"{count:,} {what} are announced and {left:,} bytes are left", "all must be there")

    def text(self, max_bytes: int) -> str:
        length = self.number("Q")
        if length > max_bytes:
            self.reject(f"a name of {length:,} bytes", f"at most {max_bytes:,} are allowed")
        return self._decoded(self.take(length))

    def value(self, kind: int) -> Any:
        """A value of a type number; arrays become lists."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self._decoded(self.take(self.number("Q")))
        if kind != _ARRAY:
            self.reject(f"a value of type number {kind}", "0 to 12 are known")
        element, count = self.number("I"), self.number("Q")
        if element in _SCALARS:
            letter = _SCALARS[element]
            self.check_count(count, struct.calcsize("<" + letter), "elements")
            return list(struct.unpack(f"<{count}{letter}", self.take(count * struct.calcsize("<" + letter))))
        if element != _STRING:
            self.reject(f"an array of type number {element}", "an array of numbers or strings is required")
        self.check_count(count, 8, "strings")
        return [self._decoded(self.take(self.number("Q"))) for _ in range(count)]

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.reject(f"text that is no UTF-8 ({error.reason})", "UTF-8 is required")


MAX_SIZE = 2**31 - 1
REMEDY = "Convert the model from its original checkpoint."


class ReadKeys:
    """The keys of an architecture, by their names without the architecture's, and beside them the file's tensors."""

    def __init__(self, values: Mapping[str, Any], tensors: Mapping[str, GgufEntry], path: Path) -> None:
        self.values, self.tensors, self.path = values, tensors, path
        self.architecture = str(values.get("general.architecture"))

    def has(self, key: str) -> bool:
        return self._name(key) in self.values

    def has_tensor(self, *endings: str) -> bool:
        """Whether the name of any tensor ends so."""
        return any(name.endswith(endings) for name in self.tensors)

    def get(self, key: str) -> Any:
        """The value as it is; None where the file has none."""
        return self.values.get(self._name(key))

    def size(self, key: str, default: int | None = None) -> int:
        """An integer from 1 on; of a list, which has a number a layer, the largest."""
        sizes = self.sizes(key, default)
        if not max(sizes):
            self.reject(key, f"an integer from 1 to {MAX_SIZE} is required")
        return max(sizes)

    def sizes(self, key: str, default: int | None = None) -> list[int]:
        """An integer from 1 on as a list of one, or a list of a number a layer, which may be 0. Raises CheckpointError
        where the key is missing, or something else."""
        value = self.values.get(self._name(key), default)
        if isinstance(value, list):
            if not 0 < len(value) <= MOST_LAYERS or not all(
                type(each) is int and 0 <= each <= MAX_SIZE for each in value
            ):
                self.reject(key, f"a list of integers from 0 to {MAX_SIZE} is required")
            return value
        if type(value) is not int or not 0 < value <= MAX_SIZE:
            self.reject(key, f"an integer from 1 to {MAX_SIZE} is required")
        return [value]

    def count(self, key: str, default: int = 0) -> int:
        """An integer from 0 on."""
        return 0 if self.get(key) == 0 else self.size(key, default) if self.has(key) or default else default

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0: of those that float32 does not tell apart, the shortest, as people wrote it."""
        value = self.values.get(self._name(key), default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value) or value <= 0:
            self.reject(key, "a finite number above 0 is required")
        return float(str(np.float32(value)))

    def number_or_none(self, key: str) -> float | None:
        """The same, or None where the file has none."""
        return self.number(key) if self.has(key) else None

    def flags(self, key: str, num_layers: int) -> list[bool] | None:
        """A list of one true or false a layer; a number n is every n-th layer false. None where the file has none."""
        value = self.get(key)
        if type(value) is int and value > 0:
            return [(layer + 1) % value != 0 for layer in range(num_layers)]
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != num_layers or not all(each in (0, 1) for each in value):
            self.reject(key, f"a list of {num_layers} flags, one a layer, is required")
        return [bool(each) for each in value]

    def reject(self, key: str, required: str) -> NoReturn:
        """Raise a CheckpointError about a key."""
        name = self._name(key)
        found = f"{name} is {str(self.values[name])[:80]}" if name in self.values else f"{name} is missing"
        raise CheckpointError(f"{self.path}: {found}; {required}. {REMEDY}")

    def _name(self, key: str) -> str:
        return f"{self.architecture}.{key}"
