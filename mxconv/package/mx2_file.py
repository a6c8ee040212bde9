"""A draft file of 2-bit matrices, as formats/mx2.md has it: mapped, and checked before anything of it is multiplied."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from mxconv.arrays import U8
from mxconv.checkpoint.mapped_file import MappedFile
from mxconv.checkpoint.regular_file import parse_json_object
from mxconv.codecs.mx2 import check_mx2
from mxconv.errors import CheckpointError, CodecError
from mxconv.package.stored import mx2_arrays
from mxconv.package.stored_matrix import StoredMx2

DRAFT_KEY = "mxconv_draft"  # of the metadata that says how codes were made
_AGAIN = "Make it for this model with `mxconv train mx2`."


def read_mx2_file(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, StoredMx2]:
    """Map the matrices of a file, by the names of the target's tensors.

    Args:
        path: of the file.
        shapes: of the target's tensors.

    Raises:
        CheckpointError: it cannot be read, is no draft of 2 bits, or was not made for this target.
    """
    file = MappedFile(path)
    try:
        _check_codec(file)
        names = {name.rpartition(".")[0] for name in file.entries}
        return {name: _matrix(file, name, shapes.get(name, ())) for name in sorted(names)}
    finally:
        file.close()  # the arrays keep the map alive


def _check_codec(file: MappedFile) -> None:
    label = f"{file.path}: metadata {DRAFT_KEY}"
    described = parse_json_object(file.metadata.get(DRAFT_KEY, "{}").encode(), label, unique_keys=True)
    if (codec := described.get("codec")) != "mx2":
        raise CheckpointError(f"{label}: codec {codec!r}; 'mx2' is required. {_AGAIN}")
    if not file.entries:
        raise CheckpointError(f"{file.path}: holds no arrays; codes and scales of a matrix are required. {_AGAIN}")


def _matrix(file: MappedFile, name: str, shape: tuple[int, ...]) -> StoredMx2:
    if len(shape) != 2 or 0 in shape:
        raise CheckpointError(f"{file.path}: holds {name!r}; names of the target's own matrices are required. {_AGAIN}")
    for array in mx2_arrays(name, (shape[0], shape[1])):
        entry = file.entries.get(array.name)
        found = None if entry is None else (entry.dtype, entry.shape)
        if found != (array.dtype, array.shape):
            shown = "missing" if found is None else f"{found[0]} {list(found[1])}"
            raise CheckpointError(
                f"{file.path}: {array.name} is {shown}; {array.dtype} {list(array.shape)} is required. {_AGAIN}"
            )
    codes, scales = (cast(U8, file.view(f"{name}.{part}")) for part in ("codes", "scales"))
    try:
        check_mx2(scales)
    except CodecError as error:
        raise CheckpointError(f"{file.path}: {name}: {error} {_AGAIN}") from error
    return StoredMx2((shape[0], shape[1]), codes, scales)
