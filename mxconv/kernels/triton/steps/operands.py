"""What matrix instructions multiply: 16-bit patterns as numbers, and activations."""

import triton
import triton.language as tl


@triton.jit
def weights_of(patterns: tl.tensor, IS_BF16: tl.constexpr, OPERAND: tl.constexpr) -> tl.tensor:
    """int16 patterns as the numbers that they are, exactly, in the operands' type."""
    if IS_BF16 and OPERAND is tl.bfloat16:
        numbers = patterns.to(tl.bfloat16, bitcast=True)
    elif IS_BF16:
        numbers = (patterns.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        numbers = patterns.to(tl.float16, bitcast=True).to(OPERAND)
    return numbers


@triton.jit
def activations(x, row, is_there, first_column, WIDTH: tl.constexpr, num_columns, OPERAND: tl.constexpr):
    """(WIDTH, MAX_TOKENS): these rows of `x`, (rows, num_columns); zeros where a row is not there, and beyond them."""
    column = first_column + tl.arange(0, WIDTH)[:, None]
    return tl.load(x + row * num_columns + column, mask=is_there & (column < num_columns), other=0).to(OPERAND)
