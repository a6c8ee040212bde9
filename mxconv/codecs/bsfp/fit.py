"""The fitted segment table: where to cut, so that draft error and escapes together cost least.

The draft is a quantizer whose cells are the segments, so an unconstrained fit would be Lloyd-Max. But a segment spans
only 2^R patterns, and what it does not reach escapes, at 16 stored bits and the time to patch it. So we minimize

    error / signal + price * escapes / weights

over all cuts on a grid of 32 an octave, exactly, by dynamic programming on the histogram. Work and memory grow with the
square of the number of cuts, so weights at very many exponents get a coarser grid where they are small. The price
follows from what a bit is worth: at the optimum of `bits per weight + draft error in dB` it is
24 * error * ln(10) / 10 / signal, with 24 bits an escape. The same sum chooses the residual width, and whether row
shifts pay for their byte a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F64, I64, Bool
from mxconv.codecs.bsfp.draft import GROUP
from mxconv.codecs.bsfp.histogram import OCTAVES_ABOVE, OCTAVES_BELOW, PatternHistogram
from mxconv.codecs.bsfp.table import NUM_CODES, RESIDUAL_BITS, SHIFTS_PER_OCTAVE, SegmentTable
from mxconv.codecs.float16 import FloatFormat
from mxconv.codecs.vnni8 import TILE_ELEMENTS

ESCAPE_BITS = 16  # position and high byte
ESCAPE_PRICE = 24  # in bits: what it stores, and half as much again for the time that patching takes
BITS_PER_DECIBEL = 1.0  # what one dB of draft signal-to-noise is worth, in stored bits a weight
GRID_PER_OCTAVE = 32
MAX_CUTS = 32 * GRID_PER_OCTAVE  # trained tensors have 200 to 500
NUM_ROUNDS = 4  # of price and fit; the price settles within two


@dataclass(frozen=True)
class FittedTable:
    """A table with what it is expected to cost; `num_escapes` is exact."""

    table: SegmentTable
    num_escapes: int
    relative_error: float  # of the draft before group scales and integer levels
    bits_per_weight: float  # nibble, residual, scales, escapes, shifts; without padding
    cost: float  # bits a weight with escapes at their price, plus draft error in dB: what the fit minimizes


@dataclass(frozen=True)
class Cells:
    """What a segment costs between any two of n cuts: running sums below each cut, and over all weights at the end."""

    weights: F64  # (n + 1,) how many
    energy: F64  # (3, n + 1) sums of energy * value^0, 1, 2
    reach: F64  # (n,) weights below the end of a segment that begins at the cut


BestCuts = Callable[[Cells, float], tuple[I64, float]]
"""Takes the cells and the price of an escape: `best_cuts`, or something faster that gives the same bits."""


def fit_table(
    histogram: PatternHistogram,
    residual_bits: int | None = None,
    row_shifts: bool | None = None,
    choose: BestCuts | None = None,
) -> FittedTable:
    """Choose the segments, residual width and levels of a tensor. Deterministic; reads the histogram alone.

    Width and row shifts are fixed, or None for the best; `choose` finds the cuts, `best_cuts` if None.
    """
    widths = RESIDUAL_BITS[histogram.float_format.name] if residual_bits is None else (residual_bits,)
    samples = []
    if row_shifts is not True:
        samples.append(_Sample.plain(histogram))
    if row_shifts is not False:
        samples.append(_Sample.shifted(histogram))
    fits = [_fit(histogram, sample, width, choose or best_cuts) for sample in samples for width in widths]
    return min(fits, key=lambda fit: fit.cost)


@dataclass(frozen=True)
class _Sample:
    """A histogram in one or eight phases, and its sums up to each point of a common grid of cuts.

    A cut is a magnitude; in phase p it lies at the first pattern whose value is at least cut * 2^(p/8).
    """

    float_format: FloatFormat
    cumulative: F64  # (phases, bins + 1) weights in the bins before each, and all
    first: int  # pattern of bin 0
    cuts: F64  # (n,) ascending magnitudes
    positions: I64  # (phases, n) bin of each cut
    below: F64  # (n + 1,) weights below each cut, and all
    energy: F64  # (3, n + 1) sums of energy * value^0, 1, 2 below each cut, and all

    @classmethod
    def plain(cls, histogram: PatternHistogram) -> "_Sample":
        float_format = histogram.float_format
        counts = histogram.counts[None].copy()
        counts[:, float_format.infinity :] = 0
        occupied = np.flatnonzero(counts[0])
        low, high = (int(occupied[0]), int(occupied[-1])) if occupied.size else (0, 0)
        return cls._build(float_format, counts, counts.astype(np.float64), 0, low, high)

    @classmethod
    def shifted(cls, histogram: PatternHistogram) -> "_Sample":
        float_format = histogram.float_format
        low = float_format.exponent_bias - OCTAVES_BELOW
        high = float_format.exponent_bias + OCTAVES_ABOVE
        octave = float_format.patterns_per_octave
        return cls._build(
            float_format, histogram.shifted_counts, histogram.shifted_energy, histogram.shifted_first,
            low * octave, high * octave,
        )  # fmt: skip

    @classmethod
    def _build(cls, float_format: FloatFormat, counts: I64, energy: F64, first: int, low: int, high: int) -> "_Sample":
        num_phases, num_bins = counts.shape
        patterns = np.arange(first, first + num_bins)
        finite = np.minimum(patterns, float_format.infinity - 1).astype(np.uint16)
        values = float_format.decode(finite).astype(np.float64)
        step = max(1, float_format.patterns_per_octave // GRID_PER_OCTAVE)
        grid = low // step * step + step * np.arange(max((high - low) // step + 2, NUM_CODES))
        grid = grid[grid < first + num_bins]
        cuts = values[grid - first]
        scales = 2.0 ** (np.arange(num_phases) / SHIFTS_PER_OCTAVE)
        positions = np.stack([np.searchsorted(values, cuts * scale) for scale in scales])
        total = counts.sum()
        cumulative = _cumulative(counts.astype(np.float64))  # whole numbers below 2^53: exact
        below = _at(cumulative, positions).sum(axis=0)
        keep = _spread(np.flatnonzero(_worth_a_cut(below, total)))
        cuts, positions, below = cuts[keep], positions[:, keep], below[keep]
        normalized = values / scales[:, None]
        moments = (energy * normalized**power for power in range(3))
        sums = np.stack([np.append(_at(_cumulative(m), positions).sum(axis=0), m.sum()) for m in moments])
        return cls(float_format, cumulative, first, cuts, positions, np.append(below, total), sums)

    def cells(self, residual_bits: int) -> Cells:
        """The costs of segments of this width."""
        reach: F64 = _at(self.cumulative, self.positions + (1 << residual_bits)).sum(axis=0)
        return Cells(self.below, self.energy, reach)


def _cumulative(per_bin: F64) -> F64:
    """(phases, bins) -> (phases, bins + 1): sums of the bins before each."""
    return np.pad(np.cumsum(per_bin, axis=1), ((0, 0), (1, 0)))


def _at(cumulative: F64, positions: I64) -> F64:
    """Cumulative sums at bin positions, clipped to the bins there are."""
    return np.take_along_axis(cumulative, np.clip(positions, 0, cumulative.shape[1] - 1), axis=1)


def _worth_a_cut(below: F64, total: int) -> Bool:
    """Cuts with weights between them and the next one, the far tails left out; never fewer than eight.

    Args:
        below: (n,) weights below each cut.
        total: all weights.
    """
    above_next = np.append(below[1:], total)
    keep = (above_next > below) & (above_next > 1e-4 * total) & (below < (1 - 1e-6) * total)
    spare = np.flatnonzero(~keep)[: max(0, NUM_CODES - int(keep.sum()))]
    keep[spare] = True
    return keep


def _spread(cuts: I64) -> I64:
    """At most `MAX_CUTS` of ascending cuts: the upper half, which holds the energy, and the others evenly thinned."""
    upper = MAX_CUTS // 2
    if len(cuts) <= MAX_CUTS:
        return cuts
    lower = np.linspace(0, len(cuts) - upper - 1, MAX_CUTS - upper).astype(np.int64)
    return np.append(cuts[lower], cuts[-upper:])


def _fit(histogram: PatternHistogram, sample: _Sample, residual_bits: int, choose: BestCuts) -> FittedTable:
    """Alternate price and exact cuts."""
    cells = sample.cells(residual_bits)
    error = 0.01
    for _ in range(NUM_ROUNDS):
        price = ESCAPE_PRICE * error * float(np.log(10)) / 10 / BITS_PER_DECIBEL
        before, (cuts, error) = error, choose(cells, price)
        if error == before:  # the price has settled
            break
    table = _table(sample, residual_bits, cuts)
    num_escapes = histogram.num_weights - _num_covered(sample, table)
    bits = 4 + residual_bits + 16 / GROUP + 8 / TILE_ELEMENTS
    bits += 8 / max(histogram.num_columns, 1) if table.has_row_shifts else 0
    escape_rate = num_escapes / max(histogram.num_weights, 1)
    cost = bits + ESCAPE_PRICE * escape_rate + BITS_PER_DECIBEL * 10 * np.log10(max(error, 1e-12))
    return FittedTable(table, num_escapes, error, bits + ESCAPE_BITS * escape_rate, float(cost))


def best_cuts(cells: Cells, price: float) -> tuple[I64, float]:
    """Indices of the eight cuts that begin the segments, and the relative error they leave.

    cell[i, j] is what a segment costs that begins at cut i and ends before cut j; the first one also takes everything
    below its start. best[j] is the least cost of k segments that end before cut j.
    """
    num_cuts = len(cells.reach)
    begin, end = np.arange(num_cuts)[:, None], np.arange(1, num_cuts + 1)[None, :]
    weights, reach, (mass, first, second) = cells.weights, cells.reach, cells.energy
    signal = max(second[-1], np.finfo(np.float64).tiny)

    def cost(origin: I64 | int, is_first: bool) -> tuple[F64, F64]:
        base = [0.0, 0.0, 0.0, 0.0] if is_first else [s[origin] for s in (mass, first, second, weights)]
        m, f, s, n = (sums[end] - b for sums, b in zip((mass, first, second, weights), base, strict=True))
        error = np.maximum(s - np.where(m > 0, f * f / np.where(m > 0, m, 1), 0), 0) / signal
        covered = np.minimum(weights[end], reach[:, None]) - weights[:-1, None]
        escapes = (n - covered) / max(weights[-1], 1)
        total = np.where(end > begin, error + price * escapes, np.inf)
        return total, np.broadcast_to(error, total.shape)

    cell, error = cost(begin, False)
    first_cell, first_error = cost(0, True)
    best = first_cell.min(axis=0)
    origins = [first_cell.argmin(axis=0)]
    for _ in range(NUM_CODES - 1):
        previous = np.concatenate([[np.inf], best[:-1]])
        total = previous[:, None] + cell
        origins.append(total.argmin(axis=0))
        best = total.min(axis=0)

    chosen, stop, left = [], num_cuts - 1, 0.0
    for segment in range(NUM_CODES - 1, -1, -1):
        start = int(origins[segment][stop])
        left += float((error if segment else first_error)[start, stop])
        chosen.append(start)
        stop = start - 1
    return np.array(chosen[::-1]), left


def _table(sample: _Sample, residual_bits: int, cuts: I64) -> SegmentTable:
    """Starts in every phase, and the cells' centroids as int8 levels."""
    limit = sample.float_format.infinity - (1 << residual_bits)
    starts = np.minimum(sample.positions[:, cuts] + sample.first, limit)
    edges = np.append(cuts, len(sample.cuts))
    mass, first, _ = sample.energy
    lower_mass = np.where(np.arange(NUM_CODES) == 0, 0, mass[edges[:-1]])
    lower_first = np.where(np.arange(NUM_CODES) == 0, 0, first[edges[:-1]])
    cell_mass = mass[edges[1:]] - lower_mass
    cell_first = first[edges[1:]] - lower_first
    centroids = np.where(cell_mass > 0, cell_first / np.where(cell_mass > 0, cell_mass, 1), sample.cuts[cuts])
    levels = _integer_levels(centroids, cell_mass)
    return SegmentTable(
        sample.float_format,
        residual_bits,
        tuple(tuple(int(start) for start in row) for row in starts),
        tuple(float(level) for level in levels),
    )


def _integer_levels(centroids: F64, mass: F64) -> I64:
    """Centroids as integers 0..127, at whichever scale rounds them best (the group scale undoes it)."""
    top = centroids[-1]
    if top <= 0:
        return np.zeros(NUM_CODES, np.int64)
    tops = np.arange(96, 128)[:, None]
    scaled = centroids / top * tops
    errors = (mass * ((np.rint(scaled) - scaled) / tops) ** 2).sum(axis=1)
    best: F64 = scaled[int(errors.argmin())]
    return np.rint(best).astype(np.int64)


def _num_covered(sample: _Sample, table: SegmentTable) -> int:
    """How many weights of the histogram lie in a segment of the table: exact."""
    total = 0
    for sums, starts in zip(sample.cumulative, table.starts, strict=True):
        last = len(sums) - 1
        bins = np.array(starts, np.int64) - sample.first
        ends = np.minimum(np.append(bins[1:], last), bins + table.num_patterns)
        total += int((sums[np.clip(ends, 0, last)] - sums[bins]).sum())
    return total
