"""Which arrays of a package stand for a tensor, and where in them one expert of a stack lies."""

from mxconv.codecs.vnni8 import TILE_ROWS, padded
from mxconv.errors import PackageError
from mxconv.package.manifest import TensorRecord
from mxconv.package.stored import StoredArray, bsfp_arrays, carried_array, mxfp4_arrays, mxint8_arrays


def stored_shape(record: TensorRecord) -> tuple[int, int]:
    """Of the matrix that the arrays of a tensor hold."""
    if (stack := record.stack) is not None:
        return stack.stored_shape
    if len(record.shape) != 2 or 0 in record.shape:
        raise PackageError(
            f"tensor {record.name}: {record.codec} {record.shape}; a non-empty matrix is required. Convert again."
        )
    return record.shape[0], record.shape[1]


def place_of(record: TensorRecord, expert: int | None) -> tuple[tuple[int, int], slice]:
    """(out_features, in_features), and the row tiles, of a matrix or of one expert of a stack."""
    stack = record.stack
    if stack is None or expert is None:
        assert stack is None and expert is None, f"{record.name}: a stack of experts, and one of them, go together"
        shape = stored_shape(record)
        return shape, slice(0, padded(shape[0], TILE_ROWS) // TILE_ROWS)
    if not 0 <= expert < stack.num_experts:
        raise ValueError(f"tensor {record.name!r} has {stack.num_experts} experts, none of number {expert}")
    return stack.matrix_shape, slice(*stack.tiles(expert))


def tensor_arrays(record: TensorRecord) -> tuple[StoredArray, ...]:
    """The arrays of a quantized tensor; none of a kept one."""
    if (carried := record.carried_tensor) is not None:
        return (carried_array(carried),)
    if record.codec == "mxfp4":
        return mxfp4_arrays(record.name, stored_shape(record))
    if record.codec == "mxint8":
        return mxint8_arrays(record.name, stored_shape(record))
    return _bsfp_arrays(record) if record.codec == "bsfp" else ()


def _bsfp_arrays(record: TensorRecord) -> tuple[StoredArray, ...]:
    table = record.all_segments[0].table(record.dtype)
    num_escapes = sum(segments.num_escapes for segments in record.all_segments)
    return bsfp_arrays(record.name, stored_shape(record), table.residual_bits, table.has_row_shifts, num_escapes)
