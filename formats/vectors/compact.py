"""Compact files, one element at a time; their frames have raw blocks, which need no encoder."""

import hashlib
import json
import struct
from itertools import groupby
from typing import Any

CHUNK_ELEMENTS = 2**19

Tensors = dict[str, tuple[str, list[int], bytes]]  # dtype, shape and bytes, by name

ONE: Tensors = {"w": ("BF16", [1], bytes.fromhex("803f"))}
BF16: Tensors = {"w": ("BF16", [2, 4], bytes.fromhex("0000 0080 803f 80bf 807f 80ff c07f ffff"))}
F16: Tensors = {"w": ("F16", [2, 2], bytes.fromhex("003c 00bc 0100 ff7b"))}
MIXED: Tensors = {
    "a": ("F32", [1], bytes.fromhex("0000803f")),
    "b": ("BF16", [0, 3], b""),
    "c": ("U8", [3], bytes.fromhex("0001ff")),
    "d": ("F16", [], bytes.fromhex("0034")),
}
TUNED: Tensors = {
    "c": ("U8", [3], bytes.fromhex("010000")),
    "d": ("F16", [1], bytes.fromhex("0034")),
    "w": ("BF16", [2, 4], bytes.fromhex("0080 0000 813f 00bf 7f7f 0000 c17f 7fff")),
}
BASE: Tensors = {**BF16, **MIXED}

# tensors, and those of the base
CASES: dict[str, tuple[Tensors, Tensors | None]] = {
    "one weight": (ONE, None),
    "BF16: zeros, ones, infinities, NaN": (BF16, None),
    "F16: one, the least, the greatest": (F16, None),
    "other dtypes, and no elements": (MIXED, None),
    "no tensors": ({}, None),
    "beside a base: alike, of another shape": (TUNED, BASE),
    "beside a base: not there": (F16, MIXED),
    "two chunks": ({"w": ("BF16", [CHUNK_ELEMENTS + 1], bytes(2 * CHUNK_ELEMENTS) + ONE["w"][2])}, None),
}


def compact() -> dict[str, Any]:
    cases: list[dict[str, Any]] = []
    for name, (tensors, base) in CASES.items():
        source = safetensors(tensors)
        planes = planes_of(tensors, base or {})
        header_bytes = len(source) - sum(len(content) for _, _, content in tensors.values())
        base_file = None if base is None else safetensors(base)
        preamble = {
            "format": "mxconv-compact",
            "version": 1,
            "num_bytes": len(source),
            "header_bytes": header_bytes,
            "sha256": hashlib.sha256(source).hexdigest(),
            "base_sha256": None if base_file is None else hashlib.sha256(base_file).hexdigest(),
        }
        text = json.dumps(preamble).encode()
        frames = b"".join(frame(plane) for plane in [source[:header_bytes], *planes])
        cases.append(
            {
                "name": name,
                "source": shown(source),
                "base": None if base_file is None else shown(base_file),
                "planes": [shown(plane) for plane in planes],
                "file": shown(struct.pack("<II", 0x184D2A50, len(text)) + text + frames),
            }
        )
    return {"cases": cases}


def planes_of(tensors: Tensors, base: Tensors) -> list[bytes]:
    """The planes of all chunks of all tensors."""
    planes = []
    for name, (dtype, shape, content) in tensors.items():
        other = base.get(name)
        beside = other[2] if other is not None and other[:2] == (dtype, shape) else None
        width = 2 if dtype in ("BF16", "F16") else 1
        codes = []
        for i in range(0, len(content), width):
            value = int.from_bytes(content[i : i + width], "little")
            if beside is not None:
                start = int.from_bytes(beside[i : i + width], "little")
                codes.append((value - start + (128 if width == 2 else 0)) % 256**width)
            else:
                codes.append(value if width == 1 else (value << 1 | value >> 15) % 65536)
        for i in range(0, len(codes), CHUNK_ELEMENTS):
            chunk = codes[i : i + CHUNK_ELEMENTS]
            if width == 2:
                planes.append(bytes(code >> 8 for code in chunk))
            planes.append(bytes(code & 255 for code in chunk))
    return planes


def frame(content: bytes) -> bytes:
    """A zstd frame of a single segment: blocks that repeat a byte where all are equal, raw ones elsewhere."""
    blocks = [content[i : i + 2**17] for i in range(0, len(content), 2**17)]
    size = struct.pack("<BB", 0x20, len(content)) if len(content) < 256 else struct.pack("<BI", 0xA0, len(content))
    parts = [struct.pack("<I", 0xFD2FB528), size]
    for i, block in enumerate(blocks):
        repeats = len(block) > 1 and len(set(block)) == 1
        head = (i == len(blocks) - 1) | repeats << 1 | len(block) << 3
        parts.append(struct.pack("<I", head)[:3] + (block[:1] if repeats else block))
    return b"".join(parts)


def safetensors(tensors: Tensors) -> bytes:
    """The safetensors file, by hand."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(content)]}
        end += len(content)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in tensors.values())


def shown(content: bytes) -> str:
    """Lines of 32 bytes in hexadecimal digits, each with how often it follows itself."""
    lines = [content[i : i + 32].hex() for i in range(0, len(content), 32)]
    return " ".join(f"{line}*{len(list(group))}" for line, group in groupby(lines))
