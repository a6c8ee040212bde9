"""The safetensors header, never trusted.

A file is 8 bytes (the header's length, little-endian), the header (a JSON object), and the tensors' bytes.
Each member of the object gives one tensor's dtype, shape and place:

    {"__metadata__": {"format": "pt"},
     "norm.weight": {"dtype": "BF16", "shape": [64], "data_offsets": [0, 128]}}

Everything is checked before anything is mapped, so that whoever holds a `SafetensorsHeader` may slice the
file blindly. Names, dtypes, shapes and offsets may all lie; the length of the file is the one thing that
cannot.

Source: the format section of the safetensors README.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mxconv.checkpoint.regular_file import POINTER, check_regular_file, open_file, parse_json_object, pointer_error
from mxconv.errors import CheckpointError


@dataclass(frozen=True)
class TensorDtype:
    """One element type.

    `array_dtype` is what `SourceTensor.array` returns. 16-bit floats travel as their bit patterns and 8-bit
    floats as bytes. Elements of fewer than 8 bits stay packed: their arrays hold bytes, not elements.
    """

    name: str
    num_bits: int
    array_dtype: np.dtype[np.generic]

    @property
    def is_packed(self) -> bool:
        return self.num_bits < 8


def _dtype(name: str, num_bits: int, array_dtype: str) -> tuple[str, TensorDtype]:
    return name, TensorDtype(name, num_bits, np.dtype(array_dtype))


# Source: the `Dtype` enumeration of the safetensors library, version 0.8. Little-endian, as the format is.
DTYPES: dict[str, TensorDtype] = dict(
    [
        _dtype("BF16", 16, "<u2"),
        _dtype("F16", 16, "<u2"),
        _dtype("F32", 32, "<f4"),
        _dtype("F64", 64, "<f8"),
        _dtype("C64", 64, "<c8"),
        _dtype("BOOL", 8, "?"),
        _dtype("U8", 8, "u1"),
        _dtype("I8", 8, "i1"),
        _dtype("U16", 16, "<u2"),
        _dtype("I16", 16, "<i2"),
        _dtype("U32", 32, "<u4"),
        _dtype("I32", 32, "<i4"),
        _dtype("U64", 64, "<u8"),
        _dtype("I64", 64, "<i8"),
        _dtype("F8_E4M3", 8, "u1"),
        _dtype("F8_E5M2", 8, "u1"),
        _dtype("F8_E8M0", 8, "u1"),
        _dtype("F8_E4M3FNUZ", 8, "u1"),
        _dtype("F8_E5M2FNUZ", 8, "u1"),
        _dtype("F6_E2M3", 6, "u1"),
        _dtype("F6_E3M2", 6, "u1"),
        _dtype("F4", 4, "u1"),
    ]
)


MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
MAX_NUM_DIMENSIONS = 32  # of a NumPy array, version 1
MAX_INTEGER = 2**63 - 1  # array sizes and file offsets are signed 64-bit integers

_AGAIN = "Download or export the file again."


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file; `begin` and `end` are byte offsets from the start of the file."""

    name: str
    dtype: str  # as safetensors writes it: BF16, F16, F32, ...
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class SafetensorsHeader:
    """A checked header: the entries, in file order, cover every byte from `data_begin` to the end once."""

    entries: tuple[TensorEntry, ...]
    metadata: dict[str, str]
    data_begin: int  # byte offset from the start of the file

    @property
    def num_bytes(self) -> int:
        """The length of the whole file."""
        return self.entries[-1].end if self.entries else self.data_begin


def read_header(path: Path) -> SafetensorsHeader:
    """Read and check the header of a safetensors file. Raises CheckpointError where the file is truncated or damaged,
    or its header lies."""
    num_file_bytes = check_regular_file(path)
    with open_file(path) as file:
        return parse_header(path, num_file_bytes, lambda _, num_bytes: file.read(num_bytes))


