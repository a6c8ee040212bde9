"""GPTQ: codes of a matrix chosen so that what it makes of given inputs changes least, on a grid that is fixed before.

Inputs of a matrix are taken one after another; the rounding error of each is made up for by those that are not rounded
yet, as far as the inputs go together (X^T X says how far). Inputs with the largest sum of squares come first.

Source: arXiv 2210.17323, Algorithm 1, with the order that its authors' code calls act_order. The grid is of levels
with scales that were chosen before (`MxGrid`, `bsfp.reach.ReachGrid`); the original's is of integers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, I64, U8
from mxconv.codecs.e2m1 import VALUES, encode_e2m1
from mxconv.codecs.e8m0 import BIAS, decode_e8m0
from mxconv.codecs.mxfp4 import BLOCK, MAX_EXPONENT
from mxconv.codecs.vnni8 import pad

DAMPING = 0.01  # of the mean square of an input, added to every one
RIDGES = (0.1, 1.0, 10.0, 100.0)  # of the mean square of an input, as DAMPING
JUDGED_OUTPUTS = 256  # by which a ridge is chosen
MANY_INPUTS = 4096  # beyond, squares of so many numbers are few and what is slow with them is done otherwise
CHUNK_COLUMNS = 1024  # that are summed in float32
BLOCK_INPUTS = 128  # whose errors reach later blocks together
BLOCK_ROWS = 4096  # that are rounded together: rows do not depend on each other


@dataclass(frozen=True)
class InputFactor:
    """What inputs say about errors: H^-1 = U^T U for the damped H = X^T X, with inputs in descending order."""

    order: I64  # (in_features,) the inputs in the order in which they are rounded
    unit: F64  # (in_features, in_features) U by its diagonal: what an error in input j takes from each later input

    @classmethod
    def of(cls, products: F64, damping: float = DAMPING) -> "InputFactor":
        """The factor of X^T X, (in_features, in_features) float64, not all zeros."""
        squares = products.diagonal()
        order = np.argsort(-squares, kind="stable")
        damped = products[np.ix_(order[::-1], order[::-1])]
        damped[np.diag_indices_from(damped)] += damping * squares.mean()
        # H = R R^T with R upper, by a Cholesky factor from the other end; then U = R^-1 is upper
        lower = np.linalg.cholesky(damped)
        del damped
        inverse = np.ascontiguousarray(lower[::-1, ::-1]).astype(np.float64, copy=False)
        del lower
        _invert_upper(inverse)
        inverse /= inverse.diagonal()[:, None].copy()
        return cls(order, inverse)


class Grid(Protocol):
    """What each weight of a matrix may be rounded to."""

    def turned(self) -> Self:
        """The grid of the transposed matrix."""
        ...

    def part(self, rows: slice, order: I64) -> Self:
        """Some rows, transposed: inputs in this order, and a place of it is an input of all these rows."""
        ...

    def round(self, place: int, values: F64) -> tuple[U8, F64]:
        """The codes nearest to the values of a row of the grid, and what these stand for."""
        ...

    def values(self, codes: U8) -> F64:
        """What codes of all weights stand for."""
        ...


class Elements(NamedTuple):
    """What a block's scale is multiplied by: how values become codes, and the values of these."""

    encode: Callable[[F32], U8]
    values: F32
    most: int  # exponent of a scale
    steps: tuple[int, ...]  # of exponents, from the cast's on


E2M1 = Elements(encode_e2m1, VALUES, MAX_EXPONENT, (0, -1, 1))


