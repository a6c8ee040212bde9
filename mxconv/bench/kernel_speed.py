"""Products of one weight matrix with a few tokens, measured against what the machine can do at that moment.

Each sample is a triple taken within milliseconds: read as many bytes as the matrix has, multiply, and multiply-add in
registers. Fractions are medians of the triples' ratios, so that a machine whose bandwidth changes under way does not
compare one state with another. The matrices rotate among copies that together exceed the last-level cache.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I8
from mxconv.bench.machine import last_level_cache_bytes, native_engine
from mxconv.bench.operands import (
    SMALL_SHAPE,
    BsfpSlab,
    Operand,
    ProductResult,
    bsfp_slab,
    check_alone,
    check_product,
    gaussian_slab,
    mxfp4_slab,
    mxint8_slab,
    product_members,
    repeat,
    repeat_bsfp,
    repeat_rows,
    unfit,
)
from mxconv.bench.rates import PeakArithmetic, ReadBandwidth, seconds_of, spread
from mxconv.codecs.bsfp.draft import GROUP
from mxconv.codecs.bsfp.packing import decode_bsfp, decode_bsfp_draft, escape_offsets
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.float16 import BF16, FP16
from mxconv.codecs.vnni8 import TILE_ROWS, padded
from mxconv.kernels import _native

KERNELS = ("bf16", "fp16", "bsfp-full", "bsfp-draft", "mxint8", "mxfp4-int8", "mxfp4-fp32")
NUM_WARMUPS = 3
CACHE_MULTIPLE = 4  # the copies of a matrix together are at least this many last-level caches
MAX_COPIES = 64
PAGE_BYTES = 4096

Arrays = dict[str, NDArray[Any]]
NativeOperand = Operand[_native.Matrix]


@dataclass(frozen=True, kw_only=True)
class KernelResult(ProductResult):
    """A row of the CPU's table, against both bounds of the roofline."""

    compute_peak: float  # beside it, giga multiply-adds a second
    fraction_of_roofline: float  # max(bytes / bandwidth, work / peak) over time


