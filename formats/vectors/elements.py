"""Golden vectors of E2M1, E8M0, the vnni8 order and int8 activations."""

from fractions import Fraction
from itertools import pairwise

from scalar import FLOAT32, Random, pattern_of, patterns_hex, rounded, value_of
from tiles import bits_hex, bytes_hex, nibbles_hex, quads_hex, scales_in_order

MAGNITUDES = [Fraction(m) for m in ("0", "0.5", "1", "1.5", "2", "3", "4", "6")]


def e2m1_code(magnitude: Fraction, ties: str) -> int:
    """The code 0..7 of the nearest magnitude; a tie goes to the even code or toward zero."""
    distances = [abs(magnitude - m) for m in MAGNITUDES]
    nearest = [code for code in range(8) if distances[code] == min(distances)]
    if len(nearest) == 2 and ties == "even":
        return nearest[0] if nearest[0] % 2 == 0 else nearest[1]
    return nearest[0]


def e2m1() -> dict:
    values = [pattern_of(m, FLOAT32) for m in MAGNITUDES]
    ties = [pattern_of((a + b) / 2, FLOAT32) for a, b in pairwise(MAGNITUDES)]
    inputs = [0, 1, 0x007FFFFF, 0x00800000]  # zero, the least and largest subnormal, the least normal
    inputs += [bits + step for bits in ties for step in (-1, 0, 1)]
    inputs += values + [pattern_of(Fraction(x), FLOAT32) for x in (7, 8, 1000)] + [0x7F7FFFFF, 0x7F800000]
    inputs += [bits | 1 << 31 for bits in inputs]
    even, toward_zero = [], []
    for bits in inputs:
        magnitude = Fraction(1 << 200) if bits & 0x7FFFFFFF == 0x7F800000 else abs(value_of(bits, FLOAT32))
        sign = bits >> 31 << 3
        even.append(sign | e2m1_code(magnitude, "even"))
        code = e2m1_code(magnitude, "toward zero")
        toward_zero.append(sign | code if code else 0)
    return {
        "values_of_codes": patterns_hex(values + [bits | 1 << 31 for bits in values], 8),
        "values_of_e8m0": patterns_hex([pattern_of(Fraction(2) ** (b - 127), FLOAT32) for b in range(255)], 8),
        "encode": {
            "values": patterns_hex(inputs, 8),
            "ties_to_even": patterns_hex(even, 1),
            "ties_toward_zero": patterns_hex(toward_zero, 1),
        },
    }


def vnni8() -> dict:
    random = Random(8)
    cases = []
    for rows, columns in ((16, 8), (16, 24), (32, 16), (48, 32)):
        nibbles, values, bits, scales = (
            [[random.bits(n) for _ in range(width)] for _ in range(rows)]
            for n, width in ((4, columns), (8, columns), (1, columns), (16, columns // 8))
        )
        cases.append(
            {
                "rows": rows,
                "columns": columns,
                "nibbles": ["".join(f"{code:x}" for code in row) for row in nibbles],
                "nibbles_packed": nibbles_hex(nibbles),
                "bytes": [patterns_hex(row, 2) for row in values],
                "bytes_packed": bytes_hex(values),
                "quads_packed": quads_hex(values),
                "bits": ["".join(map(str, row)) for row in bits],
                "bits_packed": bits_hex([bits]),
                "scales": [patterns_hex(row, 4) for row in scales],
                "scales_packed": patterns_hex(scales_in_order(scales), 4),
            }
        )
    return {"cases": cases}


def int8_block(values: list[Fraction]) -> tuple[list[int], int]:
    """Codes and the pattern of the scale; every operation is rounded to binary32."""
    scale = rounded(max(abs(v) for v in values) / 127, FLOAT32)
    if scale < Fraction(2) ** -126:
        return [0] * len(values), 0
    inverse = rounded(1 / scale, FLOAT32)
    codes = [max(-127, min(127, round(rounded(v * inverse, FLOAT32)))) for v in values]  # half to even
    return codes, pattern_of(scale, FLOAT32)


def int8() -> dict:
    random = Random(32)
    least = Fraction(2) ** -149
    blocks = {
        "zeros": [Fraction(0)] * 32,
        "one large value": [Fraction(0)] * 31 + [Fraction(-1000)],
        "integers and halves": [Fraction(127)] + [Fraction(n, 2) for n in range(-15, 16)],
        "subnormal": [least * n for n in range(32)],
        "scale just below the least normal": [127 * Fraction(2) ** -126 - Fraction(2) ** -142] + [least] * 31,
        "scale at the least normal": [127 * Fraction(2) ** -126, -(Fraction(2) ** -126)] + [least] * 30,
        "a product with the inverse, not a quotient": [
            value_of(pattern, FLOAT32) for pattern in (0x3F8AE8DD, 0x3C52014E, 0x3F0AE8DD, 0x3F78498B, 0x3F7CA992)
        ],
        "largest finite": [value_of(0x7F7FFFFF, FLOAT32), -value_of(0x7F7FFFFF, FLOAT32)] + [Fraction(1)] * 30,
    }
    for i in range(8):
        blocks[f"bell curve {i}"] = [rounded(random.bell() * Fraction(10) ** (i - 4), FLOAT32) for _ in range(32)]
    cases = []
    for name, values in blocks.items():
        values += [Fraction(0)] * (32 - len(values))
        codes, scale = int8_block(values)
        cases.append(
            {
                "name": name,
                "values": patterns_hex([pattern_of(v, FLOAT32) for v in values], 8),
                "codes": codes,
                "scale": f"{scale:08x}",
            }
        )
    return {"cases": cases}
