"""Golden vectors of MX2: blocks by the direct cast, and whole matrices as stored."""

from fractions import Fraction

from scalar import BF16, FLOAT32, Random, floor_log2, fold, pattern_of, patterns_hex, rounded, value_of
from tiles import pad, scales_in_order

SIGN = 1 << 31
LEVELS = (1, 3, -1, -3)


def quantize_block(patterns: list[int]) -> tuple[list[int], int]:
    """Codes and scale byte of binary32 patterns."""
    amax = max(abs(value_of(p, FLOAT32)) for p in patterns)
    if amax == 0:
        return [0] * len(patterns), 0
    first = floor_log2(amax)
    best: tuple[list[int], int, float] | None = None
    for candidate in (first - 1, first - 2, first - 3):
        exponent = max(-127, min(126, candidate))
        codes, squares = [], []
        for pattern in patterns:
            scaled = value_of(pattern, FLOAT32) / Fraction(2) ** exponent
            codes.append((pattern >> 31) << 1 | (abs(scaled) > 2))
            difference = float(scaled - LEVELS[codes[-1]])
            squares.append(difference * difference)
        error = fold(squares) * 4.0 ** (exponent - first)
        if best is None or error < best[2]:
            best = codes, exponent + 127, error
    assert best is not None
    return best[:2]


def number(value: str | int | Fraction) -> int:
    return pattern_of(Fraction(value), FLOAT32)


def blocks() -> dict[str, list[int]]:
    """Blocks of up to 32 patterns by name."""
    random = Random(22)
    made = {
        "amax 3.5": [number("3.5"), number(-2), number("2.5"), number("-0.5")],
        "zeros": [0] * 32,
        "zeros of both signs": [0, SIGN] * 16,
        "all of one magnitude": [number(1), number(-1)] * 16,
        "ones and threes": [number(1), number(-3), number(3), number(-1)] * 8,
        "ties at 2 of two scales": [number(3), number(2), number(-2), number(1), *[number("1.25")] * 28],
        "one outlier": [number(100), *[number("0.5"), number("-0.75")] * 15],
        "one negative zero among numbers": [SIGN, number(3), number(-1)] * 10,
        "least subnormal alone": [1],
        "subnormals": [1, 2, 3, SIGN | 5, 0x007FFFFF, 0x00400000],
        "amax 2^-126, where candidates are clamped": [0x00800000, SIGN | 0x00400000] * 16,
        "amax just below a power of two": [0x3F7FFFFF, 0x3F000000] * 16,
        "largest binary32": [0x7F7FFFFF, SIGN | 0x7F7FFFFF, 0x7F000000, SIGN | 0x7E800000] * 8,
    }
    for i in range(8):
        made[f"bell curve {i}"] = [number(rounded(random.bell() * Fraction(10) ** (i - 5), BF16)) for _ in range(32)]
        made[f"any patterns {i}"] = [random.bits(1) << 31 | random.bits(31) % 0x7F800000 for _ in range(32)]
    return {name: patterns + [0] * (32 - len(patterns)) for name, patterns in made.items()}


def packed_hex(codes: list[list[int]]) -> str:
    """64 bytes for 16 rows x 16 columns: byte 4r + j holds columns j, j + 4, j + 8 and j + 12."""
    return "".join(
        f"{sum(codes[top + r][left + 4 * k + j] << 2 * k for k in range(4)):02x}"
        for top in range(0, len(codes), 16)
        for left in range(0, len(codes[0]), 16)
        for r in range(16)
        for j in range(4)
    )


def matrix_case(rows: int, columns: int, random: Random) -> dict:
    """A matrix as the arrays that a draft file stores."""
    values = [[number(rounded(random.bell(), BF16)) for _ in range(columns)] for _ in range(rows)]
    codes, scales = [], []
    for row in pad(values, 16, 32):
        quantized = [quantize_block(row[left : left + 32]) for left in range(0, len(row), 32)]
        codes.append([code for block, _ in quantized for code in block])
        scales.append([scale for _, scale in quantized])
    return {
        "rows": rows,
        "columns": columns,
        "values": [patterns_hex(row, 8) for row in values],
        "codes": packed_hex(codes),
        "scales": patterns_hex(scales_in_order(scales), 2),
    }


def mx2() -> dict:
    cases = []
    for name, patterns in blocks().items():
        codes, scale = quantize_block(patterns)
        decoded = [pattern_of(LEVELS[code] * Fraction(2) ** (scale - 127), FLOAT32) for code in codes]
        cases.append(
            {
                "name": name,
                "values": patterns_hex(patterns, 8),
                "scale": f"{scale:02x}",
                "codes": patterns_hex(codes, 1),
                "decoded": patterns_hex(decoded, 8),
            }
        )
    random = Random(220)
    shapes = [(1, 1), (1, 31), (2, 32), (3, 33), (16, 64), (17, 65)]
    return {"blocks": cases, "matrices": [matrix_case(*shape, random) for shape in shapes]}
