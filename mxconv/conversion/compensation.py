"""Codes and scales of a draft's matrix, chosen by what it multiplies: for MXFP4 and BSFP.

    inputs = MatrixInputs.of(sums, is_turned=False)
    codes, scales = mxfp4_anew(stored, rows, inputs.moved(weights, rows), inputs)

Scales come first, by the mean squares of what their weights multiply; then codes by error compensation
(`codecs/gptq.py`), kept for each output that errs less than with the nearest codes. BSFP chooses among the codes that
reach a weight (`codecs/bsfp/reach.py`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, U8, U16
from mxconv.codecs.bsfp.reach import ReachGrid, fit_scales, reaching_table
from mxconv.codecs.gptq import (
    E2M1,
    MANY_INPUTS,
    Grid,
    InputFactor,
    MxGrid,
    compensated_codes,
    fit_block_scales,
    moved_by_rows,
    moved_weights,
    output_errors,
)
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad, unpack_nibbles, unpack_scales
from mxconv.engine.recorded_inputs import InputRows
from mxconv.package.stored import StoredBsfp, StoredMxfp4

Draft = tuple[U8, U8 | U16]
"""Codes and scales of a matrix as a package stores them."""


@dataclass(frozen=True)
class MatrixInputs:
    """What a matrix multiplied, and the factor of it; and whether stored rows are its inputs."""

    rows: InputRows
    halves: F64 | None  # X^T X of each half; None where inputs are many
    products: F64  # X^T X
    is_turned: bool

    @classmethod
    def of(cls, rows: InputRows, is_turned: bool) -> Self:
        found = rows.products(by_half=rows.num_inputs <= MANY_INPUTS)
        if len(found) == 1:
            return cls(rows, None, found[0], is_turned)
        return cls(rows, found, found.sum(axis=0), is_turned)

    @cached_property
    def factor(self) -> InputFactor:
        """How errors of inputs go together."""
        return InputFactor.of(self.products)

    @cached_property
    def _joined(self) -> tuple[F32, NDArray[np.bool_]]:
        return self.rows.joined()

    @cached_property
    def _moves(self) -> F64:
        return self.rows.moved()

    @cached_property
    def _missing(self) -> F64 | None:
        return self.rows.missing()

    @property
    def squares(self) -> F64:
        """Mean squares of the inputs, which broadcast to the matrix as it is stored."""
        squares: F64 = self.products.diagonal() / self.rows.num_rows
        return squares[:, None] if self.is_turned else squares

    def moved(self, weights: F64, rows: slice) -> F64:
        """Rows of a matrix that the draft's inputs and residual want in place of these."""
        if not self.rows.has_exact:
            return weights
        weights, outputs = (weights.T, slice(None)) if self.is_turned else (weights, rows)
        if self.halves is not None:
            wanted = self._moves @ weights.T
            if self._missing is not None:
                wanted += self._missing[:, :, outputs]
            moved = moved_weights(weights, self.halves, wanted)
        else:
            (x, is_second), lacking = self._joined, self.rows.wanted(weights.astype(np.float32), outputs)
            if len(x) < self.rows.num_inputs:
                moved = moved_by_rows(weights, x, lacking, is_second)
            else:
                given = [x[is_second == half].T @ lacking[is_second == half] for half in range(2)]
                moved = moved_weights(weights, self.rows.products(by_half=True), np.stack(given).astype(np.float64))
        return moved.T if self.is_turned else moved

    def better_codes(self, weights: F64, grid: Grid, nearest: U8) -> U8:
        """The compensated codes of each output, or the nearest ones where these err no more over the inputs."""
        if self.is_turned:
            weights, grid, nearest = weights.T, grid.turned(), nearest.T
        codes = compensated_codes(weights, grid, self.factor)
        errors, others = (self._errors(weights - grid.values(each)) for each in (codes, nearest))
        made = np.where((errors < others)[:, None], codes, nearest)
        return made.T if self.is_turned else made

    def _errors(self, off: F64) -> F64:
        """The squared error of each output whose weights are off by this, (out_features,)."""
        if self.halves is not None:
            return output_errors(off, self.products)
        errors: F64 = np.square(self._joined[0] @ off.T.astype(np.float32)).sum(axis=0, dtype=np.float64)
        return errors


def mxfp4_anew(cast: StoredMxfp4, rows: slice, weights: F64, inputs: MatrixInputs) -> Draft:
    """Codes, and scales that suit what the weights multiply."""
    tiles, (num_rows, columns) = _tiles(rows), weights.shape
    cast_codes = unpack_nibbles(cast.codes[tiles])[:num_rows, :columns]
    scales = fit_block_scales(E2M1, weights, unpack_scales(cast.scales[tiles])[:num_rows], inputs.squares)
    grid = MxGrid.of(E2M1, scales, columns)
    codes = inputs.better_codes(weights, grid, grid.cast(weights))
    codes = np.where(np.repeat(scales == 0, BLOCK, axis=1)[:, :columns], cast_codes, codes)  # zeros are zero bytes
    return pack_nibbles(pad(codes, TILE_ROWS, BLOCK)), pack_scales(pad(scales, TILE_ROWS, 1))


def bsfp_anew(cast: StoredBsfp, rows: slice, weights: F64, inputs: MatrixInputs) -> Draft:
    """Codes that reach the weights, and scales that suit what these multiply."""
    packed, num_rows = cast.row_tiles(_tiles(rows).start, _tiles(rows).stop), len(weights)
    weights, cast = weights * cast.rescale_factor, replace(cast, rescale_factor=1.0)  # as they were encoded
    table, patterns = reaching_table(cast.table), cast.target_rows(rows.start, rows.stop)
    shifts = None if packed.row_shifts is None else packed.row_shifts[:num_rows]
    squares = inputs.squares.astype(np.float32)
    scales = fit_scales(patterns, table, shifts, unpack_scales(packed.scales)[:num_rows], squares)
    grid = ReachGrid.of(patterns, table, shifts, scales)
    codes = inputs.better_codes(weights, grid, grid.cast(patterns))
    return pack_nibbles(pad(codes, TILE_ROWS, BLOCK)), pack_scales(pad(scales, TILE_ROWS, 1))


def _tiles(rows: slice) -> slice:
    """The row tiles of rows that begin with one."""
    return slice(rows.start // TILE_ROWS, -(-rows.stop // TILE_ROWS))
