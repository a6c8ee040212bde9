"""The accumulator's sum: FP32 addition in integers, rounding to nearest, ties to even.

A term is (-1)^sign * significand * 2^exponent with an integer significand, so that a product enters exactly.
"""

from dataclasses import dataclass

FRACTION_BITS = 24  # of an FP32 significand, the leading one included
LEAST_EXPONENT = -149  # of the last place of the smallest FP32 numbers
LARGEST_EXPONENT = 127 - 23


@dataclass(frozen=True)
class Term:
    sign: int
    significand: int
    exponent: int


ZERO = Term(0, 0, 0)


def add(a: Term, b: Term) -> Term:
    """The FP32 number nearest to the exact sum. Overflow is infinity's business: such sums do not occur here."""
    low = min(a.exponent, b.exponent)
    total = _aligned(a, low) + _aligned(b, low)
    if total == 0:
        return Term(a.sign & b.sign, 0, 0)  # -0 only from two of them
    return _round(Term(int(total < 0), abs(total), low))


def bits_of(term: Term) -> int:
    """The 32-bit pattern of a term that is an FP32 number."""
    if term.significand == 0:
        return term.sign << 31
    rounded = _round(term)
    significand, exponent = rounded.significand, rounded.exponent
    while significand < 1 << FRACTION_BITS - 1 and exponent > LEAST_EXPONENT:
        significand, exponent = significand << 1, exponent - 1
    field = exponent - LEAST_EXPONENT + 1 if significand >> FRACTION_BITS - 1 else 0
    return term.sign << 31 | field << 23 | significand & 0x7FFFFF


def _aligned(term: Term, exponent: int) -> int:
    value = term.significand << term.exponent - exponent
    return -value if term.sign else value


def _round(term: Term) -> Term:
    drop = max(term.significand.bit_length() - FRACTION_BITS, LEAST_EXPONENT - term.exponent)
    if drop <= 0:
        return term
    kept, rest, half = term.significand >> drop, term.significand & (1 << drop) - 1, 1 << drop - 1
    kept += rest > half or (rest == half and kept & 1)  # may carry into a 25th bit, whose last place is then zero
    return Term(term.sign, kept, term.exponent + drop)
