"""Pearson's chi-square test, with the tail of its distribution in closed form."""

import math

import numpy as np

FALSE_ALARM = 1e-6  # the probability that a right distribution is called wrong
LEAST_EXPECTED = 8.0  # of a cell; rarer ones are counted together


def chi_square_tail(statistic: float, degrees: int) -> float:
    """The probability of a value above `statistic`.

    Source:
        Abramowitz & Stegun, 26.4.4 and 26.4.5.
    """
    half = statistic / 2
    if degrees % 2 == 0:
        return math.exp(-half) * math.fsum(half**i / math.factorial(i) for i in range(degrees // 2))
    terms = (half ** (i - 0.5) / math.gamma(i + 0.5) for i in range(1, (degrees + 1) // 2))
    return math.erfc(math.sqrt(half)) + math.exp(-half) * math.fsum(terms)


def tail_of_counts(counts: np.ndarray, shares: np.ndarray) -> float:
    """How probable it is that counts differ from what was expected by as much as these do.

    Args:
        counts: (num_cells,), or (num_rows, num_cells) of several experiments at once.
        shares: the probabilities of the cells, the same shape; each row's sum is 1.
    """
    statistic, degrees = 0.0, 0
    for row, probabilities in zip(np.atleast_2d(counts), np.atleast_2d(shares), strict=True):
        assert not row[probabilities == 0].any(), "something came that cannot come"
        expected = row.sum() * probabilities
        is_rare = expected < LEAST_EXPECTED
        cells = [(c, e) for c, e in zip(row[~is_rare], expected[~is_rare], strict=True)]
        if expected[is_rare].sum() >= LEAST_EXPECTED:
            cells.append((row[is_rare].sum(), expected[is_rare].sum()))
        elif is_rare.any() and cells:  # too few to stand alone
            least = min(range(len(cells)), key=lambda index: cells[index][1])
            cells[least] = cells[least][0] + row[is_rare].sum(), cells[least][1] + expected[is_rare].sum()
        statistic += sum((count - mean) ** 2 / mean for count, mean in cells)
        degrees += max(len(cells) - 1, 0)
    assert degrees > 0, "too few counts to say anything"
    return chi_square_tail(statistic, degrees)