@dataclass(frozen=True)
class MxGrid:
    """Elements at given scales, (rows, columns) float64, powers of two: implements `Grid`."""

    elements: Elements
    scales: F64

    @classmethod
    def of(cls, elements: Elements, scales: U8, num_columns: int) -> Self:
        """The grid of (rows, num_blocks) uint8 E8M0 scales."""
        return cls(elements, np.repeat(decode_e8m0(scales).astype(np.float64), BLOCK, axis=1)[:, :num_columns])

    def turned(self) -> Self:
        return type(self)(self.elements, self.scales.T)

    def part(self, rows: slice, order: I64) -> Self:
        return type(self)(self.elements, np.ascontiguousarray(self.scales[rows].T[order]))

    def round(self, place: int, values: F64) -> tuple[U8, F64]:
        codes = self.elements.encode((values / self.scales[place]).astype(np.float32))
        return codes, self.elements.values[codes] * self.scales[place]

    def values(self, codes: U8) -> F64:
        made: F64 = self.elements.values[codes] * self.scales
        return made

    def cast(self, weights: F64) -> U8:
        """The codes nearest to the weights."""
        return self.elements.encode((weights / self.scales).astype(np.float32))


def fit_block_scales(elements: Elements, weights: F64, cast: U8, squares: F64) -> U8:
    """Scales of blocks by what weights are multiplied by: the nearest codes err least.

    Args:
        elements: of the format.
        weights: (rows, columns) float64.
        cast: (rows, num_blocks) uint8 E8M0 scales of the direct cast; each becomes this or one some octaves off.
            A scale of 0, which blocks of zeros have, stays.
        squares: (rows, columns) or what broadcasts to it: mean squares of the inputs of each weight.

    Returns:
        (rows, num_blocks) uint8.
    """
    best, least = cast.copy(), np.full(cast.shape, np.inf)
    for step in elements.steps:
        scales = np.where(cast == 0, 0, np.clip(cast.astype(np.int16) + step, 1, BIAS + elements.most)).astype(np.uint8)
        grid = MxGrid.of(elements, scales, weights.shape[1])
        errors = squares * np.square(weights - grid.values(grid.cast(weights)))
        sums = pad(errors, 1, BLOCK).reshape(*cast.shape, BLOCK).sum(axis=2)
        is_better = sums < least
        best, least = np.where(is_better, scales, best), np.where(is_better, sums, least)
    return best


