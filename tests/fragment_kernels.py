"""The kernels of fragment_product.py, compiled for a GPU that need not be there, and run on the CPU from their PTX."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from ptx_warp import PtxKernel
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from mxconv.gpu import fragment_product

POINTERS = {
    "codes": "*i32", "residuals": "*i32", "starts": "*i32", "escapes": "*i16", "firsts": "*i32", "levels": "*i32",
    "scales": "*i16", "x": "*bf16", "partial": "*fp32", "out": "*fp32", "counters": "*i32", "experts": "*i32",
    "pairs": "*i32", "places": "*i32", "words": "*i32"
}  # fmt: skip
DRAFT_ROWS = (("IS_DRAFT", True), ("residuals", None), ("escapes", None), ("firsts", None))
ALONE = (("experts", None), ("pairs", None), ("places", None))
KERNELS: dict[str, tuple[tuple[str, Any], ...]] = {
    "product 8": (*ALONE, ("TOKENS_AT_MOST", 8)),
    "product 8 of experts": (("TOKENS_AT_MOST", 8),),
    "product 16": (*ALONE, ("TOKENS_AT_MOST", 16)),
    "product 16 of experts": (("TOKENS_AT_MOST", 16),),
    "draft_product 8": (*ALONE, ("TOKENS_AT_MOST", 8)),
    "draft_product 8 of experts": (("TOKENS_AT_MOST", 8),),
    "draft_product 16": (*ALONE, ("TOKENS_AT_MOST", 16)),
    "draft_product 16 of experts": (("TOKENS_AT_MOST", 16),),
    "mxfp4_product 8": (*ALONE, ("TOKENS_AT_MOST", 8)),
    "mxfp4_product 8 of experts": (("TOKENS_AT_MOST", 8),),
    "mxfp4_product 16": (*ALONE, ("TOKENS_AT_MOST", 16)),
    "mxfp4_product 16 of experts": (("TOKENS_AT_MOST", 16),),
    "patterns_of_rows": (("IS_DRAFT", False),),
    "patterns_of_rows draft": DRAFT_ROWS,
}

PATCHED = (tl, tl.core, tl.math, tl.core.tensor, tl.core.tensor_descriptor_base)
LANGUAGE = [(each, dict(vars(each))) for each in PATCHED]  # test modules are imported before any test runs


def _restore_language() -> None:
    """Put back what Triton 3.7's interpreter replaces, and leaves so where a kernel called a function of another one.

    The compiler would call the replacements, so a kernel would not compile after an interpreted one in a process.
    """
    for owner, members in LANGUAGE:
        for name in set(vars(owner)) - set(members):
            delattr(owner, name)
        for name, member in members.items():
            if vars(owner)[name] is not member:
                setattr(owner, name, member)


@functools.cache
def compiled(name: str, capability: int, is_ragged: bool = False) -> Any:
    """A kernel of `KERNELS`, as Triton compiles it; with `is_ragged` for columns that are no multiple of 16."""
    return compiled_kernel(getattr(fragment_product, name.split()[0]), name, dict(KERNELS[name]), capability, is_ragged)


def compiled_kernel(kernel: Any, name: str, constants: dict[str, Any], capability: int, is_ragged: bool = False) -> Any:
    """A kernel in Gluon, with these constants."""
    _restore_language()
    names, types = kernel.arg_names, dict(POINTERS)
    if name.startswith("patterns"):
        types["out"] = "*i16"
    if name.startswith("mxfp4"):
        types["scales"] = "*u8"
    signature = {each: "constexpr" if each in constants else types.get(each, "i32") for each in names}
    aligned = [each for each in names if signature[each].startswith("*") or (each == "num_columns" and not is_ragged)]
    attributes = {(names.index(each),): [["tt.divisibility", 16]] for each in aligned}
    values = {(names.index(each),): value for each, value in constants.items()}
    source = GluonASTSource(kernel, signature, values, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})


@functools.cache
def runnable(name: str, capability: int, is_ragged: bool = False) -> PtxKernel:
    """The kernel, to run here."""
    return PtxKernel(compiled(name, capability, is_ragged).asm["ptx"])


def launch_here(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Stands in for `fragment_product.launch`, with tensors on the CPU."""
    name, value = kernel.__name__, next(iter(constants.values()))
    if name == "patterns_of_rows":
        name += " draft" if value else ""
    else:
        has_experts = arguments[kernel.arg_names.index("experts")] is not None
        name += f" {value}" + (" of experts" if has_experts else "")
    kernel = runnable(name, 90 if grid[0] % 2 else 80, arguments[-1] % 16 != 0)
    kernel.run(grid, for_ptx(arguments))


def for_ptx(arguments: Sequence[Any]) -> list[Any]:
    """What a kernel gets here, None left out."""
    return [_for_ptx(each) for each in arguments if each is not None]


def _for_ptx(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    found: np.ndarray = (argument.view(torch.int16) if argument.dtype == torch.bfloat16 else argument).numpy()
    return found
