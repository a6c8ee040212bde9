"""Numbers for the generator: floats as exact fractions, rounding, sums in a fixed order, pseudo-random bits.

Standard library only, one number at a time: slow, and easy to check by reading.
"""

from fractions import Fraction

FLOAT32 = (8, 23)  # exponent bits, mantissa bits
BF16 = (8, 7)
FP16 = (5, 10)


def floor_log2(value: Fraction) -> int:
    """The largest k with 2^k <= value, for value > 0."""
    k = value.numerator.bit_length() - value.denominator.bit_length()
    return k if Fraction(2) ** k <= value else k - 1


def infinity(kind: tuple[int, int]) -> int:
    """The magnitude pattern of infinity."""
    exponent_bits, mantissa_bits = kind
    return ((1 << exponent_bits) - 1) << mantissa_bits


def value_of(pattern: int, kind: tuple[int, int]) -> Fraction:
    """The exact value of a finite pattern; both zeros give 0."""
    exponent_bits, mantissa_bits = kind
    sign = pattern >> (exponent_bits + mantissa_bits)
    exponent = pattern >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = pattern & ((1 << mantissa_bits) - 1)
    assert exponent < (1 << exponent_bits) - 1, "infinity and NaN have no value"
    if exponent > 0:
        mantissa += 1 << mantissa_bits
    smallest = 2 - (1 << (exponent_bits - 1)) - mantissa_bits  # exponent of the least subnormal
    magnitude = mantissa * Fraction(2) ** (smallest + max(exponent, 1) - 1)
    return -magnitude if sign else magnitude


def pattern_of(value: Fraction, kind: tuple[int, int]) -> int:
    """Round to the nearest pattern, ties to the even one; too large gives infinity. 0 gives +0."""
    exponent_bits, mantissa_bits = kind
    magnitude = abs(value)
    if magnitude == 0:
        return 0
    least_normal = 2 - (1 << (exponent_bits - 1))
    exponent = max(floor_log2(magnitude), least_normal)
    steps = round(magnitude / Fraction(2) ** (exponent - mantissa_bits))  # half to even
    pattern = min(((exponent - least_normal) << mantissa_bits) + steps, infinity(kind))
    return pattern | (value < 0) << (exponent_bits + mantissa_bits)


def rounded(value: Fraction, kind: tuple[int, int]) -> Fraction:
    """The value of the nearest pattern."""
    return value_of(pattern_of(value, kind), kind)


def fold(values: list[float]) -> float:
    """Sum in binary64: add the upper half onto the lower half until one number is left."""
    values = list(values)
    while len(values) > 1:
        half = len(values) // 2
        upper = values[len(values) - half :]
        values = values[: len(values) - half]
        for i in range(half):
            values[i] += upper[i]
    return values[0]


def patterns_hex(patterns: list[int], num_digits: int) -> str:
    """Patterns as numbers, most significant digit first, one after the other."""
    return "".join(f"{pattern:0{num_digits}x}" for pattern in patterns)


class Random:
    """A 64-bit linear congruential generator (Knuth's MMIX constants); its upper bits serve."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def bits(self, num_bits: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return self.state >> (64 - num_bits)

    def bell(self) -> Fraction:
        """A number in -1..1 that is the mean of eight uniform ones: a bell curve, standard deviation 0.2."""
        return Fraction(sum(self.bits(16) for _ in range(8)) - 4 * 65535, 4 * 65535)
