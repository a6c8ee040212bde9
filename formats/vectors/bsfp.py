"""The cases of bsfp.json: hand-made and paper tables, patterns that try them, and the matrices as stored."""

from fractions import Fraction

from bsfp_matrix import KINDS, matrix_case, row_shift
from scalar import Random, infinity, pattern_of, patterns_hex

NEAR_EDGES = [0x3BFF, 0x3C00, 0x3D3F, 0x3E3F, 0x3E40, 0x3F3F, 0x3F40, 0xBF40]
NEAR_EQUAL_STARTS = [0x3BFF, 0x3C00, 0x3CFF, 0x3D00, 0x3DBF, 0x3E00, 0xBE00, 0x3EFF, 0x3F00]


def order_of_sums() -> list[int]:
    """A row whose scale has another last bit when it is summed from left to right."""
    values = dict.fromkeys((27, 64, 92, 104, 106), Fraction(2) ** -54)
    values |= {10: Fraction(1), 67: Fraction(2) ** -8, 69: Fraction(2) ** -24}
    return [pattern_of(values.get(column, Fraction(0)), KINDS["BF16"]) for column in range(128)]


def paper_table(dtype: str) -> dict:
    """SPEQ's remapping as segments: by code, the first exponent and the exponent of the draft's level."""
    first, draft = (9, 0, 11, 4, 8, 10, 12, 14), (9, 2, 11, 6, 8, 10, 12, 14)
    mantissa_bits, window = (7, 112) if dtype == "BF16" else (10, 0)
    starts = [(window + e) << mantissa_bits for e in first]
    return {
        "dtype": dtype,
        "kind": "paper",
        "residual_bits": mantissa_bits + 2,
        "starts": [starts],
        "levels": [2.0 ** (e - 15) for e in draft],
    }


def hand_table(dtype: str, residual_bits: int, starts: list[list[int]]) -> dict:
    levels = [4.0, 13.0, 24.0, 36.0, 50.0, 67.0, 89.0, 121.0]
    return {"dtype": dtype, "kind": "fitted", "residual_bits": residual_bits, "starts": starts, "levels": levels}


