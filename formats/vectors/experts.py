"""Golden vectors of stacked experts: two stacks of a layer, their matrices one below the other in every array."""

from bsfp import paper_table
from bsfp_matrix import matrix_case
from mxfp4 import quantize_block
from scalar import BF16, Random, pattern_of, patterns_hex
from tiles import nibbles_hex, pad, scales_in_order

NUM_EXPERTS, HIDDEN_SIZE, EXPERT_SIZE = 3, 33, 9  # neither whole tiles nor whole blocks


def mxfp4_arrays(matrices: list[list[list[int]]]) -> dict:
    """Codes and scales of BF16 matrices under the rule `ocp`."""
    codes, scales = [], []
    for matrix in matrices:
        for row in pad(matrix, 16, 32):
            quantized = [
                quantize_block([pattern << 16 for pattern in row[left : left + 32]], "ocp")
                for left in range(0, len(row), 32)
            ]
            codes.append([code for block, _ in quantized for code in block])
            scales.append([scale for _, scale in quantized])
    return {"codes": nibbles_hex(codes), "scales": patterns_hex(scales_in_order(scales), 2)}


def bsfp_arrays(matrices: list[list[list[int]]]) -> dict:
    """The arrays under the paper's table, which needs no fit."""
    joined: dict = {}
    for matrix in matrices:
        case = matrix_case("expert", paper_table("BF16"), matrix)
        ends = joined.get("escape_offsets", [0])
        joined["escape_offsets"] = ends + [ends[-1] + offset for offset in case["escape_offsets"][1:]]
        for name in ("codes", "residual_low", "residual_high", "scales", "escape_high"):
            joined[name] = joined.get(name, "") + case[name]
        for name in ("escape_counts", "escape_positions"):
            joined[name] = joined.get(name, []) + case[name]
    return joined


def stack(rows: int, columns: int, random: Random) -> dict:
    """Experts as matrices (out_features, in_features), and what is stored of them, whichever way they lie."""
    matrices = [
        [[pattern_of(random.bell() / 4**expert, BF16) for _ in range(columns)] for _ in range(rows)]
        for expert in range(NUM_EXPERTS)
    ]
    return {
        "experts": [[patterns_hex(row, 4) for row in matrix] for matrix in matrices],
        "mxfp4": mxfp4_arrays(matrices),
        "bsfp": bsfp_arrays(matrices),
    }


def experts() -> dict:
    random = Random(77)
    return {
        "gate_up_proj": stack(2 * EXPERT_SIZE, HIDDEN_SIZE, random),
        "down_proj": stack(HIDDEN_SIZE, EXPERT_SIZE, random),
    }
