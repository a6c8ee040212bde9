"""The kernels of fragment_product.py, compiled for a GPU that need not be there, and run on the CPU from their PTX."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
from ptx_warp import PtxKernel
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from mxconv.gpu.fragment_product import draft_product, mxfp4_product, patterns_of_rows, product

POINTERS = {
    "codes": "*i32", "residuals": "*i32", "planes": "*u8", "starts": "*i32", "escapes": "*i16", "firsts": "*i32",
    "levels": "*i32", "scales": "*i16", "x": "*bf16", "partial": "*fp32", "out": "*fp32", "counters": "*i32",
    "experts": "*i32", "pairs": "*i32", "places": "*i32", "words": "*i32"
}  # fmt: skip
Constants = tuple[tuple[str, Any], ...]
NO_EXPERTS: Constants = (("experts", None), ("pairs", None), ("places", None))


def _variants() -> dict[str, tuple[Any, Constants]]:
    found: dict[str, tuple[Any, Constants]] = {}
    for kernel in (product, draft_product, mxfp4_product):
        for planes in (0, 1, 4) if kernel is product else (0,):
            own: Constants = (("NUM_PLANES", planes),) if kernel is product else ()
            own += (("planes", None),) if kernel is product and not planes else ()
            for tokens in (8, 16):
                name, both = f"{kernel.__name__} {tokens} tokens, {planes} planes", (*own, ("TOKENS_AT_MOST", tokens))
                found |= {name: (kernel, both + NO_EXPERTS), f"{name}, experts": (kernel, both)}
    draft = (("residuals", None), ("planes", None), ("escapes", None), ("firsts", None))
    found["patterns_of_rows"] = patterns_of_rows, (("IS_DRAFT", False), ("NUM_PLANES", 0), ("planes", None))
    found["patterns_of_rows of a draft"] = patterns_of_rows, (("IS_DRAFT", True), ("NUM_PLANES", 0), *draft)
    return found


VARIANTS = _variants()


@functools.cache
def compiled(
    kernel: Any, constants: Constants, capability: int, is_ragged: bool = False, dtype: torch.dtype = torch.bfloat16
) -> Any:
    """A kernel, as Triton compiles it; with `is_ragged` for columns that are no multiple of 16."""
    names, types, values = kernel.arg_names, dict(POINTERS), dict(constants)
    types["x"] = "*bf16" if dtype == torch.bfloat16 else "*fp16"
    if kernel.__name__.startswith("patterns"):
        types["out"] = "*i16"
    if kernel.__name__.startswith("mxfp4"):
        types["scales"] = "*u8"
    signature = {each: "constexpr" if each in values else types.get(each, "i32") for each in names}
    aligned = [each for each in names if signature[each].startswith("*") or (each == "num_columns" and not is_ragged)]
    attributes = {(names.index(each),): [["tt.divisibility", 16]] for each in aligned}
    source = GluonASTSource(kernel, signature, {(names.index(each),): value for each, value in constants}, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})


@functools.cache
def runnable(kernel: Any, constants: Constants, capability: int, *others: Any) -> PtxKernel:
    """The kernel, to run here."""
    return PtxKernel(compiled(kernel, constants, capability, *others).asm["ptx"])


def launch_here(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Stands in for `fragment_product.launch`, with tensors on the CPU."""
    constants.pop("launch_pdl", None)
    given = dict(zip(kernel.arg_names, arguments, strict=False))
    own = tuple({**constants, **{name: None for name, each in given.items() if each is None}}.items())
    dtype = given["x"].dtype if "x" in given else torch.bfloat16
    compiled_for = 90 if grid[0] % 2 or "RUNG" in constants else 80
    runnable(kernel, own, compiled_for, arguments[-1] % 16 != 0, dtype).run(grid, for_ptx(arguments))


def for_ptx(arguments: Sequence[Any]) -> list[Any]:
    """What a kernel gets here, None left out."""
    return [_for_ptx(each) for each in arguments if each is not None]


def _for_ptx(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    is_16_bits = argument.dtype in (torch.bfloat16, torch.float16)
    found: np.ndarray = (argument.view(torch.int16) if is_16_bits else argument).numpy()
    return found
