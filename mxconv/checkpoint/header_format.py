"""Writing a safetensors header, before a single tensor is written."""

import json
from math import prod

from mxconv.checkpoint.dtypes import DTYPES

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