def bench_kernels(
    kernels: Sequence[str],
    names: Sequence[str],
    num_tokens: Sequence[int],
    shape: tuple[int, int],
    num_threads: int,
    num_samples: int,
) -> Iterator[KernelResult]:
    """Measure each kernel x implementation x width, exactness first.

    Raises:
        MxconvError: a kernel computes something else than its bytes mean.
    """
    engines = [native_engine(name, num_threads) for name in names]
    rng = np.random.default_rng(1)
    rotated_bytes = CACHE_MULTIPLE * last_level_cache_bytes()
    for kernel in kernels:
        small, operand = make_operand(kernel, SMALL_SHAPE), make_operand(kernel, shape)
        for engine in engines:
            for width in num_tokens:
                check_exactness(small, small.copy(), engine, _activations(rng, width, SMALL_SHAPE[1]))
        num_copies = min(max(-(-rotated_bytes // operand.num_bytes), 2), MAX_COPIES)
        copies = [operand.copy() for _ in range(num_copies)]
        for engine in engines:
            bandwidth = ReadBandwidth(engine, max(rotated_bytes, operand.num_bytes))
            peak = PeakArithmetic(engine, operand.form)
            for width in num_tokens:
                x = _activations(rng, width, shape[1])
                check_exactness(operand, copies[0], engine, x)
                out = np.empty((width, shape[0]), np.float32)
                products = [partial(matrix.multiply, engine, x, out) for matrix in copies]
                samples = _measure(products, operand.num_bytes, bandwidth, peak, num_samples)
                yield summarize(operand, engine.name, width, samples)


def _measure(
    products: Sequence[Callable[[], object]],
    num_bytes: int,
    bandwidth: ReadBandwidth,
    peak: PeakArithmetic,
    num_samples: int,
) -> list[tuple[float, float, float]]:
    """Seconds, bytes a second and multiply-adds a second, within a few milliseconds."""
    samples = []
    for index in range(NUM_WARMUPS + num_samples):
        rate = bandwidth.sample(num_bytes)
        samples.append((seconds_of(products[index % len(products)]), rate, peak.sample()))
    return samples[NUM_WARMUPS:]


def summarize(
    operand: NativeOperand, implementation: str, num_tokens: int, samples: Sequence[tuple[float, float, float]]
) -> KernelResult:
    """Medians of the samples (seconds, bytes a second, multiply-adds a second), and of their ratios."""
    num_bytes, work = operand.num_bytes, num_tokens * operand.shape[0] * operand.shape[1]
    bound = [max(num_bytes / rate, work / peak) / seconds for seconds, rate, peak in samples]
    return KernelResult(
        **product_members(operand, implementation, num_tokens, [(seconds, rate) for seconds, rate, _ in samples]),
        compute_peak=spread([peak for *_, peak in samples]).median / 1e9,
        fraction_of_roofline=spread(bound).median,
    )


def check_exactness(operand: NativeOperand, matrix: _native.Matrix, engine: _native.Engine, x: F32) -> None:
    """Compare a native product with float64 arithmetic on the weights that NumPy decodes.

    16-bit patterns must also come back bit for bit, and a row of a target must have the same bits alone as among
    others.

    Raises:
        MxconvError: a result is wrong.
    """

    def product(rows: slice = slice(None)) -> F32:
        out = np.full((len(x[rows]), operand.shape[0]), np.nan, np.float32)
        matrix.multiply(engine, x[rows], out)
        return out

    name, out = f"{operand.kernel} ({engine.name})", product()
    check_product(name, operand, operand.form, x, out)
    if operand.patterns is None:
        return
    rebuilt = np.empty((min(TILE_ROWS, operand.shape[0]), operand.shape[1]), np.uint16)
    matrix.patterns(engine, 0, rebuilt)
    if not np.array_equal(rebuilt, operand.patterns[: len(rebuilt)]):
        raise unfit(f"{name}: 16-bit weights differ from the source's; the same bits are required")
    check_alone(name, out, product)


def make_operand(kernel: str, shape: tuple[int, int], seed: int = 0) -> NativeOperand:
    """Gaussian weights for one of `KERNELS`, the same for the same shape and seed."""
    values, rows = gaussian_slab(shape, seed), shape[0]
    form, levels = "int8", DOUBLED
    patterns = None
    if kernel in ("bf16", "fp16"):
        float_format = BF16 if kernel == "bf16" else FP16
        form, patterns = "bf16" if kernel == "bf16" else "float", float_format.encode(values)
        slab, arrays = float_format.decode(patterns), {"patterns": repeat_rows(patterns, rows)}
    elif kernel.startswith("mx"):
        form = "float" if kernel == "mxfp4-fp32" else "int8"
        encoded = mxint8_slab(values) if kernel == "mxint8" else mxfp4_slab(values)
        slab, arrays = encoded.weights, {"codes": repeat(encoded.codes, rows), "scales": repeat(encoded.scales, rows)}
    else:
        bsfp, size = bsfp_slab(values), (len(values), shape[1])
        packed, table = bsfp.packed, bsfp.table
        if kernel == "bsfp-full":
            form, patterns = "bf16", bsfp.patterns
            slab, arrays = BF16.decode(decode_bsfp(packed, table, size)), _bsfp_arrays(bsfp, rows)
        else:
            assert table.has_int8_levels and packed.scales.shape[1] == padded(shape[1], GROUP) // GROUP
            levels, slab = table.signed_levels.astype(np.int8), decode_bsfp_draft(packed, table, size)
            arrays = {"codes": repeat(packed.codes, rows), "scales": repeat(packed.scales, rows)}

    def copy() -> _native.Matrix:
        return _matrix(kernel, shape, levels, [_on_pages(array) for array in arrays.values()])

    num_bytes = sum(array.nbytes for array in arrays.values())
    return Operand(kernel, form, shape, num_bytes, slab, copy, patterns, arrays)


def _matrix(kernel: str, shape: tuple[int, int], levels: I8, arrays: Sequence[NDArray[Any]]) -> _native.Matrix:
    """A native matrix over such arrays; 4-bit codes mean `levels` times their scales."""
    match kernel:
        case "bf16" | "fp16":
            return _native.dense(arrays[0], "BF16" if kernel == "bf16" else "F16")
        case "bsfp-full":
            return _native.bsfp(*shape, "BF16", *arrays)
        case "mxint8":
            return _native.mxint8(*shape, *arrays)
    codes, scales = arrays
    if kernel == "mxfp4-fp32":
        return _native.four_bit_float(*shape, codes, levels.astype(np.float32), scales, 0.5)
    return _native.four_bit_int8(*shape, codes, levels, scales, 1.0 if kernel == "bsfp-draft" else 0.5)


def _bsfp_arrays(slab: BsfpSlab, num_rows: int) -> Arrays:
    """All that a product with 16-bit weights reads: everything but the scales."""
    packed = repeat_bsfp(slab.packed, num_rows)
    starts = slab.table.row_starts(len(slab.packed.codes) * TILE_ROWS, slab.packed.row_shifts).astype(np.uint16)
    return {
        "codes": packed.codes,
        "residual_low": packed.residual_low,
        "residual_high": packed.residual_high,
        "starts": repeat_rows(starts, padded(num_rows, TILE_ROWS)),
        "escape_counts": packed.escape_counts,
        "escape_offsets": escape_offsets(packed),
        "escape_positions": packed.escape_positions,
        "escape_high": packed.escape_high,
    }


def _on_pages(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that begins on a page boundary, as in a mapped file."""
    memory = np.empty(array.nbytes + PAGE_BYTES, np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    copied: NDArray[Any] = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def _activations(rng: np.random.Generator, num_tokens: int, in_features: int) -> F32:
    return rng.standard_normal((num_tokens, in_features)).astype(np.float32)