def phases(dtype: str, low: int) -> list[list[int]]:
    """Eight rows of starts, a step of about an eighth of an octave apart; the last two of phase 0 coincide."""
    octave = 1 << KINDS[dtype][1]
    starts = [[low + octave * (8 * k + 4 * p) // 32 for k in range(8)] for p in range(8)]
    starts[0][7] = starts[0][6]
    return starts


def bell_rows(dtype: str, rows: int, columns: int, exponents: list[int], random: Random) -> list[list[int]]:
    kind = KINDS[dtype]
    return [
        [pattern_of(random.bell() * Fraction(2) ** exponents[r % len(exponents)], kind) for _ in range(columns)]
        for r in range(rows)
    ]


def special_patterns(dtype: str) -> list[int]:
    """Zeros, subnormals, the least normal, one, 2.4062, the largest, infinities and NaNs, of both signs."""
    kind = KINDS[dtype]
    top, octave = infinity(kind), 1 << kind[1]
    chosen = [0, 1, octave - 1, octave, pattern_of(Fraction(1), kind), pattern_of(Fraction(24062, 10000), kind)]
    chosen += [top - 1, top, top + 1, 0x7FFF]
    return chosen + [p | 0x8000 for p in chosen]


def row_shift_case(dtype: str, random: Random) -> dict:
    """Rows at every scale with the shift that mxconv's encoder gives them."""
    kind = KINDS[dtype]
    rows = bell_rows(dtype, 24, 5, list(range(-24, 14, 2)), random)
    rows += [[pattern_of(Fraction(x), kind)] * 5 for x in (0, 1, 2, Fraction(1, 2), Fraction(139, 128), 3)]
    rows += [[infinity(kind) - 1] * 5, [1, 0, 0, 0, 0], [infinity(kind), 0x8000, 0x7FFF, 0, 0]]
    wide = bell_rows(dtype, 1, 300, [0], random)
    shifts = [row_shift(row, dtype) for row in rows + wide]
    return {"dtype": dtype, "patterns": [patterns_hex(row, 4) for row in rows + wide], "row_shifts": shifts}


def speq_case(dtype: str) -> dict:
    """SPEQ's stored bits of each exponent of the window, with several mantissas and both signs."""
    mantissa_bits, window = (7, 112) if dtype == "BF16" else (10, 0)
    codes = [
        0b001,
        0b001,
        0b001,
        0b001,
        0b011,
        0b011,
        0b011,
        0b011,
        0b100,
        0b000,
        0b101,
        0b010,
        0b110,
        0b110,
        0b111,
        0b111,
    ]
    flags = [1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]
    patterns, wq, wr = [], [], []
    for exponent in range(16):
        for sign in (0, 1):
            for mantissa in (0, 1, (1 << mantissa_bits) * 2 // 3, (1 << mantissa_bits) - 1):
                patterns.append(sign << 15 | (window + exponent) << mantissa_bits | mantissa)
                wq.append(sign << 3 | codes[exponent])
                wr.append(flags[exponent] << 11 | (exponent & 1) << 10 | mantissa << (10 - mantissa_bits))
    return {
        "dtype": dtype,
        "patterns": patterns_hex(patterns, 4),
        "wq": patterns_hex(wq, 1),
        "wr": patterns_hex(wr, 3),
    }


def bsfp() -> dict:
    random = Random(16)
    narrow = hand_table("BF16", 8, [[0x3C00, 0x3C80, 0x3D00, 0x3D40, 0x3D80, 0x3DC0, 0x3E00, 0x3E40]])
    wide = hand_table("F16", 11, [[0x1C00, 0x2000, 0x2400, 0x2600, 0x2800, 0x2A00, 0x2C00, 0x2E00]])
    narrow_phases, wide_phases = (
        hand_table("BF16", 9, phases("BF16", 0x3E00)),
        hand_table("F16", 10, phases("F16", 0x3400)),
    )
    duplicates = hand_table("BF16", 8, [[0x3C00, 0x3C00, 0x3D00, 0x3D00, 0x3D00, 0x3DC0, 0x3E00, 0x3E00]])
    ones = {**duplicates, "starts": [[0] * 8], "levels": [1.0] * 8}
    cases = [
        matrix_case("one row of one weight, 0.0625", narrow, [[0x3D80]]),
        matrix_case("escapes below and above", narrow, [NEAR_EDGES]),
        matrix_case("special patterns, BF16", paper_table("BF16"), [special_patterns("BF16")]),
        matrix_case("special patterns, F16", paper_table("F16"), [special_patterns("F16")]),
        matrix_case("eleven residual bits", wide, bell_rows("F16", 1, 130, [0], random)),
        matrix_case("equal starts", duplicates, [NEAR_EQUAL_STARTS]),
        matrix_case("the order of sums shows", ones, [order_of_sums()]),
        matrix_case("zeros of both signs", narrow, [[0, 0x8000] * 3, [0x8000, 0] * 3]),
        matrix_case("paper table, BF16", paper_table("BF16"), bell_rows("BF16", 1, 40, [0], random)),
        matrix_case("paper table, F16", paper_table("F16"), bell_rows("F16", 2, 24, [0, -6], random)),
        matrix_case("row shifts of both signs, BF16", narrow_phases,
                    bell_rows("BF16", 6, 9, [0, -3, 2, -10, 5, 1], random), [-19, -42, -3, -98, 21, -11]),
        matrix_case("row shifts of both signs, F16", wide_phases,
                    bell_rows("F16", 3, 10, [0, -4, 3], random), [-18, -51, 8]),
        matrix_case("17 rows of 129", narrow, bell_rows("BF16", 17, 129, [-1, 0, -3], random)),
    ]  # fmt: skip
    return {
        "matrices": cases,
        "row_shifts": [row_shift_case(dtype, random) for dtype in KINDS],
        "speq": [speq_case(dtype) for dtype in KINDS],
    }
