"""Golden vectors of MXFP4: blocks under all five scale rules, and whole matrices as stored."""

from fractions import Fraction
from itertools import pairwise

from elements import MAGNITUDES, e2m1_code
from scalar import BF16, FLOAT32, FP16, Random, floor_log2, fold, pattern_of, patterns_hex, rounded, value_of
from tiles import nibbles_hex, pad, scales_in_order

RULES = ("ocp", "even", "ceil", "ggml", "mse")
SIGN = 1 << 31


def quantize_block(patterns: list[int], rule: str) -> tuple[list[int], int]:
    """Codes and scale byte of 32 binary32 patterns."""
    magnitudes = [abs(value_of(p, FLOAT32)) for p in patterns]
    amax = max(magnitudes)
    if amax == 0:
        return [0] * 32, 0
    exponent = floor_log2(amax) - 2
    if rule == "even" and amax >= Fraction(7, 4) * Fraction(2) ** floor_log2(amax):
        exponent += 1
    if rule == "ceil" and amax > 6 * Fraction(2) ** exponent:
        exponent += 1
    if rule != "mse":
        codes, scale, _ = encode(patterns, exponent, "toward zero" if rule == "ggml" else "even")
        return codes, scale
    codes, scale, error = encode(patterns, exponent, "even")
    wider_codes, wider_scale, wider_error = encode(patterns, exponent + 1, "even")
    return (wider_codes, wider_scale) if wider_error * 4.0 < error else (codes, scale)


def encode(patterns: list[int], exponent: int, ties: str) -> tuple[list[int], int, float]:
    """Codes, scale byte, and the squared error in units of the scale (binary64, folded)."""
    exponent = max(-127, min(125, exponent))  # 6 * 2^126 is no binary32
    codes, squares = [], []
    for pattern in patterns:
        scaled = rounded(abs(value_of(pattern, FLOAT32)) / Fraction(2) ** exponent, FLOAT32)
        code = e2m1_code(scaled, ties)
        sign = pattern >> 31 if code or ties == "even" else 0
        codes.append(sign << 3 | code)
        difference = float(scaled) - float(MAGNITUDES[code])
        squares.append(difference * difference)
    return codes, exponent + 127, fold(squares)


def blocks() -> dict[str, list[int]]:
    """Blocks of up to 32 patterns by name."""
    random = Random(4)
    ties = [pattern_of((a + b) / 2, FLOAT32) for a, b in pairwise(MAGNITUDES)]
    near_ties = [bits + step for bits in ties for step in (-1, 0, 1)]
    numbers = [pattern_of(Fraction(n, 4), FLOAT32) for n in range(32)]
    made = {
        "every tie and its neighbours, positive": [*near_ties, pattern_of(Fraction(4), FLOAT32)],
        "every tie and its neighbours, negative": [bits | SIGN for bits in near_ties],
        "zeros": [0] * 32,
        "zeros of both signs": [0, SIGN] * 16,
        "one negative zero among numbers": [SIGN, 0, numbers[4], numbers[4] | SIGN],
        "quarters up to 7.75": numbers,
        "least subnormal alone": [1],
        "subnormals": [1, 2, 3, SIGN | 5, 0x007FFFFF, 0x00400000],
        "amax 2^-126": [0x00800000, 0x00400000, 1],
        "amax just below 2^-125": [0x00FFFFFF, SIGN | 0x00800000, 0x00000100],
        "amax 2^-125, where the scale is no longer clamped": [0x01000000, 0x00800001, SIGN | 0x00400000],
        "amax 2^-124": [0x01800000, 0x01000000, 0x00C00000],
        "amax just below 7": [0x40DFFFFF, numbers[20], numbers[1]],
        "amax 7, where even rounds up": [0x40E00000, numbers[20], numbers[1]],
        "amax 7.5": [numbers[30], numbers[29], numbers[3] | SIGN],
        "amax just below 8": [0x40FFFFFF, 0x40FFFFFF | SIGN, numbers[5]],
        "amax 6, where ceil still fits": [numbers[24], numbers[23], numbers[1]],
        "amax just above 6, where ceil steps": [numbers[24] + 1, numbers[23], numbers[1]],
        "amax a power of two": [0x3F800000, 0x3F000000, SIGN | 0x3E800000],
        "amax just below a power of two": [0x3F7FFFFF, 0x3F000000],
        "largest binary32": [0x7F7FFFFF, SIGN | 0x7F7FFFFF, 0x7F000000, 0x3F800000, 1],
        "largest BF16": [pattern_of(value_of(0x7F7F, BF16), FLOAT32), 0x7E800000],
        "largest FP16": [pattern_of(value_of(0x7BFF, FP16), FLOAT32), pattern_of(Fraction(40000), FLOAT32)],
        "mse: no error either way, the smaller exponent stays": [numbers[16], numbers[8], numbers[4]],
        "mse: 7 is as far from 6 as from 8, the smaller exponent stays": [numbers[28], numbers[28] | SIGN],
        "mse: 7.25 is nearer to 8, one more is better": [numbers[29], numbers[29] | SIGN],
        "mse: small elements keep the smaller exponent": [numbers[26], *([numbers[2]] * 31)],
        "mse: underflow to zero counts as no error": [numbers[16], 1],
    }
    for i in range(6):
        made[f"bell curve {i}"] = [
            pattern_of(rounded(random.bell() * Fraction(10) ** (i - 5), BF16), FLOAT32) for _ in range(32)
        ]
        made[f"any patterns {i}"] = [random.bits(1) << 31 | random.bits(31) % 0x7F800000 for _ in range(32)]
    return {name: patterns + [0] * (32 - len(patterns)) for name, patterns in made.items()}


def matrix_case(rows: int, columns: int, rule: str, random: Random) -> dict:
    """A matrix as the arrays that a package stores."""
    values = [[pattern_of(rounded(random.bell(), BF16), FLOAT32) for _ in range(columns)] for _ in range(rows)]
    codes, scales = [], []
    for row in pad(values, 16, 32):
        quantized = [quantize_block(row[left : left + 32], rule) for left in range(0, len(row), 32)]
        codes.append([code for block, _ in quantized for code in block])
        scales.append([scale for _, scale in quantized])
    return {
        "rows": rows,
        "columns": columns,
        "scale_rule": rule,
        "values": [patterns_hex(row, 8) for row in values],
        "codes": nibbles_hex(codes),
        "scales": patterns_hex(scales_in_order(scales), 2),
    }


def mxfp4() -> dict:
    cases = []
    for name, patterns in blocks().items():
        case = {"name": name, "values": patterns_hex(patterns, 8)}
        for rule in RULES:
            codes, scale = quantize_block(patterns, rule)
            case[rule] = {"scale": f"{scale:02x}", "codes": patterns_hex(codes, 1)}
        cases.append(case)
    random = Random(44)
    shapes = [(1, 1), (1, 31), (2, 32), (3, 33), (16, 64), (17, 65), (1, 172)]
    matrices = [matrix_case(*shape, RULES[i % len(RULES)], random) for i, shape in enumerate(shapes)]
    return {"blocks": cases, "matrices": matrices}
