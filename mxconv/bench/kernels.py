"""Products of one weight matrix with a few tokens, measured against what the machine can do at that moment.

Each sample is a triple taken within milliseconds: read as many bytes as the matrix has, multiply, and multiply-add in
registers. Fractions are medians of the triples' ratios, so that a machine whose bandwidth changes under way does not
compare one state with another. The matrices rotate among copies that together exceed the last-level cache.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from mxconv.bench.exactness import check_exactness
from mxconv.bench.kernel_result import KernelResult, Sample, summarize
from mxconv.bench.machine import last_level_cache_bytes
from mxconv.bench.operands import Operand, make_operand
from mxconv.bench.rates import PeakArithmetic, ReadBandwidth, seconds_of
from mxconv.kernels import _native

SMALL_SHAPE = (72, 416)  # partial tiles of rows, partial groups of columns
NUM_WARMUPS = 3
CACHE_MULTIPLE = 4  # the copies of a matrix together are at least this many last-level caches
MAX_COPIES = 64


def bench_kernels(
    kernels: Sequence[str],
    implementations: Sequence[str],
    num_tokens: Sequence[int],
    shape: tuple[int, int],
    num_threads: int,
    num_samples: int,
) -> Iterator[KernelResult]:
    """Measure each kernel x implementation x width, exactness first.

    Raises:
        MxconvError: a kernel computes something else than its bytes mean.
    """
    engines = [_native.Engine(name, num_threads) for name in implementations]
    rng = np.random.default_rng(1)
    rotated_bytes = CACHE_MULTIPLE * last_level_cache_bytes()
    for kernel in kernels:
        small = make_operand(kernel, SMALL_SHAPE)
        operand = make_operand(kernel, shape)
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
                samples = _measure(operand, copies, engine, x, bandwidth, peak, num_samples)
                yield summarize(operand, engine.name, width, samples)


def _measure(
    operand: Operand,
    copies: Sequence[_native.Matrix],
    engine: _native.Engine,
    x: np.ndarray,
    bandwidth: ReadBandwidth,
    peak: PeakArithmetic,
    num_samples: int,
) -> list[Sample]:
    out = np.empty((len(x), operand.shape[0]), np.float32)
    samples = []
    for index in range(NUM_WARMUPS + num_samples):
        matrix = copies[index % len(copies)]
        rate = bandwidth.sample(operand.num_bytes)
        seconds = seconds_of(lambda: matrix.multiply(engine, x, out))  # noqa: B023  # called at once
        sample = Sample(seconds, rate, peak.sample())
        if index >= NUM_WARMUPS:
            samples.append(sample)
    return samples


def _activations(rng: np.random.Generator, num_tokens: int, in_features: int) -> np.ndarray:
    return rng.standard_normal((num_tokens, in_features)).astype(np.float32)
