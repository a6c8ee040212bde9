"""Golden vectors of MXINT8: blocks, and whole matrices as stored."""

from fractions import Fraction

from scalar import BF16, FLOAT32, FP16, Random, floor_log2, pattern_of, patterns_hex, rounded, value_of
from tiles import pad, quads_hex, scales_in_order

SIGN = 1 << 31


def quantize_block(patterns: list[int]) -> tuple[list[int], int]:
    """Elements and scale byte of binary32 patterns."""
    values = [value_of(p, FLOAT32) for p in patterns]
    amax = max(abs(v) for v in values)
    if amax == 0:
        return [0] * len(values), 0
    exponent = max(-127, min(127, floor_log2(amax)))
    steps = Fraction(2) ** (exponent - 6)
    return [max(-127, min(127, round(v / steps))) for v in values], exponent + 127  # half to even


def number(value: str | int | Fraction) -> int:
    return pattern_of(Fraction(value), FLOAT32)


def blocks() -> dict[str, list[int]]:
    """Blocks of up to 32 patterns by name."""
    random = Random(88)
    made = {
        "amax 1.5": [number("1.5"), number("-1.9921875"), number("0.0078125"), number("0.0234375"), SIGN],
        "zeros": [0] * 32,
        "zeros of both signs": [0, SIGN] * 16,
        "least subnormal alone": [1],
        "subnormals": [1, 2, 3, SIGN | 5, 0x007FFFFF, 0x00400000],
        "amax 2^-133, the least BF16": [0x00010000, SIGN | 0x00010000],
        "amax 2^-128, where the scale is clamped": [0x00200000, SIGN | 0x00200000, 0x00010000],
        "amax 2^-127": [0x00400000, 0x00200001, SIGN | 0x00008000],
        "amax 2^-126, the least normal": [0x00800000, 0x00400000, 1],
        "amax just below a power of two": [0x3F7FFFFF, 0x3F000000],
        "amax a power of two": [0x3F800000, 0x3F000000, SIGN | 0x3E800000],
        "largest binary32": [0x7F7FFFFF, SIGN | 0x7F7FFFFF, 0x7F000000, 0x3F800000, 1],
        "largest BF16": [pattern_of(value_of(0x7F7F, BF16), FLOAT32), 0x7E800000],
        "largest FP16": [pattern_of(value_of(0x7BFF, FP16), FLOAT32), number(40000)],
    }
    for first in range(0, 128, 31):  # with 1 beside them, so that X is 1
        ties = [number(Fraction(2 * k + 1, 128)) for k in range(first, min(first + 31, 127))]
        made[f"ties from {first}.5"] = [number(1), *ties]
        made[f"ties from -{first}.5, a bit more"] = [number(1), *((t | SIGN) + 1 for t in ties)]
    for i in range(6):
        made[f"bell curve {i}"] = [number(rounded(random.bell() * Fraction(10) ** (i - 5), BF16)) for _ in range(32)]
        made[f"any patterns {i}"] = [random.bits(1) << 31 | random.bits(31) % 0x7F800000 for _ in range(32)]
    return {name: patterns + [0] * (32 - len(patterns)) for name, patterns in made.items()}


def matrix_case(rows: int, columns: int, random: Random) -> dict:
    """A matrix as the arrays that a package stores."""
    values = [[number(rounded(random.bell(), BF16)) for _ in range(columns)] for _ in range(rows)]
    elements, scales = [], []
    for row in pad(values, 16, 32):
        quantized = [quantize_block(row[left : left + 32]) for left in range(0, len(row), 32)]
        elements.append([element for block, _ in quantized for element in block])
        scales.append([scale for _, scale in quantized])
    return {
        "rows": rows,
        "columns": columns,
        "values": [patterns_hex(row, 8) for row in values],
        "elements": quads_hex([[element & 0xFF for element in row] for row in elements]),
        "scales": patterns_hex(scales_in_order(scales), 2),
    }


def mxint8() -> dict:
    cases = []
    for name, patterns in blocks().items():
        elements, scale = quantize_block(patterns)
        decoded = [pattern_of(Fraction(e, 64) * Fraction(2) ** (scale - 127), BF16) for e in elements]
        cases.append(
            {
                "name": name,
                "values": patterns_hex(patterns, 8),
                "scale": f"{scale:02x}",
                "elements": elements,
                "bf16": patterns_hex(decoded, 4),
            }
        )
    random = Random(880)
    shapes = [(1, 1), (1, 31), (2, 32), (3, 33), (16, 64), (17, 65)]
    return {"blocks": cases, "matrices": [matrix_case(*shape, random) for shape in shapes]}