def parse_header(path: Path | str, num_file_bytes: int, read: Callable[[int, int], bytes]) -> SafetensorsHeader:
    """Check the header of a safetensors file of any place and length.

    Args:
        read: bytes of the file, given their place and number; it is called for one range after another.

    Raises:
        CheckpointError: the file is truncated or damaged, or its header lies.
    """
    raw = _read_raw_header(path, num_file_bytes, read)
    members = parse_json_object(raw, f"{path}: header", unique_keys=True)
    metadata = _check_metadata(members.pop("__metadata__", None), path)
    data_begin = LENGTH_BYTES + len(raw)
    entries = [_check_entry(name, member, data_begin, path) for name, member in members.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_coverage(entries, data_begin, num_file_bytes, path)
    return SafetensorsHeader(tuple(entries), metadata, data_begin)


def _read_raw_header(path: Path | str, num_file_bytes: int, read: Callable[[int, int], bytes]) -> bytes:
    prefix = read(0, min(LENGTH_BYTES, num_file_bytes))
    if prefix == POINTER[:LENGTH_BYTES]:  # on a store, where nobody looked before
        raise pointer_error(path)
    num_header_bytes = int.from_bytes(prefix, "little")
    if len(prefix) < LENGTH_BYTES:
        raise CheckpointError(
            f"{path}: {num_file_bytes} bytes long; a safetensors file has at least {LENGTH_BYTES}. {_AGAIN}"
        )
    if num_header_bytes > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: the header claims {num_header_bytes:,} bytes; at most {MAX_HEADER_BYTES:,} are allowed. "
            "Check that it is a safetensors file, or download it again."
        )
    if LENGTH_BYTES + num_header_bytes > num_file_bytes:
        raise CheckpointError(
            f"{path}: the header claims {num_header_bytes:,} bytes and the file has {num_file_bytes:,}; "
            f"the header must fit into the file. It is truncated: download or export it again."
        )
    raw = read(LENGTH_BYTES, num_header_bytes)
    if not raw.startswith(b"{"):
        raise CheckpointError(
            f"{path}: the header begins with {raw[:8]!r}; a safetensors header begins with an opening brace. "
            "Check that it is a safetensors file, or download it again."
        )
    return raw


def _check_metadata(metadata: Any, path: Path | str) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ is {shown(metadata)}; an object of strings is required. {_AGAIN}")
    return metadata


def _check_entry(name: str, member: Any, data_begin: int, path: Path | str) -> TensorEntry:
    """One member of the header, checked on its own; `_check_coverage` looks at them together."""
    label = f"{path}: tensor {name!r}"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{label}: the name holds half a surrogate pair; names must be Unicode text. {_AGAIN}"
        ) from error
    if not isinstance(member, dict) or not {"dtype", "shape", "data_offsets"} <= member.keys():
        raise CheckpointError(
            f"{label}: described by {shown(member)}; dtype, shape and data_offsets are required. {_AGAIN}"
        )
    dtype = member["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(
            f"{label}: dtype {shown(dtype)} is unknown; one of {', '.join(DTYPES)} is required. "
            "Export the model again, as BF16 or F16."
        )
    shape = _check_integers(member["shape"], "shape", label)
    offsets = _check_integers(member["data_offsets"], "data_offsets", label)
    if len(shape) > MAX_NUM_DIMENSIONS:
        raise CheckpointError(
            f"{label}: has {len(shape)} dimensions; at most {MAX_NUM_DIMENSIONS} are allowed. {_AGAIN}"
        )
    # dimensions of 0 are left out here: NumPy refuses (2^40, 2^40, 0) too
    if prod(filter(None, shape)) * DTYPES[dtype].num_bits > 8 * MAX_INTEGER:
        raise CheckpointError(
            f"{label}: shape {shown(list(shape))} overflows; a tensor must have fewer than 2^63 bytes. {_AGAIN}"
        )
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"{label}: data_offsets are {shown(list(offsets))}; a begin and an end not before it are required. {_AGAIN}"
        )
    num_bits = prod(shape) * DTYPES[dtype].num_bits
    if 8 * (offsets[1] - offsets[0]) != num_bits:
        raise CheckpointError(
            f"{label}: data_offsets {list(offsets)} span {offsets[1] - offsets[0]:,} bytes; "
            f"dtype {dtype} and shape {shown(list(shape))} require {num_bits / 8:,.10g}. {_AGAIN}"
        )
    return TensorEntry(name, dtype, shape, data_begin + offsets[0], data_begin + offsets[1])


