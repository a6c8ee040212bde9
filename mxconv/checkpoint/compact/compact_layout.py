"""What lies where in a compact file: its preamble, and the chunks into which the restored file is cut.

Source: formats/compact.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from mxconv.checkpoint.regular_file import parse_json_object
from mxconv.checkpoint.safetensors_header import LENGTH_BYTES, MAX_HEADER_BYTES, MAX_INTEGER, TensorEntry, shown
from mxconv.errors import CheckpointError

MAGIC = bytes.fromhex("502a4d18")  # a skippable frame of zstd, whose decoders pass over it
PREFIX_BYTES = 8  # the magic and the length of the JSON
MAX_JSON_BYTES = 4096
FORMAT, VERSION = "mxconv-compact", 1
CHUNK_ELEMENTS = 1 << 19
PLANES = {"BF16": 2, "F16": 2}  # of dtypes that are not coded as plain bytes

_AGAIN = "Download the file again."


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Preamble(BaseModel, frozen=True, strict=True, extra="forbid"):
    """The first frame: what the restored file is, and beside which base it was coded."""

    format: str = FORMAT
    version: int = VERSION
    num_bytes: int = Field(gt=LENGTH_BYTES, le=MAX_INTEGER)
    header_bytes: int = Field(gt=LENGTH_BYTES, le=LENGTH_BYTES + MAX_HEADER_BYTES)  # before the first tensor
    sha256: Sha256
    base_sha256: Sha256 | None

    def formatted(self) -> bytes:
        """The frame; its length does not depend on what `sha256` is."""
        text = self.model_dump_json().encode()
        return MAGIC + len(text).to_bytes(4, "little") + text


def read_preamble(path: Path, file: BinaryIO) -> Preamble:
    """Read the preamble, with which a compact file begins. Raises CheckpointError where the file is none, or of another
    version."""
    prefix = file.read(PREFIX_BYTES)
    if len(prefix) < PREFIX_BYTES or not prefix.startswith(MAGIC):
        raise CheckpointError(
            f"{path}: begins with {prefix[:4].hex() or 'nothing'}; a compact file begins with {MAGIC.hex()}. "
            "Check that it is the file its name says."
        )
    num_json_bytes = int.from_bytes(prefix[4:], "little")
    text = file.read(min(num_json_bytes, MAX_JSON_BYTES))
    if len(text) < num_json_bytes:
        raise CheckpointError(
            f"{path}: its preamble claims {num_json_bytes:,} bytes, of which {len(text):,} were read; it must fit into "
            f"the file and into {MAX_JSON_BYTES:,} bytes. {_AGAIN}"
        )
    members = parse_json_object(text, f"{path}: preamble", unique_keys=True)
    found = members.get("format"), members.get("version")
    if found != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path}: format {shown(found[0])}, version {shown(found[1])}; {FORMAT!r}, version {VERSION} is required. "
            "Update mxconv, or check that it is the file its name says."
        )
    try:
        return Preamble.model_validate(members)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(
            f"{path}: preamble: {first['loc'][0]}: {first['msg']} (found {shown(first['input'])}). {_AGAIN}"
        ) from error


class Chunk(NamedTuple):
    """Elements that are coded together: one frame a plane, one byte an element in each."""

    label: str  # for messages
    begin: int  # byte offset in the restored file
    num_elements: int
    num_planes: int = 1
    base_begin: int | None = None  # byte offset in the base; None: it is coded alone

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.num_planes


def tensor_chunks(entries: Iterable[TensorEntry], base: Mapping[str, TensorEntry]) -> Iterator[Chunk]:
    """The chunks of all tensors, in file order; beside a tensor of the base where it has one of this name, dtype and
    shape."""
    for entry in entries:
        num_planes = PLANES.get(entry.dtype, 1)
        other = base.get(entry.name)
        is_alike = other is not None and (other.dtype, other.shape) == (entry.dtype, entry.shape)
        begin = other.begin if other is not None and is_alike else None
        yield from cut(Chunk(f"tensor {entry.name!r}", entry.begin, entry.num_bytes // num_planes, num_planes, begin))


def cut(whole: Chunk) -> Iterator[Chunk]:
    """Pieces of `CHUNK_ELEMENTS` elements, the last one shorter."""
    for start in range(0, whole.num_elements, CHUNK_ELEMENTS):
        offset = start * whole.num_planes
        yield whole._replace(
            begin=whole.begin + offset,
            num_elements=min(CHUNK_ELEMENTS, whole.num_elements - start),
            base_begin=None if whole.base_begin is None else whole.base_begin + offset,
        )
