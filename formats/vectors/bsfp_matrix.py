"""A BSFP matrix, one weight at a time: nibbles, residuals, escapes, group scales, row shifts, draft."""

from fractions import Fraction

from scalar import BF16, FLOAT32, FP16, fold, infinity, pattern_of, patterns_hex, rounded, value_of
from tiles import bits_hex, bytes_hex, nibbles_hex, pad, scales_in_order, tiles

KINDS = {"BF16": BF16, "F16": FP16}
GROUP = 128
COLUMNS = 32  # padded to a multiple of
LARGEST_BF16 = float.fromhex("0x1.fep127")
EIGHTHS = [float.fromhex(x) for x in ("0x1.172b83c7d517bp+0", "0x1.4bfdad5362a27p+0",
                                      "0x1.8ace5422aa0dbp+0", "0x1.d5818dcfba487p+0")]  # fmt: skip
SHIFT_LIMITS = {"BF16": (-127, 127), "F16": (-80, 64)}


def row_starts(table: dict, shift: int) -> list[int]:
    """The starts of a row with this shift."""
    mantissa_bits = KINDS[table["dtype"]][1]
    if len(table["starts"]) == 1:
        return table["starts"][0]
    octaves, phase = divmod(shift, 8)
    return [start + octaves * (1 << mantissa_bits) for start in table["starts"][phase]]


def encode_weight(pattern: int, starts: list[int], table: dict) -> tuple[int, int, bool]:
    """Nibble, residual, and whether the weight escapes."""
    magnitude = pattern & 0x7FFF
    order = sorted(range(8), key=lambda code: (table["starts"][0][code], code))
    code = order[0]
    for candidate in order[1:]:
        if starts[candidate] <= magnitude:
            code = candidate
    offset = magnitude - starts[code]
    escapes = not 0 <= offset < 1 << table["residual_bits"]
    return pattern >> 15 << 3 | code, offset & 0xFF if escapes else offset, escapes


def finite_value(pattern: int, kind: tuple[int, int]) -> Fraction:
    """The value; 0 for infinities and NaNs."""
    return value_of(pattern, kind) if pattern & 0x7FFF < infinity(kind) else Fraction(0)


def level_of(nibble: int, table: dict) -> float:
    level = float(rounded(Fraction(table["levels"][nibble & 7]), FLOAT32))
    return -level if nibble & 8 else level


def group_scale(patterns: list[int], nibbles: list[int], table: dict) -> int:
    """The BF16 pattern of sum(w * q) / sum(q * q) over up to 128 weights."""
    kind = KINDS[table["dtype"]]
    weights = [float(finite_value(p, kind)) for p in patterns] + [0.0] * (GROUP - len(patterns))
    levels = [level_of(n, table) for n in nibbles] + [0.0] * (GROUP - len(nibbles))
    products = fold([w * q for w, q in zip(weights, levels, strict=True)])
    squares = fold([q * q for q in levels])
    if squares == 0:
        return 0
    quotient = Fraction(min(products / squares, LARGEST_BF16))
    return pattern_of(rounded(quotient, FLOAT32), BF16)


def draft_pattern(nibble: int, scale: int, table: dict) -> int:
    """The binary32 pattern of level times scale; a zero keeps the nibble's sign."""
    product = Fraction(abs(level_of(nibble, table))) * value_of(scale, BF16)
    return pattern_of(product, FLOAT32) | nibble >> 3 << 31


def row_shift(row: list[int], dtype: str) -> int:
    """The shift that mxconv's encoder gives a row: its root mean square in eighths of an octave."""
    squares = [float(finite_value(p, KINDS[dtype])) ** 2 for p in row]
    squares += [0.0] * (-len(squares) % GROUP)
    total = 0.0
    for g in range(0, len(squares), GROUP):
        total += fold(squares[g : g + GROUP])
    mean_square = total / len(row)
    if mean_square == 0:
        return 0
    shift, largest = SHIFT_LIMITS[dtype]
    for s in range(shift + 1, largest + 1):
        octaves, eighths = divmod(2 * s - 1, 8)
        if mean_square >= EIGHTHS[eighths // 2] * 2.0**octaves:
            shift = s
    return shift


def matrix_case(name: str, table: dict, patterns: list[list[int]], shifts: list[int] | None = None) -> dict:
    """A matrix of patterns as the arrays that a package stores."""
    rows, columns = len(patterns), len(patterns[0])
    nibbles, residuals, escaped, scales, drafts = [], [], [], [], []
    for r, row in enumerate(patterns):
        starts = row_starts(table, shifts[r] if shifts else 0)
        encoded = [encode_weight(pattern, starts, table) for pattern in row]
        nibbles.append([nibble for nibble, _, _ in encoded])
        residuals.append([residual for _, residual, _ in encoded])
        escaped.append([int(escapes) for _, _, escapes in encoded])
        scales.append(
            [group_scale(row[g : g + GROUP], nibbles[r][g : g + GROUP], table) for g in range(0, columns, GROUP)]
        )
        drafts.append([draft_pattern(n, scales[r][c // GROUP], table) for c, n in enumerate(nibbles[r])])
    residuals = pad(residuals, 16, COLUMNS)
    escaped_tiles, pattern_tiles = tiles(pad(escaped, 16, COLUMNS)), tiles(pad(patterns, 16, COLUMNS))
    counts, positions, high, offsets = [], [], [], [0]
    tiles_per_row = len(residuals[0]) // 8
    for i, (tile, source) in enumerate(zip(escaped_tiles, pattern_tiles, strict=True)):
        found = [8 * r + c for r in range(16) for c in range(8) if tile[r][c]]
        counts.append(len(found))
        positions += found
        high += [source[p // 8][p % 8] >> 8 for p in found]
        if (i + 1) % tiles_per_row == 0:
            offsets.append(len(positions))
    planes = [[[v >> bit & 1 for v in row] for row in residuals] for bit in range(8, table["residual_bits"])]
    return {
        "name": name,
        "table": table,
        "rows": rows,
        "columns": columns,
        "patterns": [patterns_hex(row, 4) for row in patterns],
        "codes": nibbles_hex(pad(nibbles, 16, COLUMNS)),
        "residual_low": bytes_hex([[v & 0xFF for v in row] for row in residuals]),
        "residual_high": bits_hex(planes) if planes else "",
        "scales": patterns_hex(scales_in_order(pad(scales, 16, 1)), 4),
        "row_shifts": None if shifts is None else shifts + [0] * (-rows % 16),
        "escape_counts": counts,
        "escape_offsets": offsets,
        "escape_positions": positions,
        "escape_high": patterns_hex(high, 2),
        "draft": [patterns_hex(row, 8) for row in drafts],
    }
