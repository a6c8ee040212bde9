"""The kernels compile for GPUs that need not be there: what the interpreter takes, the compiler need not.

A process without the interpreter compiles all of them, and prints how many: python tests/gpu/test_compiled.py 80 90
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mxconv.gpu import bsfp_product, four_bit_product, launch

BSFP = {"codes": "*i32", "low": "*i64", "high": "*u8", "starts": "*i32", "hits": "*i32", "firsts": "*i16",
        "split_firsts": "*i64", "words": "*i32"}  # fmt: skip
MXFP4 = {"codes": "*i32", "levels": "*i32", "scales": "*u8"}
SUMS = {"partial": "*fp32", "out": "*fp32"}
ALONE = {"experts": None, "pairs": None, "places": None, "PER_ROW": 0}
STACK = {"experts": "*i32", "pairs": "*i32", "places": "*i32"}

KERNELS: list[tuple[Any, dict[str, str], dict[str, Any]]] = [
    (bsfp_product._rebuild, BSFP | {"out": "*i16"}, {"NUM_PLANES": 1, "HAS_ROW_STARTS": True}),
    (
        bsfp_product._product,
        BSFP | SUMS | {"x": "*bf16"},
        {"NUM_PLANES": 0, "HAS_ROW_STARTS": True, "IS_BF16": True, "OPERAND": tl.bfloat16} | ALONE,
    ),
    (
        bsfp_product._product,
        BSFP | SUMS | STACK | {"x": "*bf16"},
        {"NUM_PLANES": 1, "HAS_ROW_STARTS": True, "IS_BF16": True, "OPERAND": tl.bfloat16, "PER_ROW": 8},
    ),
    (
        bsfp_product._product,
        BSFP | SUMS | {"x": "*fp16"},
        {"NUM_PLANES": 4, "HAS_ROW_STARTS": False, "IS_BF16": False, "OPERAND": tl.float16} | ALONE,
    ),
    (four_bit_product._product, MXFP4 | SUMS | {"x": "*bf16"}, {"IS_E8M0": True, "OPERAND": tl.bfloat16} | ALONE),
    (
        four_bit_product._product,
        MXFP4 | SUMS | STACK | {"x": "*bf16"},
        {"IS_E8M0": True, "OPERAND": tl.bfloat16, "PER_ROW": 1},
    ),
    (
        four_bit_product._product,
        MXFP4 | SUMS | {"scales": "*i16", "x": "*bf16"},
        {"IS_E8M0": False, "OPERAND": tl.bfloat16} | ALONE,
    ),
    (four_bit_product._dequantize, MXFP4 | SUMS, {"IS_E8M0": True}),
    (launch._add_splits, SUMS, {}),
]


@pytest.mark.parametrize("capability", ["80", "90"])
def test_every_kernel_compiles_to_machine_code(capability: str, tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, __file__, capability]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{len(KERNELS)}\n"


def compile_all(capability: int) -> None:
    for kernel, pointers, constants in KERNELS:
        names = kernel.arg_names
        signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
        places = {(names.index(name),): value for name, value in constants.items()}
        own = [name for name in pointers if name in names and name not in constants]
        aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in own}
        source = ASTSource(kernel, signature, constexprs=places, attrs=aligned)
        options = bsfp_product.OPTIONS if "low" in names else {"num_warps": launch.NUM_WARPS}
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert compiled.asm["cubin"]
        assert "ld.global.v2.b32" not in compiled.asm["ptx"], "patches lie apart, whatever their places are declared"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        compile_all(int(argument))
    print(len(KERNELS))