def _check_integers(values: Any, field: str, label: str) -> tuple[int, ...]:
    # `type is int`: in Python, True is an int too
    if isinstance(values, list) and all(type(value) is int and 0 <= value <= MAX_INTEGER for value in values):
        return tuple(values)
    raise CheckpointError(
        f"{label}: {field} is {shown(values)}; a list of integers from 0 to 2^63 - 1 is required. {_AGAIN}"
    )


def _check_coverage(entries: list[TensorEntry], data_begin: int, num_file_bytes: int, path: Path | str) -> None:
    """Raise unless the tensors, sorted by offset, follow each other from `data_begin` to the file's end."""
    covered, previous = data_begin, "the header"
    for entry in entries:
        label = f"{path}: tensor {entry.name!r}"
        if entry.begin < covered:
            raise CheckpointError(
                f"{label}: begins at byte {entry.begin:,}, inside {previous}, which ends at {covered:,}; "
                f"tensors must not overlap. {_AGAIN}"
            )
        if entry.begin > covered:
            raise CheckpointError(
                f"{label}: begins at byte {entry.begin:,}, and {previous} ends at {covered:,}; "
                f"no bytes may lie between them. {_AGAIN}"
            )
        if entry.end > num_file_bytes:
            raise CheckpointError(
                f"{label}: ends at byte {entry.end:,} of a file of {num_file_bytes:,} bytes; "
                "it must lie inside the file. The file is truncated: download or export it again."
            )
        covered, previous = entry.end, f"tensor {entry.name!r}"
    if covered < num_file_bytes:
        raise CheckpointError(
            f"{path}: {num_file_bytes - covered:,} bytes follow {previous}; "
            f"every byte must belong to a tensor. {_AGAIN}"
        )


def shown(value: Any) -> str:
    """At most 80 characters of a value that came from a file."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


LENGTH_BYTES = 8  # of the field before the JSON
DATA_ALIGNMENT = 64  # bytes: a cache line and the widest vector register


def format_header(entries: list[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]) -> tuple[bytes, list[int]]:
    """The header of a file that holds these tensors one after the other, without gaps.

    The same arguments give the same bytes. Tensor data begins at a multiple of 64 bytes; a later tensor
    is aligned if the lengths of those before it are.

    Args:
        entries: name, dtype (as safetensors writes it) and shape of each tensor, in storage order.
        metadata: the `__metadata__` object; left out when empty.

    Returns:
        The 8-byte length followed by the JSON, padded with spaces; and each tensor's byte offset from the
        start of the file.
    """
    names = [name for name, _, _ in entries]
    assert len(set(names)) == len(names) and "__metadata__" not in names
    members: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    begins, end = [], 0
    for name, dtype, shape in entries:
        num_bytes, rest = divmod(prod(shape) * DTYPES[dtype].num_bits, 8)
        assert rest == 0, f"{name}: {dtype} of shape {shape} ends inside a byte"
        begins.append(end)
        end += num_bytes
        members[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begins[-1], end]}
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    padding = -(LENGTH_BYTES + len(text)) % DATA_ALIGNMENT
    raw = text + b" " * padding
    data_begin = LENGTH_BYTES + len(raw)
    return len(raw).to_bytes(LENGTH_BYTES, "little") + raw, [data_begin + begin for begin in begins]
