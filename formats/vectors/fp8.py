"""Golden vectors of FP8 with block scales: every E4M3 value, and a matrix with the BF16 weights that it stands for."""

from fractions import Fraction

from scalar import BF16, FLOAT32, Random, pattern_of, patterns_hex, rounded, value_of

BLOCK = (2, 3)
NAN = 0x7FC00000


def e4m3_value(code: int) -> Fraction:
    """Of a byte that is no NaN; both zeros give 0."""
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = Fraction(mantissa, 8) * Fraction(2) ** -6
    if exponent:
        magnitude = (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    return -magnitude if code >> 7 else magnitude


def weight(code: int, scale: int) -> int:
    """The BF16 pattern of a byte times a binary32 scale; a zero keeps the byte's sign."""
    product = rounded(e4m3_value(code) * value_of(scale, FLOAT32), FLOAT32)
    return pattern_of(product, BF16) or code >> 7 << 15


def fp8() -> dict:
    random = Random(8)
    finite = [code for code in range(256) if code & 0x7F != 0x7F]
    rows, columns = 5, 8  # no whole blocks
    codes = [[finite[random.bits(8) % len(finite)] for _ in range(columns)] for _ in range(rows)]
    scales = [[pattern_of((random.bell() + 2) / 4096, FLOAT32) for _ in range(3)] for _ in range(3)]
    weights = [
        [weight(code, scales[r // BLOCK[0]][c // BLOCK[1]]) for c, code in enumerate(row)]
        for r, row in enumerate(codes)
    ]
    values = [
        NAN if code & 0x7F == 0x7F else pattern_of(e4m3_value(code), FLOAT32) or code >> 7 << 31 for code in range(256)
    ]
    return {
        "values": patterns_hex(values, 8),
        "matrix": {
            "block": list(BLOCK),
            "codes": [patterns_hex(row, 2) for row in codes],
            "scales": [patterns_hex(row, 8) for row in scales],
            "weights": [patterns_hex(row, 4) for row in weights],
        },
    }