def compensated_codes(weights: F64, grid: Grid, factor: InputFactor) -> U8:
    """Round to codes with GPTQ's compensation: (out_features, in_features) uint8.

    Args:
        weights: (out_features, in_features) float64, finite.
        grid: of the same shape.
        factor: of the inputs.
    """
    codes = np.empty(weights.shape, np.uint8)
    for start in range(0, len(weights), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        # an input a row: what is read together lies together
        rest = np.ascontiguousarray(weights[rows].T[factor.order])
        codes[rows, factor.order] = _rounded(rest, grid.part(rows, factor.order), factor.unit).T
    return codes


def moved_weights(weights: F64, products: F64, wanted: F64) -> F64:
    """The weights with which inputs give most of what is wanted of them: (out_features, in_features).

    A draft's matrix multiplies other rows X than the exact one, Y, and what it makes is added to others, R in place of
    S. The result V makes |X V^T - Y W^T - (S - R)|^2 small: W, and a ridge regression of the rest, whose strength is
    the one of `RIDGES` that does best on each half of the rows when it was fitted to the other; none if that does.

    Args:
        weights: W, (out_features, in_features) float64.
        products: X^T X of each half, (2, in_features, in_features).
        wanted: X^T (Y - X) W^T + X^T (S - R) of each half, (2, in_features, out_features).

    Source:
        GPTAQ, arXiv 2504.02692, moves the weights toward Y W^T, without the ridge's choice; S - R is ours.
    """
    if not products.any(axis=(1, 2)).all():
        return weights
    few = wanted[:, :, :: -(-wanted.shape[2] // JUDGED_OUTPUTS)]
    gains = [sum(_gain(products, few, half, ridge) for half in range(2)) for ridge in RIDGES]
    if max(gains) <= 0:
        return weights
    change = _regressed(products.sum(axis=0), wanted.sum(axis=0), RIDGES[int(np.argmax(gains))])
    return weights + change.T


def _gain(products: F64, wanted: F64, half: int, ridge: float) -> float:
    """How much less the squared error of one half of the rows becomes by a regression of the other."""
    found = _regressed(products[1 - half], wanted[1 - half], ridge)
    return float(np.vdot(found, 2 * wanted[half] - products[half] @ found))


def _regressed(products: F64, wanted: F64 | F32, ridge: float, num_inputs: int | None = None) -> F64:
    """The solution for X^T X, or for X X^T of so many inputs."""
    damped, squares = products.copy(), products.diagonal().sum()
    damped[np.diag_indices_from(damped)] += ridge * (squares / (num_inputs or len(products)))
    return np.linalg.solve(damped, wanted).astype(np.float64, copy=False)


def moved_by_rows(weights: F64, x: F32, wanted: F32, is_second: NDArray[np.bool_]) -> F64:
    """Return what `moved_weights` does, by X X^T: cheaper in time and memory where there are fewer rows than inputs.

    Args:
        weights: W, (out_features, in_features) float64.
        x: X, (num_rows, in_features).
        wanted: (Y - X) W^T + S - R, (num_rows, out_features).
        is_second: (num_rows,) which rows are of the second half.
    """
    products = np.zeros((len(x), len(x)))
    for start in range(0, x.shape[1], CHUNK_COLUMNS):
        some = x[:, start : start + CHUNK_COLUMNS]
        products += some @ some.T
    halves = [np.flatnonzero(is_second == half) for half in range(2)]
    if not all(products.diagonal()[half].any() for half in halves):
        return weights
    few, gains = wanted[:, :: -(-wanted.shape[1] // JUDGED_OUTPUTS)].astype(np.float64), np.zeros(len(RIDGES))
    for half, other in permutations(halves):
        own, across = products[np.ix_(half, half)], products[np.ix_(other, half)]
        for place, ridge in enumerate(RIDGES):
            made = across @ _regressed(own, few[half], ridge, x.shape[1])
            gains[place] += np.vdot(made, 2 * few[other] - made)
    if gains.max() <= 0:
        return weights
    found = _regressed(products, wanted, RIDGES[int(gains.argmax())], x.shape[1])
    return weights + (x.T @ found.astype(np.float32)).T


def _invert_upper(upper: F64) -> None:
    """Invert an upper triangular matrix where it lies, a block of columns after another."""
    step = len(upper) if len(upper) <= MANY_INPUTS else MANY_INPUTS // 8
    for start in range(0, len(upper), step):
        stop = start + step
        upper[start:stop, start:stop] = last = np.triu(np.linalg.inv(upper[start:stop, start:stop]))
        beside = upper[:start, start:stop] @ last
        for first in range(0, start, step):  # what lies left of its diagonal block is zero
            upper[first : first + step, start:stop] = -upper[first : first + step, first:start] @ beside[first:]


def output_errors(off: F64, products: F64) -> F64:
    """The squared error of each output over the inputs, sum((X off)^2): (out_features,) float64.

    `off` are the weights less what they were rounded to, `products` is X^T X.
    """
    errors: F64 = np.einsum("ij,ij->i", off @ products, off)
    return errors


def _rounded(rest: F64, grid: Grid, unit: F64) -> U8:
    """Codes of weights (in_features, rows), which are changed."""
    codes = np.empty(rest.shape, np.uint8)
    for begin in range(0, len(rest), BLOCK_INPUTS):
        end = min(begin + BLOCK_INPUTS, len(rest))
        errors = np.empty((end - begin, rest.shape[1]))
        for place in range(begin, end):
            codes[place], made = grid.round(place, rest[place])
            error = errors[place - begin] = rest[place] - made
            rest[place + 1 : end] -= unit[place, place + 1 : end, None] * error
        rest[end:] -= unit[begin:end, end:].T @ errors
    return codes
