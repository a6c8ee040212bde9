"""The wire format of Protocol Buffers, as far as reading one message goes.

Source:
    protobuf.dev/programming-guides/encoding. Groups, which proto2 files of old held, are refused.
"""

from collections.abc import Iterator

from mxconv.errors import CheckpointError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10


def fields(message: memoryview, name: str) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of every field of a message, in the order of the file.

    Args:
        message: its bytes; lengths in them are checked before anything is taken.
        name: for messages.

    Returns:
        An integer of a varint; the bytes of the others: 8, 4, or as many as the field says.

    Raises:
        CheckpointError: the bytes are no message.
    """
    place = 0
    while place < len(message):
        key, begin = _varint(message, place, name)
        kind = key & 7
        if kind == VARINT:
            value, place = _varint(message, begin, name)
            yield key >> 3, value
            continue
        if kind == LENGTH:
            num_bytes, begin = _varint(message, begin, name)
        elif kind in (FIXED32, FIXED64):
            num_bytes = 4 if kind == FIXED32 else 8
        else:
            raise _damaged(name, place, f"a field of wire type {kind}")
        if num_bytes > len(message) - begin:
            raise _damaged(name, place, f"a field of {num_bytes:,} bytes, of which {len(message) - begin:,} are there")
        place = begin + num_bytes
        yield key >> 3, message[begin:place]


def _varint(message: memoryview, place: int, name: str) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where the next field goes on."""
    value = 0
    for count in range(MAX_VARINT_BYTES):
        if place + count >= len(message):
            raise _damaged(name, place, "a number that is cut off")
        byte = message[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise _damaged(name, place, f"a number of more than {MAX_VARINT_BYTES} bytes")


def _damaged(name: str, place: int, found: str) -> CheckpointError:
    return CheckpointError(
        f"{name}: {found} at byte {place:,} of a message; a whole Protocol Buffers message is required. "
        "Copy the file anew."
    )
