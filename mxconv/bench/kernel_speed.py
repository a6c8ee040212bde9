"""Products of one weight matrix with a few tokens, measured against what the machine can do at that moment.

Each sample is a triple taken within milliseconds: read as many bytes as the matrix has, multiply, and multiply-add in
registers. Fractions are medians of the triples' ratios, so that a machine whose bandwidth changes under way does not
compare one state with another. The matrices rotate among copies that together exceed the last-level cache.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32
from mxconv.bench.machine import last_level_cache_bytes, native_engine
from mxconv.bench.operands import (
    SMALL_SHAPE,
    Operand,
    ProductResult,
    check_alone,
    check_product,
    encoded,
    product_members,
    unfit,
)
from mxconv.bench.rates import PeakArithmetic, ReadBandwidth, seconds_of, spread
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16, FP16
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.engine.matrices import Matrices
from mxconv.kernels import _native
from mxconv.kernels.engine import native_names
from mxconv.kernels.native_matrix import NativeMatrix

FORMS = {  # of the activations that each kernel multiplies
    "bf16": "bf16",
    "fp16": "float",
    "bsfp-full": "bf16",
    "bsfp-draft": "int8",
    "mxint8": "int8",
    "mxfp4-int8": "int8",
    "mxfp4-fp32": "float",
}
KERNELS = tuple(FORMS)
FORMATS = {"bf16": BF16, "fp16": FP16}
NUM_WARMUPS = 3
CACHE_MULTIPLE = 4  # the copies of a matrix together are at least this many last-level caches
MAX_COPIES = 64
PAGE_BYTES = 4096

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


def make_operand(kernel: str, shape: tuple[int, int]) -> NativeOperand:
    """Gaussian weights for one of `KERNELS`, the same for the same shape."""
    stored, slab = encoded(kernel, shape)
    target = {"bsfp-full": BF16, **FORMATS}.get(kernel)
    patterns = None if target is None else target.encode(slab)
    num_bytes = _num_bytes(kernel, stored)
    return Operand(kernel, FORMS[kernel], shape, num_bytes, slab, lambda: _matrix(kernel, _on_pages(stored)), patterns)


def _num_bytes(kernel: str, stored: Any) -> int:
    """Bytes that one product reads."""
    if kernel in FORMATS:
        return int(stored.nbytes)
    if kernel == "bsfp-full":  # without the draft's scales, but with a table of segments' starts for each row
        return int(stored.num_bytes - stored.packed.scales.nbytes + 16 * stored.shape[0])
    codes = stored.elements if kernel == "mxint8" else getattr(stored, "packed", stored).codes
    return int(codes.nbytes + getattr(stored, "packed", stored).scales.nbytes)


def _matrix(kernel: str, stored: Any) -> _native.Matrix:
    """A native matrix over stored arrays, which any engine can multiply."""
    engine = native_engine(native_names()[0], 1)
    matrices = Matrices(engine, "fp32" if kernel == "mxfp4-fp32" else "int8")
    match kernel:
        case "bf16" | "fp16":
            made = matrices.dense(stored, FORMATS[kernel])
        case "bsfp-full":
            made = matrices.bsfp(stored, kernel)
        case "bsfp-draft":
            made = matrices.bsfp_draft(stored)
        case "mxint8":
            made = matrices.mxint8_draft(stored)
        case _:
            made = matrices.mxfp4_draft(stored)
    assert isinstance(made, NativeMatrix)
    return made.handle


def _on_pages(stored: Any) -> Any:
    """Copy an array, or all arrays of a record, each to the beginning of a page, as in a mapped file."""
    if is_dataclass(stored) and not isinstance(stored, type | SegmentTable):
        return replace(stored, **{each.name: _on_pages(getattr(stored, each.name)) for each in fields(stored)})
    if not isinstance(stored, np.ndarray):
        return stored
    memory = np.empty(stored.nbytes + PAGE_BYTES, np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    copied: NDArray[Any] = memory[begin : begin + stored.nbytes].view(stored.dtype).reshape(stored.shape)
    copied[...] = stored
    return copied


def _activations(rng: np.random.Generator, num_tokens: int, in_features: int) -> F32:
    return rng.standard_normal((num_tokens, in_features)).astype(np.float32)
