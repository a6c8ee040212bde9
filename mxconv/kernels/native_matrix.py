"""Matrices that the native kernels multiply, over the arrays where they lie.

Each wraps the NumPy matrix of the same weights, its reference: that one stays the authority on shape and rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I64
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16, FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.errors import PackageError
from mxconv.kernels import _native
from mxconv.kernels.draft_matrix import EightBitMatrix, FourBitFloatMatrix, FourBitMatrix
from mxconv.kernels.matrix import DenseMatrix, Matrix

if TYPE_CHECKING:
    from mxconv.codecs.bsfp.packing import PackedBsfp

Element = TypeVar("Element", bound=np.generic)


@contextmanager
def file_errors() -> Iterator[None]:
    """Raise PackageError where weights cannot be read."""
    try:
        yield
    except _native.ReadError as error:
        raise PackageError(str(error)) from error


@dataclass(frozen=True, eq=False)
class NativeMatrix:
    """Implements `Matrix` by the native kernels; every format keeps the row promise, drafts included.

    BF16 weights multiply activations rounded to BF16, weights of 8 bits int8 ones, 4-bit weights these too where
    their levels are int8 and nobody asked for float32, all others float32 ones.
    """

    reference: Matrix  # NumPy's, of the same weights
    handle: _native.Matrix  # what the kernels see; it keeps the arrays alive
    engine: _native.Engine
    rebuilt_format: FloatFormat | None = None  # of BSFP, whose rows the kernels rebuild; else the reference reads them

    @property
    def shape(self) -> tuple[int, int]:
        return self.reference.shape

    @property
    def has_16_bits(self) -> bool:
        """Whether every weight is a float of 16 bits, as it is stored or rebuilt."""
        return self.rebuilt_format is not None or isinstance(self.reference, DenseMatrix)

    def multiply(self, x: F32) -> F32:
        result = np.empty((len(x), self.shape[0]), np.float32)
        if len(x):
            self.handle.multiply(self.engine, np.ascontiguousarray(x), result)
        return result

    def rows(self, indices: NDArray[np.intp]) -> F32:
        if self.rebuilt_format is None:
            return self.reference.rows(indices)
        num_rows, num_columns = self.shape
        found = np.empty((len(indices), num_columns), np.uint16)
        for place, index in enumerate(indices):
            first = int(index) // TILE_ROWS * TILE_ROWS
            tile = np.empty((min(TILE_ROWS, num_rows - first), num_columns), np.uint16)
            with file_errors():
                self.handle.patterns(self.engine, first, tile)
            found[place] = tile[int(index) - first]
        return self.rebuilt_format.decode(found)

    def turned(self) -> "NativeMatrix":
        """In 16 bits: exact where the weights are, and rounded to BF16 where they are those of a draft."""
        turned = self.reference.turned()
        if not isinstance(turned, DenseMatrix):
            turned = DenseMatrix(BF16.encode(turned.rows(np.arange(turned.shape[0]))), BF16)
        return native_dense(self.engine, turned)


def native_dense(engine: _native.Engine, reference: DenseMatrix) -> NativeMatrix:
    """16-bit weights."""
    handle = _native.dense(_readable(reference.patterns), reference.float_format.name)
    return NativeMatrix(reference, handle, engine)


def native_bsfp(
    engine: _native.Engine, reference: Matrix, packed: "PackedBsfp", escape_offsets: I64, table: SegmentTable, name: str
) -> NativeMatrix:
    """The exact 16-bit weights inside a BSFP tensor, called `name`, that was not rescaled.

    `escape_offsets` are (row tiles + 1,) indexes of each row tile's first escape.

    Raises:
        PackageError: its escape lists contradict themselves.
    """
    num_padded_rows = TILE_ROWS * len(packed.codes)
    starts = np.ascontiguousarray(table.row_starts(num_padded_rows, packed.row_shifts), np.uint16)
    try:
        handle = _native.bsfp(
            *reference.shape,
            table.float_format.name,
            _readable(packed.codes),
            _readable(packed.residual_low),
            _readable(packed.residual_high),
            starts,
            _readable(packed.escape_counts),
            _readable(escape_offsets),
            _readable(packed.escape_positions),
            _readable(packed.escape_high),
        )
    except ValueError as error:
        raise PackageError(
            f"{name}: {error}; lists that name each escape once, in order, are required. "
            "The file is damaged; convert again."
        ) from error
    return NativeMatrix(reference, handle, engine, table.float_format)


def native_draft(
    engine: _native.Engine, reference: FourBitMatrix | FourBitFloatMatrix | EightBitMatrix
) -> NativeMatrix:
    """The weights of a draft."""
    codes, scales = _readable(reference.codes), _readable(cast(Any, reference.stored_scales))
    factor = reference.factor / reference.rescale_factor  # kernels have no divisor: the quotient scales the scales
    handle: _native.Matrix
    if isinstance(reference, EightBitMatrix):
        handle = _native.mxint8(*reference.shape, codes, scales)
    elif isinstance(reference, FourBitMatrix):
        handle = _native.four_bit_int8(*reference.shape, codes, reference.levels, scales, factor)
    else:
        handle = _native.four_bit_float(*reference.shape, codes, reference.levels, scales, factor)
    return NativeMatrix(reference, handle, engine)


def _readable(array: NDArray[Element]) -> NDArray[Element]:
    """The array itself wherever kernels can read it in place, as they can all that mxconv writes.

    Other writers put tensors at any byte, and a legacy file may hold transposed ones. Kernels read whole vectors of
    aligned elements, so such a tensor is copied into memory, once, rather than its model refused.
    """
    return array if array.flags.aligned and array.flags.c_contiguous else array.copy()
