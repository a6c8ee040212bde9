"""Segment tables of stacked experts: one for all, or one for each where that pays for the place that tables take.

Experts that are stored together have the same residual width, and all or none of them have row shifts
(formats/package.md). So every pair of the two is fitted, for each expert and for the sum of their histograms, and the
cheapest is taken.
"""

from mxconv.codecs.bsfp.fit import FittedTable
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.table import NUM_CODES, RESIDUAL_BITS, SHIFTS_PER_OCTAVE
from mxconv.codecs.float16 import FloatFormat
from mxconv.kernels.encoders import fit_table

NUMBER_BITS = 8 * 16  # what one number of a table takes in the manifest


class ExpertTables:
    """Fits, expert by expert: of each histogram only tables are kept.

    Args:
        float_format: of the weights.
        residual_bits: fixes the width, or None for the best.
    """

    def __init__(self, float_format: FloatFormat, residual_bits: int | None) -> None:
        widths = RESIDUAL_BITS[float_format.name] if residual_bits is None else (residual_bits,)
        self._choices = [(width, has_shifts) for has_shifts in (False, True) for width in widths]
        self._own: list[list[FittedTable]] = []  # by expert and choice
        self._all = PatternHistogram(float_format)

    def add(self, histogram: PatternHistogram) -> None:
        """The next expert's histogram."""
        self._own.append([fit_table(histogram, *choice) for choice in self._choices])
        self._all.include(histogram)

    def choose(self, *, own: bool = False) -> list[FittedTable]:
        """One table for all experts, or as many as there are experts.

        Args:
            own: whether each must have its own.
        """
        price = NUMBER_BITS * len(self._own) / self._all.num_weights  # in bits a weight of the tensor
        apart = list(zip(*self._own, strict=True))
        costs = [sum(fitted.cost for fitted in fits) / len(fits) + price * _num_numbers(fits[0]) for fits in apart]
        best = costs.index(min(costs))
        if own:
            return list(apart[best])
        together = min((fit_table(self._all, *choice) for choice in self._choices), key=lambda fitted: fitted.cost)
        return [together] if together.cost <= costs[best] else list(apart[best])


def _num_numbers(fitted: FittedTable) -> int:
    """How many numbers the manifest holds of a table."""
    return NUM_CODES * ((SHIFTS_PER_OCTAVE if fitted.table.has_row_shifts else 1) + 1)
