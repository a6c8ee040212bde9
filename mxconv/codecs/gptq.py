"""GPTQ: codes of a matrix chosen so that what it makes of given inputs changes least, on a grid that is fixed before.

Inputs of a matrix are taken one after another; the rounding error of each is made up for by those that are not rounded
yet, as far as the inputs go together (X^T X says how far). Inputs with the largest sum of squares come first.

Source: arXiv 2210.17323, Algorithm 1, with the order that its authors' code calls act_order. The grid is E2M1 with
block scales that were chosen before; the original's is of integers.
"""

from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F64, I64, U8
from mxconv.codecs.e2m1 import VALUES, encode_e2m1

DAMPING = 0.01  # of the mean square of an input, added to every one
BLOCK_INPUTS = 128  # whose errors reach later blocks together
BLOCK_ROWS = 4096  # that are rounded together: rows do not depend on each other


@dataclass(frozen=True)
class InputFactor:
    """What inputs say about errors: H^-1 = U^T U for the damped H = X^T X, with inputs in descending order.

    Args:
        order: (in_features,) the inputs in the order in which they are rounded.
        unit: (in_features, in_features) float64, U divided by its diagonal: row j is what an error in input j takes
            from each later input.
    """

    order: I64
    unit: F64

    @classmethod
    def of(cls, products: F64, damping: float = DAMPING) -> "InputFactor":
        """The factor of X^T X, (in_features, in_features) float64, not all zeros."""
        squares = products.diagonal()
        order = np.argsort(-squares, kind="stable")
        damped = products[np.ix_(order, order)]
        damped[np.diag_indices_from(damped)] += damping * squares.mean()
        # H = R R^T with R upper, by a Cholesky factor from the other end; then U = R^-1 is upper
        upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
        inverse = np.triu(np.linalg.inv(upper))
        return cls(order, inverse / inverse.diagonal()[:, None])


def compensated_codes(weights: F64, scales: F64, factor: InputFactor) -> U8:
    """Round to E2M1 codes with GPTQ's compensation.

    Args:
        weights: (out_features, in_features) float64, finite.
        scales: of each weight, the same shape, powers of two.
        factor: of the inputs.

    Returns:
        (out_features, in_features) uint8.
    """
    codes = np.empty(weights.shape, np.uint8)
    for start in range(0, len(weights), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        # an input a row: what is read together lies together
        rest, steps = (np.ascontiguousarray(array[rows].T[factor.order]) for array in (weights, scales))
        codes[rows, factor.order] = _rounded(rest, steps, factor.unit).T
    return codes


def output_errors(codes: U8, weights: F64, scales: F64, products: F64) -> F64:
    """The squared error of each output over the inputs, sum((X (w - q))^2): (out_features,) float64."""
    off = weights - VALUES[codes] * scales
    errors: F64 = np.einsum("ij,ij->i", off @ products, off)
    return errors


def _rounded(rest: F64, steps: F64, unit: F64) -> U8:
    """Codes of weights (in_features, rows), which are changed."""
    codes = np.empty(rest.shape, np.uint8)
    for begin in range(0, len(rest), BLOCK_INPUTS):
        end = min(begin + BLOCK_INPUTS, len(rest))
        errors = np.empty((end - begin, rest.shape[1]))
        for place in range(begin, end):
            codes[place] = encode_e2m1((rest[place] / steps[place]).astype(np.float32))
            error = errors[place - begin] = rest[place] - VALUES[codes[place]] * steps[place]
            rest[place + 1 : end] -= unit[place, place + 1 : end, None] * error
        rest[end:] -= unit[begin:end, end:].T @ errors
    return codes
